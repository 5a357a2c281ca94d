package scheduler

import (
	"container/heap"
	"context"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	// Each node comes to a tick at a random step within spread. So the first node has
	// usually written the ledger before the others read it, and jobs that tick at the
	// same instant are spread over the nodes. Jobs of one step share a round trip.
	spread     = 50 * time.Millisecond
	spreadStep = 10 * time.Millisecond

	// settling is how long a node leaves alone a job that another node has claimed. Most
	// executions are over by then.
	settling = 500 * time.Millisecond
)

// dueHeap orders jobs by when to read their ledgers next. Scheduler.mu guards it.
type dueHeap []*job

// put sets when j is due, whether or not it is in the heap.
func (h *dueHeap) put(j *job, at time.Time) {
	j.at = at
	if j.index < 0 {
		heap.Push(h, j)
	} else {
		heap.Fix(h, j.index)
	}
}

func (h *dueHeap) drop(j *job) {
	if j.index >= 0 {
		heap.Remove(h, j.index)
	}
}

// take removes and returns up to limit jobs that are due.
func (h *dueHeap) take(now time.Time, limit int) (jobs []*job) {
	for len(*h) > 0 && len(jobs) < limit && !(*h)[0].at.After(now) {
		jobs = append(jobs, heap.Pop(h).(*job))
	}
	return jobs
}

func (h dueHeap) first() (time.Time, bool) {
	if len(h) == 0 {
		return time.Time{}, false
	}
	return h[0].at, true
}

// Len, Less, Swap, Push and Pop implement heap.Interface.

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

// takeDue takes the jobs that are due, and returns the time. No job is due while the node
// does not know the store's time.
func (s *Scheduler) takeDue() ([]*job, time.Time) {
	now := s.clock.now()
	if !s.clock.synced() {
		return nil, now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due.take(now, batch), now
}

// sleep waits until a job is due, or until the given time.
func (s *Scheduler) sleep(ctx context.Context, until time.Time) {
	s.mu.Lock()
	if first, ok := s.due.first(); ok && first.Before(until) {
		until = first
	}
	s.mu.Unlock()
	timer := time.NewTimer(until.Sub(s.clock.now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.woken:
	}
}

// wake ends a sleep, because a job has become due.
func (s *Scheduler) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// recheck makes j due at the given time, or at once if there is a new order for it: the
// order may have come while j was busy.
func (s *Scheduler) recheck(j *job, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if order := s.orders.Jobs[j.name]; order.Fence != j.order {
		j.order, at = order.Fence, time.Time{}
	}
	j.busy = false
	s.due.put(j, at)
	s.wake()
}

// recheckAll makes all jobs due now, except those that are busy.
func (s *Scheduler) recheckAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if !j.busy {
			s.due.put(j, time.Time{})
		}
	}
}

// learnTime corrects the estimate of the store's clock. If that clock was set back, the
// jobs' due times are too far off.
func (s *Scheduler) learnTime(sent, store time.Time) {
	if s.clock.learn(sent, store) < -time.Minute {
		s.recheckAll()
	}
}

// nextCheck returns when to read the ledger again: at the next tick, or after settling if
// that tick is due already.
func (s *Scheduler) nextCheck(j *job, l *ledger.Ledger) time.Time {
	now := s.clock.now()
	switch at := j.NextDue(l.LastTick()); {
	case at.IsZero(): // the spec has no more ticks
		return now.Add(driver.MaxPeriod)
	case at.After(now):
		return soon(at)
	}
	return now.Add(settling + dice.N(settling))
}

// soon returns a random step within spread after at.
func soon(at time.Time) time.Time { return within(spread, at) }

func within(d time.Duration, at time.Time) time.Time {
	return at.Truncate(spreadStep).Add(spreadStep * (1 + dice.N(d/spreadStep)))
}
