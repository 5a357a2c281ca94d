package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// patchy is a store whose first answer about some keys gets lost, as if their node of a
// cluster had died after it applied the calls.
type patchy struct {
	driver.Store
	mu    sync.Mutex // guards what follows
	lost  []string
	asked [][]string // the keys of each Resume, Park and Release
}

// seen returns the keys of each call so far.
func (p *patchy) seen() [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

var errPatchy = errors.New("the node is gone")

func patch[R any](p *patchy, reqs []R, keyOf func(R) string, replies []driver.Reply, err error) ([]driver.Reply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []string
	for i, req := range reqs {
		key := keyOf(req)
		keys = append(keys, key)
		if at := slices.Index(p.lost, key); at >= 0 {
			p.lost = slices.Delete(p.lost, at, at+1)
			replies[i], err = driver.Reply{}, errPatchy
		}
	}
	p.asked = append(p.asked, keys)
	return replies, err
}

func (p *patchy) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	replies, err := p.Store.Resume(ctx, reqs)
	return patch(p, reqs, func(r driver.ResumeRequest) string { return r.Key }, replies, err)
}

func (p *patchy) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	replies, err := p.Store.Park(ctx, reqs)
	return patch(p, reqs, func(r driver.ParkRequest) string { return r.Key }, replies, err)
}

func (p *patchy) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	replies, err := p.Store.Release(ctx, reqs)
	return patch(p, reqs, func(r driver.ReleaseRequest) string { return r.Key }, replies, err)
}

// Of a batch only what has no answer is asked again: a request that was refused might be
// granted when repeated, and its caller would not know.
func TestBatchOfResumesRepeatsOnlyWhatHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var tokens []joblock.Token
		for _, key := range []string{"a", "b", "c", "d"} {
			tokens = append(tokens, k.park(k.acquire(key), joblock.ForJob("q/1")))
		}
		busy, err := k.locks.Resume(t.Context(), tokens[1], joblock.ForJob("q/1"))
		wantNil(t, "Resume", err)
		p := &patchy{Store: k.mem, lost: []string{"c"}}
		locks, errs := (*core.Locker)(k.open(p, nil)).Resume(t.Context(), core.Tokens(tokens), core.Options{Job: "q/1"})
		wantErr(t, errs[1], joblock.ErrBusy)
		for i, key := range []string{0: "a", 2: "c", 3: "d"} {
			if key == "" {
				continue
			}
			wantNil(t, "resume "+key, errs[i])
			if r := k.record(key); r.State != joblock.StateHeld || r.Fence != locks[i].Fence() {
				t.Errorf("record %+v, want it held under fence %d", r, locks[i].Fence())
			}
		}
		if asked, want := p.seen(), [][]string{{"a", "b", "c", "d"}, {"c"}}; !slices.EqualFunc(asked, want, slices.Equal) {
			t.Errorf("asked for %q, want %q", asked, want)
		}
		if locks[1] != nil || busy.Err() != nil {
			t.Error("the busy lock was taken")
		}
	})
}

func TestLocksAreReleasedInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks, err := k.locks.AcquireAll(t.Context(), []string{"a", "b", "c"})
		wantNil(t, "AcquireAll", err)
		other, err := k.peer().TryAcquire(t.Context(), "d") // of another Locker
		wantNil(t, "TryAcquire", err)
		wantNil(t, "Release", locks[1].Release(t.Context()))
		before := k.store.Calls(faultstore.Release)
		err = append(slices.Clone(locks), other, nil).Release(t.Context())
		wantErr(t, err, joblock.ErrAlreadyReleased)
		wantErr(t, err, joblock.ErrInvalid) // of the lock that is nil
		if n := k.store.Calls(faultstore.Release) - before; n != 1 {
			t.Errorf("%d calls of the store, want 1", n)
		}
		for _, key := range []string{"a", "b", "c", "d"} {
			k.wantState(key, joblock.StateFree)
		}
	})
}

// The answers that a batch has got count, and the rest is repeated in the background.
func TestBatchOfReleasesKeepsTheAnswersItGot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		p := &patchy{Store: k.mem, lost: []string{"b"}}
		locker := k.open(p, nil)
		locks, err := locker.AcquireAll(t.Context(), []string{"a", "b", "c"})
		wantNil(t, "AcquireAll", err)
		errs := locks.Core().Release(t.Context(), core.Release{Reason: "done"})
		wantErr(t, errs[1], joblock.ErrUnavailable)
		wantErr(t, errs[1], errPatchy)
		if errs[0] != nil || errs[2] != nil {
			t.Errorf("errors %v, want one alone", errs)
		}
		time.Sleep(time.Minute)
		if asked, want := p.seen(), []string{"b"}; len(asked) < 2 || !slices.Equal(asked[1], want) {
			t.Errorf("asked for %q, want %q again", asked, want)
		}
	})
}

// A call for more locks than a batch has says "call refused" only if the store has refused all that has no answer.
func TestBatchesThatAreRefusedInPart(t *testing.T) {
	refusal := fmt.Errorf("OOM: %w", driver.ErrRefused)
	for name, c := range map[string]struct {
		errs [2]error // of the two batches
		want string
	}{
		"both":       {[2]error{refusal, refusal}, "call refused: OOM"},
		"the first":  {[2]error{refusal, errPatchy}, "outcome unknown"},
		"the second": {[2]error{errPatchy, refusal}, "outcome unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				locker := k.open(&refusingTakes{Store: k.mem, errs: c.errs[:]}, nil)
				keys := make([]string, driver.MaxBatch+1)
				for i := range keys {
					keys[i] = fmt.Sprint("key-", i)
				}
				takes := make([]core.Take, len(keys))
				for i, key := range keys {
					takes[i] = core.Take{Key: key, Job: "q/1", Reserve: time.Minute}
				}
				for i, taken := range (*core.Locker)(locker).Take(t.Context(), "enqueue", takes) {
					if !errors.Is(taken.Err, joblock.ErrUnavailable) || !strings.Contains(taken.Err.Error(), c.want) {
						t.Fatalf("key %d: %v, want %q", i, taken.Err, c.want)
					}
				}
			})
		})
	}
}

// refusingTakes answers each Take with the next of errs.
type refusingTakes struct {
	driver.Store
	errs []error
}

func (s *refusingTakes) Take(_ context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	err := s.errs[0]
	s.errs = append(s.errs[1:], err)
	return make([]driver.Reply, len(reqs)), err
}

// A Park without an answer leaves its lock held, and the others are parked.
func TestBatchOfParksKeepsTheAnswersItGot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locker := k.open(&patchy{Store: k.mem, lost: []string{"b"}}, nil)
		locks, err := locker.AcquireAll(t.Context(), []string{"a", "b", "c", "over"})
		wantNil(t, "AcquireAll", err)
		wantNil(t, "Release", locks[3].Release(t.Context()))
		tokens, errs := (*core.Locker)(locker).Park(t.Context(), locks.Core(), func(int) core.Park { return core.Park{Job: "q/1"} })
		wantErr(t, errs[1], joblock.ErrUnavailable)
		wantErr(t, errs[3], joblock.ErrAlreadyReleased)
		for i, key := range []string{0: "a", 2: "c"} {
			if key == "" {
				continue
			}
			wantNil(t, "park "+key, errs[i])
			wantErr(t, locks[i].Err(), joblock.ErrNotOwner)
			if r := k.record(key); r.State != joblock.StateParked || r.Fence != tokens[i].Fence() || r.Job != "q/1" {
				t.Errorf("record %+v, want it parked under fence %d", r, tokens[i].Fence())
			}
		}
		wantNil(t, "Err", locks[1].Err())
		time.Sleep(time.Minute) // a renewal takes the Park back
		k.wantState("b", joblock.StateHeld)
		wantNil(t, "Err", locks[1].Err())
	})
}

func TestTokensAreReleasedInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var tokens []joblock.Token
		for _, key := range []string{"a", "b", "c"} {
			tokens = append(tokens, k.park(k.acquire(key), joblock.ForJob("q/1")))
		}
		_, err := k.locks.Resume(t.Context(), tokens[1], joblock.ForJob("q/1"))
		wantNil(t, "Resume", err)
		tokens = append(tokens, joblock.Token{})
		before := k.store.Calls(faultstore.Release)
		errs := (*core.Locker)(k.locks).Release(t.Context(), core.Tokens(tokens), core.Release{IfIdle: true, Job: "q/1"})
		wantErr(t, errs[1], joblock.ErrBusy)
		wantErr(t, errs[3], joblock.ErrInvalid)
		if errs[0] != nil || errs[2] != nil {
			t.Errorf("errors %v, want a and c released", errs)
		}
		if n := k.store.Calls(faultstore.Release) - before; n != 1 {
			t.Errorf("%d calls of the store, want 1", n)
		}
		k.wantState("a", joblock.StateFree)
		k.wantState("b", joblock.StateHeld)
		k.wantState("c", joblock.StateFree)
	})
}
