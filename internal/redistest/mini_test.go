package redistest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMiniServerListens(t *testing.T) {
	m := MiniServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if b := MiniBackend(); !strings.HasPrefix(b, "miniredis 2.") {
		t.Errorf("MiniBackend() = %q, want a version", b)
	}
}

func TestMiniExpiresByTheClockOfItsBubble(t *testing.T) {
	for i := range 2 { // a leftover of the first bubble would break the second
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb := MiniClient(t, Mini(t))
				ctx := context.Background()
				if err := rdb.Set(ctx, "k", "v", time.Hour).Err(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour - time.Second)
				if err := rdb.Get(ctx, "k").Err(); err != nil {
					t.Errorf("a second before its time: %v", err)
				}
				time.Sleep(2 * time.Second)
				if err := rdb.Get(ctx, "k").Err(); err != redis.Nil {
					t.Errorf("a second after its time: %v, want redis.Nil", err)
				}
			})
		})
	}
}
