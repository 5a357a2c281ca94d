package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
)

// DefaultMaxWait is how long WithoutOverlapping waits in place for a busy key before
// it puts the task back.
const DefaultMaxWait = 3 * time.Second

// lastMoment is how long before the task's deadline a wait in place ends, so that
// asynq hears why, and does not find out by itself that the time was up.
const lastMoment = 500 * time.Millisecond

// OverlapOption changes what WithoutOverlapping does.
type OverlapOption func(*overlap)

// Limit lets up to n tasks with the same key run at a time; see joblock.Limit.
func Limit(n int) OverlapOption {
	return func(o *overlap) { o.opts, o.limited = append(o.opts, joblock.Limit(n)), true }
}

// MaxWait sets how long a task waits in place for a busy key, within its own timeout.
// Meanwhile it takes up one of the server's Config.Concurrency. Zero means not at all.
// Default DefaultMaxWait, and zero with DropIfBusy and FailIfBusy.
func MaxWait(d time.Duration) OverlapOption {
	return func(o *overlap) { o.maxWait, o.hasWait = d, true }
}

// DropIfBusy has a task whose key is busy succeed without being run.
func DropIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = drop } }

// FailIfBusy has the attempt of a task whose key is busy fail, by asynq's rules: it is
// charged, and on the last attempt the task is archived. The error matches
// joblock.ErrHeld or joblock.ErrTimeout.
func FailIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = fail } }

// WithoutOverlapping returns an asynq.MiddlewareFunc that runs tasks with the same key
// one at a time, or, with Limit, a few at a time. The lock is taken when a task is
// about to run and released at the end of the attempt, by panic too; the handler's
// context carries it and ends as with Middleware. See the package comment for what
// becomes of a task whose key is busy.
//
// key makes the lock's key of a task; "" means that the task needs none. Bad keys and
// options fail the attempt with joblock.ErrInvalid; so does everything with a nil key
// function, next, option or Worker.
func (w *Worker) WithoutOverlapping(key func(*asynq.Task) string, opts ...OverlapOption) asynq.MiddlewareFunc {
	o := &overlap{w: w, key: key}
	switch {
	case w == nil:
		o.err = invalid("WithoutOverlapping of a nil Worker")
	case key == nil:
		o.err = invalid("WithoutOverlapping was given a nil key function")
	case slices.ContainsFunc(opts, func(opt OverlapOption) bool { return opt == nil }):
		o.err = invalid("WithoutOverlapping was given a nil option")
	default:
		for _, opt := range opts {
			opt(o)
		}
		if !o.hasWait && o.ifBusy == putBack {
			o.maxWait = DefaultMaxWait
		}
		if o.maxWait < 0 {
			o.err = invalid("MaxWait is %s, must not be negative", o.maxWait)
		}
	}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if next == nil {
				return invalid("WithoutOverlapping was given a nil handler")
			}
			return o.process(ctx, task, next)
		})
	}
}

// ifBusy is what to do with a task whose key stays busy.
type ifBusy uint8

const (
	putBack ifBusy = iota
	drop
	fail
)

// overlap is one use of WithoutOverlapping.
type overlap struct {
	w       *Worker
	key     func(*asynq.Task) string
	opts    []joblock.Option
	limited bool
	maxWait time.Duration
	hasWait bool
	ifBusy  ifBusy
	err     error // what is wrong with what it was given
}

// process is the whole life of an attempt.
func (o *overlap) process(ctx context.Context, task *asynq.Task, next asynq.Handler) error {
	if o.err != nil {
		return o.err
	}
	key := o.key(task)
	if key == "" || o.carried(task, key) {
		return next.ProcessTask(ctx, task)
	}
	a, err := o.w.newAttempt(ctx, task)
	if err != nil {
		return err
	}
	if !o.w.open.begin() {
		return a.refuse()
	}
	defer o.w.open.end()
	lock, err := o.take(a, key)
	if lock == nil {
		return err
	}
	a.locks = joblock.Locks{lock}
	// No recover: asynq reports where a panic came from.
	defer a.release(a.locks, reasonOver)
	ctx, stop := lock.Context(ctx)
	defer stop()
	defer a.limitOverrun()()
	return next.ProcessTask(ctx, task)
}

// carried reports whether the task carries the lock on key, or a permit of it: it
// would wait for itself.
func (o *overlap) carried(task *asynq.Task, key string) bool {
	env, _, _ := envelope.Open(task.Headers()) // a bad one is Middleware's business
	return slices.ContainsFunc(env.Tokens, func(t joblock.Token) bool {
		if o.limited {
			limit, ok := keyspace.Limit(t.Key())
			return ok && limit == key
		}
		return t.Key() == key
	})
}

// take returns the lock for the attempt, or nil and what to tell asynq.
func (o *overlap) take(a *attempt, key string) (*joblock.Lock, error) {
	for {
		lock, err := o.acquire(a, key)
		if err == nil && a.ctx.Err() == nil {
			return lock, nil
		}
		if err == nil {
			a.release(joblock.Locks{lock}, reasonOver) // the handler would only learn that it is late
			return nil, context.Cause(a.ctx)
		}
		if busy := errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrTimeout); busy && o.ifBusy != putBack {
			return nil, o.giveUp(a, err)
		}
		pb := a.putBack(err)
		switch {
		case pb == nil:
			return nil, err
		case a.canPutBack():
			a.tellPutBack(pb)
			return nil, pb
		case a.left() <= lastMoment:
			return nil, fmt.Errorf("worker: waited in place until the task's time was almost up: %w", err)
		case !sleep(a.ctx, min(waitPoll, a.left()-lastMoment)): // the store is away
			return nil, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

// acquire asks for the lock, waiting for it as long as that is the right thing to do.
func (o *overlap) acquire(a *attempt, key string) (*joblock.Lock, error) {
	wait := max(0, a.left()-lastMoment)
	if o.ifBusy != putBack || a.canPutBack() { // else asynq would charge or archive the task
		wait = min(wait, o.maxWait)
	}
	job := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?' // fit for a label
		}
		return r
	}, a.job())
	return o.w.locks.Acquire(a.ctx, key,
		append(slices.Clip(o.opts), joblock.MaxWait(wait), joblock.Holder(a.holder(job)))...)
}

// giveUp is the end of an attempt whose key is busy and that is not to be put back.
func (o *overlap) giveUp(a *attempt, err error) error {
	if o.ifBusy == fail {
		return fmt.Errorf("worker: %w", err)
	}
	o.w.cfg.Logger.Info("worker: task dropped", "job", a.job(), "task", a.task.Type(), "cause", err)
	return nil
}
