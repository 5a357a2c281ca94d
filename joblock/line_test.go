package joblock_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// line takes key for job with patience. token is that of an earlier Take, or nil.
func (k *kit) line(key, job string, token *joblock.Token) core.Taken {
	return (*core.Locker)(k.locks).Take(k.Context(), "take", []core.Take{{
		Key: key, Job: job, Reserve: time.Hour, Patience: 2 * time.Hour, Most: 3, Token: (*core.Token)(token),
	}})[0]
}

// waits fails the test unless job has a place, and returns the job's token.
func (k *kit) waits(key, job string, token *joblock.Token) (joblock.Token, core.Place) {
	k.Helper()
	got := k.line(key, job, token)
	wantNil(k, "take for "+job, got.Err)
	if got.Waits == nil {
		k.Fatalf("%s has the key %q, want a place", job, key)
	}
	return joblock.Token(got.Token), *got.Waits
}

func TestJobsThatWaitGetTheKeyInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		first := k.line("key", "q/1", nil)
		wantNil(t, "take", first.Err)
		if first.Waits != nil {
			t.Fatalf("the first job waits: %+v", first.Waits)
		}
		tokens := []joblock.Token{joblock.Token(first.Token)}
		since := time.Now()
		for i, job := range []string{"q/2", "q/3", "q/4"} {
			token, at := k.waits("key", job, nil)
			if at.Ahead != i || at.Since.Sub(since).Abs() > time.Millisecond {
				t.Errorf("%s has place %+v, want a new one behind %d", job, at, i)
			}
			tokens = append(tokens, token)
		}
		full := k.line("key", "q/5", nil)
		wantErr(t, full.Err, joblock.ErrHeld)
		if !full.Full {
			t.Errorf("a full line: %+v", full)
		}
		time.Sleep(time.Minute)
		again, at := k.waits("key", "q/2", &tokens[1])
		if at.Ahead != 0 || at.Since.Sub(since).Abs() > time.Millisecond || again.Digest() != tokens[1].Digest() {
			t.Errorf("asked again: %v in place %+v, want the same token and the first place", again, at)
		}
		wantErr(t, k.line("key", "q/2", nil).Err, joblock.ErrNotOwner)
		itself := k.line("key", "q/1", &tokens[0])
		wantNil(t, "take again by the job that has the key", itself.Err)
		for i, token := range tokens {
			job := []string{"q/1", "q/2", "q/3", "q/4"}[i]
			for _, later := range tokens[i+1:] {
				_, err := k.locks.Resume(t.Context(), later, joblock.ForJob("q/9"))
				wantErr(t, err, joblock.ErrNotOwner)
			}
			lock, err := k.locks.Resume(t.Context(), token, joblock.ForJob(job))
			wantNil(t, "Resume of "+job, err)
			held := k.line("key", job, &token)
			wantErr(t, held.Err, joblock.ErrHeld)
			if held.Full {
				t.Errorf("%s is refused as if the line were full", job)
			}
			wantNil(t, "Release", lock.Release(t.Context()))
		}
		if r := k.record("key"); r.State != joblock.StateFree || r.Waiters != 0 {
			t.Errorf("at the end the record is %+v", r)
		}
	})
}

func TestReleaseReturnsWhichJobIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var next []string
		granted := func(key, job string) { next = append(next, key+" "+job) }
		var pushed []string
		stop, err := k.mem.Subscribe(t.Context(), driver.JobsInbox, func(p driver.Push) { pushed = append(pushed, p.Key+" "+p.Job) })
		wantNil(t, "Subscribe", err)
		defer stop()
		want := func(what string, wantNext, wantPushed []string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(next, wantNext) || !slices.Equal(pushed, wantPushed) {
				t.Errorf("%s: got %q, pushed %q, want %q and %q", what, next, pushed, wantNext, wantPushed)
			}
			next, pushed = nil, nil
		}
		lock := k.acquire("lock")
		_, _ = k.waits("lock", "q/1", nil)
		wantNil(t, "Release", (*core.Lock)(lock).Release(t.Context(), core.Release{Granted: granted}))
		want("a release of a lock", []string{"lock q/1"}, nil)

		token, _ := k.waits("lock", "q/2", nil)
		_, _ = k.waits("lock", "q/3", nil)
		wantNil(t, "ForceRelease", (*core.Locker)(k.locks).ForceRelease(t.Context(), "lock", core.Release{Granted: granted}))
		want("a forced release", []string{"lock q/2"}, nil)
		wantNil(t, "Release of a token", (*core.Locker)(k.locks).Release(t.Context(), []core.Token{core.Token(token)}, core.Release{Granted: granted})[0])
		want("a release of a token", []string{"lock q/3"}, nil)

		lock = k.acquire("plain")
		_, _ = k.waits("plain", "q/1", nil)
		wantNil(t, "Release", lock.Release(t.Context()))
		want("a release by who starts nothing", nil, []string{"plain q/1"})

		lock = k.acquire("lost")
		_, _ = k.waits("lost", "q/1", nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Release)
		wantErr(t, (*core.Lock)(lock).Release(t.Context(), core.Release{Granted: granted}), joblock.ErrUnavailable)
		time.Sleep(lockkit.TTL)
		want("a release that the background repeats", nil, []string{"lost q/1"})
	})
}

func TestPlaceOfATakeWithoutAnAnswer(t *testing.T) {
	for name, fault := range map[string]faultstore.Fault{
		"refused":          {Mode: faultstore.Refuse, Times: 1},
		"reply dropped":    {Mode: faultstore.Drop, Times: 1},
		"hangs":            {Mode: faultstore.Hang, Times: 1},
		"applied, hanging": {Mode: faultstore.HangApplied, Times: 1},
		"arrives late":     {Mode: faultstore.Stray, Times: 1, Delay: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				k.acquire("key")
				k.store.Set(fault, faultstore.Take)
				wantErr(t, k.line("key", "q/1", nil).Err, joblock.ErrUnavailable)
				time.Sleep(lockkit.TTL)
				if n := k.record("key").Waiters; n != 0 {
					t.Errorf("%d places of a job that was never enqueued", n)
				}
				token, first := k.waits("key", "q/1", nil)
				k.store.Set(fault, faultstore.Take)
				wantErr(t, k.line("key", "q/1", &token).Err, joblock.ErrUnavailable)
				time.Sleep(lockkit.TTL)
				if _, at := k.waits("key", "q/1", &token); !at.Since.Equal(first.Since) {
					t.Error("a job that asked again without an answer has lost its place")
				}
			})
		})
	}
}

func TestBadPlacesAreRefused(t *testing.T) {
	k := newKit(t, nil)
	token, err := joblock.NewToken("other", "owner", time.Minute)
	wantNil(t, "NewToken", err)
	for name, change := range map[string]func(*core.Take){
		"negative patience":        func(d *core.Take) { d.Patience = -1 },
		"too much patience":        func(d *core.Take) { d.Patience = driver.MaxPeriod + 1 },
		"negative most":            func(d *core.Take) { d.Most = -1 },
		"token for another key":    func(d *core.Take) { d.Token = (*core.Token)(&token) },
		"token that names no lock": func(d *core.Take) { d.Token = new(core.Token) },
	} {
		take := core.Take{Key: "k", Job: "q/1", Reserve: time.Hour, Patience: time.Hour}
		change(&take)
		got := (*core.Locker)(k.locks).Take(t.Context(), "take", []core.Take{take})[0]
		if !errors.Is(got.Err, joblock.ErrInvalid) || !got.Token.IsZero() {
			t.Errorf("%s: %+v, want ErrInvalid", name, got)
		}
	}
	if n := k.store.Calls(faultstore.Take); n != 0 {
		t.Errorf("%d calls of the store, want none", n)
	}
}

func TestPlaceOfDependsOnTheJobAlone(t *testing.T) {
	seen := make(map[string]string)
	for _, job := range []string{"q/1", "q/2", "Q/1", "q/10", "", "q/1 "} {
		at := core.PlaceOf(job)
		if len(at) != 13 || at != core.PlaceOf(job) || seen[at] != "" {
			t.Errorf("the place of %q is %q, want 13 bytes of its own", job, at)
		}
		seen[at] = job
	}
}
