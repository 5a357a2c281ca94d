//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// On a full server a slot still goes to the first job in line, also a slot that has never been used.
func TestFullServerPassesSlotsOn(t *testing.T) {
	ctx := context.Background()
	k := newOwnKit(t)
	k.acquire("key")
	used := k.acquire(driver.SlotKey("key", 2))
	lineUp := func(n int) {
		t.Helper()
		job := fmt.Sprint("q/", n)
		r, err := k.Take(ctx, driver.TakeRequest{
			Key: "key", Owner: "owner of " + job, Nonce: "place of " + job, Job: job, Reserve: long, Retain: long, Patience: long,
		})
		wantOutcome(t, "line up", r, err, driver.OutcomeHeld)
	}
	for n := range 3 {
		lineUp(n)
	}
	if err := k.rdb.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	release := k.release(used)
	rs, err := k.Release(ctx, []driver.ReleaseRequest{
		release, {Term: driver.Term{Key: driver.SlotKey("key", 3)}, Nonce: k.nonce(), Kind: driver.ReleaseForcedIdle, Job: "q/none", Retain: long},
	})
	if err != nil || len(rs) != 2 || rs[0].Outcome != driver.OutcomeOK || rs[1].Outcome != driver.OutcomeNotFound ||
		rs[0].Next != "q/0" || rs[1].Next != "q/1" {
		t.Errorf("releases on a full server: %+v, %v; want q/0 and q/1 to be next", rs, err)
	}
}

// While the keys of a sequence are on two masters, no slot but the first can be released: the server refuses, and nothing
// changes. Before and after that, a release gives the slot to the first job in line.
func TestSlotsMoveToAnotherMaster(t *testing.T) {
	ctx := context.Background()
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	k := newKit(t, cluster.Client(t))
	slot := driver.SlotKey("key", 2)
	if k.part(slot) != k.part("key") {
		t.Fatalf("%s and its key are in different parts", slot)
	}
	k.acquire("key")
	term := k.acquire(slot)
	take := func(n int) driver.TakeRequest {
		job := fmt.Sprint("q/", n)
		return driver.TakeRequest{
			Key: "key", Owner: "owner of " + job, Nonce: "place of " + job, Job: job, Reserve: long, Retain: long, Patience: long,
		}
	}
	for n := range 3 {
		r, err := k.Take(ctx, take(n))
		wantOutcome(t, "line up", r, err, driver.OutcomeHeld)
	}
	next := func(when string, n int) {
		t.Helper()
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release "+when, rs, err, 1, driver.OutcomeOK)
		recs, ierr := k.Inspect(ctx, driver.InspectRequest{Keys: []string{slot}})
		if want := take(n); ierr != nil || rs[0].Next != want.Job || recs[0].Owner != want.Owner || recs[0].Job != want.Job {
			t.Fatalf("%s: %q is next, and the slot is %+v, %v; want %s", when, rs[0].Next, recs, ierr, want.Job)
		}
		term = driver.Term{Key: slot, Owner: recs[0].Owner, Fence: recs[0].Fence}
	}
	next("before", 0)
	number := cluster.Slot(k.name("key"))
	move := cluster.BeginMove(number, (cluster.Server(number)+1)%3)
	next("when the move has begun", 1)
	move.Move(k.name("key"))
	rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
	if !redis.IsTryAgainError(err) || len(rs) != 1 || rs[0].Outcome != driver.OutcomeUnknown {
		t.Errorf("release of a slot whose key has moved: %+v, %v; want TRYAGAIN", rs, err)
	}
	renewed, err := k.Reserve(ctx, []driver.ReserveRequest{{Key: slot, Job: "q/1", Reserve: long, Retain: long}})
	wantOutcomes(t, "reserve", renewed, err, 1, driver.OutcomeOK)
	move.Move(move.Keys()...)
	move.Finish()
	next("after", 2)
}
