package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// walkThroughTheIndex parks a lock, finds it, keeps it, frees it and removes its entry, and
// asks for the seal keys, which jobs need too.
func walkThroughTheIndex(t *testing.T, k *kit, term driver.Term) {
	t.Helper()
	ctx := context.Background()
	req := k.park(term)
	req.Grace = 0
	r, err := k.Park(ctx, req)
	wantOutcome(t, "park", r, err, driver.OutcomeOK)
	due, err := dueOf(ctx, k.store, 10, long)
	if err != nil || len(due) != 1 || due[0].Key != term.Key || due[0].Job != req.Job {
		t.Fatalf("due: %+v, %v", due, err)
	}
	rs, err := k.Reserve(ctx, []driver.ReserveRequest{{Key: term.Key, Job: req.Job, Reserve: long, Retain: long}})
	wantOutcomes(t, "reserve", rs, err, 1, driver.OutcomeOK)
	rs, err = k.Release(ctx, []driver.ReleaseRequest{{
		Term: driver.Term{Key: term.Key}, Nonce: k.nonce(), Retain: long, Kind: driver.ReleaseForcedIdle, Job: req.Job,
	}})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	if err := removeFrom(ctx, k.store, due); err != nil {
		t.Fatal(err)
	}
	if n := k.rdb.Exists(ctx, k.index(k.part(term.Key))).Val(); n != 0 {
		t.Error("an entry is left")
	}
	if keys, err := k.SealKeys(ctx, driver.SealKeysRequest{}); err != nil || len(keys) != 1 {
		t.Errorf("seal keys: %v, %v", keys, err)
	}
}

// wrapped is a client that is not go-redis' own: a Store cannot tell what is behind.
type wrapped struct{ redis.UniversalClient }

// onBothWays runs a test where a record and the index are written by one script, and
// where they are written by two.
func onBothWays(t *testing.T, test func(t *testing.T, k *kit)) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	onBothWaysOf(t, db.Client, test)
}

// onBothWaysOf does the same on the server of a client.
func onBothWaysOf(t *testing.T, client func(testing.TB) *redis.Client, test func(t *testing.T, k *kit)) {
	t.Run("jointly", func(t *testing.T) { test(t, newKit(t, client(t))) })
	t.Run("one after the other", func(t *testing.T) { test(t, newKit(t, wrapped{client(t)})) })
}

// A lock is not parked for a job, nor recovered for one, if its entry cannot be
// written; and what stands in the place of the index is left alone.
func TestNothingIsBoundWithoutItsEntry(t *testing.T) {
	onBothWays(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		k.rdb.Del(ctx, k.index(0))
		lapsed := k.acquire("lapsed " + t.Name())
		brief := k.park(lapsed)
		brief.Reserve = time.Millisecond
		r, err := k.Park(ctx, brief)
		wantOutcome(t, "park", r, err, driver.OutcomeOK)
		fence := r.Fence
		if err := k.rdb.Set(ctx, k.index(0), "something else", 0).Err(); err != nil {
			t.Fatal(err)
		}
		held := k.acquire("held " + t.Name())
		time.Sleep(5 * time.Millisecond)

		_, park := k.Park(ctx, k.park(held))
		_, resume := k.Resume(ctx, driver.ResumeRequest{Key: lapsed.Key, Owner: lapsed.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
		_, take := k.Take(ctx, k.taking("new "+t.Name()))
		_, due := dueOf(ctx, k.store, 1, long)
		for call, err := range map[string]error{
			"Take": take, "Park": park, "Resume": resume, "Due": due,
			"Settle": removeFrom(ctx, k.store, []driver.Entry{{Key: "key", Job: "q/1", Mark: 1}}),
		} {
			if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), `"joblock:"`) {
				t.Errorf("%s: error %v, want ErrInvalid with the name", call, err)
			}
		}
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{held.Key, lapsed.Key, "new " + t.Name()}})
		if recs[2].Fence != 0 {
			t.Errorf("a lock was taken without its entry: %+v", recs[2])
		}
		if err != nil || recs[0].State != driver.StateHeld || recs[0].Fence != held.Fence || recs[1].State != driver.StateFree || recs[1].Fence != fence {
			t.Errorf("records %+v, %v; want them as before", recs, err)
		}
		if v := k.rdb.Get(ctx, k.index(0)).Val(); v != "something else" {
			t.Errorf("in the place of the index is %q", v)
		}

		// A lock that is parked for no job needs no entry.
		unbound := k.park(held)
		unbound.Job = ""
		r, err = k.Park(ctx, unbound)
		wantOutcome(t, "park for no job", r, err, driver.OutcomeOK)
		k.rdb.Del(ctx, k.index(0))
	})
}

func TestIndexIsPlainInRedisAndNotListed(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		before := time.Now().Add(long)
		req := k.park(k.acquire("plain"))
		req.Grace = long
		r, err := k.Park(ctx, req)
		wantOutcome(t, "park", r, err, driver.OutcomeOK)
		got := k.rdb.ZRangeWithScores(ctx, "joblock:", 0, -1).Val()
		if len(got) != 1 || got[0].Member != "q/1\nplain" {
			t.Fatalf("the index has %v", got)
		}
		if due := time.UnixMicro(int64(got[0].Score)); due.Before(before.Add(-time.Millisecond)) || due.After(time.Now().Add(long+time.Second)) {
			t.Errorf("due at %s, parked at %s for %s", due, before.Add(-long), long)
		}
		if seen := listAll(t, k, driver.ListRequest{}); len(seen) != 1 {
			t.Errorf("listed: %v", seen)
		}
	})
}

// Where no keeper runs the index must not grow forever; where one is away for a
// while it must not forget.
func TestUnreadEntriesAreDroppedAfterADay(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		now := time.Now()
		const old = 7
		for i := range old {
			k.rdb.ZAdd(ctx, k.index(0), redis.Z{
				Score: float64(now.Add(-driver.JobKeep - time.Duration(i+1)*time.Minute).UnixMicro()), Member: fmt.Sprintf("q/%d\nold", i),
			})
		}
		k.rdb.ZAdd(ctx, k.index(0), redis.Z{Score: float64(now.Add(-driver.JobKeep + time.Minute).UnixMicro()), Member: "q/1\nin time"})
		for i, left := range []int{5, 3, 1, 0, 0} {
			r, err := k.Park(ctx, k.park(k.acquire(fmt.Sprint(i))))
			wantOutcome(t, "park", r, err, driver.OutcomeOK)
			if got, want := int(k.rdb.ZCard(ctx, k.index(0)).Val()), left+1+i+1; got != want {
				t.Errorf("%d entries after %d parks, want %d", got, i+1, want)
			}
		}
		if err := k.rdb.ZScore(ctx, k.index(0), "q/1\nin time").Err(); err != nil {
			t.Errorf("an entry is gone before its day is over: %v", err)
		}
	})
}

func TestForeignEntriesAreNoLocks(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		k.rdb.ZAdd(ctx, k.index(0), redis.Z{Score: 1, Member: "something else"}, redis.Z{Score: 2, Member: "q/1\nkey"})
		due, err := dueOf(ctx, k.store, 10, long)
		if err != nil || len(due) != 1 || due[0].Key != "key" || due[0].Job != "q/1" {
			t.Errorf("due are %+v, %v", due, err)
		}
	})
}

// In a cluster, and through a client that may hide one, the entry comes first and
// costs a round trip of its own; and so does writing it again before a recovery.
// Entries that stay are on a page although others go, and although keepers move them all the time. (The cursors of
// miniredis are not good enough for that.)
func TestEntriesThatStayAreOnAPage(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	k := newKit(t, db.Client(t))
	ctx := t.Context()
	const n = 1500
	stays := make(map[string]bool)
	for i := range n {
		key := fmt.Sprintf("key-%04d", i)
		reply, err := k.Take(ctx, driver.TakeRequest{Key: key, Owner: "me", Nonce: k.nonce(), Job: "q/job", Reserve: long, Retain: long})
		wantOutcome(t, "take", reply, err, driver.OutcomeOK)
		stays[key] = i%3 != 0
	}
	sum, pages := 0.0, 0
	for req := (driver.EntriesRequest{Count: 20}); ; pages++ {
		page, err := k.Entries(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		sum += page.Progress
		for _, l := range page.Entries {
			delete(stays, l.Key)
		}
		due, err := dueOf(ctx, k.store, 40, long)
		if err != nil {
			t.Fatal(err)
		}
		settled := make([]driver.Settlement, len(due))
		for i, l := range due {
			settled[i].Entry = l
			if stays[l.Key] {
				settled[i].Again = time.Microsecond
			}
		}
		if err := k.Settle(ctx, settled); err != nil {
			t.Fatal(err)
		}
		if req.Cursor = page.Next; req.Cursor == "" {
			break
		}
	}
	for key, stay := range stays {
		if stay {
			t.Errorf("%s is on no page", key)
		}
	}
	if pages < 10 || sum < 0.99 || sum > 1.01 {
		t.Errorf("%d pages are %v of the index", pages, sum)
	}
}

func TestRoundTripsOfTheIndex(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
	t.Cleanup(func() { rdb.Close() })
	ctx := context.Background()
	for name, c := range map[string]struct {
		k             *kit
		park, recover int
	}{
		"jointly":             {newKit(t, rdb), 1, 2},
		"one after the other": {newKit(t, wrapped{rdb}), 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			k := c.k
			for i := range 2 { // the first round makes the scripts known
				term := k.acquire(fmt.Sprint(name, i))
				req := k.park(term)
				req.Reserve = time.Millisecond
				seen := proxy.Times(1<<30, redistest.Named("evalsha"), redistest.Pass())
				r, err := k.Park(ctx, req)
				wantOutcome(t, "park", r, err, driver.OutcomeOK)
				if got := seen.Hits(); i > 0 && got != c.park {
					t.Errorf("%d commands to park for a job, want %d", got, c.park)
				}
				seen.Disarm()
				time.Sleep(5 * time.Millisecond)
				seen = proxy.Times(1<<30, redistest.Named("evalsha"), redistest.Pass())
				r, err = k.Resume(ctx, driver.ResumeRequest{Key: term.Key, Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
				wantOutcome(t, "resume", r, err, driver.OutcomeOK)
				if !r.Recovered {
					t.Error("Recovered is not set")
				}
				if got := seen.Hits(); i > 0 && got != c.recover {
					t.Errorf("%d commands to recover, want %d", got, c.recover)
				}
				seen.Disarm()
			}
		})
	}
}
