package redisstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// sealKeys returns the Redis key of the seal keys. That key begins with the prefix, so the ACL pattern of
// the locks also covers the seal keys. No lock has this name: package joblock reserves each name with a '%' that is not
// followed by two hexadecimal digits.
func (s *store) sealKeys() string { return s.prefix + "%seal" }

// noLock reports whether name is a Redis key under the prefix at which the toolkit keeps something other than locks:
// the seal keys, the records of what operators have done and were refused, which package internal/ops writes, or the
// journal, which package joblock/journal writes. Anything else that the toolkit will keep next to the locks has a name
// with two '%' in front: versions that do not know such a name leave it alone, and do not list it as a foreign value.
func (s *store) noLock(name string) bool {
	return name == s.sealKeys() || name == s.prefix+"%audit" || name == s.prefix+"%refusals" || name == s.prefix+"%events" ||
		strings.HasPrefix(name, s.prefix+"%%")
}

// String says where the locks are, as far as the client shows it. The text helps to find two programs that look at
// different places by mistake.
func (s *store) String() string {
	where := ""
	switch c := s.ops.(type) {
	case *redis.Client:
		where = fmt.Sprintf(" in database %d at %s", c.Options().DB, c.Options().Addr)
	case *redis.ClusterClient:
		where = " in the cluster of " + strings.Join(c.Options().Addrs, ", ")
	}
	return fmt.Sprintf("Redis keys with the prefix %q%s", s.prefix, where)
}

// SealKeys implements driver.Store, in one round trip: in a cluster all seal keys are on one node.
func (s *store) SealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	list := newCall(sealScript, s.sealKeys()).int(driver.MaxSealKeys).str(hex.EncodeToString(req.Fresh[:])).cmd(ctx).Args()
	for _, k := range req.Known {
		list = append(list, strconv.FormatInt(k.Since.UnixMicro(), 10), hex.EncodeToString(k.Secret[:]))
	}
	a := sealScript.run(ctx, s.calls, newCmd(ctx, list))
	switch {
	case a.err != nil && strings.Contains(a.err.Error(), "WRONGTYPE"):
		return nil, invalid("the value at %q is not a sorted set of seal keys", s.sealKeys())
	case a.err != nil:
		return nil, a.err
	}
	found, ok := a.val.([]any)
	f := fields{rest: found, bad: !ok}
	keys := make([]driver.SealKey, 0, len(f.rest)/2)
	for !f.bad && len(f.rest) > 0 {
		text, at := f.str(), f.str()
		secret, err := hex.DecodeString(text)
		us, terr := strconv.ParseFloat(at, 64) // a score
		if err != nil || terr != nil || len(secret) != driver.SealKeyBytes || !(us > 0 && us < 1<<53) {
			f.bad = true // the script returns no such member
			break
		}
		keys = append(keys, driver.SealKey{Secret: [driver.SealKeyBytes]byte(secret), Since: time.UnixMicro(int64(us))})
	}
	return keys, f.end(sealScript.op)
}
