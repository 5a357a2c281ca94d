package jobs_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

var wantErr, wantNil = testkit.WantErr, testkit.WantNil

type kit struct{ *lockkit.Kit }

func newKit(t *testing.T, cfg *joblock.Config) *kit {
	t.Helper()
	return &kit{lockkit.New(t, cfg)}
}

func (k *kit) park(lock *joblock.Lock, opts ...joblock.ParkOption) joblock.Token {
	k.Helper()
	token, err := lock.Park(context.Background(), opts...)
	wantNil(k, "Park", err)
	return token
}

// remove removes entries that Due has returned.
func remove(locks *joblock.Locker, entries ...jobs.Entry) error {
	var list []jobs.Settlement
	for _, e := range entries {
		list = append(list, jobs.Settlement{Entry: e})
	}
	return jobs.Settle(context.Background(), locks, list...)
}

// due returns what Due does, as "job key".
func (k *kit) due(limit int, later time.Duration) (names []string, locks []jobs.Entry) {
	k.Helper()
	due, err := jobs.Due(k.Context(), k.Locks, jobs.DueRequest{Limit: limit, Claim: later})
	wantNil(k, "Due", err)
	for _, l := range due.Entries {
		names = append(names, l.Job+" "+l.Key)
	}
	return names, due.Entries
}

func (k *kit) wantDue(later time.Duration, want ...string) []jobs.Entry {
	k.Helper()
	got, locks := k.due(10, later)
	if !slices.Equal(got, want) {
		k.Fatalf("due are %q, want %q", got, want)
	}
	return locks
}

// wantReserved checks for how long key is still reserved, give or take a few
// milliseconds of rounding.
func (k *kit) wantReserved(key string, want time.Duration) {
	k.Helper()
	if got := k.Record(key).Reserved; got < want || got > want+5*time.Millisecond {
		k.Errorf("%q is reserved for %s, want %s", key, got, want)
	}
}

func TestJobLocksAreFoundAfterTheirGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.Acquire("first"), joblock.ForJob("q/1"))
		k.park(k.Acquire("of no job"))
		k.Acquire("held")
		time.Sleep(10 * time.Second)
		k.park(k.Acquire("second"), joblock.ForJob("q/2"))
		time.Sleep(20*time.Second - 10*time.Second - time.Millisecond)
		k.wantDue(time.Minute)
		time.Sleep(2 * time.Millisecond)
		k.wantDue(time.Minute, "q/1 first")
		k.wantDue(time.Minute)
		time.Sleep(10 * time.Second)
		k.wantDue(time.Minute, "q/2 second")
		time.Sleep(50*time.Second - 3*time.Millisecond)
		k.wantDue(time.Minute)
		time.Sleep(10*time.Second + 4*time.Millisecond)
		if names, _ := k.due(1, time.Minute); !slices.Equal(names, []string{"q/1 first"}) {
			t.Errorf("due at most one: %q", names)
		}
		time.Sleep(time.Millisecond)
		k.wantDue(time.Minute, "q/2 second")
		time.Sleep(time.Minute + time.Millisecond)
		seen := k.wantDue(time.Minute, "q/1 first", "q/2 second")
		wantNil(t, "Settle", remove(k.Locks, seen[:1]...))
		time.Sleep(time.Minute + time.Millisecond)
		k.wantDue(time.Minute, "q/2 second")
	})
}

func TestJobGraceIsConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Second
		k := newKit(t, &joblock.Config{JobGrace: grace})
		lock := k.Acquire("key")
		token := k.park(lock, joblock.ForJob("q/1"), joblock.Reserve(time.Minute))
		time.Sleep(grace + time.Millisecond)
		seen := k.wantDue(time.Hour, "q/1 key")

		// What is recovered, by Resume or by the Reclaim of what was resumed, is looked at again as soon.
		for _, recovery := range []func() error{
			func() (err error) { lock, err = k.Locks.Resume(t.Context(), token, joblock.ForJob("q/1")); return err },
			func() error { return lock.Reclaim(t.Context()) },
		} {
			time.Sleep(time.Minute)
			k.WantState("key", joblock.StateFree)
			wantNil(t, "Settle", remove(k.Locks, seen...))
			wantNil(t, "recovery", recovery())
			k.wantDue(time.Hour)
			time.Sleep(grace + time.Millisecond)
			k.wantDue(time.Hour, "q/1 key")
			token = k.park(lock, joblock.ForJob("q/1"), joblock.Reserve(time.Minute))
			time.Sleep(grace + time.Millisecond)
			seen = k.wantDue(time.Hour, "q/1 key")
		}
	})
}

// What is reserved for less than the grace is due in time to be prolonged.
func TestShortReservationsAreFoundBeforeTheyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.Acquire("key"), joblock.ForJob("q/1"), joblock.Reserve(3*time.Second))
		k.park(k.Acquire("shortest"), joblock.ForJob("q/2"), joblock.Reserve(driver.MinPeriod))
		time.Sleep(driver.MinPeriod + time.Millisecond)
		k.wantDue(time.Hour, "q/2 shortest")
		time.Sleep(time.Second)
		k.wantDue(time.Hour)
		time.Sleep(500 * time.Millisecond)
		k.wantDue(time.Hour, "q/1 key")
		k.WantState("key", joblock.StateParked)
	})
}

func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		for key, opts := range map[string][]joblock.ParkOption{
			"mine": {joblock.ForJob("q/1")}, "by default": {joblock.ForJob("q/1"), joblock.Reserve(time.Minute)},
			"lapsed": {joblock.ForJob("q/1"), joblock.Reserve(time.Second)},
			"over":   {joblock.ForJob("q/1")}, "theirs": {joblock.ForJob("q/2")}, "unbound": nil,
		} {
			k.park(k.Acquire(key), opts...)
		}
		wantNil(t, "Free", jobs.Free(t.Context(), k.Locks, jobs.Release{Key: "over", Job: "q/1", Reason: "the task was deleted"})[0])
		time.Sleep(2 * time.Second)
		reserve := []jobs.Reservation{
			{Key: "over", Job: "q/1"},
			{Key: "mine", Job: "q/1", For: 2 * time.Hour},
			{Key: "theirs", Job: "q/1"},
			{Key: "bad\n", Job: "q/1"},
			{Key: "unbound", Job: "q/1"},
			{Key: "by default", Job: "q/1"},
			{Key: "absent", Job: "q/1"},
			{Key: "lapsed", Job: "q/1", For: time.Minute},
		}
		errs := jobs.Reserve(t.Context(), k.Locks, reserve...)
		want := []error{
			joblock.ErrAlreadyReleased, nil, joblock.ErrNotOwner, joblock.ErrInvalid, joblock.ErrNotOwner, nil, joblock.ErrNotFound, nil,
		}
		if len(errs) != len(want) {
			t.Fatalf("%d errors for %d reservations", len(errs), len(want))
		}
		var e *joblock.Error
		for i, err := range errs {
			if !errors.Is(err, want[i]) {
				t.Errorf("%q: error %v, want %v", reserve[i].Key, err, want[i])
			}
			if want[i] != nil && errors.As(err, &e) && e.Key != reserve[i].Key {
				t.Errorf("%q: error %v is about another key", reserve[i].Key, err)
			}
		}
		if errors.As(errs[0], &e) && (e.Reason != "the task was deleted" || e.Ended != driver.EndedForced) {
			t.Errorf("error %+v, want the reason", e)
		}
		if errors.As(errs[2], &e) && (e.Job != "q/2" || e.Detail != "the lock is bound to another job") {
			t.Errorf("error %+v, want the other job", e)
		}
		if errors.As(errs[4], &e) && (e.Job != "" || e.Detail != "the lock is bound to no job") {
			t.Errorf("error %+v, want no job", e)
		}
		k.wantReserved("mine", 2*time.Hour)
		k.wantReserved("by default", time.Hour)
		k.wantReserved("lapsed", time.Minute)
		if errs := jobs.Reserve(t.Context(), k.Locks); len(errs) != 0 {
			t.Errorf("%d errors for nothing", len(errs))
		}
		time.Sleep(time.Minute + 5*time.Minute - time.Second)
		if k.Record("lapsed").Ended != driver.EndedLapsed {
			t.Error("a reservation is forgotten before Config.Retain is over")
		}
	})
}

// A live holder goes on, and a token can be resumed, whatever was reserved.
func TestReserveLeavesTheTermAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token := k.park(k.Acquire("key"), joblock.ForJob("q/1"))
		reserve := func() {
			t.Helper()
			wantNil(t, "Reserve", jobs.Reserve(t.Context(), k.Locks, jobs.Reservation{Key: "key", Job: "q/1"})[0])
		}
		reserve()
		lock, err := k.Locks.Resume(t.Context(), token, joblock.ForJob("q/1"))
		wantNil(t, "Resume", err)
		reserve()
		wantNil(t, "Renew", lock.Renew(t.Context()))
		time.Sleep(5 * time.Minute)
		wantNil(t, "Err", lock.Err())
		wantNil(t, "Release", lock.Release(t.Context()))
	})
}

func TestFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		release := func(key, job string) error {
			return jobs.Free(t.Context(), k.Locks, jobs.Release{Key: key, Job: job, Reason: "the task was deleted"})[0]
		}
		token := k.park(k.Acquire("key"), joblock.ForJob("q/1"))
		wantErr(t, release("key", "q/2"), joblock.ErrNotOwner)
		lock, err := k.Locks.Resume(t.Context(), token, joblock.ForJob("q/1"), joblock.NoRenew(), joblock.Reserve(time.Hour))
		wantNil(t, "Resume", err)
		err = release("key", "q/1")
		wantErr(t, err, joblock.ErrBusy)
		var e *joblock.Error
		if errors.As(err, &e) && (e.Job != "q/1" || e.Remaining <= 0) {
			t.Errorf("error %+v does not say who is in the way, and for how long", e)
		}
		wantNil(t, "Err", lock.Err())
		time.Sleep(30*time.Second + time.Millisecond)
		k.WantState("key", joblock.StateOrphaned)
		wantNil(t, "release of an orphan", release("key", "q/1"))
		if r := k.Record("key"); r.State != joblock.StateFree || r.Ended != driver.EndedForced || r.Reason != "the task was deleted" {
			t.Errorf("record %+v", r)
		}
		wantErr(t, release("key", "q/1"), joblock.ErrNotFound)
		wantErr(t, release("absent", "q/1"), joblock.ErrNotFound)
		k.Acquire("plain")
		wantErr(t, release("plain", "q/1"), joblock.ErrNotOwner)
		_, err = k.Locks.Resume(t.Context(), token, joblock.ForJob("q/1"))
		wantErr(t, err, joblock.ErrAlreadyReleased)
	})
}

// What was found out about a job says nothing about a later one of the same name.
func TestFreeLeavesALaterTermAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		first := k.park(k.Acquire("key"), joblock.ForJob("q/1"))
		release := func(fence int64) error {
			return jobs.Free(t.Context(), k.Locks, jobs.Release{Key: "key", Job: "q/1", Fence: fence, Reason: "the task was deleted"})[0]
		}
		wantErr(t, release(-1), joblock.ErrInvalid)
		wantNil(t, "release", release(core.Token(first).Fence()))
		second := k.park(k.Acquire("key"), joblock.ForJob("q/1"))
		wantErr(t, release(core.Token(first).Fence()), joblock.ErrNotOwner)
		k.WantState("key", joblock.StateParked)
		wantNil(t, "release", release(core.Token(second).Fence()))
	})
}

// Between a look and the release the job may hand its lock to another: the release
// itself decides.
func TestReleaseIfIdleForJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token := k.park(k.Acquire("key", joblock.TTL(time.Minute)), joblock.ForJob("q/1"))
		release := func(job string) error {
			return (*core.Locker)(k.Locks).Release(t.Context(), []core.Token{core.Token(token)}, core.Release{IfIdle: true, Job: job, Reason: "gone"})[0]
		}
		wantErr(t, release("q/2"), joblock.ErrNotOwner)
		k.WantState("key", joblock.StateParked)
		wantErr(t, release("a\nb"), joblock.ErrInvalid)
		wantErr(t, k.Locks.Release(t.Context(), token, joblock.IfIdle(), joblock.Reason("gone"), nil), joblock.ErrInvalid)
		// A token whose TTL is beyond this Locker's is as good as any to end a lock.
		small := k.Open(k.Mem, &joblock.Config{MaxTTL: 30 * time.Second})
		wantNil(t, "Release", (*core.Locker)(small).Release(t.Context(), []core.Token{core.Token(token)}, core.Release{IfIdle: true, Job: "q/1", Reason: "gone"})[0])
		if r := k.Record("key"); r.State != joblock.StateFree || r.Ended != driver.EndedReleased || r.Reason != "gone" {
			t.Errorf("record %+v", r)
		}
		wantErr(t, release("q/1"), joblock.ErrAlreadyReleased)
	})
}
