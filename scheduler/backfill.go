package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Backfill is how far the latest backfill of a job has come. Times are the store's, in UTC.
type Backfill struct {
	Number   int64     `json:"number"` // Tick.Backfill of its executions
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Ticks    int       `json:"ticks"` // have begun or will begin; 0 until a node has seen the request
	Done     int       `json:"done"`
	Failed   int       `json:"failed"`
	Lost     int       `json:"lost"`
	Upto     time.Time `json:"upto,omitzero"` // the latest tick that has begun; zero: none has
	Asked    time.Time `json:"asked"`
	Ended    time.Time `json:"ended,omitzero"` // zero: the backfill has not ended
	Stopping bool      `json:"stopping,omitempty"`
}

// Backfill executes the ticks of the job from the time from to the time to, both included: each tick once, one after
// the other, the oldest first, whether the tick was executed before or not. Tick.Cause is CauseBackfill, and Tick.ID
// differs from the ID of the tick itself. The result is the number of ticks.
//
// Due ticks, starts and triggers go first, so a job whose ticks take all its time has no time for a backfill. A tick that comes during an execution of the backfill waits for the end of
// that execution, also with OverlapSkip. Missed ticks of the range that wait are left to the backfill. A backfill goes
// on while the job is paused. A failed tick is not repeated, except by Retry. StartDeadline and OverlapCancel do not
// concern a backfill. If the spec changes, the rest of the range has the ticks of the new spec, 10,000 ticks of the backfill
// at most.
//
// Backfill works like Trigger: on any Scheduler with the same store and Config.Scope. If no node that has the job is up,
// the backfill waits. Entry.Backfill shows how far the backfill has come, and a node reports EventBackfilled at the end.
//
// Errors are those of Pause, and
//
//	joblock.ErrInvalid  the range has no ticks or more than 10,000, ends before its begin, begins before 1970, or
//	                    ends in the future by the store's clock
//	ErrBackfilling      the job has a backfill that has not ended
func (s *Scheduler) Backfill(ctx context.Context, name string, from, to time.Time) (ticks int, err error) {
	const op = "backfill"
	_, written := s.changeOrder(ctx, op, name, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		if o.Unfinished(l) {
			err = &ownError{fmt.Sprintf("%s %q: the job has a backfill that has not ended", op, name), ErrBackfilling}
			return false
		}
		ticks, err = s.checkRange(op, name, l, now, from, to)
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

// checkRange returns the number of ticks from the time from to the time to, by the spec in force.
func (s *Scheduler) checkRange(op, name string, l *ledger.Ledger, now, from, to time.Time) (int, error) {
	switch {
	case from.Unix() < 0:
		return 0, invalid(op, name, "the range begins at %s, must not begin before 1970", from.Format(time.RFC3339))
	case to.Before(from):
		return 0, invalid(op, name, "the range ends at %s, before its begin at %s", to.Format(time.RFC3339), from.Format(time.RFC3339))
	case to.After(now):
		return 0, invalid(op, name, "the range ends at %s, must not end in the future; the store's clock shows %s",
			to.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	text := l.Spec
	if text == "" {
		s.mu.Lock()
		if j := s.jobs[name]; j != nil {
			text = j.SpecText
		}
		s.mu.Unlock()
	}
	parsed, err := s.parse(text)
	if err != nil {
		return 0, invalid(op, name, "the spec in force cannot be parsed here: %s", err)
	}
	switch n := ledger.RangeTicks(parsed, firstSecond(from), to); {
	case n == 0:
		return 0, invalid(op, name, "%q has no ticks from %s to %s", text, from.Format(time.RFC3339), to.Format(time.RFC3339))
	case n > ledger.MaxBackfill:
		return 0, invalid(op, name, "%q has more than %d ticks from %s to %s; divide the range", text, ledger.MaxBackfill,
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

// StopBackfill ends the job's backfill before its next tick. The running execution goes on. The ticks of the range that
// have not begun are not executed. StopBackfill returns nil if there is no backfill. See Pause for errors.
func (s *Scheduler) StopBackfill(ctx context.Context, name string) error {
	_, err := s.changeOrder(ctx, "stop backfill", name, (*ledger.Order).StopBackfill)
	return err
}

// showBackfill returns the latest backfill that the ledger has or that is ordered, or nil.
func showBackfill(l *ledger.Ledger, o ledger.Order) *Backfill {
	b := l.Backfill
	if b == nil || o.Backfill.ID > b.ID {
		if b = &(ledger.Backfill{BackfillOrder: o.Backfill}); b.ID == 0 {
			return nil
		}
	}
	out := &Backfill{
		Number: b.ID, From: time.UnixMilli(b.From).UTC(), To: time.UnixMilli(b.To).UTC(), Ticks: b.Ticks,
		Done: b.Done, Failed: b.Failed, Lost: b.Lost, Asked: time.UnixMilli(b.At).UTC(),
		Stopping: b.End == 0 && (b.Stop || o.Backfill.Stop && o.Backfill.ID == b.ID),
	}
	if b.Cursor >= b.From {
		out.Upto = time.UnixMilli(b.Cursor).UTC()
	}
	if b.End > 0 {
		out.Ended = time.UnixMilli(b.End).UTC()
	}
	return out
}
