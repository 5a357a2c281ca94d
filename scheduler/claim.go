package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// The method claim takes the lock of a job and executes what is due. Then claim frees the slot that the caller has
// taken. The result is the time of the next read of the ledger.
func (s *Scheduler) claim(ctx context.Context, j *job) time.Time {
	defer func() { <-s.slots }()
	lock, err := s.locks.TryAcquire(ctx, j.key, s.lockOptions()...)
	if err != nil {
		if !errors.Is(err, joblock.ErrHeld) && ctx.Err() == nil { // ErrHeld: another node was first
			s.reportTrouble(j, "take the lock", err)
		}
		return soon(s.clock.now().Add(settling))
	}
	return s.runTerm(ctx, j, lock)
}

// standBy waits for the lock of a job that another node executes, and takes over an execution that was broken off.
// Usually the execution ends well, and standBy finds nothing to do. standBy frees the place in Scheduler.standbys that
// the caller has taken. standBy returns the time of the next read of the ledger.
func (s *Scheduler) standBy(ctx context.Context, j *job) time.Time {
	wait, giveUp := context.WithCancel(ctx)
	s.mu.Lock()
	if j.giveUp = giveUp; j.gone {
		giveUp()
	}
	s.mu.Unlock()
	lock, err := s.locks.Acquire(wait, j.key, s.waitOptions()...)
	giveUp()
	<-s.standbys
	if err != nil {
		if ctx.Err() == nil && !s.isGone(j) {
			s.reportTrouble(j, "wait for the lock", err)
		}
		return soon(s.clock.now().Add(unanswered))
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		s.rereadOrders(ctx)
		return s.runTerm(ctx, j, lock)
	default: // this node is full
		s.release(ctx, lock)
		return soon(s.clock.now().Add(settling))
	}
}

// runTerm executes the job under its lock, which runTerm then releases. The result is when to read the ledger again.
func (s *Scheduler) runTerm(ctx context.Context, j *job, lock *joblock.Lock) time.Time {
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		s.release(ctx, lock)
		s.reportUnreadable(j, err)
		return s.clock.now().Add(unreadable)
	}
	if !s.hasRoom(j) {
		s.release(ctx, lock)
		return soon(s.clock.now().Add(settling))
	}
	err = s.executeDue(ctx, j, lock, l)
	s.release(ctx, lock)
	if err != nil {
		s.reportTrouble(j, "write the ledger", err)
		return soon(s.clock.now().Add(settling))
	}
	s.setTrouble(j, nil)
	if j.AtOnce > 1 {
		return soon(s.clock.now())
	}
	return s.nextCheck(j, l)
}

// The method release logs a failure and does not repeat the release: the Locker repeats a release without an answer.
func (s *Scheduler) release(ctx context.Context, lock *joblock.Lock) {
	if err := lock.Release(ctx); err != nil && !errors.Is(err, joblock.ErrLost) { // the Locker has logged the loss
		s.cfg.Logger.Warn("scheduler: a lock was not released", "key", lock.Key(), "err", err)
	}
}
