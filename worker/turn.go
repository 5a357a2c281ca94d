package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// lineUp is for a job in a sequence that does not have its key. If the job waits, its place is kept, and the error
// snoozes the task for a long time: the caller that gives the key to the job runs the task. If the job has lost its
// place, the job gets the key if the key is free, and otherwise a new place.
//
// The job lines up only if it has neither the key, nor a place, nor a slot. lineUp asks in this order, because a job
// without a place gets no slot. A Take alone cannot show that the job had no place: if it is sent twice, the second
// finds the place that the first has made.
func (r resumer) lineUp(ctx context.Context, token joblock.Token) (*core.Lock, error) {
	if slot, found, err := r.findSlot(ctx, r.mostSlots(ctx)); found || err != nil {
		return r.resumeSlot(ctx, slot, err)
	}
	if key, other := driver.LineOf(token.Key()); other { // the jobs wait in the line of the first slot
		token = joblock.Token(core.Token(token).OfSlot(key))
		r.moveTo(token)
	}
	switch err := r.keepPlace(ctx, token); {
	case err == nil: // the job's turn has come meanwhile
		return r.resumeSlot(ctx, token, nil)
	case errors.Is(err, joblock.ErrHeld):
		return nil, r.waitForTurn(token.Key())
	case !verdict.IsGone(err):
		return nil, err
	}
	// The job may have got another slot after findSlot had looked, or a slot beyond the Limit of its own enqueue: a later
	// enqueue had a larger Limit.
	switch got, err := r.slots(ctx, 2, driver.MaxSlots); {
	case err != nil:
		return nil, err
	case len(got) > 0:
		return r.resumeSlot(ctx, joblock.Token(core.Token(token).OfSlot(got[0].Key)), nil)
	}
	r.log().Warn("worker: a job of a sequence has neither the key nor a place in its line, and lines up again; "+
		"jobs that were enqueued after it may run before it", "key", token.Key())
	taken := (*core.Locker)(r.w.locks).Take(ctx, "line up", []core.Take{{
		Key: token.Key(), Job: r.job, Reserve: r.w.reservation(0), Patience: envelope.Patience, Token: (*core.Token)(&token),
	}})[0]
	if taken.Err != nil {
		return nil, taken.Err
	}
	if taken.Waits == nil {
		return r.resumeSlot(ctx, token, nil)
	}
	return nil, r.waitForTurn(token.Key())
}

// resumeSlot resumes the lock of token, a slot of the sequence, unless err is set.
func (r resumer) resumeSlot(ctx context.Context, token joblock.Token, err error) (*core.Lock, error) {
	if err != nil {
		return nil, err
	}
	if token != r.sequence.Token {
		r.moveTo(token)
	}
	locks, errs := r.resume(ctx, []joblock.Token{token})
	return locks[0], errs[0]
}

// waitForTurn returns the error that snoozes a task whose turn has not come.
func (a *attempt) waitForTurn(key string) *verdict.Snooze {
	a.canSnooze() // logs if Configure was not called
	return a.tries.Turn(key, a.w.cfg.Snooze)
}

// early returns an error that snoozes the task until the time that its author has asked for, or nil if that time has
// come, or if an operator has run the task during that snooze.
func (r resumer) early() *verdict.Snooze {
	if r.sequence == nil || r.sequence.NotBefore.IsZero() {
		return nil
	}
	if time.Until(r.sequence.NotBefore) <= 0 || strings.Contains(r.lastErr(), jobline.EarlyText) {
		return nil
	}
	return verdict.Early(r.sequence.NotBefore)
}

// keepPlace prolongs the place of the job in the line of token's key. The error is nil if the job has the key,
// joblock.ErrHeld if the job waits, and an error for which verdict.IsGone is true if the job has neither.
func (r resumer) keepPlace(ctx context.Context, token joblock.Token) error {
	// A key that is free goes to the first in line.
	return r.w.next.Reserve(ctx, core.Reservation{Key: token.Key(), Job: r.job, For: envelope.Patience})[0]
}
