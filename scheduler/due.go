package scheduler

import (
	"container/heap"
	"context"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	// Each node reads the ledger of a tick at a random multiple of spreadStep, at most the duration spread after the
	// tick. So the first node has usually written the ledger before the other nodes read the ledger, and the nodes
	// share the jobs of an instant. Reads at the same multiple share a round trip.
	spread     = 50 * time.Millisecond
	spreadStep = 10 * time.Millisecond

	// The constant settling is the pause before a node reads the ledger of a claimed job again. Most executions take
	// less time.
	settling = 500 * time.Millisecond

	// The store keeps ledgers and orders for driver.MaxPeriod after the last write. The constant stalePeriod is after what time
	// without a write a node makes the store keep them for longer. A ledger has its next write perhaps only at the next tick, in
	// a year or more, and a pause has none.
	stalePeriod = 7 * 24 * time.Hour
)

// dueHeap is a heap.Interface of jobs by job.at, the time to read the ledger. Scheduler.mu guards the heap.
type dueHeap []*job

// put sets job.at, and adds j to the heap if the heap does not have j.
func (h *dueHeap) put(j *job, at time.Time) {
	j.at = at
	if j.index < 0 {
		heap.Push(h, j)
	} else {
		heap.Fix(h, j.index)
	}
}

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, k int) bool { return h[i].at.Before(h[k].at) }
func (h dueHeap) Swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].index, h[k].index = i, k
}

func (h *dueHeap) Push(x any) {
	j := x.(*job)
	j.index = len(*h)
	*h = append(*h, j)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	j := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	j.index = -1
	return j
}

// takeDue removes due jobs from the heap, at most the constant batch, and returns the jobs and the store's time. No job
// is due while the node does not know the store's time.
func (s *Scheduler) takeDue() (jobs []*job, now time.Time) {
	now = s.clock.now()
	if !s.clock.synced() {
		return nil, now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 && len(jobs) < batch && !s.due[0].at.After(now) {
		jobs = append(jobs, heap.Pop(&s.due).(*job))
	}
	return jobs, now
}

// sleep waits until a job is due or the time in the parameter until has come.
func (s *Scheduler) sleep(ctx context.Context, until time.Time) {
	s.mu.Lock()
	if len(s.due) > 0 && s.due[0].at.Before(until) {
		until = s.due[0].at
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, until.Sub(s.clock.now()))
	defer cancel()
	select {
	case <-ctx.Done():
	case <-s.woken:
	}
}

// wake ends a call of Scheduler.sleep, because a job has become due.
func (s *Scheduler) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// recheck makes j due at the given time. If there is a new order for j, recheck makes j due at once: the order may have
// come while j was busy.
func (s *Scheduler) recheck(j *job, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.gone {
		s.passOn(j)
		return
	}
	if order := s.orders.For(j.name); order.Fence != j.order {
		j.order, at = order.Fence, time.Time{}
	}
	if j.again {
		j.again, at = false, time.Time{}
	}
	j.busy = false
	s.due.put(j, at)
	s.wake()
}

// recheckAll makes all jobs due now, except busy jobs.
func (s *Scheduler) recheckAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if !j.busy {
			s.due.put(j, time.Time{})
		}
	}
}

// learnTime corrects s.clock. After a large step back the times in the heap are too late, so all jobs become due.
func (s *Scheduler) learnTime(sent, store time.Time) {
	if s.clock.learn(sent, store) < -time.Minute {
		s.recheckAll()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undated {
		s.undated = false
		for _, j := range s.jobs {
			j.register(s.clock.now())
		}
	}
}

// stale reports whether the record in v, which is not held, was not written for so long that a node must write it, so that
// the store keeps it.
func stale(v memo.View) bool {
	return v.State == joblock.StateFree && !v.EndedAt.IsZero() && v.Now.Sub(v.EndedAt) >= stalePeriod
}

// nextCheck returns the time of the next read of the ledger of j: at the next tick, or after the pause settling if the
// next tick is due already. If the next tick is far away, the time is when the ledger may be stale.
func (s *Scheduler) nextCheck(j *job, l *ledger.Ledger) time.Time {
	now := s.clock.now()
	switch at := s.inForce(j, l).NextDue(l.LastTick()); {
	case at.IsZero(), at.After(now.Add(stalePeriod)): // the spec has no more ticks, or the next one is far away
		return soon(now.Add(stalePeriod))
	case at.After(now):
		return soon(at)
	}
	return now.Add(settling + dice.N(settling))
}

func soon(at time.Time) time.Time { return within(spread, at) }

// within returns a random multiple of spreadStep that is later than the parameter at, by at most d.
func within(d time.Duration, at time.Time) time.Time {
	return at.Truncate(spreadStep).Add(spreadStep * (1 + dice.N(d/spreadStep)))
}
