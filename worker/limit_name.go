package worker

import (
	"context"
	"sync"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// A sequence with a LimitName has the number of slots that an operator has set. If the number is raised, free slots are
// given to the jobs that wait; see widen. If it is lowered, a slot beyond the number is not passed on when its job ends;
// see narrow.

// namedSequence is a sequence with a LimitName, as one of its jobs describes it.
type namedSequence struct {
	w         *tools
	key, name string
	code      int // the number of slots in the code of the enqueue
}

// named returns the sequence of the job. ok is false if it has none, or one without a LimitName.
func (c *carrier) named() (s namedSequence, ok bool) {
	if c.sequence == nil || c.sequence.LimitName == "" {
		return s, false
	}
	key, _ := driver.LineOf(c.sequence.Token.Key())
	return namedSequence{c.w, key, c.sequence.LimitName, max(1, c.sequence.Limit)}, true
}

// limit returns how many slots the sequence has now.
func (s namedSequence) limit(ctx context.Context) int {
	return (*core.Locker)(s.w.locks).Controls().Limit(ctx, s.name, s.code, limit.Max)
}

// namedLimits has the sequences with a LimitName whose jobs this Worker runs.
type namedLimits struct {
	mu      sync.Mutex
	running map[*namedSequence]struct{}
	applied map[string]int // by key: the number of slots that widen has last applied
}

// mostApplied bounds namedLimits.applied.
const mostApplied = 10_000

// join counts a job of s as running until leave is called.
func (n *namedLimits) join(s namedSequence) (leave func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running == nil {
		n.running = make(map[*namedSequence]struct{})
	}
	n.running[&s] = struct{}{}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.running, &s)
	}
}

// all returns the sequences whose jobs run, each once per running job.
func (n *namedLimits) all() (all []namedSequence) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.running {
		all = append(all, *s)
	}
	return all
}

// apply notes that s has limit slots, and reports whether that is more than before.
func (n *namedLimits) apply(s namedSequence, limit int) (more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, known := n.applied[s.key]
	if !known {
		before = s.code
	}
	if n.applied == nil || len(n.applied) >= mostApplied {
		n.applied = make(map[string]int)
	}
	n.applied[s.key] = limit
	return limit > before
}

// widen gives the free slots of s to the jobs that wait, if it has more slots than before.
func (s namedSequence) widen(ctx context.Context) {
	limit := s.limit(ctx)
	if !s.w.limits.apply(s, limit) {
		return
	}
	if err := (*core.Locker)(s.w.locks).PassOn(ctx, "widen", jobline.SlotKeys(s.key, 2, limit), s.w.next.Granted); err != nil {
		s.w.limits.apply(s, 1) // the next job of the sequence tries again
		s.w.cfg.Logger.Warn("worker: could not start more jobs of a sequence whose limit was raised", "key", s.key, "limit", limit, "err", err)
	}
}

// inLimits notes that the job runs, if its sequence has a LimitName, and applies the limit. Call leave when the handler has
// returned.
func (c *carrier) inLimits() (leave func()) {
	s, ok := c.named()
	if !ok {
		return func() {}
	}
	c.w.life.Go(func() { s.widen(context.WithoutCancel(c.ctx)) })
	return c.w.limits.join(s)
}

// applyLimits applies the limits of all sequences in w.limits.
func (w *tools) applyLimits(ctx context.Context) {
	for _, s := range w.limits.all() {
		s.widen(ctx)
	}
}

// narrow ends the lock of the job if its slot is beyond the number of slots that the sequence has now. It does not
// release the lock, but parks it for the shortest time, because a slot whose reservation runs out is given to no
// waiting job. It returns false if the caller must release the lock as usual.
func (s settler) narrow(ctx context.Context) bool {
	named, ok := s.named()
	if !ok {
		return false
	}
	lock, ok := s.locks.ByKey(s.sequence.Token.Key())
	if !ok || lock.Err() != nil || jobline.IsSlot(lock.Key(), named.key, named.limit(ctx)) {
		return false
	}
	_, err := lock.Park(context.WithoutCancel(ctx), core.Park{Reserve: driver.MinPeriod})
	return err == nil || verdict.IsGone(err)
}
