package worker

import (
	"context"
	"slices"

	"github.com/joblock/toolkit/joblock"
)

// start gives up the locks that the task was to have until its handler starts. A
// lock that is gone is no reason not to run: it kept others from being queued beside
// this task, and a retry has given it up before. When the store does not answer, or
// somebody has the lock in hand to put one task in the place of another, start
// returns the error that puts the task back: what is to be replaced must not run, and
// a handler that ran under a lock it was to have given up would have others turned
// away for nothing.
func (a *attempt) start(ctx context.Context) error {
	for _, token := range a.untilStart {
		err := a.w.locks.ReleaseIdle(ctx, token, reasonStarted, joblock.ForJob(a.job()))
		if joblock.CodeOf(err) == joblock.CodeNotOwner {
			err = a.elsewhere(ctx, token)
		}
		switch joblock.CodeOf(err) {
		case "", joblock.CodeAlreadyReleased, joblock.CodeNotFound:
			continue
		}
		if pb := a.putBack(err); pb != nil {
			return pb
		}
		a.w.cfg.Logger.Warn("worker: could not release a lock that a task has until it starts",
			"job", a.job(), "task", a.task.Type(), "key", token.Key(), "err", err)
	}
	return nil
}

// backOut gives back what was resumed for a handler that is not to start after
// all. Locks that are taken only for running are released: while the task waits
// they are anybody's.
func (a *attempt) backOut(locks joblock.Locks) {
	for _, lock := range locks {
		if slices.ContainsFunc(a.fromStart, ofKey(lock.Key())) {
			a.release(joblock.Locks{lock}, reasonPutBack)
		} else {
			a.park(joblock.Locks{lock}, a.w.hold(0))
		}
	}
}

func ofKey(key string) func(joblock.Token) bool {
	return func(t joblock.Token) bool { return t.Key() == key }
}
