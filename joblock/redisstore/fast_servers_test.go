//go:build servers

package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/storemodel"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/storetest"
)

// A call that goes the short way takes three commands, and the other calls do not go it.
func TestFastCallsTakeThreeCommands(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	acquire := driver.AcquireRequest{Owner: "owner", TTL: long, Retain: long, Holder: "a host"}
	pair := func(key string, change func(*driver.ReleaseRequest)) (commands int) {
		t.Helper()
		req := acquire
		req.Key, req.Nonce = key, fastName(k.nonce())
		_, commands, _ = k.work(func() {
			r, err := k.Acquire(ctx, req)
			wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
			end := driver.ReleaseRequest{Term: driver.Term{Key: key, Owner: "owner", Fence: r.Fence}, Nonce: fastName(k.nonce()), Retain: long, Brief: long}
			change(&end)
			rs, err := k.Release(ctx, []driver.ReleaseRequest{end})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		})
		return commands
	}
	as := func(*driver.ReleaseRequest) {}
	pair("warm up", as)
	for _, key := range []string{"key", "key"} { // a new key, and one that was released
		if n := pair(key, as); n != 6 {
			t.Errorf("a pair takes %d commands, want 6", n)
		}
	}
	for what, change := range map[string]func(*driver.ReleaseRequest){
		"a reason":       func(r *driver.ReleaseRequest) { r.Reason = "why" },
		"another nonce":  func(r *driver.ReleaseRequest) { r.Nonce = "short" },
		"no brief":       func(r *driver.ReleaseRequest) { r.Brief = 0 },
		"whatever fence": func(r *driver.ReleaseRequest) { r.Fence = 0 },
	} {
		pair(what, change)
		if kind := k.readRecord(k.name(what))["kind"]; (kind == "jobr") != (what == "another nonce") {
			t.Errorf("%s: the record is of kind %q", what, kind)
		}
	}
	if n := k.rdb.MemoryUsage(ctx, k.name("key")).Val(); n > 250 {
		t.Errorf("a released record takes %d bytes, want 250 at most", n)
	}
}

// A Take of a new key, or of one that was released, goes the short way too.
func TestFastTakesAreShort(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	take := func(key, nonce string) (commands int) {
		t.Helper()
		_, commands, _ = k.work(func() {
			r, err := k.Take(ctx, driver.TakeRequest{
				Key: key, Owner: "owner", Nonce: nonce, Holder: "a host", Job: "q/1", Reserve: long, Retain: long, Grace: long,
			})
			wantOutcome(t, "take", r, err, driver.OutcomeOK)
		})
		return commands
	}
	take("warm up", fastName(k.nonce()))
	release := driver.ReleaseRequest{
		Term: driver.Term{Key: "released", Owner: "owner"}, Nonce: fastName(k.nonce()), Retain: long, Brief: long,
	}
	for what, before := range map[string]func(key string){
		"new": func(string) {},
		"released": func(key string) {
			take(key, fastName(k.nonce()))
			rs, err := k.Release(ctx, []driver.ReleaseRequest{release})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		},
	} {
		before(what)
		most := 6
		if what == "released" {
			most = 5 // MGET has shown that the key exists
		}
		if n := take(what, fastName(k.nonce())); n != most {
			t.Errorf("a take of a %s key takes %d commands, want %d", what, n, most)
		}
		rec, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{what}})
		if err != nil || rec[0].State != driver.StateParked || rec[0].Job != "q/1" || rec[0].Lease != 0 {
			t.Errorf("%s: %+v, %v", what, rec, err)
		}
	}
	rs, err := k.Release(ctx, []driver.ReleaseRequest{release}) // comes again, and ends nothing
	wantOutcomes(t, "release again", rs, err, 1, driver.OutcomeOK)
	if rec, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"released"}}); err != nil || rec[0].State != driver.StateParked {
		t.Errorf("after the release came again: %+v, %v", rec, err)
	}
	k.rdb.ZAdd(ctx, k.prefix, redis.Z{Score: 2, Member: "q/0\nold"})
	take("forced", fastName(k.nonce()))
	if err := k.rdb.ZScore(ctx, k.prefix, "q/0\nold").Err(); err != redis.Nil {
		t.Errorf("an old entry of the index: %v, want it dropped", err)
	}
	rs, err = k.Release(ctx, []driver.ReleaseRequest{{
		Term: driver.Term{Key: "forced"}, Nonce: fastName(k.nonce()), Retain: long, Kind: driver.ReleaseForced,
	}})
	wantOutcomes(t, "force", rs, err, 1, driver.OutcomeOK)
	r, err := k.Take(ctx, driver.TakeRequest{
		Key: "forced", Owner: "owner", Nonce: fastName(k.nonce()), Job: "q/1", Reserve: long, Retain: long, Grace: long,
	})
	if wantOutcome(t, "take", r, err, driver.OutcomeOK); r.Ended != driver.EndedForced {
		t.Errorf("the last ownership was %s, want forced", r.Ended)
	}
	if n := take("another nonce", "short"); n < 8 {
		t.Errorf("a take with another nonce takes %d commands", n)
	}
}

// A release to the next waiter goes the short way.
func TestFastPassesAreShort(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	ask := func(owner, inbox string, want driver.Outcome) driver.Term {
		t.Helper()
		req := driver.AcquireRequest{Key: "key", Owner: owner, Nonce: fastName(k.nonce()), TTL: long, Retain: long, Inbox: inbox, Patience: long}
		r, err := k.Acquire(ctx, req)
		wantOutcome(t, "acquire", r, err, want)
		return driver.Term{Key: "key", Owner: owner, Fence: r.Fence, Grant: req.Nonce}
	}
	holder := ask("owner", "", driver.OutcomeOK)
	queue := []driver.Term{ask("first", "inbox", driver.OutcomeHeld), ask("last", "inbox", driver.OutcomeHeld)}
	sub := k.ops.Subscribe(ctx, k.channel("inbox")) // as another process does
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	// The Store reads the seal keys in the background: else a release might count that too.
	k.passesOn.Store(true)
	k.listener()
	k.awaitProofs(t)
	for i, want := range []int{10, 9, 4} { // to one of two, to the only one, to none
		_, commands, _ := k.work(func() {
			holder.Grant = ""
			rs, err := k.Release(ctx, []driver.ReleaseRequest{{Term: holder, Nonce: fastName(k.nonce()), Retain: long, Brief: long}})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		})
		if commands != want {
			t.Errorf("release %d takes %d commands, want %d", i, commands, want)
		}
		if len(queue) == 0 {
			break
		}
		holder, queue = queue[0], queue[1:]
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
		if err != nil || recs[0].Owner != holder.Owner || recs[0].State != driver.StateHeld || recs[0].Waiters != len(queue) {
			t.Fatalf("after release %d: %+v, %v", i, recs, err)
		}
		holder.Fence = recs[0].Fence
	}
}

func fastHarness(t *testing.T) *storetest.Harness {
	h := miniHarness(t)
	h.Store = fastStore{Store: h.Store}
	return h
}

// The short way of the scripts keeps the contract too.
func TestFastCallsConform(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		h := miniHarness(t)
		h.Store = fastStore{h.Store, func() { h.Advance(time.Microsecond) }}
		return h
	})
}

func TestFastCallsFollowTheModel(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	storemodel.Run(t, fastHarness(t))
}
