package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// ErrSuperseded is the cause with which the context of a handler ends when a newer job of its key was enqueued with
// handoff.CancelInProgress. The task is then done, whatever the handler returns, even if it panics: asynq deletes it,
// without a retry, and neither IsFailure nor ErrorHandler is called. The newer job starts when the handler has returned.
var ErrSuperseded = verdict.ErrSuperseded

// A job that is enqueued with handoff.CancelInProgress waits under the lock on keyspace.Next of its key, as with
// KeepLast. That lock alone says which job supersedes the one that has the key, so a crash can leave nothing half done.
// A notice only makes the worker look at once.

// supersedable returns the key whose newer job may end this one, or "" if none may: a job that stands for more than one
// key goes on. A later step of a chain has only the key.
func (c *carrier) supersedable() string {
	own := slices.DeleteFunc(slices.Clone(c.tokens), func(t joblock.Token) bool { return slices.Contains(c.untilStart, t) })
	if !c.cancel || c.members > 1 || c.sequence != nil || len(own) != 1 {
		return ""
	}
	return own[0].Key()
}

// newer returns the job that was enqueued to end this one, or "" if there is none.
func (c *carrier) newer(ctx context.Context, key string) string {
	info := c.next(ctx, key)
	if info == nil {
		return ""
	}
	job := envelope.Job(info.Queue, info.ID)
	env, ok, err := c.w.trusted(ctx, envelope.Task{Job: job, Type: info.Type, Headers: info.Headers})
	if err != nil || !ok || !ends(env.Cancel, env.OwnQueue, job, c.job) {
		return ""
	}
	return job
}

// ends reports whether the job newer ends the job older. cancel and ownQueue are from newer's envelope.
func ends(cancel, ownQueue bool, newer, older string) bool {
	to, _, _ := envelope.ParseJob(newer)
	from, _, _ := envelope.ParseJob(older)
	return cancel && (!ownQueue || to == from)
}

// next returns the task that waits for the key of this job and could run now, or nil. It returns only a task that
// exists, because an enqueue under way may still fail.
func (c *carrier) next(ctx context.Context, key string) *asynq.TaskInfo {
	sts, err := c.w.locks.Status(ctx, keyspace.Next(key))
	if err != nil {
		return nil
	}
	st := sts[0]
	queue, id, ok := envelope.ParseJob(st.Job)
	if !ok || !st.Locked() || st.Job == c.job {
		return nil
	}
	info, err := c.w.inspector.GetTaskInfo(queue, id)
	if err != nil || !verdict.Supersedes(info) {
		return nil
	}
	return info
}

// untilSuperseded returns a child of ctx that ends with a *verdict.Superseded when a newer job supersedes this one. superseded
// ends the watch, and returns that error, or nil.
func (c *carrier) untilSuperseded(ctx context.Context) (child context.Context, superseded func() *verdict.Superseded) {
	key := c.supersedable()
	if key == "" {
		return ctx, func() *verdict.Superseded { return nil }
	}
	child, cancel := context.WithCancelCause(ctx)
	watch, stop := context.WithCancel(c.ctx)
	var by *verdict.Superseded
	look := func() bool {
		job := c.newer(watch, key)
		if job == "" {
			return false
		}
		by = &verdict.Superseded{By: job}
		cancel(by)
		return true
	}
	noticed, leave := c.w.notices.listen(c.w, key)
	ended := make(chan struct{})
	if look() {
		close(ended)
	} else {
		go func() {
			defer close(ended)
			for watch.Err() == nil {
				select {
				case <-noticed:
				case <-time.After(c.w.cfg.Snooze): // a notice may be lost
				case <-watch.Done():
				}
				if look() || sleep.For(watch, noticePause) != nil {
					return
				}
			}
		}()
	}
	return child, func() *verdict.Superseded {
		stop()
		<-ended
		leave()
		cancel(nil)
		return by
	}
}

// noticePause is the time between two looks of one attempt. It bounds the cost of forged notices.
const noticePause = 50 * time.Millisecond

// endSuperseded ends the attempt of a superseded job. by names the newer job; handler is the handler's error, or nil.
func (c *carrier) endSuperseded(by *verdict.Superseded, handler error) error {
	c.log().Info("worker: job superseded by a newer job of its key", "by", by.By, "handler_err", handler)
	c.newerJob = by.By
	return settler{c}.settle(by)
}

// runNewer runs the newest job of the key, which is free now, because that job may be snoozed. The job that has
// superseded this one may itself have been replaced since.
func (c *carrier) runNewer() {
	if c.newerJob == "" {
		return
	}
	c.w.life.Go(func() {
		ctx := c.w.life.Context()
		for patience := time.Now().Add(answerWait); ; {
			newest := c.newerJob
			if info := c.next(ctx, c.supersedable()); info != nil {
				newest = envelope.Job(info.Queue, info.ID)
			}
			queue, id, ok := envelope.ParseJob(newest)
			if !ok || c.w.runSnoozed(snoozedTask{queue: queue, id: id}) || !time.Now().Before(patience) || sleep.For(ctx, answerPoll) != nil {
				return
			}
		}
	})
}

// recovered ends the attempt of a superseded job whose handler has panicked with p.
func (c *carrier) recovered(by *verdict.Superseded, p any) error {
	c.log().Error("worker: handler panicked after a newer job had superseded its job", "panic", p, "stack", string(debug.Stack()))
	return c.endSuperseded(by, fmt.Errorf("panic: %v", p))
}

// supersede ends the older job that has the key of token. err says that the key is busy, and names that job. supersede
// notifies a job that runs, and deletes one that waits for its next attempt. It reports whether the key was freed.
func (r resumer) supersede(ctx context.Context, token joblock.Token, err error) (freed bool) {
	e, ok := errors.AsType[*joblock.Error](err)
	if !ok || !verdict.IsBusy(err) || !ends(r.cancel, r.ownQueue, r.job, e.Job) {
		return false
	}
	key := token.Key()
	queue, id, ok := envelope.ParseJob(e.Job)
	if !ok || e.Job == r.job {
		return false // a request has the key
	}
	sts, err := r.w.locks.Status(ctx, key, keyspace.Next(key))
	if err != nil || sts[1].Job != r.job {
		return false // a newer job has taken the place of this one
	}
	// While the key is held, a handler runs, perhaps on after a timeout, or its worker has died.
	if sts[0].State != joblock.StateHeld && r.deleteWaiting(ctx, key, queue, id) {
		err := jobs.Free(ctx, r.w.locks, jobs.Release{Key: key, Job: e.Job, Reason: verdict.ReasonSuperseded})[0]
		r.log().Info("worker: a newer job has superseded one that waited for its next attempt", "key", key, "superseded", e.Job)
		return joblock.CodeOf(err) == "" // otherwise the keeper frees the key
	}
	if err := (*core.Locker)(r.w.locks).Notify(ctx, key); err != nil {
		r.log().Debug("worker: could not notify the running job that a newer one has superseded it", "key", key, "err", err)
	}
	return false
}

// deleteWaiting deletes the task of the job that has key, if the task waits and the job stands for nothing else.
func (r resumer) deleteWaiting(ctx context.Context, key, queue, id string) bool {
	info, err := r.w.inspector.GetTaskInfo(queue, id)
	if err != nil || info.State != asynq.TaskStateRetry && info.State != asynq.TaskStatePending && info.State != asynq.TaskStateScheduled {
		return false
	}
	env, ok, err := r.w.trusted(ctx, envelope.Task{Job: envelope.Job(queue, id), Type: info.Type, Headers: info.Headers})
	if err != nil || !ok {
		return false
	}
	old := carrier{tokens: env.Tokens, untilStart: env.UntilStart, sequence: env.Sequence, members: env.Members, cancel: env.Cancel}
	return old.supersedable() == key && r.w.inspector.DeleteTask(queue, id) == nil // asynq deletes no task that runs
}

// notices passes the notices about keys on to the attempts of a Worker.
type notices struct {
	mu      sync.Mutex                 // guards the fields below
	started bool                       // the Worker has subscribed, or is about to
	of      map[string][]chan struct{} // by key
}

// listen returns a channel that receives after each notice about key, until leave is called. The first call subscribes.
func (n *notices) listen(w *tools, key string) (noticed <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = make(map[string][]chan struct{})
	}
	n.of[key] = append(n.of[key], c)
	if !n.started {
		n.started = w.life.TryGo(func() { (*core.Locker)(w.locks).Notices(w.life.Context(), n.notice) })
	}
	return c, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		rest := slices.DeleteFunc(n.of[key], func(other chan struct{}) bool { return other == c })
		if n.of[key] = rest; len(rest) == 0 {
			delete(n.of, key)
		}
	}
}

func (n *notices) notice(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.of[key] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
