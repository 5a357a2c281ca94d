package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
)

// Whatever a stranger has written in place of the line, a slot is released, and goes to nobody twice.
func TestStrangersInTheLineOfASlot(t *testing.T) {
	ctx := context.Background()
	onBoth(t, func(t *testing.T, k *kit) {
		for i, write := range []func(name string){
			func(name string) { k.rdb.Set(ctx, name, "of a stranger", 0) },
			func(name string) { k.rdb.RPush(ctx, name, "of a stranger") },
			func(name string) { k.rdb.HSet(ctx, name, "q", "0 99999999999999999 3") },
			func(name string) { k.rdb.HSet(ctx, name, "q", "5 1 3") },
			func(name string) { k.rdb.HSet(ctx, name, "q", "0 5000 5000") },
			func(name string) {
				k.rdb.HSet(ctx, name, "q", "0 3 3", "q0", "x", "q1", "9999999999999\n1\n", "g1", "1", "g2", "0")
			},
			func(name string) { k.rdb.HSet(ctx, name, "q", "0 3 1", "g0", "2", "g2", "0") },
		} {
			key := fmt.Sprint("key-", i)
			term := k.acquire(driver.SlotKey(key, 2))
			name := k.name(key)
			write(name)
			rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
			if err != nil || len(rs) != 1 || rs[0].Outcome != driver.OutcomeOK || rs[0].Next != "" {
				t.Errorf("%d: %+v, %v, want a release and nobody next", i, rs, err)
			}
			if again := k.acquire(term.Key); again.Fence <= term.Fence {
				t.Errorf("%d: fence %d after %d", i, again.Fence, term.Fence)
			}
		}
	})
}
