package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
)

// distrustEvery is how often each cause is logged: whoever enqueues a million forged
// headers must not fill the disk.
const distrustEvery = time.Minute

// elsewhere is logged like the causes of package envelope, but the envelope counts.
const elsewhere envelope.Cause = "another store"

var distrustTexts = map[envelope.Cause]string{
	envelope.Unknown: "worker: the locks in a task's header count for nothing, it runs as a task without locks: " +
		"it was sealed with a key that is not known here. Either the header is forged, or who enqueues " +
		"uses another Redis, database or prefix, or has other joblock.Config.Secrets, than this worker",
	envelope.Forged: "worker: the locks in a task's header count for nothing, it runs as a task without locks: " +
		"its seal does not match, the header is forged or was changed",
	envelope.Copied: "worker: the locks in a task's header count for nothing, it runs as a task without locks: " +
		"the header was copied from another task, or this task was enqueued again in another way than by handoff",
	envelope.Unread: "worker: the locks in a task's header count for nothing, it runs as a task without locks: " +
		"the header is forged, or of a build that is newer than this worker",
	elsewhere: "worker: who enqueued a task uses another Redis, database or prefix for its locks than this worker, " +
		"or that store was flushed. The task's locks are not in the store of this worker, and Config.Gone decides",
}

// distrusts remembers, by cause, the last log entry and how many were left out since.
type distrusts struct {
	mu   sync.Mutex // guards what follows
	last map[envelope.Cause]time.Time
	more map[envelope.Cause]int
}

// tell logs a bad envelope, at most once in distrustEvery for each cause.
func (w *Worker) tell(ctx context.Context, cause envelope.Cause, attrs ...any) {
	d := &w.distrusts
	d.mu.Lock()
	now := time.Now()
	if last, told := d.last[cause]; told && now.Sub(last) < distrustEvery {
		d.more[cause]++
		d.mu.Unlock()
		return
	}
	if d.last == nil {
		d.last, d.more = make(map[envelope.Cause]time.Time), make(map[envelope.Cause]int)
	}
	more := d.more[cause]
	d.last[cause], d.more[cause] = now, 0
	d.mu.Unlock()
	w.cfg.Logger.Log(ctx, slog.LevelError, distrustTexts[cause],
		append(attrs, "locks_here", w.ring.Where(), "not_logged_since_the_last", more)...)
}

// trusted returns the envelope of a task. ok is false if it has none that counts. An error
// says that the store has not answered.
func (w *Worker) trusted(ctx context.Context, task envelope.Task) (env envelope.Opened, ok bool, err error) {
	env, ok, err = envelope.Open(ctx, w.ring.Open, task)
	var d *envelope.Distrust
	switch {
	case errors.As(err, &d):
		attrs := []any{"job", task.Job, "task", task.Type}
		if d.Of != "" {
			attrs = append(attrs, "sealed_for", d.Of)
		}
		w.tell(ctx, d.Cause, attrs...)
		return envelope.Opened{}, false, nil
	case ok && err == nil && env.Elsewhere:
		w.tell(ctx, elsewhere, "job", task.Job, "task", task.Type)
	}
	return env, ok && err == nil, err
}

// envelopeOf is trusted for the attempt's task. While the store does not answer, the envelope
// may be honest: the error snoozes the task, or the task waits here.
func (w *Worker) envelopeOf(a *attempt) (env envelope.Opened, ok bool, err error) {
	task := envelope.Task{Job: a.job(), Type: a.task.Type(), Headers: a.task.Headers()}
	for {
		env, ok, err := w.trusted(a.ctx, task)
		if err == nil {
			return env, ok, nil
		}
		if a.ctx.Err() != nil {
			return env, false, err
		}
		snoozed := w.snooze(err)
		if snoozed == nil { // something else is in the place of the keys
			snoozed = &snoozeError{err: err, delay: w.cfg.Snooze}
		}
		if w.canSnooze(a) {
			w.tellSnoozed(a, snoozed)
			return env, false, snoozed
		}
		if sleep.For(a.ctx, waitPoll) != nil {
			return env, false, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

// withEnvelope tells what is inside Middleware what the task carries.
func withEnvelope(ctx context.Context, env envelope.Envelope) context.Context {
	return context.WithValue(ctx, envelopeKey{}, env)
}

type envelopeKey struct{}

// carriedBy returns what a task carries: as Middleware has found, or outside of it by the
// seal.
func (w *Worker) carriedBy(ctx context.Context, task *asynq.Task) (envelope.Envelope, error) {
	if env, found := ctx.Value(envelopeKey{}).(envelope.Envelope); found || !carries(task) {
		return env, nil
	}
	a, err := w.newAttempt(ctx, task)
	if err != nil {
		return envelope.Envelope{}, err
	}
	env, _, err := w.envelopeOf(a)
	return env.Envelope, err
}
