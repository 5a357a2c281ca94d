package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestSealKeysArePlainInRedisAndNeverExpire(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		fresh := [driver.SealKeyBytes]byte{1, 2, 3}
		keys, err := k.SealKeys(ctx, driver.SealKeysRequest{Fresh: fresh})
		if err != nil || len(keys) != 1 || keys[0].Secret != fresh {
			t.Fatalf("%v, %v", keys, err)
		}
		got := k.rdb.ZRangeWithScores(ctx, "joblock:%seal", 0, -1).Val()
		if len(got) != 1 || got[0].Member != "010203"+strings.Repeat("00", 29) {
			t.Fatalf("in Redis is %v", got)
		}
		if made := time.UnixMicro(int64(got[0].Score)); !made.Equal(keys[0].Since) || time.Since(made).Abs() > time.Minute {
			t.Errorf("made at %s, said to be of %s", made, keys[0].Since)
		}
		if left := k.rdb.TTL(ctx, "joblock:%seal").Val(); left != -1 {
			t.Errorf("it expires in %s", left)
		}
		if seen := listAll(t, k, driver.ListRequest{}); len(seen) != 0 {
			t.Errorf("listed: %v", seen)
		}
	})
}

func TestForeignSealKeysAreNotUsed(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		k.rdb.ZAdd(ctx, k.sealKeys(), redis.Z{Score: 1, Member: "something else"}, redis.Z{Score: -1, Member: strings.Repeat("ab", 32)},
			redis.Z{Score: 7, Member: strings.Repeat("cd", 32)})
		keys, err := k.SealKeys(ctx, driver.SealKeysRequest{})
		if err != nil || len(keys) != 1 || keys[0].Secret[0] != 0xcd || keys[0].Since != time.UnixMicro(7) {
			t.Errorf("%v, %v", keys, err)
		}

		k.rdb.Set(ctx, k.sealKeys(), "something else", 0)
		_, err = k.SealKeys(ctx, driver.SealKeysRequest{})
		if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), `"joblock:%seal"`) {
			t.Errorf("with a string in their place: %v", err)
		}
		if v := k.rdb.Get(ctx, k.sealKeys()).Val(); v != "something else" {
			t.Errorf("in their place is %q", v)
		}
	})
}

// A later version may keep keys of another kind there. Nodes of this version then share a key of their own.
func TestSealKeysOfALaterVersionAreLeftAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		for n := range 2 * driver.MaxSealKeys {
			k.rdb.ZAdd(ctx, k.sealKeys(), redis.Z{Score: float64(1 + n), Member: fmt.Sprint("v2:", n)})
		}
		fresh := [driver.SealKeyBytes]byte{1, 2, 3}
		for what, req := range map[string]driver.SealKeysRequest{"first": {Fresh: fresh}, "second": {Fresh: fresh}, "known": {
			Known: []driver.SealKey{{Secret: fresh, Since: time.UnixMicro(5)}},
		}} {
			keys, err := k.SealKeys(ctx, req)
			if err != nil || len(keys) != 1 || keys[0].Secret != fresh {
				t.Errorf("%s: %v, %v", what, keys, err)
			}
		}
		if n := k.rdb.ZCard(ctx, k.sealKeys()).Val(); n != 2*driver.MaxSealKeys+1 {
			t.Errorf("there are %d members, want those of the later version and one", n)
		}
	})
}
