package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/internal/slots"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// This file is about jobs in a sequence: see Sequences in the package comment.

// haltFor is how long the key of a halted sequence stays reserved for the job that has failed, if no keeper prolongs
// the reservation. asynq keeps an archived task for as long.
const haltFor = 90 * 24 * time.Hour

// The method inSequence reports whether token is for the key of the sequence that the task is part of.
func (a *attempt) inSequence(token joblock.Token) bool {
	return a.sequence != nil && a.sequence.Token == token
}

// lineUp is for a job in a sequence that does not have its key. If the job waits, its place is kept, and the error
// snoozes the task for long: whoever gives the key to the job runs the task. If the job has lost its place, the job
// gets the key if the key is free, and otherwise a new place.
//
// The job lines up only if it has neither the key, nor a place, nor a slot. lineUp asks in this order, because a job
// without a place gets no slot. The answer of a Take does not tell: the Take may have been sent before, and then finds
// the place that it has made itself.
func (a *attempt) lineUp(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	if slot, found, err := a.findSlot(ctx, a.sequence.Limit); found || err != nil {
		return a.resumeSlot(ctx, slot, err)
	}
	if key, other := driver.LineOf(token.Key()); other { // the line is that of the first slot
		token = door.TokenOfSlot(token, key)
		a.moveTo(token)
	}
	switch err := a.keepPlace(ctx, token); {
	case err == nil: // the job's turn has come meanwhile
		return a.resumeSlot(ctx, token, nil)
	case errors.Is(err, joblock.ErrHeld):
		return nil, a.waitForTurn(token.Key())
	case !isGone(err):
		return nil, err
	}
	// The job may have got another slot after findSlot had looked, or a slot beyond the Limit of its own enqueue: a later
	// enqueue had a larger Limit.
	switch got, err := a.slots(ctx, 2, driver.MaxSlots); {
	case err != nil:
		return nil, err
	case len(got) > 0:
		return a.resumeSlot(ctx, door.TokenOfSlot(token, got[0].Key), nil)
	}
	a.log().Warn("worker: a job of a sequence has neither the key nor a place in its line, and lines up again; "+
		"jobs that were enqueued after it may run before it", "key", token.Key())
	taken := door.Of(a.w.locks).Take(ctx, "line up", []door.Take{{
		Key: token.Key(), Job: a.job, Reserve: a.w.reservation(0), Patience: envelope.Patience, Token: token,
	}})[0]
	if taken.Err != nil {
		return nil, taken.Err
	}
	if taken.Waits == nil {
		return a.resumeSlot(ctx, token, nil)
	}
	return nil, a.waitForTurn(token.Key())
}

// keepPlace prolongs the place of the job in the line of token's key. The error is nil if the job has the key,
// joblock.ErrHeld if the job waits, and one for which isGone is true if the job has neither.
func (a *attempt) keepPlace(ctx context.Context, token joblock.Token) error {
	ctx = a.w.next.In(ctx) // a key that is free goes to the first in line
	return jobs.Reserve(ctx, a.w.locks, jobs.Reservation{Key: token.Key(), Job: a.job, For: envelope.Patience})[0]
}

// findSlot looks among the first limit slots of the sequence for one that is the job's, and returns the token of that
// slot. If limit is below 2, findSlot asks nobody.
func (a *attempt) findSlot(ctx context.Context, limit int) (slot joblock.Token, found bool, err error) {
	if limit < 2 {
		return slot, false, nil
	}
	got, err := a.slots(ctx, 1, limit)
	if err != nil || len(got) == 0 {
		return slot, false, err
	}
	return door.TokenOfSlot(a.sequence.Token, got[0].Key), true, nil
}

// The method slots returns those slots of the sequence that are the job's, of the slots first to last.
func (a *attempt) slots(ctx context.Context, first, last int) ([]joblock.Status, error) {
	key, _ := driver.LineOf(a.sequence.Token.Key())
	return slots.Of(ctx, a.w.locks, a.sequence.Token, a.job, slots.Keys(key, first, last))
}

// The method moveTo makes token the token of the sequence, in place of that of another slot.
func (a *attempt) moveTo(token joblock.Token) {
	replaced := func(tokens []joblock.Token) []joblock.Token {
		tokens = slices.Clone(tokens)
		if i := slices.Index(tokens, a.sequence.Token); i >= 0 {
			tokens[i] = token
		}
		return tokens
	}
	a.tokens, a.asked = replaced(a.tokens), replaced(a.asked)
	seq := *a.sequence
	seq.Token = token
	a.sequence = &seq
}

// resumeSlot resumes the lock of token, a slot of the sequence, unless err is set.
func (a *attempt) resumeSlot(ctx context.Context, token joblock.Token, err error) (*joblock.Lock, error) {
	if err != nil {
		return nil, err
	}
	if token != a.sequence.Token {
		a.moveTo(token)
	}
	locks, errs := a.resume(ctx, []joblock.Token{token})
	return locks[0], errs[0]
}

// waitForTurn returns the error that snoozes a task whose turn has not come.
func (a *attempt) waitForTurn(key string) *snoozeError {
	delay := jittered(envelope.Wait)
	if !a.canSnooze() {
		delay = a.w.cfg.Snooze // the task waits in place, or in the archive
	}
	return &snoozeError{fmt.Errorf("%s in the line of key %q", nextjob.WaitText, key), delay}
}

// The method early returns an error that snoozes the task until the time that the task's author has asked for. The
// result is nil if that time has come, or if somebody has run the task during that snooze.
func (a *attempt) early() *snoozeError {
	if a.sequence == nil || a.sequence.NotBefore.IsZero() {
		return nil
	}
	delay := time.Until(a.sequence.NotBefore)
	if delay <= 0 || strings.Contains(a.lastErr(), nextjob.EarlyText) {
		return nil
	}
	return &snoozeError{fmt.Errorf("%s, %s", nextjob.EarlyText, a.sequence.NotBefore.Format(time.RFC3339)), delay}
}

// The method inOrder calls over in the background when asynq has written that the task will not run again. So the next
// job starts only then. If this process dies before, asynq delivers the task again while the key is the job's, and those
// behind wait. If asynq does not write that, inOrder calls again, with the time until the task is due.
func (a *attempt) inOrder(over func(), again func(delay time.Duration)) {
	a.w.open.background(func() {
		// asynq ends the context just after the write.
		sleep.AtMost(settleWait, a.ctx.Done())
		if written, delay := a.written(); written {
			over()
		} else {
			again(delay)
		}
	})
}

// firstLook is the pause after a lookup that shows the task as active. asynq writes at once unless its Redis is slow.
const firstLook = 2 * time.Millisecond

// The method written waits until asynq has written what becomes of a task whose attempt is over. The result over is true
// if the task will not run again. Otherwise delay is the time until the task is due. If asynq has not written anything
// for archivePatience, its lease on the task has ended, and its recoverer takes up the task: delay is 0.
func (a *attempt) written() (over bool, delay time.Duration) {
	patience := time.Now().Add(archivePatience)
	for pause := firstLook; ; pause = min(2*pause, time.Second) {
		info, err := a.w.batched.GetTaskInfo(a.queue, a.id)
		switch {
		case noTask(err):
			return true, 0
		case err != nil, info.State == asynq.TaskStateActive:
		case info.Headers[envelope.Header] != a.task.Headers()[envelope.Header]:
			return true, 0 // another task with the same ID
		case info.State == asynq.TaskStateCompleted, info.State == asynq.TaskStateArchived && !snoozedInArchive(info):
			return true, 0
		default:
			return false, max(0, time.Until(info.NextProcessAt))
		}
		if time.Now().After(patience) || sleep.For(a.w.open.closing, pause) != nil {
			a.log().Warn("worker: asynq has not written the end of a job; the key of its sequence stays with the job", "err", err)
			return false, 0
		}
	}
}

// The method releaseInOrder is releaseIdle for a task that asynq is about to archive. For a task of a sequence,
// releaseInOrder does not wait: the locks of tokens are released in the background, when asynq has archived the task. If
// asynq does not archive the task, these locks stay reserved for the task.
func (a *attempt) releaseInOrder(ctx context.Context, tokens []joblock.Token, reason string) {
	if a.sequence == nil {
		a.releaseIdle(ctx, tokens, reason)
		return
	}
	a.inOrder(func() { a.releaseIdle(ctx, tokens, reason) }, func(time.Duration) {})
}

// The method halts reports whether a job that ends for the reason in the parameter reason keeps the key of its
// sequence.
func (a *attempt) halts(reason string) bool {
	return isFailed(reason) && a.sequence != nil && a.sequence.Halt
}

// The method halt parks the lock of a sequence for this job, which halts the sequence. The result is false if this
// attempt does not hold the lock. Errors are logged: the attempt's own reservation then stands, and the keeper prolongs
// it.
func (a *attempt) halt(ctx context.Context) bool {
	lock, ok := a.locks.ByKey(a.sequence.Token.Key())
	if !ok || lock.Err() != nil {
		return false
	}
	opts := []joblock.ParkOption{joblock.Reserve(haltFor), joblock.ForJob(a.job)}
	_, errs := door.Of(a.w.locks).Park(context.WithoutCancel(ctx), joblock.Locks{lock}, func(int) []joblock.ParkOption { return opts })
	if errors.Is(errs[0], joblock.ErrUnavailable) {
		lock.StopRenewing()
	}
	a.report(lock, "park", errs[0])
	a.logHalted(lock.Key())
	return true
}

func (a *attempt) logHalted(key string) {
	a.log().Warn("worker: a job has failed for good and halts its sequence: run its task again, or skip it", "key", key)
}

// haltIdle is releaseIdle for the token of a sequence that halts: the key stays reserved for the job. But a job that
// waits leaves the line.
func (a *attempt) haltIdle(ctx context.Context, token joblock.Token) {
	ctx = a.w.next.In(context.WithoutCancel(ctx))
	err := jobs.Reserve(ctx, a.w.locks, jobs.Reservation{Key: token.Key(), Job: a.job, For: haltFor})[0]
	switch {
	case err == nil:
		a.logHalted(token.Key())
	case errors.Is(err, joblock.ErrHeld):
		a.leaveLine(ctx, token, reasonFailed)
	case errors.Is(err, joblock.ErrUnavailable):
		a.recheck(ctx, a.w.cfg.Snooze, token, reasonFailed)
	}
}

// leaveLine gives up the place of the job in the line of token's key, or that key if the key is parked for the job. The
// result is false if the job had neither. If the store does not answer, leaveLine logs a warning and returns true: the
// keeper gives up the place or the key when the task has ended.
func (a *attempt) leaveLine(ctx context.Context, token joblock.Token, reason string) bool {
	release := jobs.Release{Key: token.Key(), Job: a.job, Reason: reason}
	err := jobs.Free(a.w.next.In(ctx), a.w.locks, release)[0]
	if errors.Is(err, joblock.ErrUnavailable) {
		a.log().Warn("worker: could not take a job out of the line of its sequence", "key", token.Key(), "err", err)
	}
	return err == nil || errors.Is(err, joblock.ErrUnavailable)
}
