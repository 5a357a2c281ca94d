package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/policy"
)

const (
	// keepShare bounds the cost of writing the ticks of a long execution: the pause between two writes is 1/keepShare of
	// the time since its start, at most keepMost.
	keepShare = 20
	keepMost  = 10 * time.Second

	// holdNews is how long the News of skipped ticks are collected, so that not every tick during an execution of hours
	// becomes an Event.
	holdNews = time.Minute
)

// book is the ledger of a job whose lock this node has.
type book struct {
	*claims
	j    *job
	lock *joblock.Lock

	mu      sync.Mutex // guards the fields below
	l       *ledger.Ledger
	dirty   bool          // l has changes that are not written
	pending []ledger.News // of these changes
	held    []ledger.News // of changes that are written; not reported yet
	heldAt  time.Time     // when held was last empty
	groups  bool          // an execution runs: News of skipped ticks are merged by their kind
}

// open returns the book of a job whose lock, which came with l, this node has. It reads and writes nothing.
func (c *claims) open(j *job, lock *joblock.Lock, l *ledger.Ledger) *book {
	return &book{claims: c, j: j, lock: lock, l: l}
}

// visit waits for the job's lock, and calls f with the job's ledger. Then it releases the lock.
func (c *claims) visit(ctx context.Context, j *job, f func(*book) error) error {
	lock, err := c.recs.Wait(ctx, j.name, 0)
	if err != nil {
		return err
	}
	defer c.recs.Release(context.WithoutCancel(ctx), lock)
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		return err
	}
	b := c.open(j, lock, l)
	err = f(b)
	b.report(ctx)
	return err
}

// change calls f, which reports whether it has changed the ledger. change then writes the changes, including any that
// an earlier call could not write.
func (b *book) change(ctx context.Context, f func(*ledger.Ledger) (bool, []ledger.News)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed, news := f(b.l)
	b.dirty = b.dirty || changed
	b.pending = append(b.pending, news...)
	if !b.dirty {
		return nil
	}
	if err := memo.Write(context.WithoutCancel(ctx), b.lock, b.l.Encode()); err != nil {
		return err
	}
	for _, n := range b.pending {
		same := func(h ledger.News) bool { return h.Kind == n.Kind && n.Count > 0 && n.Err == nil }
		if i := slices.IndexFunc(b.held, same); b.groups && i >= 0 {
			b.held[i].Tick, b.held[i].Count = n.Tick, b.held[i].Count+n.Count
		} else {
			b.held = append(b.held, n)
		}
	}
	b.dirty, b.pending = false, nil
	return nil
}

// report reports the News of all changes that are written.
func (b *book) report(ctx context.Context) {
	b.mu.Lock()
	news := b.held
	b.held, b.heldAt = nil, b.clock.now()
	b.mu.Unlock()
	for _, n := range news {
		b.node.report(Event{Kind: Kind(n.Kind), Tick: tickOf(b.j.name, n.Tick), Node: n.Node, Count: n.Count, Err: n.Err})
		if n.Kind == ledger.NewsSpec {
			b.specs.announce(ctx, b.j)
		}
	}
}

// keep updates the ledger during an execution that began at begun, until ctx ends: it writes the ticks, triggers and
// backfills that come. What is still unwritten is left to the end of the execution.
func (b *book) keep(ctx context.Context, begun time.Time) {
	for well := true; ; {
		now := b.clock.now()
		wait := min(now.Sub(begun)/keepShare, keepMost)
		if !well {
			wait = max(wait, unanswered)
		}
		b.mu.Lock()
		at := b.specs.inForce(b.j, b.l).NextDue(b.l.LastTick())
		b.mu.Unlock()
		if at.IsZero() { // the spec has no more ticks
			at = now.Add(policy.Stale)
		}
		timer := time.NewTimer(max(wait, at.Sub(now)))
		select {
		case <-timer.C:
		case <-b.j.ordered:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		// The orders say whether the tick is paused.
		well = b.readOrders(ctx) == nil && b.catchUp(ctx)
	}
}

// catchUp brings the ledger up to date and writes it. It returns false if that is not possible now.
func (b *book) catchUp(ctx context.Context) bool {
	refused := false
	wrote := b.during(ctx, func(l *ledger.Ledger) (bool, []ledger.News) {
		m, err := b.specs.moment(b.j, l)
		if err != nil {
			refused = true
			return false, nil
		}
		plan := policy.Decide(&b.j.Job, l, m, policy.Sight{Phase: policy.During})
		refused = plan.Refused
		return plan.Changed, plan.News
	})
	return wrote && !refused
}

// during is change, to be called while an execution is running. It returns false if the ledger could not be written. It
// also reports the News, once they have been held for long enough, or if one says that the job is stuck.
func (b *book) during(ctx context.Context, f func(*ledger.Ledger) (bool, []ledger.News)) bool {
	if err := b.change(ctx, f); err != nil {
		if b.lock.Err() == nil {
			b.trouble(b.j, "write the ledger during an execution", err)
		}
		return false
	}
	b.table.setTrouble(b.j, nil)
	now := b.clock.now()
	b.mu.Lock()
	if len(b.held) == 0 {
		b.heldAt = now
	}
	due := now.Sub(b.heldAt) >= holdNews || slices.ContainsFunc(b.held, func(n ledger.News) bool { return n.Kind == ledger.NewsStuck })
	b.mu.Unlock()
	if due {
		b.report(ctx)
	}
	return true
}

// pauseFailing pauses a job with PauseAfter that has failed that often, most recently with the error last. If the pause
// cannot be written, the next failure pauses the job.
func (b *book) pauseFailing(ctx context.Context, last error) error {
	if b.j.pauseAfter == 0 || b.l.Streak < b.j.pauseAfter {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	failures, note := b.l.Streak, ledger.PauseNote(b.l.Streak, last)
	_, written, err := b.recs.ChangeOrder(ctx, "pause", b.j.name, true, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		return o.Pause(l, now, b.cfg.Node, note)
	})
	if err != nil {
		b.cfg.Logger.Error("scheduler: the job has failed too often, but could not be paused", "job", b.j.name, "failures", failures, "err", err)
		return nil
	}
	b.wrote(written)
	b.cfg.Logger.Error("scheduler: the job has failed too often, and is paused", "job", b.j.name, "failures", failures, "err", last)
	return b.change(ctx, func(l *ledger.Ledger) (bool, []ledger.News) {
		l.Streak = 0
		return true, nil
	})
}
