package handoff

import (
	"context"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/joblock"
)

// Config configures a Client. The zero value of each field means its default.
type Config struct {
	// Reserve is how long locks stay reserved for their job after the job is due (asynq.ProcessIn, ProcessAt). From 10 s
	// to 366 days. Default 1 h. Reserve must cover the time in the queue and an outage of the workers; a job that starts
	// later still gets its lock if the key is free. The keeper of package worker prolongs the reservation while the job
	// waits, so Reserve must be longer than the cluster can be without a keeper: a keeper that dies is replaced one TTL
	// later.
	Reserve time.Duration

	// Logger logs enqueues whose outcome is unknown, and later their outcome. Log lines contain no owner tokens.
	// Default slog.Default().
	Logger *slog.Logger
}

// Client enqueues tasks that carry locks. Make one per process with NewClient, share it freely, and Close it before its
// Locker. The methods of a nil or zero Client return joblock.ErrInvalid.
type Client enqueue.Client

// NewClient returns a Client that enqueues with client. When an enqueue fails, it looks the task up with inspector.
// Both must work on the same Redis. The Client closes none of its arguments. cfg may be nil. The error matches
// joblock.ErrInvalid if another argument is nil, if locks was not made by joblock.New, or if a field of cfg is out of
// bounds.
func NewClient(locks *joblock.Locker, client *asynq.Client, inspector *asynq.Inspector, cfg *Config) (*Client, error) {
	c, err := enqueue.New(locks, client, inspector, (*enqueue.Config)(cfg))
	return (*Client)(c), err
}

// engine returns the engine of c.
func (c *Client) engine() *enqueue.Client { return (*enqueue.Client)(c) }

// Enqueue enqueues task as a job under the lock or key that how names: a Carry, Unique, Debounce, Sequence or Chain.
// The worker that processes the task holds that lock.
//
// opts override the options of task, as in asynq; task itself is not changed. Two things differ from asynq's own
// Client. Enqueue chooses a TaskID if none is given, because the lock is bound to the job before the job exists. And
// the task has one spare retry, which asynq's tools show; see package worker. A handler can enqueue its own task again:
// the new header replaces the old one.
//
// Enqueue returns ErrInvalid for an asynq.Deadline that has passed, or that is not after the time at which the task is
// due: asynq would never run the task. When the Deadline of a task passes later, before a worker takes the task, the
// job has failed; see package worker.
//
// An error matches a sentinel of joblock or an error of asynq. Unique and Sequence list the errors that they add. After
// an error there is no new job, and the caller still has the locks that it had before, except after ErrUnavailable and
// ErrLost: see "The errors of Enqueue" in the package comment. Give Enqueue a ctx with a deadline. Enqueue returns at
// most three seconds after the end of ctx, or after an error of the locks' store or of asynq; nine seconds if it
// replaces a job. Without a deadline Enqueue waits for a silent server as long as asynq's Redis client waits.
func (c *Client) Enqueue(ctx context.Context, how How, task *asynq.Task, opts ...asynq.Option) (Result, error) {
	done, err := c.engine().Enqueue(ctx, Item{how, task, opts}.Request())
	return resultOf(done), err
}

// Item is a task for EnqueueMany. The fields are the arguments of Enqueue.
type Item struct {
	How  How
	Task *asynq.Task
	Opts []asynq.Option // override those of Task, as in asynq
}

// Request is for the toolkit's own packages: it returns i as their internal type.
func (i Item) Request() enqueue.Request {
	req := enqueue.Request{Task: i.Task, Opts: i.Opts}
	if i.How != nil {
		req.How = i.How.engine()
	}
	return req
}

// EnqueueMany enqueues up to 1,000 tasks; see "Many jobs at once" in the package comment. EnqueueMany takes all keys
// and all places in line in one round trip to the locks' store, and parks all locks in another. Tasks may get into a
// queue in another order than that of the items, but the jobs of one sequence run in the order of the items.
//
// The results are in the order of the items. Each result is that of Enqueue for the item, and a failure of one item
// does not affect the others. Items with the same key or the same asynq.TaskID are handled one after another: of two
// items with one unique key the first gets the key, and Unique.OnConflict of the second decides about the second. An
// item with a Unique.Limit fails with ErrInvalid.
//
// If EnqueueMany ends early, the errors of the tasks that are not sent match ErrNotSent, and the cause of ctx if ctx
// has ended. EnqueueMany returns at most three seconds after the end of ctx, or nine if it replaces a job.
//
// EnqueueMany itself returns an error only if it has done nothing; there are then no results. The reasons are too many
// items or a bad Client (ErrInvalid), a ctx that had ended before the call, and a locks' store that did not answer when
// this process needed its first seal key.
func (c *Client) EnqueueMany(ctx context.Context, items []Item) ([]Result, error) {
	reqs := make([]enqueue.Request, len(items))
	for i, item := range items {
		reqs[i] = item.Request()
	}
	all, err := c.engine().EnqueueMany(ctx, reqs)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(all))
	for i, done := range all {
		results[i] = resultOf(done)
	}
	return results, nil
}

// Result is the outcome of an enqueue. Withdraw takes the job back.
type Result struct {
	// Task is the new task or, with Duplicate, the task of the other job, which has the key. After an error Task is nil.
	//
	// Task lacks the header with the locks: TaskInfos are logged, and the tokens in the header can take the locks. asynq's
	// record of the task has the header, so the Inspector, asynqmon and the handler see it.
	Task *asynq.TaskInfo

	// Duplicate is true if nothing was enqueued, because of policy Skip.
	Duplicate bool

	// Replaced is the task that was deleted for the new task, because of policy Replace, KeepLast or CancelInProgress;
	// nil if no task was deleted. Like Task, Replaced lacks the header.
	Replaced *asynq.TaskInfo

	// Waits is true if the job waits in the line of its sequence, with at most Ahead others before it. Task then shows
	// the task as scheduled a day from now.
	Waits bool
	Ahead int

	// Err is the error of an item of EnqueueMany. For Enqueue it is the error that Enqueue returns.
	Err error

	receipt *enqueue.Receipt // for Withdraw; nil if nothing was enqueued
}

func resultOf(done enqueue.Result) Result {
	return Result{Task: done.Task, Duplicate: done.Duplicate, Replaced: done.Replaced, Waits: done.Waits, Ahead: done.Ahead,
		Err: done.Err, receipt: done.Receipt}
}

// Withdraw deletes the task of a job that does not run, and frees its key, its place in line or its locks at once. It
// is for callers who enqueue within a database transaction that is rolled back afterwards. done is the result of the
// enqueue, or Result{Task: info} in a process that knows only the task. A Duplicate was not enqueued by the caller, and
// is left alone. A job that was Replaced does not come back. If a Chain has begun and done is the result of its
// enqueue, Withdraw takes back the remaining steps; it does not find steps that a handler has added.
//
// A job that waits for a retry, or was archived, is withdrawn too: it may have failed because the transaction was not
// committed. After one of these errors the job is unchanged:
//
//	joblock.ErrBusy      the job runs, or another call is replacing it. Cancel the context of its handler with
//	                     Inspector.CancelProcessing, and call again
//	joblock.ErrNotFound  the job is done, or was replaced, withdrawn or deleted, or is now part of its group's task
//	joblock.ErrNotOwner  another job has the TaskID by now
//	joblock.ErrInvalid   done has no task, or its task is one that asynq has made of a group; Job may return such a task
//	joblock.ErrClosed
//
// After joblock.ErrUnavailable call again: the task may have been deleted without its key being freed. Without another
// call, the keeper of package worker frees the key of a deleted task. Withdraw goes on after the end of ctx, for nine
// seconds at most.
func (c *Client) Withdraw(ctx context.Context, done Result) error {
	return c.engine().Withdraw(ctx, enqueue.Result{Task: done.Task, Duplicate: done.Duplicate, Receipt: done.receipt})
}

// Job returns the job that has key, for Withdraw and Reschedule. With KeepLast or Debounce, that is the waiting job, if
// there is one, and otherwise the running one. The error matches joblock.ErrNotFound if no job has the key, or if its
// task does not exist or does not carry the lock on the key. Other errors match joblock.ErrUnavailable, ErrInvalid or
// ErrClosed.
func (c *Client) Job(ctx context.Context, key string) (Result, error) {
	done, err := c.engine().Job(ctx, key)
	return resultOf(done), err
}

// Reschedule makes a waiting job (scheduled, pending, or waiting for a retry) due at another time, earlier or later,
// without changing its ID, payload or key. A time that is not in the future means at once. done is as for Withdraw, but
// a Duplicate, which is the job of another enqueue, is moved too. asynq keeps whole seconds, so the time is rounded up.
// A job that waits for another job, a limit, a rate or the end of a pause is not started before the new time, and keeps
// waiting after that if it must.
//
// A Debounce moves the job again with its next enqueue. To change the payload too, enqueue with Replace and the same
// asynq.TaskID.
//
//	joblock.ErrBusy         the job runs, or is about to
//	joblock.ErrClosed
//	joblock.ErrNotFound     the job is done, archived, replaced, withdrawn or deleted
//	joblock.ErrNotOwner     another job has the TaskID by now
//	joblock.ErrInvalid      done has no task; the job is in a sequence, a group or the line of worker.OverlapConfig.InLine,
//	                        or asynq has made its task of a group; the time is not before its Deadline, or later than a
//	                        lock can be reserved
//	joblock.ErrUnavailable  the store did not answer: the job may have either time, so call again. Or this build does not
//	                        know the scripts of this version of asynq: nothing has changed
//
// The move is one step in asynq's Redis, so a crash leaves the job with one of the two times. Moving a pending task takes
// the server time in proportion to the pending tasks of its queue. Reschedule goes on after the end of ctx, for five
// seconds at most.
func (c *Client) Reschedule(ctx context.Context, done Result, at time.Time) error {
	return c.engine().Reschedule(ctx, enqueue.Result{Task: done.Task, Receipt: done.receipt}, at)
}

// Close ends the Client's background work: it looks up tasks whose enqueue had an unknown outcome, and releases locks
// that have no task. If it remains unknown whether a task exists, its locks stay reserved until their reservations end.
// Close waits until the work has ended. If ctx ends first, Close returns the cause of ctx. Without Close the work ends
// after five minutes at most.
//
// Close the Client before its Locker, through which the Client releases locks. A closed Client can still enqueue, but
// does no background work. Close of a Client that was not made by NewClient returns joblock.ErrInvalid.
func (c *Client) Close(ctx context.Context) error { return c.engine().Close(ctx) }

// ErrNotSent means that a task was certainly not sent to asynq: ctx ended first, or EnqueueMany ended early. The
// package comment says who then has the task's key or locks.
var ErrNotSent = enqueue.ErrNotSent
