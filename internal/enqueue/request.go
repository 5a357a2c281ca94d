package enqueue

import (
	"context"
	"crypto/sha256"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

// Request is one task, and what it is to be enqueued under.
type Request struct {
	How  How
	Task *asynq.Task
	Opts []asynq.Option // override those of Task, as in asynq

	// MayTouch, unless nil, is called with the job that has the key before that job is replaced, or its task is returned.
	// It is for callers who may not touch every job. queue is the asynq queue of the other task; keys has the keys of all
	// locks that the other task carries, and is nil if the task is only returned. After an error of MayTouch the enqueue
	// returns that error, and nothing has changed.
	MayTouch func(queue string, keys []string) error

	// OwnQueue is for callers who may not touch the jobs of every queue: a running job that the task supersedes is ended only
	// if it is in the task's queue. MayTouch is not asked, because the job may begin after the enqueue.
	OwnQueue bool

	// Call, unless zero, makes the enqueue repeatable, even by another process and at the same time. Copies have the
	// same Call, and the same asynq.TaskID. If a copy has taken the key, but has not enqueued the task in the end, it
	// leaves the key to the other copies, to a keeper and to the reservation: a copy that released the key could
	// release it under the task of another copy. ErrRepeated means that another copy has enqueued the task.
	Call Call
}

// How says under what a task is enqueued: Carry, Unique, Debounce, Sequence or Chain.
type How interface {
	// plan checks the arguments, and returns the kind of the enqueue d. An error says which argument is bad.
	plan(ctx context.Context, d *dispatch) (kind, error)
}

// kind is one enqueue of a How. The methods are in the order in which an enqueue calls them. dispatch.run calls enter,
// then Client.prepare, in batch.go, which calls ask, then submit, which calls proceed. As a rule, proceed calls
// dispatch.enqueue, in send.go, which calls mark, sends the task, and calls undo if there is no task in the end. dispatch
// has defaults for enter, proceed, mark and unkept; parking has ask, undo and abandon, and taking has undo and abandon.
type kind interface {
	// keys returns the keys that the span of the enqueue names, and those that no other enqueue of one EnqueueMany may
	// take or hand over at the same time.
	keys() (named, alone []string)

	// enter waits until the enqueue may begin, and gets what it needs first. leave gets the error of the enqueue, and
	// returns the error for the caller. EnqueueMany does not call enter.
	enter(ctx context.Context) (leave func(error) error, err error)

	// ask puts into b which locks to park or which key to take.
	ask(b *batch)

	// proceed enqueues the task, as a rule by dispatch.enqueue. err is the result of ask, such as an ErrHeld.
	proceed(ctx context.Context, err error) (Result, error)

	// mark writes into env, which has the tokens, what else the worker must know. It returns further options for asynq.
	mark(ctx context.Context, env *envelope.Envelope) ([]asynq.Option, error)

	// undo gives the locks of a task that does not exist back to the caller, or frees the key that ask has taken. The
	// error is nil if there is nothing left to give back.
	undo(ctx context.Context) error

	// abandon is undo for an enqueue that its caller knows to have failed, perhaps minutes ago. An error means that the
	// locks' store has not answered.
	abandon(ctx context.Context) error

	// unkept returns the keys that the Client looks after while no keeper works, in addition to those of the tokens. ok is
	// false for a job that is left to the keeper.
	unkept() (keys []string, ok bool)
}

// Result is handoff.Result.
type Result struct {
	Task      *asynq.TaskInfo
	Duplicate bool
	Replaced  *asynq.TaskInfo
	Waits     bool
	Ahead     int
	Err       error
	Receipt   *Receipt // for Withdraw; nil if nothing was enqueued
}

// Receipt is what a Client knows of a job that it has enqueued. The tokens are those of the enqueue: a job that has run
// since has later ones.
type Receipt struct {
	header [sha256.Size]byte // digest of the task's header
	tokens []joblock.Token
	limit  int      // of the sequence in whose line the job waits
	waits  bool     // the job waits in line, or did
	then   []string // the jobs of the steps that follow in the chain
}

func (d *dispatch) receipt() *Receipt {
	r := &Receipt{header: sha256.Sum256([]byte(d.header)), tokens: d.tokens}
	for i, step := range d.then {
		r.then = append(r.then, envelope.Job(step.Queue, chain.NewLink(i+2, false, d.tokens[0].Digest(), d.queue, d.id).String()))
	}
	return r
}

// Enqueue is handoff.Client.Enqueue.
func (c *Client) Enqueue(ctx context.Context, req Request) (Result, error) {
	d, err := c.plan(ctx, req)
	if err != nil {
		return Result{Err: err}, err
	}
	return d.run(ctx)
}

// plan reads req. An error means that an argument is bad.
func (c *Client) plan(ctx context.Context, req Request) (*dispatch, error) {
	spec, err := c.readTask(req.Task, req.Opts)
	if err != nil {
		return nil, err
	}
	if req.How == nil {
		return nil, badTask("how is nil, must be a Carry, a Unique, a Debounce, a Sequence or a Chain")
	}
	d := &dispatch{taskSpec: spec, c: c, call: req.Call, mayTouch: req.MayTouch, ownQueue: req.OwnQueue}
	if d.mayTouch == nil {
		d.mayTouch = func(string, []string) error { return nil }
	}
	d.kind, err = req.How.plan(ctx, d)
	return d, err
}

// run makes the tokens of d and enqueues the task with them.
func (d *dispatch) run(ctx context.Context) (done Result, err error) {
	ctx, span := d.c.traced(ctx, d)
	defer func() { done.Err = err; span.End("", err) }()
	if err = d.c.ready(ctx, opEnqueue); err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Result{}, d.wrap(err)
	}
	leave, err := d.kind.enter(ctx)
	if err != nil {
		return Result{}, err
	}
	done, err = d.submit(ctx, d.c.prepare(ctx, d)[0])
	return done, leave(err)
}

// submit enqueues the task of d, and remembers the job, whose locks the Client looks after while no keeper works. err is
// the result of Client.prepare.
func (d *dispatch) submit(ctx context.Context, err error) (Result, error) {
	done, err := d.kind.proceed(ctx, err)
	if err == nil && !done.Duplicate {
		d.c.remember(d)
		if done.Receipt == nil { // else the dispatch of a replacement has made it
			done.Receipt = d.receipt()
		}
	}
	done.Task, done.Replaced, done.Err = shown(done.Task), shown(done.Replaced), err
	return done, err
}

// traced begins the span of the enqueue of ds. The tasks that are sealed in the returned context name that span.
func (c *Client) traced(ctx context.Context, ds ...*dispatch) (context.Context, event.Span) {
	call := event.Call{Op: event.OpEnqueue}
	for _, d := range ds {
		named, _ := d.kind.keys()
		call.Keys = append(call.Keys, named...)
	}
	if len(ds) == 1 {
		call.Job, call.Task = ds[0].job, ds[0].task.Type()
	}
	return trace(ctx, c.locks, call)
}
