package enqueue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// contendFor bounds how long a call goes on trying to replace a job while other calls replace it, including its wait
// for a turn.
const contendFor = 10 * time.Second

// turns serialises those calls of one process that may replace the job of a key, in order of arrival, so that the
// latest call replaces last, and the calls do not keep each other from the key. Calls of other processes compete for
// the key itself; see unique.proceed. The zero value is ready for use.
type turns struct {
	mu  sync.Mutex
	has map[string]*turn // by key: the turns that calls have or wait for
}

type turn struct {
	free  chan struct{} // has one element while no call has the turn; waiting calls get it in their order
	calls int           // that have the turn or wait for it; turns.mu guards calls
}

// take waits for the turn of key, and returns the function that gives the turn up. The error is the cause of ctx.
func (t *turns) take(ctx context.Context, key string) (giveUp func(), err error) {
	t.mu.Lock()
	at := t.has[key]
	if at == nil {
		at = &turn{free: make(chan struct{}, 1)}
		at.free <- struct{}{}
		if t.has == nil {
			t.has = make(map[string]*turn)
		}
		t.has[key] = at
	}
	at.calls++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if at.calls--; at.calls == 0 {
			delete(t.has, key)
		}
	}
	select {
	case <-at.free:
		return func() { at.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// errContended is the cause of a context that ends after contendFor.
var errContended = errors.New("other calls are replacing the job")

// enter waits until u is the first of the calls of this process that may replace the job of its key. If u replaces no
// job, enter does not wait.
func (u *unique) enter(ctx context.Context) (leave func(error) error, err error) {
	if u.hasTurn || !u.replaces() {
		return u.dispatch.enter(ctx)
	}
	if u.contendUntil.IsZero() {
		u.contendUntil = time.Now().Add(contendFor)
	}
	wait, cancel := context.WithDeadlineCause(ctx, u.contendUntil, errContended)
	defer cancel()
	done, err := u.c.turns.take(wait, u.takenKey())
	switch {
	case err == nil:
		u.hasTurn = true
		return func(err error) error { u.hasTurn = false; done(); return err }, nil
	case errors.Is(err, errContended):
		return nil, u.contended(&joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Op: opEnqueue, Key: u.takenKey()})
	}
	return nil, u.wrap(err)
}

// contended returns the ErrHeld for a job that other calls keep replacing. Its Remaining is 0: the caller may retry at
// once.
func (u *unique) contended(held *joblock.Error) error {
	e := *held
	e.Remaining = 0
	return heldWith(&e, "other calls keep replacing the job of the key; try again")
}
