package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// A slot is released next to a record that only a newer build can read, and stays free: what its line says is not known.
func TestSlotIsNotGivenFromALineOfANewerBuild(t *testing.T) {
	ctx := context.Background()
	onBoth(t, func(t *testing.T, k *kit) {
		k.acquire("key")
		term := k.acquire(driver.SlotKey("key", 2))
		wait := driver.TakeRequest{
			Key: "key", Owner: "owner", Nonce: "place", Job: "q/waits", Reserve: time.Minute, Retain: time.Minute, Grace: time.Minute, Patience: time.Minute,
		}
		if rs, err := k.store.Take(ctx, []driver.TakeRequest{wait}); err != nil || rs[0].Outcome != driver.OutcomeHeld {
			t.Fatalf("take: %+v, %v", rs, err)
		}
		name := k.name("key")
		record, err := k.rdb.HGet(ctx, name, "s").Result()
		if err != nil {
			t.Fatal(err)
		}
		newer := strings.Replace(record, "\n", "\nx\n", 1)
		if err := k.rdb.HSet(ctx, name, "s", newer).Err(); err != nil {
			t.Fatal(err)
		}
		for _, req := range []driver.ReleaseRequest{
			k.release(term),
			{Term: driver.Term{Key: term.Key}, Nonce: "pass on", Retain: time.Minute, Kind: driver.ReleaseForcedIdle, Job: "none"},
		} {
			if rs, err := k.Release(ctx, []driver.ReleaseRequest{req}); err != nil || rs[0].Next != "" {
				t.Errorf("release: %+v, %v, want no next", rs, err)
			}
		}
		if all, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{term.Key}}); err != nil || all[0].State != driver.StateFree {
			t.Errorf("the slot is %+v, %v, want it free", all, err)
		}
		if got := k.rdb.HGet(ctx, name, "s").Val(); got != newer {
			t.Errorf("the record that cannot be read has become %q", got)
		}
		if err := k.rdb.HSet(ctx, name, "s", record).Err(); err != nil {
			t.Fatal(err)
		}
		again := driver.ReleaseRequest{Term: driver.Term{Key: term.Key}, Nonce: "again", Retain: time.Minute, Kind: driver.ReleaseForcedIdle, Job: "none"}
		if rs, err := k.Release(ctx, []driver.ReleaseRequest{again}); err != nil || rs[0].Next != "q/waits" {
			t.Errorf("with the record as it was: %+v, %v, want the job that waits", rs, err)
		}
	})
}

// Whatever a stranger has written in place of the line, a slot is released, and is not given to the same job twice.
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
				t.Errorf("%d: %+v, %v, want a release and no next", i, rs, err)
			}
			if again := k.acquire(term.Key); again.Fence <= term.Fence {
				t.Errorf("%d: fence %d after %d", i, again.Fence, term.Fence)
			}
		}
	})
}
