package enqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// dispatch is a task on its way into asynq, with the tokens that the task carries.
type dispatch struct {
	*taskSpec
	c        *Client
	kind     kind
	call     Call // zero unless copies of the enqueue may be under way, or come later
	mayTouch func(queue string, keys []string) error
	ownQueue bool // see Request

	askErr  error // the result of kind.ask
	tokens  []joblock.Token
	header  string            // distinguishes this task from another one with its TaskID
	trace   map[string]string // further headers: they name the span of the enqueue
	further []asynq.Option    // of kind.mark

	// sent is closed when asynq has returned from the enqueue, perhaps after Client.Close; nil before send.
	sent    chan struct{}
	info    *asynq.TaskInfo // asynq's result; may be read after sent is closed
	sendErr error           // likewise
}

// The defaults of a kind.

func (d *dispatch) enter(context.Context) (leave func(error) error, err error) {
	return func(err error) error { return err }, nil
}

func (d *dispatch) mark(context.Context, *envelope.Envelope) ([]asynq.Option, error) { return nil, nil }

func (d *dispatch) proceed(ctx context.Context, err error) (done Result, _ error) {
	done.Task, err = d.enqueue(ctx, err)
	return done, err
}

func (d *dispatch) unkept() (keys []string, ok bool) { return nil, true }

// enqueue enqueues the task with the tokens of d. If there is no task in the end, enqueue takes the locks back. If err
// is not nil, not all locks are parked, and nothing is sent.
func (d *dispatch) enqueue(ctx context.Context, err error) (*asynq.TaskInfo, error) {
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = d.notSent(cause)
	}
	if err == nil {
		err = d.seal(ctx)
	}
	if err == nil {
		if info := d.send(ctx); info != nil {
			return info, nil
		}
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	if err != nil { // nothing was sent
		return nil, d.takeBack(dctx, err)
	}
	info, outcome, err := d.resolve(ctx, dctx)
	if outcome == enqueued && d.call.Owner != "" && refused(d.sendErr) { // copies have the same header
		return nil, d.wrap(fmt.Errorf("%w: %w", ErrRepeated, d.sendErr))
	}
	switch outcome {
	case notEnqueued:
		err = d.takeBack(dctx, err)
	case unknown:
		if d.call.Owner == "" { // otherwise a copy of the call finds out
			d.c.watch(d)
		}
	}
	return info, err
}

// seal makes the header in which the task carries its locks, with what kind.mark adds. The mark of a Debounce reads the
// locks' store.
func (d *dispatch) seal(ctx context.Context) error {
	env := envelope.Envelope{Tokens: d.tokens, Retries: d.retries}
	d.chained(&env)
	further, err := d.kind.mark(ctx, &env)
	if err == nil {
		d.header, err = env.Seal(ctx, d.c.ring, d.job, d.task.Type())
	}
	d.further, d.trace = further, traceHeaders(ctx, d.c.locks)
	return d.wrap(err)
}

// send enqueues the task with its header, and waits for asynq's answer or the end of ctx. send returns nil if asynq has
// reported an error or has not answered.
func (d *dispatch) send(ctx context.Context) *asynq.TaskInfo {
	task, opts := d.sealed(d.header, d.trace)
	opts = append(opts, d.further...)
	d.sent = make(chan struct{})
	send := func() {
		defer close(d.sent)
		d.info, d.sendErr = d.c.client.EnqueueContext(ctx, task, opts...)
	}
	if ctx.Done() == nil { // ctx cannot end while asynq waits for Redis
		send()
	} else {
		d.c.senders.Go(send) // a silent Redis must not hold up the caller
	}
	if sleep.Until(ctx, d.sent) != nil || d.sendErr != nil {
		return nil
	}
	return d.info
}

// reserve returns for how long the locks stay reserved for the job.
func (d *dispatch) reserve() time.Duration { return d.delay() + d.c.reserve }

// takeBack tries to undo the hand-over until ctx ends. takeBack returns err, the reason, joined with the error of undo.
func (d *dispatch) takeBack(ctx context.Context, err error) error {
	failed := d.kind.undo(ctx)
	if failed == nil {
		return err
	}
	d.c.logger.WarnContext(ctx, "handoff: could not take back the locks of a job that was not enqueued", "job", d.job, "err", failed)
	if errors.Is(failed, joblock.ErrUnavailable) {
		d.c.watch(d)
	}
	return fmt.Errorf("%w; and its locks could not be taken back: %w", err, failed)
}
