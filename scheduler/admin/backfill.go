package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

// ErrBackfilling means that the job has a backfill that has not ended.
var ErrBackfilling = errors.New("scheduler: a backfill has not ended")

// Backfill executes the ticks of the job between from and to, both included: each tick once, one after the other, the
// oldest first, whether the tick was executed before or not. Tick.Cause is CauseBackfill, and Tick.ID differs from the
// ID of the tick itself. Backfill returns the number of ticks.
//
// Due ticks, starts and triggers go first, so a job whose ticks take all its time has no time for a backfill. A tick
// that comes during an execution of the backfill waits for the end of that execution, even with OverlapSkip. Missed
// ticks of the range that wait are left to the backfill. A backfill goes on while the job is paused. A failed tick is
// not repeated, except by Retry. StartDeadline and OverlapCancel do not apply to a backfill. If the spec changes, the
// rest of the range has the ticks of the new spec; the backfill still executes at most 10,000 ticks.
//
// Backfill works like Trigger: on any Scheduler with the same store and Config.Scope. If no node that has the job is up,
// the backfill waits. Entry.Backfill shows how far the backfill has come, and a node reports Backfilled at the end.
//
// Errors are those of Pause, and
//
//	joblock.ErrInvalid  the range has no ticks or more than 10,000, ends before it begins, begins before 1970, or
//	                    ends in the future by the store's clock
//	ErrBackfilling      the job has a backfill that has not ended
func (a *Admin) Backfill(ctx context.Context, name string, from, to time.Time) (ticks int, err error) {
	const op = "backfill"
	_, written := a.change(ctx, op, name, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		if o.Unfinished(l) {
			err = &records.Error{Text: fmt.Sprintf("%s %q: the job has a backfill that has not ended", op, name), Sentinel: ErrBackfilling}
			return false
		}
		ticks, err = a.checkRange(op, name, l, now, from, to)
		if err == nil {
			o.StartBackfill(now, firstSecond(from), to.Truncate(time.Second))
		}
		return err == nil
	})
	if err == nil {
		err = written
	}
	if err != nil {
		return 0, err
	}
	return ticks, nil
}

// checkRange returns the number of ticks between from and to, by the spec in force.
func (a *Admin) checkRange(op, name string, l *ledger.Ledger, now, from, to time.Time) (int, error) {
	switch {
	case from.Unix() < 0:
		return 0, records.Invalid(op, name, "the range begins at %s, must not begin before 1970", from.Format(time.RFC3339))
	case to.Before(from):
		return 0, records.Invalid(op, name, "the range ends at %s, before it begins at %s", to.Format(time.RFC3339), from.Format(time.RFC3339))
	case to.After(now):
		return 0, records.Invalid(op, name, "the range ends at %s, must not end in the future; the store's clock shows %s",
			to.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	text := l.Spec
	if text == "" {
		text = a.own()[name].Spec
	}
	parsed, err := a.specs.Parse(text)
	if err != nil {
		return 0, records.Invalid(op, name, "the spec in force cannot be parsed here: %s", err)
	}
	switch n := ledger.RangeTicks(parsed, firstSecond(from), to); {
	case n == 0:
		return 0, records.Invalid(op, name, "%q has no ticks from %s to %s", text, from.Format(time.RFC3339), to.Format(time.RFC3339))
	case n > ledger.MaxBackfill:
		return 0, records.Invalid(op, name, "%q has more than %d ticks from %s to %s; divide the range", text, ledger.MaxBackfill,
			from.Format(time.RFC3339), to.Format(time.RFC3339))
	default:
		return n, nil
	}
}

// firstSecond returns the first whole second that is not before t. Ticks are whole seconds.
func firstSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Equal(t) {
		return whole
	}
	return t.Truncate(time.Second).Add(time.Second)
}

// StopBackfill ends the job's backfill before its next tick. The running execution goes on, and the ticks of the range
// that have not begun are not executed. StopBackfill returns nil if there is no backfill. See Pause for errors.
func (a *Admin) StopBackfill(ctx context.Context, name string) error {
	_, err := a.change(ctx, "stop backfill", name, (*ledger.Order).StopBackfill)
	return err
}
