package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

// Enqueue hands lock over to a job. Enqueue parks the lock, enqueues task with the lock's token in a header, and
// returns the TaskInfo of asynq's Client. From then on the handle can do nothing, a deferred Release frees nothing,
// and the worker that processes the task holds the lock.
//
// opts override the options of task, as in asynq; task itself is not changed. Two things differ from a plain enqueue.
// Enqueue chooses a TaskID if none is given, because the lock is bound to the job before the job exists. And the task
// has one spare retry, which asynq's tools show; package worker explains the spare retry. A handler can enqueue its
// own task again: the new header replaces the old one.
//
// An asynq.Deadline that has passed, or that is not after the time at which the task is due, is ErrInvalid: asynq would
// never run the task. When the Deadline of a task passes later, before a worker takes the task, the job has failed; see
// package worker.
//
// The returned TaskInfo lacks the header: TaskInfos are logged, and whoever has the tokens in the header can take the
// locks. asynq's record of the task has the header, so the Inspector, asynqmon and the handler see the header.
//
// An error matches a sentinel of joblock or an error of asynq. lock.Err tells who has the lock: see "The errors of
// Enqueue" in the package comment. Give Enqueue a ctx with a deadline. Enqueue returns at most three seconds after
// the end of ctx, or after an error of the locks' store or of asynq. Without a deadline Enqueue waits for a silent
// server as long as asynq's Redis client waits.
func (c *Client) Enqueue(ctx context.Context, lock *joblock.Lock, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueAll(ctx, joblock.Locks{lock}, task, opts...)
}

// EnqueueAll is Enqueue for a job that carries several locks. Either the job gets all locks, or the caller keeps all
// locks that the caller still had. Only after an error that leaves locks parked, some locks can be the caller's and
// some the job's; lock.Err tells, for each lock, who has the lock. An error matches ErrInvalid for no locks, for more
// than 64 locks and for two locks on one key.
func (c *Client) EnqueueAll(ctx context.Context, locks joblock.Locks, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	h, err := c.lockHandover(locks, task, opts)
	if err != nil {
		return nil, err
	}
	done, err := h.run(ctx)
	return done.Task, err
}

// handover is a task and the locks on their way into the task.
type handover struct {
	dispatch
	locks  joblock.Locks // to hand over; nil if the key of dispatch.unique is to be taken
	parked joblock.Locks // from which the tokens came, in the same order; nil if the token is of a key that was taken
	call   door.Call     // zero unless copies of the enqueue may be under way, or come later

	hasTurn      bool      // h goes on before other calls that may replace the job; see takeTurn
	contendUntil time.Time // when h gives up replacing a job that others replace; zero before takeTurn
}

// newHandover reads task and opts, and returns a handover of no lock yet. The function check refuses what this kind of
// enqueue does not support. An error says that the arguments are bad.
func (c *Client) newHandover(task *asynq.Task, opts []asynq.Option, check func(*taskSpec) error) (*handover, error) {
	spec, err := c.readTask(task, opts)
	if err == nil {
		err = check(spec)
	}
	if err != nil {
		return nil, err
	}
	return &handover{dispatch: dispatch{taskSpec: spec, c: c}}, nil
}

func (c *Client) lockHandover(locks joblock.Locks, task *asynq.Task, opts []asynq.Option) (*handover, error) {
	h, err := c.newHandover(task, opts, func(spec *taskSpec) error { return c.checkLocks(locks, spec) })
	if err != nil {
		return nil, err
	}
	h.locks = locks
	return h, nil
}

func (c *Client) checkLocks(locks joblock.Locks, spec *taskSpec) error {
	if len(locks) == 0 || len(locks) > envelope.MaxTokens {
		return badTask("%d locks, must be from 1 to %d", len(locks), envelope.MaxTokens)
	}
	seen := make(map[string]bool, len(locks))
	for _, lock := range locks {
		if err := c.checkLock(lock); err != nil {
			return spec.wrap(err)
		}
		if seen[lock.Key()] {
			return invalid("enqueue", lock.Key(), "two locks on this key")
		}
		seen[lock.Key()] = true
	}
	return nil
}

func (c *Client) checkLock(lock *joblock.Lock) error {
	if lock == nil {
		return badTask("a lock is nil: if joblock.FromContext returned it, no handoff.Middleware or Guard served the request, " +
			"or its Claim had NoLock, or the context was not the request's; with gin take c.Request.Context()")
	}
	if !door.Of(c.locks).Owns(lock) {
		return invalid("enqueue", lock.Key(), "the lock is not of this Client's Locker: the worker could not find the lock")
	}
	err := lock.Err()
	var e *joblock.Error
	if errors.As(err, &e) && errors.Is(e, joblock.ErrAlreadyReleased) && e.Reason == reasonRequestOver {
		err = fmt.Errorf("%w; enqueue before the handler returns, or keep the lock with handoff.Keep", err)
	}
	return err
}

// run makes the tokens of h and enqueues the task with them.
func (h *handover) run(ctx context.Context) (done Enqueued, err error) {
	h.call = door.CallOf(ctx)
	ctx, span := h.c.traced(ctx, h)
	defer func() { span.End("", err) }()
	err = h.c.ready(ctx, "enqueue")
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Enqueued{}, h.wrap(err)
	}
	giveUp, err := h.takeTurn(ctx)
	if err != nil {
		return Enqueued{}, err
	}
	defer giveUp()
	return h.finish(ctx, h.c.prepare(ctx, h)[0])
}

// The method traced begins the span of the enqueue of hs. The tasks that are sealed in the returned context name that
// span.
func (c *Client) traced(ctx context.Context, hs ...*handover) (context.Context, event.Span) {
	call := event.Call{Op: event.OpEnqueue}
	for _, h := range hs {
		switch {
		case h.locks != nil:
			for _, lock := range h.locks {
				call.Keys = append(call.Keys, lock.Key())
			}
		case h.sequence != nil:
			call.Keys = append(call.Keys, h.sequence.Key)
		default:
			call.Keys = append(call.Keys, h.unique.Key)
		}
	}
	if len(hs) == 1 {
		call.Job, call.Task = hs[0].job, hs[0].task.Type()
	}
	return door.Of(c.locks).Trace(ctx, call)
}

// finish enqueues the task of h. The parameter err is the result of Client.prepare.
func (h *handover) finish(ctx context.Context, err error) (done Enqueued, _ error) {
	switch {
	case h.sequence != nil:
		done, err = h.enqueueInSequence(ctx, err)
	case h.locks == nil:
		done, err = h.enqueueUnique(ctx, err)
	default:
		done.Task, err = h.enqueue(ctx, err)
	}
	if err == nil && !done.Duplicate {
		h.c.remember(h)
		if done.made == nil { // else the dispatch of a replacement has made it
			done.made = h.receipt()
		}
	}
	done.Task, done.Replaced = shown(done.Task), shown(done.Replaced)
	return done, err
}

// enqueue enqueues the task with the tokens of h. If there is no task in the end, enqueue takes the locks back. If the
// parameter err is not nil, not all locks are parked, and nothing is sent.
func (h *handover) enqueue(ctx context.Context, err error) (*asynq.TaskInfo, error) {
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = h.notSent(cause)
	}
	if err == nil {
		err = h.seal(ctx)
	}
	if err == nil {
		if info := h.send(ctx); info != nil {
			return info, nil
		}
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	if err != nil { // nothing was sent
		return nil, h.takeBack(dctx, err)
	}
	info, outcome, err := h.settle(ctx, dctx)
	if outcome == enqueued && h.call.Owner != "" && refused(h.sendErr) { // copies have the same header
		return nil, h.wrap(fmt.Errorf("%w: %w", door.ErrRepeated, h.sendErr))
	}
	switch outcome {
	case notEnqueued:
		err = h.takeBack(dctx, err)
	case unknown:
		if h.call.Owner == "" { // otherwise a copy of the call finds out
			h.c.watch(h)
		}
	}
	return info, err
}

// reserve returns for how long the locks stay reserved for the job.
func (h *handover) reserve() time.Duration { return h.delay() + h.c.reserve }

// take returns the Take of the key that h has no lock for.
func (h *handover) take() door.Take {
	if s := h.sequence; s != nil {
		return door.Take{Key: s.Key, Job: h.job, Reserve: h.reserve(), Patience: envelope.Patience, Most: s.MaxWaiting, Call: h.call}
	}
	return door.Take{Key: h.unique.slot(), Job: h.job, Reserve: h.reserve(), Call: h.call}
}

// prepare makes the tokens of each of hs: prepare parks the locks of all hs in one batch, and takes the unique keys in
// another batch. The errors are in the order of hs. After an error some locks of that handover may be parked, but its
// key is not taken. A key that is not free is an ErrHeld.
func (c *Client) prepare(ctx context.Context, hs ...*handover) []error {
	errs := make([]error, len(hs))
	var locks joblock.Locks
	var takes []door.Take
	var parker, taker []int // the index in hs for each of locks, and for each of takes
	for n, h := range hs {
		if h.locks == nil {
			taker, takes = append(taker, n), append(takes, h.take())
		}
		for _, lock := range h.locks {
			parker, locks = append(parker, n), append(locks, lock)
		}
	}
	if len(locks) > 0 {
		got, failed := door.Of(c.locks).Park(ctx, locks, func(i int) []joblock.ParkOption {
			h := hs[parker[i]]
			return []joblock.ParkOption{joblock.Reserve(h.reserve()), joblock.ForJob(h.job)}
		})
		for i, token := range got.([]joblock.Token) {
			n := parker[i]
			if h := hs[n]; failed[i] == nil {
				h.parked, h.tokens = append(h.parked, locks[i]), append(h.tokens, token)
			} else if errs[n] == nil {
				errs[n] = h.wrap(failed[i])
			}
		}
	}
	if len(takes) > 0 {
		for i, taken := range door.Of(c.locks).Take(ctx, "enqueue", takes) {
			n := taker[i]
			if hs[n].sequence != nil {
				errs[n] = hs[n].placed(taken)
			} else if errs[n] = taken.Err; taken.Err == nil {
				hs[n].tokens = []joblock.Token{taken.Token.(joblock.Token)}
			}
		}
		c.serveSlots(ctx, hs)
	}
	return errs
}

// undo gives the locks of a task that does not exist back to their handles, the last lock first. undo frees a key that
// Client.prepare has taken. The error is nil if the key is free already, or somebody else's.
func (h *handover) undo(ctx context.Context) error {
	var errs []error
	for _, lock := range slices.Backward(h.parked) {
		errs = append(errs, lock.Reclaim(ctx))
	}
	if h.waits != nil {
		return h.leave(ctx)
	}
	if h.parked == nil && h.tokens != nil {
		opts := []joblock.ReleaseOption{joblock.IfIdle(), joblock.ForJob(h.job), joblock.Reason(reasonNotEnqueued)}
		err := h.c.locks.Release(h.c.next.In(ctx), h.tokens[0], opts...)
		if !lockGone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// onlyOurs reports whether no copy of the call can have a task under the key that h has taken: another task has the
// TaskID, so asynq refuses the copies too. The task of a copy has the same token. A token of a place has no fence, so if
// that task is over, the place is a later one.
func (h *handover) onlyOurs(ctx context.Context) bool {
	if h.sent == nil || !refused(h.sendErr) {
		return false
	}
	other, err := h.c.taskInfo(ctx, h.queue, h.id)
	if err != nil {
		return false
	}
	tokens, err := h.c.tokensOf(ctx, other)
	over := other.State == asynq.TaskStateArchived || other.State == asynq.TaskStateCompleted
	mine := door.IdentityOf(h.tokens[0])
	carries := slices.ContainsFunc(tokens, func(t joblock.Token) bool {
		id := door.IdentityOf(t)
		return t.Key() == h.tokens[0].Key() && id.Owner == mine.Owner && id.Fence == mine.Fence
	})
	return err == nil && (!carries || h.waits != nil && over)
}

// takeBack tries to undo the hand-over until ctx ends. takeBack returns err, the reason, joined with the error of undo.
func (h *handover) takeBack(ctx context.Context, err error) error {
	if h.call.Owner != "" && h.parked == nil && !h.onlyOurs(ctx) {
		return err
	}
	rerr := h.undo(ctx)
	if rerr == nil {
		return err
	}
	h.c.logger.WarnContext(ctx, "handoff: locks of a job that was not enqueued could not be taken back", "job", h.job, "err", rerr)
	if errors.Is(rerr, joblock.ErrUnavailable) {
		h.c.watch(h)
	}
	return fmt.Errorf("%w; and its locks could not be taken back: %w", err, rerr)
}
