package enqueue

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// Withdraw is handoff.Client.Withdraw.
func (c *Client) Withdraw(ctx context.Context, done Result) error {
	const op = "withdraw"
	if err := c.check(op); err != nil {
		return err
	}
	if done.Duplicate {
		return nil
	}
	if done.Task == nil {
		return Invalid(op, "", "Result.Task is nil, must be the task of a job")
	}
	if err := checkOpen(c.locks, op); err != nil {
		return err
	}
	w := &withdrawal{c: c, waiting: waiting{op: op, done: done}}
	return unlessBusy(func() error { return w.try(ctx) })
}

// unlessBusy calls try until its error is not joblock.ErrBusy, for at most half of settleFor, and returns that error. A
// task that finds its lock busy is active only for a moment.
func unlessBusy(try func() error) error {
	for giveUp := time.Now().Add(settleFor / 2); ; time.Sleep(deletePause) {
		err := try()
		if !errors.Is(err, joblock.ErrBusy) || !time.Now().Before(giveUp) {
			return err
		}
	}
}

// waiting is the job of a call that changes or ends a job before it runs.
type waiting struct {
	op   string
	done Result
	job  string
}

func (w *waiting) failed(sentinel error, detail string, cause error) error {
	return own(&joblock.Error{Code: joblock.CodeOf(sentinel), Op: w.op, Job: w.job, Detail: detail, Err: cause})
}

// same reports whether task is the one that was enqueued, and not a later one with its ID.
func (w *waiting) same(task *asynq.TaskInfo) bool {
	if w.done.Receipt != nil {
		return sha256.Sum256([]byte(task.Headers[envelope.Header])) == w.done.Receipt.header
	}
	return task.Type == w.done.Task.Type && bytes.Equal(task.Payload, w.done.Task.Payload)
}

// read returns nil if the task waits or is archived, and otherwise the error for the caller. task and err are the
// answer of the Inspector.
func (w *waiting) read(task *asynq.TaskInfo, later bool, err error) error {
	switch {
	case err != nil:
		return w.failed(joblock.ErrUnavailable, "the job's task could not be read", err)
	case !later && !w.same(task):
		return w.failed(joblock.ErrNotOwner, "another job has the task ID by now", nil)
	case task.State == asynq.TaskStateActive:
		return w.failed(joblock.ErrBusy, "the job runs", nil)
	case task.State == asynq.TaskStateCompleted:
		return w.failed(joblock.ErrNotFound, "the job is done", nil)
	}
	return nil
}

// alone returns the error for a task that asynq has made of a group: a call about one key must not end or delay the
// work that stands for the other keys.
func (w *waiting) alone(env envelope.Envelope) error {
	if env.Members > 1 {
		return w.failed(joblock.ErrInvalid, fmt.Sprintf("asynq has aggregated %d tasks of a group into the job's task, which stands for their keys too", env.Members), nil)
	}
	return nil
}

// withdrawal is one call of Withdraw.
type withdrawal struct {
	waiting
	c *Client
}

func (w *withdrawal) try(ctx context.Context) error {
	ctx, cancel := settling(ctx)
	defer cancel()
	task, later, err := w.find(ctx)
	if isGone(err) {
		return w.leftBehind(ctx)
	}
	if err := w.read(task, later, err); err != nil {
		return err
	}
	env, err := w.c.envelopeOf(ctx, task)
	if err != nil {
		return w.failed(joblock.ErrUnavailable, "what the job's task carries could not be read", err)
	}
	if err := w.alone(env); err != nil {
		return err
	}
	lock, err := w.hold(ctx, env)
	if err != nil {
		return err
	}
	certain, err := w.c.deleteTask(ctx, task.Queue, task.ID)
	if err != nil {
		if lock != nil {
			err = errors.Join(err, w.c.parkFor(ctx, lock, w.job, w.c.reserveFor(task)))
		}
		if certain {
			return w.failed(joblock.ErrBusy, "the job runs", err)
		}
		return w.failed(joblock.ErrUnavailable, "the job's task may still exist", err)
	}
	return w.free(ctx, env, lock)
}

// find returns the task of the job. If that is a chain whose first step is done, find returns the task of the step under
// way, and later is true.
func (w *withdrawal) find(ctx context.Context) (task *asynq.TaskInfo, later bool, err error) {
	w.job = envelope.Job(w.done.Task.Queue, w.done.Task.ID)
	task, err = w.c.taskInfo(ctx, w.done.Task.Queue, w.done.Task.ID)
	if w.done.Receipt == nil || !isGone(err) && (err != nil || w.same(task) && task.State != asynq.TaskStateCompleted) {
		return task, false, err
	}
	for _, job := range w.done.Receipt.then {
		queue, id, _ := envelope.ParseJob(job)
		switch step, serr := w.c.taskInfo(ctx, queue, id); {
		case isGone(serr), serr == nil && step.State == asynq.TaskStateCompleted:
		case serr != nil:
			return nil, false, serr
		default:
			w.job = job
			return step, true, nil
		}
	}
	return task, false, err
}

// hold takes one of the job's locks, so that the job neither starts nor is replaced. The lock is nil if the job has
// none: it waits in line, or has started and lost its locks.
func (w *withdrawal) hold(ctx context.Context, env envelope.Envelope) (*joblock.Lock, error) {
	for _, token := range env.Tokens {
		lock, err := w.c.locks.Resume(ctx, token, joblock.ForJob(w.job))
		switch {
		case err == nil:
			return lock, nil
		case errors.Is(err, joblock.ErrBusy):
			return nil, w.failed(joblock.ErrBusy, "the job's handler runs, or another call is replacing the job", err)
		case !lockGone(err):
			return nil, err
		}
	}
	return nil, nil
}

// free frees what the job had; its task is deleted. lock is one of its locks, or nil.
func (w *withdrawal) free(ctx context.Context, env envelope.Envelope, lock *joblock.Lock) error {
	var errs []error
	if lock != nil {
		errs = append(errs, w.c.starter.ReleaseLocks(ctx, core.Locks{(*core.Lock)(lock)}, core.Release{Reason: reasonWithdrawn})[0])
	}
	for _, token := range env.Tokens {
		switch seq := env.Sequence; {
		case lock != nil && token.Key() == lock.Key():
		case seq != nil && token.Key() == seq.Token.Key():
			errs = append(errs, unlessGone(w.c.leaveLine(ctx, token, w.job, seq.Limit, reasonWithdrawn)))
		default:
			errs = append(errs, unlessGone(w.release(ctx, token)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return w.failed(joblock.ErrUnavailable, "the job's task is deleted, but its key may not be free yet", err)
	}
	return nil
}

func (w *withdrawal) release(ctx context.Context, token joblock.Token) error {
	return w.c.starter.Release(ctx, []core.Token{core.Token(token)}, core.Release{IfIdle: true, Reason: reasonWithdrawn, Job: w.job})[0]
}

const noTaskAnyMore = "its task does not exist any more: the job is done, or was replaced, withdrawn, deleted or " +
	"aggregated into the task of its group"

// leftBehind frees what a job without a task has left, as it was at the enqueue. If nothing is left, the job has run,
// or was removed in another way.
func (w *withdrawal) leftBehind(ctx context.Context) error {
	gone := w.failed(joblock.ErrNotFound, noTaskAnyMore, nil)
	if w.done.Receipt == nil {
		return gone
	}
	var errs []error
	for i, token := range w.done.Receipt.tokens {
		if i == 0 && w.done.Receipt.waits {
			errs = append(errs, w.c.leaveLine(ctx, token, w.job, w.done.Receipt.limit, reasonWithdrawn))
		} else {
			errs = append(errs, w.release(ctx, token))
		}
	}
	switch {
	case slices.Contains(errs, nil):
		return nil
	case slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, joblock.ErrUnavailable) }):
		return w.failed(joblock.ErrUnavailable, "the job's task is gone, but its key may not be free yet", errors.Join(errs...))
	}
	return gone
}
