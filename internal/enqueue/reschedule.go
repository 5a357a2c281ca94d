package enqueue

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Job is handoff.Client.Job.
func (c *Client) Job(ctx context.Context, key string) (Result, error) {
	const op = "job"
	if err := c.check(op); err != nil {
		return Result{}, err
	}
	if err := c.ready(ctx, op); err != nil {
		return Result{}, err
	}
	keys := []string{keyspace.Next(key), key}
	if len(keys[0]) > driver.MaxKeyBytes {
		keys = keys[1:] // no job of the key can wait
	}
	sts, err := c.locks.Status(ctx, keys...)
	if err != nil {
		return Result{}, err
	}
	for _, st := range sts {
		queue, id, ok := envelope.ParseJob(st.Job)
		if !ok || !st.Locked() {
			continue
		}
		task, err := c.taskInfo(ctx, queue, id)
		if isGone(err) {
			continue
		}
		if err != nil {
			return Result{}, own(&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: op, Key: key, Job: st.Job, Detail: "the job's task could not be read", Err: err})
		}
		tokens, err := c.tokensOf(ctx, task)
		if err != nil {
			return Result{}, own(&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: op, Key: key, Job: st.Job, Detail: "what the job's task carries could not be read", Err: err})
		}
		if _, _, carries := splitToken(tokens, st.Key); carries {
			return Result{Task: shown(task), Receipt: &Receipt{header: sha256.Sum256([]byte(task.Headers[envelope.Header])), tokens: tokens}}, nil
		}
	}
	return Result{}, own(&joblock.Error{Code: joblock.CodeOf(joblock.ErrNotFound), Op: op, Key: key, Detail: "no job has the key"})
}

// Reschedule is handoff.Client.Reschedule.
func (c *Client) Reschedule(ctx context.Context, done Result, at time.Time) error {
	const op = "reschedule"
	if err := c.check(op); err != nil {
		return err
	}
	if done.Task == nil {
		return Invalid(op, "", "Result.Task is nil, must be the task of a job")
	}
	s := &taskSpec{at: at}
	if d := s.delay(); d > driver.MaxPeriod-c.reserve {
		return Invalid(op, "", "a delay of %s and Config.Reserve of %s make more than the %s for which a lock can be reserved", d, c.reserve, driver.MaxPeriod)
	}
	if err := checkOpen(c.locks, op); err != nil {
		return err
	}
	w := &waiting{op: op, done: done, job: envelope.Job(done.Task.Queue, done.Task.ID)}
	return unlessBusy(func() error { return c.reschedule(ctx, w, s) })
}

// reschedule first prolongs the reservations of the task's locks and then moves the task, so that a process that dies in
// between leaves the task as it was. The move is one step, and finds out whether the task still waits.
func (c *Client) reschedule(ctx context.Context, w *waiting, s *taskSpec) error {
	ctx, cancel := settling(ctx)
	defer cancel()
	task, err := c.taskInfo(ctx, w.done.Task.Queue, w.done.Task.ID)
	if isGone(err) {
		return w.failed(joblock.ErrNotFound, noTaskAnyMore, nil)
	}
	if err := w.read(task, false, err); err != nil {
		return err
	}
	env, err := c.envelopeOf(ctx, task)
	switch {
	case err != nil:
		return w.failed(joblock.ErrUnavailable, "what the job's task carries could not be read", err)
	case jobline.InArchive(task):
		return w.failed(joblock.ErrBusy, "the job is just being moved", nil)
	case task.State == asynq.TaskStateArchived:
		return w.failed(joblock.ErrNotFound, "the job is archived: asynq's Inspector.RunTask runs it again", nil)
	case task.State == asynq.TaskStateAggregating:
		return w.failed(joblock.ErrInvalid, "the job waits in a group, and asynq decides when the group runs", nil)
	case env.Sequence != nil:
		return w.failed(joblock.ErrInvalid, "the job is in a sequence, where its place decides when it runs: withdraw it and enqueue it again", nil)
	case strings.Contains(task.LastErr, jobline.WaitText) && task.State == asynq.TaskStateRetry:
		return w.failed(joblock.ErrInvalid, "the job waits in the line of a key, where its place decides when it runs: withdraw it and enqueue it again", nil)
	case !task.Deadline.IsZero() && !s.wholeSecond().Before(task.Deadline):
		return w.failed(joblock.ErrInvalid, "the new time is not before the job's Deadline, "+task.Deadline.Format(time.RFC3339), nil)
	}
	if err := w.alone(env); err != nil {
		return err
	}
	keep := make([]core.Reservation, len(env.Tokens))
	for i, token := range env.Tokens {
		keep[i] = core.Reservation{Key: token.Key(), Job: w.job, For: s.delay() + c.reserve}
	}
	for _, err := range c.starter.Reserve(ctx, keep...) {
		if err := unlessGone(err); err != nil { // a lock that is gone is the concern of the worker
			return err
		}
	}
	due := s.wholeSecond()
	if s.delay() == 0 {
		due = time.Time{}
	}
	_, err = ask(ctx, func() (struct{}, error) { return struct{}{}, c.moves.Reschedule(task.Queue, task.ID, due) })
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound):
		return w.failed(joblock.ErrBusy, "the job is just being started, moved or removed", nil)
	case err != nil:
		return w.failed(joblock.ErrUnavailable, "the job's task may have its old time", err)
	}
	return nil
}
