package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

// Pause skips the ticks of a job, from the next tick on, until Resume. The running execution goes on. Another node
// still takes over an execution that was broken off. The note says why, for Entry.Pauses: at most 256 bytes of UTF-8
// without control characters, or "".
//
// Pause, Resume and Trigger work on any Scheduler with the same store and Config.Scope, with or without the job,
// whether Run is running or not. Each call returns when its request is recorded. A pause lasts until Resume: nodes that
// are up keep its record, which may end if none is up for 350 days. Pause of a paused job returns nil: a new note
// replaces the old one and the name of its author, and without a new note nothing changes. Resume of a job that is not
// paused returns nil.
//
// Errors:
//
//	joblock.ErrNotFound     neither the store nor the Scheduler given to Of has the job
//	joblock.ErrInvalid      the name or the note is bad, or the record is full: about a thousand jobs are paused, or fewer with
//	                        long notes
//	joblock.ErrUnavailable  or the cause of ctx: the request may be recorded
func (a *Admin) Pause(ctx context.Context, name, note string) error {
	return a.note(ctx, "pause", name, note, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		return o.Pause(l, now, a.recs.By, note)
	})
}

// Resume ends a pause of one job. Ticks that came during the pause stay skipped. If all jobs are paused, the job is
// still paused with them. The note is for Entry.Resumed. See Pause for the bounds of the note and for errors.
func (a *Admin) Resume(ctx context.Context, name, note string) error {
	return a.note(ctx, "resume", name, note, func(o *ledger.Order, _ *ledger.Ledger, now time.Time) bool {
		return o.Resume(now, a.recs.By, note)
	})
}

func (a *Admin) note(ctx context.Context, op, name, note string, change records.Change) error {
	if err := records.CheckNote(op, note); err != nil {
		return err
	}
	_, err := a.change(ctx, op, name, change)
	return err
}

// change changes the order for a job, and makes the Scheduler given to Of obey at once.
func (a *Admin) change(ctx context.Context, op, name string, change records.Change) (ledger.Order, error) {
	if err := cmp.Or(a.check(op), records.CheckName(op, name)); err != nil {
		return ledger.Order{}, err
	}
	_, known := a.own()[name]
	o, _, err := a.recs.ChangeOrder(ctx, op, name, known, change)
	if err == nil {
		a.refresh(ctx)
	}
	return o, err
}

// PauseAll pauses all jobs of the scope, including jobs that are registered later, until ResumeAll. Pauses of single
// jobs are independent of PauseAll. See Pause for the note and for errors.
func (a *Admin) PauseAll(ctx context.Context, note string) error {
	return a.noteAll(ctx, "pause all", note, (*ledger.Orders).PauseAll)
}

// ResumeAll ends the pause of all jobs. Jobs that Pause has paused stay paused. The note is for Entry.Resumed. See
// Pause for the bounds of the note and for errors.
func (a *Admin) ResumeAll(ctx context.Context, note string) error {
	return a.noteAll(ctx, "resume all", note, (*ledger.Orders).ResumeAll)
}

func (a *Admin) noteAll(ctx context.Context, op, note string, change func(o *ledger.Orders, fence int64, now time.Time, by, note string) bool) error {
	if err := cmp.Or(a.check(op), records.CheckNote(op, note)); err != nil {
		return err
	}
	_, err := a.recs.ChangeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
		views, err := a.recs.Read(ctx) // for the store's time
		return err == nil && change(all, fence, views[0].Now, a.recs.By, note), err
	})
	if err == nil {
		a.refresh(ctx)
	}
	return err
}

// Trigger executes a job once, now, even if the job is paused. The ticks of the job do not change. If the Scheduler
// given to Of is running and has the job, it executes the job at once. Otherwise a node that has the job executes it
// within scheduler.Config.Sync. If the job is running, the new execution follows the running one. Several triggers that
// wait at the same time lead to one execution. See Pause for errors.
//
// wait waits until the execution has ended, and returns it, whatever its State is. If another trigger comes before the
// execution has begun, one execution serves both. wait blocks as long as no node executes the job, so give ctx a
// deadline. If ctx ends during the wait, the error is the cause of ctx, and the trigger remains; after an error wait
// can be called again. The error has no sentinel if the execution is no longer in the history.
func (a *Admin) Trigger(ctx context.Context, name string) (wait func(context.Context) (Execution, error), err error) {
	o, err := a.change(ctx, "trigger", name, (*ledger.Order).Trigger)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (Execution, error) { return a.await(ctx, name, o) }, nil
}

// The first and the longest pause between two reads of the ledger by await.
const firstLook, lastLook = 50 * time.Millisecond, time.Second

// await waits for the end of the execution by the trigger in o.
func (a *Admin) await(ctx context.Context, name string, o ledger.Order) (Execution, error) {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if err := sleep.For(ctx, pause); err != nil {
			return Execution{}, context.Cause(ctx)
		}
		views, err := a.recs.Read(ctx, name)
		if err != nil {
			return Execution{}, err
		}
		l, err := ledger.Decode(views[1].Memo)
		if err != nil {
			return Execution{}, err
		}
		if l.Triggered < o.Triggered {
			continue // not begun
		}
		past, err := l.History()
		if err != nil {
			return Execution{}, err
		}
		// A broken-off execution in the history has been taken over, and may be kept for longer than the execution that
		// followed it.
		past = slices.DeleteFunc(past, func(x ledger.Execution) bool { return !x.Ended() })
		all := slices.Clone(l.Running)
		if l.Latest != nil {
			all = append(all, *l.Latest)
		}
		all = slices.DeleteFunc(append(all, past...), func(x ledger.Execution) bool {
			return x.Cause != ledger.CauseTrigger || x.At < o.TriggeredAt
		})
		if len(all) == 0 {
			if slices.ContainsFunc(l.Due, func(d ledger.Due) bool { return d.Cause == ledger.CauseTrigger }) {
				continue // not begun
			}
			return Execution{}, fmt.Errorf("scheduler: trigger %q: the execution is no longer in the history", name)
		}
		// Later ones are by later triggers.
		x := slices.MinFunc(all, func(a, b ledger.Execution) int { return cmp.Compare(a.At, b.At) })
		if x.Ended() {
			return showExecution(name, &x), nil
		}
	}
}

// Forget removes the record of a job that no node has any longer: its history, counts, spec and pause. Entries then
// lacks the job. If the job is registered again later, it is a new job, whose ticks count from then on. The store
// remembers the latest tick for another hour. Repeating a Forget does no harm.
//
// Errors:
//
//	joblock.ErrHeld         a node that is up has the job, or the job is being executed
//	joblock.ErrNotFound     the store does not have the job
//	joblock.ErrInvalid      the name is bad
//	joblock.ErrUnavailable  or the cause of ctx: parts of the record may be left; Entries may still have the job
func (a *Admin) Forget(ctx context.Context, name string) error {
	const op = "forget"
	if err := cmp.Or(a.check(op), records.CheckName(op, name)); err != nil {
		return err
	}
	return a.recs.Forget(ctx, op, name)
}
