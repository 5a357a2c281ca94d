package keeper

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
)

// pacer decides when a Keeper does what, and keeps its calls to asynq's Redis rare. Only the goroutine of Run uses its
// fields.
type pacer struct {
	cfg      Config
	began    time.Time // when the Keeper began to work
	callFrom time.Time // when calls to asynq's Redis are allowed again
	behind   bool      // more locks were due than the last query has claimed
	late     time.Time // until then, some locks are checked later than Config.Interval
	report   func(late time.Duration)
}

const (
	// A Keeper queries a part of the index for due locks after each Config.Interval/wakeups, and at least once per
	// longestNap. Each query costs one command. longestNap is for locks with a short reservation, which are due after half
	// of it.
	wakeups    = 10
	longestNap = time.Second

	// If the index has more than one part, a Keeper queries a part that had no due lock again after
	// Config.Interval/pollOfParts. One query per nap and part would be many commands.
	pollOfParts = 3

	// If a task has not been read again 1/margin of a round after its time, its lock is checked.
	margin = 20

	// shortestRest is the shortest sleep of rested. Shorter rests add up.
	shortestRest = 10 * time.Millisecond
)

// nap returns the shortest time between two queries of one part, unless more locks are due.
func (p *pacer) nap() time.Duration { return min(p.cfg.Interval/wakeups, longestNap) }

// poll returns the longest time between two queries of one part.
func (p *pacer) poll(parts int) time.Duration {
	if parts == 1 {
		return p.nap()
	}
	return p.cfg.Interval / pollOfParts
}

// pace returns the time from the beginning of a round to the next. A task may be deleted just after its page was read,
// and its lock is checked when the page has been read again: one round, its margin and a nap later. That is
// Config.Interval, less a twentieth for the check itself.
func (p *pacer) pace() time.Duration {
	return p.cfg.Interval - p.nap() - p.cfg.Interval/margin - p.cfg.Interval/20
}

// again returns the time from the check of a lock until the lock is due again. The lock may be due for one nap
// before a Keeper asks.
func (p *pacer) again() time.Duration { return p.cfg.Interval - p.nap() }

// wait returns how long, from now on, a lock waits for its next check if the last check was at began.
func (p *pacer) wait(began, now time.Time) time.Duration {
	return max(driver.MinPeriod, p.again()-now.Sub(began))
}

// lag notes that a check may be late by the duration by.
func (p *pacer) lag(by time.Duration) {
	if by > p.cfg.Interval/wakeups {
		p.late = latest(p.late, time.Now().Add(p.cfg.Interval))
		p.report(by)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// called notes that calls to asynq's Redis took the time busy. rested then sleeps before the next calls, so that calls
// take at most Config.MaxLoad of the time.
func (p *pacer) called(busy time.Duration) {
	if now := time.Now(); p.callFrom.Before(now) {
		p.callFrom = now
	}
	p.callFrom = p.callFrom.Add(time.Duration(float64(busy) * (1/p.cfg.MaxLoad - 1)))
}

// rested sleeps until calls to asynq's Redis are allowed again.
func (p *pacer) rested(ctx context.Context) error {
	if left := time.Until(p.callFrom); left >= shortestRest {
		return sleep.For(ctx, left)
	}
	return nil
}
