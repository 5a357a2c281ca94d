//go:build servers

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// The server's clock is set an hour ahead while a lock is held: the lock is
// over for the server, and its holder learns that from its next renewal.
func TestServersClockIsSetAhead(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClock(t)
	locks := newLocks(t, server.Addr(), &joblock.Config{TTL: 2 * time.Minute}) // renewed by hand only
	lock, err := locks.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := lock.Context(t.Context())
	defer stop()
	clock.Set(time.Hour)
	next, err := newLocks(t, server.Addr(), nil).TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("the next: %v", err)
	}
	if next.Fence() < lock.Fence()+time.Hour.Microseconds() {
		t.Errorf("fence %d after %d is no hour later", next.Fence(), lock.Fence())
	}
	if err := renew(t, lock); !errors.Is(err, joblock.ErrLost) {
		t.Fatalf("renew: %v, want ErrLost", err)
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), joblock.ErrLost) {
		t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
	}
	if err := lock.Release(t.Context()); !errors.Is(err, joblock.ErrLost) {
		t.Errorf("release: %v, want ErrLost", err)
	}
	if err := renew(t, next); err != nil {
		t.Errorf("the next after that: %v", err)
	}

	// And back again: the lock that there is lasts, and so does the growth of fences.
	clock.Set(0)
	if err := renew(t, next); err != nil {
		t.Errorf("renew: %v", err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	last, err := locks.TryAcquire(t.Context(), "k")
	if err != nil || last.Fence() <= next.Fence() {
		t.Errorf("the last: %v, %v after %d", last, err, next.Fence())
	}
}

// Set an hour back, the lock lasts longer at the server, and no other caller gets it before its
// holder has given it back; fences go on growing.
func TestServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClock(t)
	locks := newLocks(t, server.Addr(), &joblock.Config{TTL: 2 * time.Minute})
	others := newLocks(t, server.Addr(), &waitConfig)
	lock, err := locks.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := lock.Context(t.Context())
	defer stop()
	fence := lock.Fence()
	clock.Set(-time.Hour)
	var e *joblock.Error
	if _, err := others.TryAcquire(t.Context(), "k"); !errors.As(err, &e) || e.Code != joblock.CodeOf(joblock.ErrHeld) || e.Remaining < 50*time.Minute {
		t.Errorf("the other: %v, want ErrHeld for an hour", err)
	}
	if err := renew(t, lock); err != nil || ctx.Err() != nil {
		t.Errorf("renew: %v, %v", err, ctx.Err())
	}
	token, err := lock.Park(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lock, err = locks.Resume(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if core.Token(token).Fence() <= fence || lock.Fence() <= core.Token(token).Fence() {
		t.Errorf("fences %d, %d, %d do not grow", fence, core.Token(token).Fence(), lock.Fence())
	}
	// A waiter's push comes as before, and its lease is none of the past.
	next := make(chan *joblock.Lock, 1)
	go func() {
		lock, err := others.Acquire(t.Context(), "k", joblock.MaxWait(time.Minute))
		if err != nil {
			t.Error(err)
		}
		next <- lock
	}()
	awaitWaiters(t, others, "k", 1)
	if err := lock.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if got := <-next; got == nil || got.Fence() <= lock.Fence() {
		t.Errorf("the next: %v after %d", got, lock.Fence())
	}
}
