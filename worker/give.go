package worker

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// What an attempt does with locks that it holds. None of it returns an error: errors are logged, the Locker repeats a
// release that had no answer, and the reservation of a lock that could not be parked remains in force.

func (a *attempt) release(locks joblock.Locks, reason string) {
	a.behind(func() { a.end(a.ctx, locks, reason) })
}

// end releases locks together. An error is only logged: the Locker repeats a release that had no answer.
func (a *attempt) end(ctx context.Context, locks joblock.Locks, reason string) {
	for i, err := range door.Of(a.w.locks).End(a.w.next.In(ctx), locks, reason) {
		a.report(locks[i], "release", err)
	}
}

// park parks locks for the next attempt, reserved for the time in reserve. Errors are logged.
func (a *attempt) park(locks joblock.Locks, reserve time.Duration) {
	ctx := context.WithoutCancel(a.ctx)
	a.behind(func() {
		opts := []joblock.ParkOption{joblock.Reserve(reserve), joblock.ForJob(a.job)}
		_, errs := door.Of(a.w.locks).Park(ctx, locks, func(int) []joblock.ParkOption { return opts })
		for i, err := range errs {
			if errors.Is(err, joblock.ErrUnavailable) {
				locks[i].StopRenewing() // the reservation that the attempt already has remains in force
			}
			a.report(locks[i], "park", err)
		}
	})
}

// dropLate releases a lock that came too late for the attempt. lock may be nil.
func (a *attempt) dropLate(lock *joblock.Lock) {
	if lock != nil {
		a.release(joblock.Locks{lock}, verdict.ReasonOver)
	}
}

func (a *attempt) report(lock *joblock.Lock, op string, err error) {
	if joblock.CodeOf(err) == "" || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrNotOwner) {
		return // the handler itself released the lock or handed the lock over
	}
	msg := "worker: could not " + op + " the lock of a task"
	if errors.Is(err, joblock.ErrLost) {
		msg = "worker: the lock of a task was lost before the end of the attempt"
	}
	a.log().Warn(msg, "key", lock.Key(), "fence", lock.Fence(), "err", err)
}

// resume resumes tokens together. Each token has either a lock or an error, in the order of tokens.
func (a *attempt) resume(ctx context.Context, tokens []joblock.Token) (joblock.Locks, []error) {
	in := door.Of(a.w.locks)
	opts := []joblock.ResumeOption{
		joblock.ForJob(a.job), joblock.Holder(a.holder(in.Settings().Holder)), joblock.Reserve(a.w.cfg.Reserve),
	}
	locks, errs := in.Resume(ctx, tokens, opts)
	return locks.(joblock.Locks), errs
}
