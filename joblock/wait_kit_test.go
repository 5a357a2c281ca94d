package joblock_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const onTime = lockkit.OnTime

// sinceAsked is the most by which the lease of a pushed grant counts from before the grant: a waiter asks once per poll.
const sinceAsked = joblock.DefaultPoll * 5 / 4

// waiting is an Acquire that runs in a goroutine of its own.
type waiting struct {
	t      testing.TB
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when lock and err are there, at the time took
	lock   *joblock.Lock
	err    error
	took   time.Duration
}

// wait starts an Acquire, and returns when it can do no more on its own: it has its
// place in the queue, or its result.
func (k *kit) wait(locks *joblock.Locker, key string, opts ...joblock.AcquireOption) *waiting {
	k.Helper()
	ctx, cancel := context.WithCancelCause(k.Context())
	w := &waiting{t: k.T, cancel: cancel, done: make(chan struct{})}
	start := time.Now()
	go func() {
		defer close(w.done)
		w.lock, w.err = locks.Acquire(ctx, key, opts...)
		w.took = time.Since(start)
	}()
	synctest.Wait()
	return w
}

// over reports whether the Acquire has returned, after all that can happen now.
func (w *waiting) over() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// granted waits for the lock, at most d.
func (w *waiting) granted(d time.Duration) *joblock.Lock {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(d):
		if !w.over() {
			w.t.Fatalf("still waiting after %s", d)
		}
	}
	if w.err != nil {
		w.t.Fatalf("Acquire: %v", w.err)
	}
	return w.lock
}

// failed waits for the error, at most d.
func (w *waiting) failed(d time.Duration) error {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(d):
		if !w.over() {
			w.t.Fatalf("still waiting after %s", d)
		}
	}
	if w.lock != nil {
		w.t.Fatal("got the lock")
	}
	return w.err
}

// goroutines returns how many there are in the bubble. Those outside, the runtime's and
// the testing package's, come and go as they like.
func goroutines() int {
	synctest.Wait()
	for size := 1 << 20; ; size *= 2 {
		if stacks := make([]byte, size); runtime.Stack(stacks, true) < size {
			return bytes.Count(stacks, []byte(", synctest bubble "))
		}
	}
}

// wantTrusted checks that lock is trusted no longer than its lease, and not less
// than the margin, and slack, before its end.
func (k *kit) wantTrusted(lock *joblock.Lock, slack time.Duration) {
	k.Helper()
	lease, trust := k.record(lock.Key()).Lease, time.Until(lock.ExpiresAt())
	if trust > lease {
		k.Errorf("trusted for %s, the lease is %s", trust, lease)
	}
	if margin := min(lock.TTL()/20, time.Second); trust < lease-margin-slack {
		k.Errorf("trusted for %s only, the lease is %s", trust, lease)
	}
}

// crash takes key as a process does that is never heard of again.
func (k *kit) crash(key string, ttl time.Duration) {
	k.Helper()
	r, err := k.mem.Acquire(context.Background(), driver.AcquireRequest{
		Key: key, Owner: "crashed", Nonce: "crashed", TTL: ttl, Retain: time.Hour, Holder: "crashed",
	})
	if err != nil || r.Outcome != driver.OutcomeOK {
		k.Fatalf("Acquire: %+v, %v", r, err)
	}
}

// section is what a lock guards: it notices company and fences that do not grow.
type section struct {
	inside atomic.Int32

	mu      sync.Mutex
	fence   int64
	entries int
	wrong   []string
}

// visit is what to do while holding the lock with that fence.
func (s *section) visit(fence int64, stay time.Duration) {
	if n := s.inside.Add(1); n > 1 {
		s.complain("%d inside at once", n)
	}
	s.mu.Lock()
	before := s.fence
	s.fence = fence
	s.entries++
	s.mu.Unlock()
	if fence <= before {
		s.complain("fence %d after %d", fence, before)
	}
	time.Sleep(stay)
	s.inside.Add(-1)
}

func (s *section) complain(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// check fails the test unless there were n visits, one at a time.
func (s *section) check(t testing.TB, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.wrong {
		t.Error(w)
	}
	if s.entries != n {
		t.Errorf("%d visits, want %d", s.entries, n)
	}
}
