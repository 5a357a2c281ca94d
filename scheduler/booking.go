package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	// bookShare bounds what it costs to book the ticks of a long execution: between two writes passes at least this part of
	// the time since its begin, but no more than bookMost.
	bookShare = 20
	bookMost  = 10 * time.Second

	// holdNews is for how long the News of skipped ticks are put together, so that not each tick during an execution that
	// lasts for hours is an Event.
	holdNews = time.Minute
)

// booking keeps the ledger up to date during an execution under the job's own lock: it writes the ticks, triggers and
// backfills that come, and that the function ignores the end of its context. Executions in lanes need no booking, because the
// job's lock is free meanwhile.
type booking struct {
	s      *Scheduler
	j      *job
	lock   *joblock.Lock
	x      ledger.Execution // as it has begun
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	l       *ledger.Ledger
	pending []ledger.News // of changes that are not written
	held    []ledger.News // of changes that are written; not reported yet
	heldAt  time.Time     // when held was empty last
}

// startBooking starts a booking of the running execution of l. The caller must not use l until stop has returned.
func (s *Scheduler) startBooking(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger) *booking {
	ctx, cancel := context.WithCancel(ctx)
	ctx, stop := lock.Context(ctx)
	b := &booking{s: s, j: j, lock: lock, x: *l.Execution, cancel: cancel, l: l, heldAt: s.clock.now()}
	b.ended.Go(func() {
		defer stop()
		b.run(ctx)
	})
	return b
}

// stop ends the booking. What is not written yet is left to the caller.
func (b *booking) stop() {
	b.cancel()
	b.ended.Wait()
}

// left returns the News that were not reported. The parameter after has those of the last change. If the caller could not write
// the ledger, lost is true. The caller must first call stop.
func (b *booking) left(after []ledger.News, lost bool) []ledger.News {
	if !lost {
		b.hold(append(b.pending, after...))
	}
	return b.held
}

// run books what comes until ctx ends.
func (b *booking) run(ctx context.Context) {
	for well := true; ; {
		now := b.s.clock.now()
		wait := min(now.Sub(time.UnixMilli(b.x.Start))/bookShare, bookMost)
		if !well {
			wait = max(wait, unanswered)
		}
		b.mu.Lock()
		at := b.s.inForce(b.j, b.l).NextDue(b.l.LastTick())
		b.mu.Unlock()
		if at.IsZero() { // the spec has no more ticks
			at = now.Add(stalePeriod)
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
		// An order says whether a tick that has come is paused.
		well = b.s.readOrders(ctx) == nil && b.book(ctx)
	}
}

// book brings the ledger up to date and writes it. book returns false if that is not possible now.
func (b *booking) book(ctx context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, err := b.s.momentOf(b.j, b.l)
	if err != nil || b.l.Spec != b.j.SpecText && !b.l.Follows(&b.j.Job, m) {
		return false // a change of the spec waits for the end of the execution
	}
	changed, news := b.l.Update(&b.j.Job, m, true)
	b.pending = append(b.pending, news...)
	return !changed || b.write(ctx)
}

// overrun reports that the function ignores the end of its context, or with a nil cause that it has returned. See job.call.
func (b *booking) overrun(cause error) {
	if cause != nil {
		b.s.reportOverrun(b.j, b.x, cause)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.l.Execution.SetOverrun(b.s.clock.now(), cause)
	if b.lock.Err() == nil {
		b.write(context.Background())
	}
}

// write writes the ledger, and reports what is to be reported. The caller has locked b.mu.
func (b *booking) write(ctx context.Context) bool {
	if err := memo.Write(context.WithoutCancel(ctx), b.lock, b.l.Encode()); err != nil {
		if b.lock.Err() == nil {
			b.s.reportTrouble(b.j, "write the ledger during an execution", err)
		}
		return false
	}
	b.s.setTrouble(b.j, nil)
	b.hold(b.pending)
	b.pending = nil
	now := b.s.clock.now()
	switch {
	case len(b.held) == 0:
		b.heldAt = now
	case now.Sub(b.heldAt) >= holdNews, slices.ContainsFunc(b.held, func(n ledger.News) bool { return n.Kind == ledger.NewsStuck }):
		b.s.reportNews(b.j, b.held)
		b.held, b.heldAt = nil, now
	}
	return true
}

// hold adds News to those that are held. News of skipped ticks are put together by their kind.
func (b *booking) hold(news []ledger.News) {
	for _, n := range news {
		i := slices.IndexFunc(b.held, func(h ledger.News) bool { return h.Kind == n.Kind && n.Count > 0 && n.Err == nil })
		if i < 0 {
			b.held = append(b.held, n)
			continue
		}
		b.held[i].Tick, b.held[i].Count = n.Tick, b.held[i].Count+n.Count
	}
}

// reportOverrun reports that the function of x goes on, although its context has ended with the cause.
func (s *Scheduler) reportOverrun(j *job, x ledger.Execution, cause error) {
	s.report(Event{
		Kind: EventOverrun, Tick: tickOf(j.name, x.Tick()), Node: s.cfg.Node, Err: cause,
		Took: s.clock.now().Sub(time.UnixMilli(x.Start)),
	})
}
