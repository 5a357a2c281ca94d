//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	ctx := context.Background()
	admin := cluster.Client(t)

	// All of it as a user with the permissions that the package comment lists.
	for i := range 3 {
		cluster.Node(i).SetUser(t, "locks", rules(append(slices.Clone(onOne), clusterRights, shardRights)...)...)
	}
	app := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "locks", Password: "pw"})
	t.Cleanup(func() { app.Close() })
	k := newKit(t, app)
	const n, parked = 60, 10 // every node gets some
	var renewals []driver.RenewRequest
	var keys []string
	for i := range n {
		term := k.acquire(fmt.Sprintf("key-%d", i))
		keys = append(keys, term.Key)
		renewals = append(renewals, k.renewal(term))
	}

	t.Run("batches cross slots, with scripts unknown to all nodes", func(t *testing.T) {
		err := admin.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() })
		if err != nil {
			t.Fatal(err)
		}
		rs, err := k.Renew(ctx, renewals)
		wantOutcomes(t, "renew", rs, err, n, driver.OutcomeOK)
		for i, r := range rs {
			if r.Fence != renewals[i].Fence {
				t.Errorf("item %d has fence %d, want %d", i, r.Fence, renewals[i].Fence)
			}
		}
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		for i, rec := range recs {
			if rec.Key != keys[i] || rec.State != driver.StateHeld {
				t.Errorf("record %d is %s %s", i, rec.Key, rec.State)
			}
		}
	})

	t.Run("the index is written before records in other slots", func(t *testing.T) {
		for i := range parked {
			walkThroughTheIndex(t, k, k.acquire(fmt.Sprintf("parked-%d", i)))
		}
	})

	t.Run("list reads all masters", func(t *testing.T) {
		if page, err := k.List(ctx, driver.ListRequest{}); err != nil || len(page.Next) != 3 || len(page.Records) != 0 {
			t.Errorf("the first page has the cursors %q and %d records (%v), want a cursor for each of 3 masters", page.Next, len(page.Records), err)
		}
		for _, count := range []int{1, 10, 1000} {
			if seen := listAll(t, k, driver.ListRequest{Prefix: "key-", Count: count}); len(seen) != n {
				t.Errorf("with count %d the listing has %d keys, want %d", count, len(seen), n)
			}
		}
		for _, c := range []string{"5", "5@127.0.0.1:1", "0@127.0.0.1:1"} {
			if page, err := k.List(ctx, driver.ListRequest{Cursor: c}); err == nil {
				t.Errorf("cursor %q of no master gave %d records", c, len(page.Records))
			}
		}
	})

	t.Run("names are in the slots of their parts", func(t *testing.T) {
		for part := range k.Parts() {
			if slot := cluster.Slot(k.index(part)); slot/64 != part {
				t.Errorf("%q is in slot %d, want one of the slots from %d on", k.index(part), slot, 64*part)
			}
		}
		for _, key := range []string{"key-1", "{", "}{", "a{b}c", "%seal", strings.Repeat("ö", driver.MaxKeyBytes/2)} {
			name := k.store.name(key)
			if slot := cluster.Slot(name); slot != cluster.Slot(k.index(k.part(key))) {
				t.Errorf("%q is in slot %d, elsewhere than the index of its part", name, slot)
			}
			if back, ok := k.keyOf(name); !ok || back != key {
				t.Errorf("%q is read as %q, %v", name, back, ok)
			}
		}
	})

	t.Run("only the names of locks are listed", func(t *testing.T) {
		for _, name := range []string{"joblock:stray", "joblock:{}stray", "joblock:{x}stray", k.index(1+k.part("stray")) + "stray", k.store.name("stray")} {
			if err := admin.Set(ctx, name, "v", time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := admin.ZAdd(ctx, k.index(k.part("stray")), redis.Z{Score: 1, Member: "x"}).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := k.SealKeys(ctx, driver.SealKeysRequest{}); err != nil {
			t.Fatal(err)
		}
		k.acquire("a}stray")
		if seen := listAll(t, k, driver.ListRequest{Prefix: "stray"}); len(seen) != 1 || seen["stray"] != 1 {
			t.Errorf("listed %v, want the key whose name is that of a lock", seen)
		}
		seen := listAll(t, k, driver.ListRequest{})
		if want := n + parked + 2; len(seen) != want || seen["a}stray"] != 1 {
			t.Errorf("listed %v, want %d keys", seen, want)
		}
	})

	t.Run("a dead node hides no answers of the others", func(t *testing.T) {
		const dead = 1
		cluster.Node(dead).Kill()
		callCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		rs, err := k.Renew(callCtx, renewals)
		if err == nil {
			t.Error("no error although a node is dead")
		}
		for i, r := range rs {
			want := driver.OutcomeOK
			if cluster.Owner(k.name(keys[i])) == dead {
				want = driver.OutcomeUnknown
			}
			if r.Outcome != want {
				t.Errorf("%s has outcome %d, want %d", keys[i], r.Outcome, want)
			}
		}
		cluster.Node(dead).Restart()
	})
}

// Without the shorter reload interval this takes up to a minute (go-redis#3979).
func TestClusterFailoverIsNoticed(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 1)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	k := newKit(t, cluster.Client(t))
	ctx := context.Background()
	term := k.acquire("a")
	cluster.Failover(cluster.Owner(k.name("a")))
	renewUntilAnswered(t, k, term)
	if _, err := k.List(ctx, driver.ListRequest{}); err != nil {
		t.Errorf("list: %v", err)
	}
}

func TestSentinelFailoverIsFollowed(t *testing.T) {
	sentinel := redistest.StartSentinel(t)
	redistest.Ran(t, "sentinel of "+sentinel.Master().Backend())
	k := newKit(t, sentinel.Client(t))
	term := k.acquire("a")
	sentinel.Failover()
	renewUntilAnswered(t, k, term)
}

// renewUntilAnswered renews as a Locker would until the store answers. Either
// the lease has reached the promoted server, or it was lost with the dead one.
func renewUntilAnswered(t *testing.T, k *kit, term driver.Term) {
	t.Helper()
	begin := time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(term)})
		cancel()
		if err == nil {
			if out := rs[0].Outcome; out != driver.OutcomeOK && out != driver.OutcomeNotFound {
				t.Errorf("renew after the fail-over: outcome %d", out)
			}
			return
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("renewals do not follow the fail-over: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
