package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// distrustEvery is the least time between two log records of one cause: a million forged headers must not fill the
// disk.
const distrustEvery = time.Minute

// elsewhere is the cause if a genuine envelope comes from a process whose locks are in another store.
const elsewhere envelope.Cause = "another store"

// foreignRecord is the cause if this build cannot read a record: a core.ErrForeign.
const foreignRecord envelope.Cause = "foreign record"

const runsWithout = "worker: the locks in a task's header are ignored, and the task runs without locks: "

var distrustTexts = map[envelope.Cause]string{
	envelope.Unknown: "worker: a task's header was sealed with a key that is not known here, so this worker cannot verify which locks " +
		"the task carries. The task does not run here: it is snoozed until a worker that knows the key gets it. If the enqueuing " +
		"process uses a different Redis, database, prefix or joblock.Config.Secrets than this worker, make them agree; put a " +
		"secret that was removed too early back into Config.Secrets. If the locks' store has lost the key for good, or " +
		"the header is forged, delete the task",
	envelope.Forged:    runsWithout + "the seal does not match; the header is forged or was changed",
	envelope.Copied:    runsWithout + "the header was copied from another task, or this task was enqueued again without handoff",
	envelope.Malformed: runsWithout + "the header is not one of this toolkit's, or is forged",
	envelope.Newer: "worker: a newer build of the toolkit has written which locks a task carries, and this worker cannot read it. The task " +
		"does not run here: it keeps its locks, and is snoozed until a worker of that build gets it. If no such worker is " +
		"running, deploy that build to the workers",
	foreignRecord: "worker: this build cannot read the record of a lock. The task that needs the lock does not run here, and is " +
		"snoozed. If a newer build of the toolkit has written the record, a worker of that build runs the task. If another program " +
		"has written it, the task waits until the value is removed",
	elsewhere: "worker: the process that enqueued a task uses a different Redis, database or prefix for its locks than this worker, " +
		"or its store was flushed. The task's locks are not in the store of this worker, and Config.OnLockLost decides",
}

// distrusts limits the log records about headers that are not genuine.
type distrusts struct {
	mu   sync.Mutex                   // guards last and more
	last map[envelope.Cause]time.Time // of the last log record
	more map[envelope.Cause]int       // the records that were left out since then
}

// logDistrust logs the text of cause with attrs, at most once per distrustEvery for each cause.
func (w *tools) logDistrust(ctx context.Context, cause envelope.Cause, attrs ...any) {
	d := &w.distrusts
	d.mu.Lock()
	now := time.Now()
	if last, known := d.last[cause]; known && now.Sub(last) < distrustEvery {
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

// trusted returns the genuine envelope of a task; ok is false if there is none. An envelope that is not genuine is
// logged. The error is an *envelope.Unreadable, which is logged too, or says that the locks' store could not return the
// key of the seal.
func (w *tools) trusted(ctx context.Context, task envelope.Task) (env envelope.Opened, ok bool, err error) {
	env, ok, err = envelope.Open(ctx, w.ring.Open, task)
	d, distrusted := errors.AsType[*envelope.Distrust](err)
	unreadable, waits := errors.AsType[*envelope.Unreadable](err)
	switch {
	case distrusted:
		attrs := []any{"job", task.Job, "task", task.Type}
		if d.Of != "" {
			attrs = append(attrs, "sealed_for", d.Of)
		}
		w.logDistrust(ctx, d.Cause, attrs...)
		return envelope.Opened{}, false, nil
	case waits:
		w.logDistrust(ctx, unreadable.Cause, "job", task.Job, "task", task.Type, "err", err)
	case ok && err == nil && env.Elsewhere:
		w.logDistrust(ctx, elsewhere, "job", task.Job, "task", task.Type)
	}
	return env, ok && err == nil, err
}

// snooze returns verdict.SnoozeFor with Config.Snooze. It also logs an err that is about a record that this build
// cannot read.
func (w *tools) snooze(err error) *verdict.Snooze {
	snoozed := verdict.SnoozeFor(err, w.cfg.Snooze)
	if snoozed != nil && verdict.IsForeign(err) {
		if e, ok := errors.AsType[*joblock.Error](err); ok {
			w.logDistrust(context.Background(), foreignRecord, "key", e.Key, "err", err)
		}
	}
	return snoozed
}
