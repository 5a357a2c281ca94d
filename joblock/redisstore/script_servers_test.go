//go:build servers

package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestFlushedScriptsAreSentAgain(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *kit{"redis": newOwnKit, "miniredis": newMiniKit} {
		t.Run(name, func(t *testing.T) {
			k := start(t)
			callsAfter(t, k, func() {
				t.Helper()
				if err := k.rdb.ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// On a shared server the operator must find the value that is in the way: by its name in
// Redis and, where the user may ask for it, its type.
func TestErrorsAboutForeignValuesNameTheRedisKeyAndTheType(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	k := newKit(t, srv.Client(t))
	ctx := context.Background()
	if err := k.rdb.Set(ctx, "joblock:orders:7", "of another program", 0).Err(); err != nil {
		t.Fatal(err)
	}
	srv.SetUser(t, "locks", append(rules(onOne...), "-type")...)
	o := *k.rdb.(*redis.Client).Options()
	o.Username, o.Password = "locks", redistest.Password
	bare := redis.NewClient(&o)
	t.Cleanup(func() { bare.Close() })
	for _, tc := range []struct {
		store *store
		want  string
	}{
		{k.store, `a string that is not a lock is at the Redis key "joblock:orders:7"`},
		{newKit(t, bare).store, `a value that is not a lock is at the Redis key "joblock:orders:7"`},
	} {
		locks, err := joblock.New(tc.store, &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = locks.TryAcquire(ctx, "orders:7")
		_, waited := locks.Acquire(ctx, "orders:7", joblock.MaxWait(time.Minute))
		forced := locks.ForceRelease(ctx, "orders:7")
		for _, err := range []error{err, waited, forced} {
			if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want ErrInvalid with %s", err, tc.want)
			}
		}
		if err := locks.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestFullServerKeepsTheLocksItHas(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	a, b, c := k.acquire("a"), k.acquire("b"), k.acquire("c")
	if err := k.rdb.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	r, err := k.Acquire(ctx, driver.AcquireRequest{Key: "new", Owner: "o", Nonce: k.nonce(), TTL: long, Retain: long})
	if err == nil || !strings.Contains(err.Error(), "OOM") || r.Outcome != driver.OutcomeUnknown {
		t.Errorf("acquire on a full server: %+v, %v; want OOM", r, err)
	}
	rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(a), k.renewal(b)})
	wantOutcomes(t, "renew", rs, err, 2, driver.OutcomeOK)
	r, err = k.Park(ctx, k.park(a))
	wantOutcome(t, "park", r, err, driver.OutcomeOK)
	r, err = k.Resume(ctx, driver.ResumeRequest{Key: "a", Owner: a.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
	wantOutcome(t, "resume", r, err, driver.OutcomeOK)
	a.Fence = r.Fence
	rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(a), k.release(b)})
	wantOutcomes(t, "release", rs, err, 2, driver.OutcomeOK)
	for _, index := range []string{"with an index", "without one"} {
		r, err = k.Take(ctx, k.taking("new"))
		if err == nil || !strings.Contains(err.Error(), "OOM") || r.Outcome != driver.OutcomeUnknown {
			t.Errorf("take on a full server %s: %+v, %v; want OOM", index, r, err)
		}
		k.rdb.Del(ctx, k.index(0))
	}
	walkThroughTheIndex(t, k, c)
}

// On a full server no job gets a new place in line, and a refusal changes nothing. The jobs that are in line keep their
// places, leave, and get their turns.
func TestFullServerGivesNoNewPlace(t *testing.T) {
	ctx := context.Background()
	k := newOwnKit(t)
	k.fast = true
	at := func(key, job string) driver.TakeRequest {
		return driver.TakeRequest{
			Key: key, Owner: "owner of " + job, Nonce: "place: of " + job, Job: job, Reserve: long, Retain: long, Patience: long, Grace: long,
		}
	}
	take := func(what, key, job string, want driver.Outcome) {
		t.Helper()
		r, err := k.Take(ctx, at(key, job))
		wantOutcome(t, what, r, err, want)
	}
	k.acquire("no line")
	line := k.acquire("line")
	for _, job := range []string{"q/1", "q/2", "q/3", "q/4"} {
		take("line up", "line", job, driver.OutcomeHeld)
	}
	if err := k.rdb.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	all := func() map[string]string {
		content := map[string]string{}
		for _, name := range k.rdb.Keys(ctx, "*").Val() {
			content[name] = k.content(name)
		}
		return content
	}
	for _, index := range []string{"with an index", "without one"} {
		for _, key := range []string{"no line", "line"} {
			before := all()
			r, err := k.Take(ctx, at(key, "q/new"))
			if err == nil || !strings.Contains(err.Error(), "OOM") || r.Outcome != driver.OutcomeUnknown {
				t.Errorf("a place in %q on a full server %s: %+v, %v; want OOM", key, index, r, err)
			}
			if after := all(); !maps.Equal(after, before) {
				t.Errorf("a refused place in %q, %s, has changed what is in Redis:\nbefore %v\nafter  %v", key, index, before, after)
			}
		}
		k.rdb.Del(ctx, k.index(0))
	}
	take("ask again", "line", "q/1", driver.OutcomeHeld)
	rs, err := k.Reserve(ctx, []driver.ReserveRequest{{Key: "line", Job: "q/2", Nonce: "place: of q/2", Reserve: long, Retain: long}})
	wantOutcomes(t, "keep a place", rs, err, 1, driver.OutcomeHeld)
	rs, err = k.Release(ctx, []driver.ReleaseRequest{
		{Term: driver.Term{Key: "line", Grant: "place: of q/2"}, Nonce: k.nonce(), Kind: driver.ReleaseForcedIdle, Job: "q/2", Retain: long},
		k.release(line),
	})
	wantOutcomes(t, "leave, and release", rs, err, 2, driver.OutcomeOK)
	if rs[1].Next != "q/1" {
		t.Errorf("%q is next, want q/1", rs[1].Next)
	}
	for _, turn := range []struct {
		job, next string
		retain    time.Duration // of the record, which the line keeps for 2 × long
	}{{"q/1", "q/3", time.Millisecond}, {"q/3", "q/4", 3 * long}} {
		r, err := k.Resume(ctx, driver.ResumeRequest{
			Key: "line", Owner: "owner of " + turn.job, Nonce: k.nonce(), TTL: time.Second, Reserve: long, Retain: turn.retain, Job: turn.job,
		})
		wantOutcome(t, "resume", r, err, driver.OutcomeOK)
		// With up to long for the test itself.
		if life := k.rdb.PTTL(ctx, k.name("line")).Val(); life < turn.retain {
			t.Errorf("the record of %s lives for %s, although it must be remembered for %s after the reservation", turn.job, life, turn.retain)
		}
		rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: "line", Owner: "owner of " + turn.job, Fence: r.Fence})})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		if rs[0].Next != turn.next {
			t.Errorf("%q is next, want %s", rs[0].Next, turn.next)
		}
	}
}
