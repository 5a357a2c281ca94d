package redistest

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// QueueFields returns the fields of a lock's record that describe the waiters. A record without waiters is a string, or
// a hash without such fields.
func QueueFields(ctx context.Context, rdb redis.UniversalClient, name string) ([]string, error) {
	kind, err := rdb.Type(ctx, name).Result()
	if err != nil || kind != "hash" {
		return nil, err
	}
	fields, err := rdb.HKeys(ctx, name).Result()
	return slices.DeleteFunc(fields, func(f string) bool { return f == "s" || f == "memo" }), err
}
