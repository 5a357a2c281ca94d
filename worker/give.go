package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// The methods below release, park and resume locks of an attempt. Releases and parks return no errors: errors are
// logged, the Locker repeats a release that had no answer, and the reservation of a lock that could not be parked
// remains in force.

func (a *attempt) release(locks core.Locks, reason string) {
	a.behind(func() { a.end(a.ctx, locks, reason) })
}

// end releases locks together. An error is only logged: the Locker repeats a release that had no answer.
func (a *attempt) end(ctx context.Context, locks core.Locks, reason string) {
	for i, err := range a.w.next.ReleaseLocks(ctx, locks, a.ended(reason)) {
		a.report(locks[i], "release", err)
	}
}

// ended returns the core.Release for locks that the attempt holds. If the job is done, it applies only to locks that
// are bound to the job.
func (a *attempt) ended(reason string) core.Release {
	r := core.Release{Reason: reason}
	if verdict.IsDone(reason) {
		r.Job, r.Done = a.job, true
	}
	return r
}

// park parks locks for the next attempt, and reserves them for the time reserve. Errors are logged.
func (a *attempt) park(locks core.Locks, reserve time.Duration) {
	ctx := context.WithoutCancel(a.ctx)
	a.behind(func() {
		_, errs := (*core.Locker)(a.w.locks).Park(ctx, locks, func(int) core.Park { return core.Park{Reserve: reserve, Job: a.job} })
		for i, err := range errs {
			if errors.Is(err, joblock.ErrUnavailable) {
				locks[i].StopRenewing() // the reservation that the attempt already has remains in force
			}
			a.report(locks[i], "park", err)
		}
	})
}

// backOut gives back the locks of a task that is snoozed. If the task has not started, backOut releases the locks in
// c.taken, because other jobs may have them while the task waits. It parks all other locks, and reserves them for the
// time reserve.
func (c *carrier) backOut(locks core.Locks, reserve time.Duration) {
	var taken, others core.Locks
	for _, lock := range locks {
		if !c.started && slices.Contains(c.taken, lock.Key()) {
			taken = append(taken, lock)
		} else {
			others = append(others, lock)
		}
	}
	if len(taken) > 0 {
		c.release(taken, verdict.ReasonSnoozed)
	}
	if len(others) > 0 {
		c.park(others, reserve)
	}
}

// dropLate releases a lock that came too late for the attempt. lock may be nil.
func (a *attempt) dropLate(lock *core.Lock) {
	if lock != nil {
		a.release(core.Locks{lock}, verdict.ReasonOver)
	}
}

func (a *attempt) report(lock *core.Lock, op string, err error) {
	if joblock.CodeOf(err) == "" || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrNotOwner) {
		return // the handler itself released the lock or handed the lock over
	}
	msg := "worker: could not " + op + " the lock of a task"
	if errors.Is(err, joblock.ErrLost) {
		msg = "worker: the lock of a task was lost before the end of the attempt"
	}
	a.log().Warn(msg, "key", lock.Key(), "fence", lock.Fence(), "err", err)
}

// resume resumes tokens together. For each token it returns either a lock or an error, in the order of tokens.
func (a *attempt) resume(ctx context.Context, tokens []joblock.Token) (core.Locks, []error) {
	in := (*core.Locker)(a.w.locks)
	return in.Resume(ctx, core.Tokens(tokens), core.Options{Job: a.job, Holder: a.holder(in.Settings().Holder), Reserve: a.w.cfg.Reserve})
}
