package scheduler

import (
	"container/heap"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

// table has the jobs of a node, and what the node does with each of them. Its mutex guards the fields of all jobs as
// well.
type table struct {
	orders *orders
	woken  chan struct{} // ends a sleep of the loop

	mu      sync.Mutex // guards the fields below
	jobs    map[string]*job
	leaving map[string]*job // removed jobs that are still busy
	due     dueHeap
	undated []*job                 // registered before this node knew the store's clock; see registration.since
	held    map[*joblock.Lock]*job // the functions that run, by the locks of their executions
	lanes   map[lane]bool          // in which this node executes a job, or for which it waits; not lane 0
}

// lane is a lane of a job, other than 0.
type lane struct {
	job    string
	number int
}

func newTable(o *orders) *table {
	return &table{
		orders: o, woken: make(chan struct{}, 1), jobs: make(map[string]*job), leaving: make(map[string]*job),
		held: make(map[*joblock.Lock]*job), lanes: make(map[lane]bool),
	}
}

// do calls f under the mutex.
func (t *table) do(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// names returns the names of the registered jobs, sorted.
func (t *table) names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.jobs))
}

// add registers j and makes j due. If this node is busy with a job of the same name, even a removed one, j is due when
// the node is no longer busy with that job. Executions in lanes do not make a job busy: the ledger counts them, so j
// goes on next to them. The caller has locked t.mu.
func (t *table) add(j *job) {
	old := t.jobs[j.name]
	if old != nil {
		j.floor, j.order, j.behind = old.floor, old.order, old.behind
		if old.SpecText == j.SpecText {
			j.registration = old.registration // the spec of another node that was registered later stays in force
		}
		t.drop(old)
	} else if old = t.leaving[j.name]; old != nil {
		delete(t.leaving, j.name)
	}
	t.jobs[j.name] = j
	if old != nil && old.busy {
		old.next, j.busy = j, true
		return
	}
	t.due.put(j, time.Time{})
	t.wake()
}

// remove removes a job. It returns false if there is none.
func (t *table) remove(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[name]
	if j == nil {
		return false
	}
	delete(t.jobs, name)
	t.drop(j)
	if j.busy {
		t.leaving[name] = j
	}
	return true
}

// drop ends the waits of the job. The caller has locked t.mu.
func (t *table) drop(j *job) {
	j.gone = true
	if j.index >= 0 {
		heap.Remove(&t.due, j.index)
	}
	if j.giveUp != nil {
		j.giveUp()
	}
}

// isGone reports whether j was removed or replaced.
func (t *table) isGone(j *job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return j.gone
}

// takeDue removes due jobs from the heap, at most batch, and returns them.
func (t *table) takeDue(now time.Time) (jobs []*job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.due) > 0 && len(jobs) < batch && !t.due[0].at.After(now) {
		jobs = append(jobs, heap.Pop(&t.due).(*job))
	}
	return jobs
}

// nextDue returns when the next job is due, or until if that is earlier.
func (t *table) nextDue(until time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.due) > 0 && t.due[0].at.Before(until) {
		return t.due[0].at
	}
	return until
}

// wake ends a sleep of the loop, because a job has become due.
func (t *table) wake() {
	select {
	case t.woken <- struct{}{}:
	default:
	}
}

// occupy makes j busy until recheck. It returns false if j is gone.
func (t *table) occupy(j *job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if j.gone {
		return false
	}
	j.busy = true
	if j.index >= 0 { // a new order may have put the job into the heap
		heap.Remove(&t.due, j.index)
	}
	return true
}

// recheck makes j due at the time at, or at once if there is a new order for j, or if lookSoon was called while j was
// busy. If j is gone, recheck makes due the job that has replaced j.
func (t *table) recheck(j *job, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; j != nil && j.gone; j, at = j.next, (time.Time{}) {
		j.busy = false
		if t.leaving[j.name] == j {
			delete(t.leaving, j.name)
		}
	}
	if j == nil {
		return
	}
	if fence := t.orders.of(j.name).Fence; fence != j.order {
		j.order, at = fence, time.Time{}
	}
	if j.again {
		j.again, at = false, time.Time{}
	}
	j.busy = false
	t.due.put(j, at)
	t.wake()
}

// recheckAll makes all jobs due now, except busy jobs.
func (t *table) recheckAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, j := range t.jobs {
		if !j.busy {
			t.due.put(j, time.Time{})
		}
	}
	t.wake()
}

// lookSoon makes j due now or, if j is busy, when j is no longer busy. The caller has locked t.mu.
func (t *table) lookSoon(j *job) {
	if j.busy {
		j.again = true // the ledger that j was busy with may be older
		return
	}
	t.due.put(j, time.Time{})
	t.wake()
}

// lookAgain makes j due, or the job that has replaced j: an execution has ended, so another one may begin.
func (t *table) lookAgain(j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if j.gone {
		j = t.jobs[j.name]
	}
	if j != nil {
		t.lookSoon(j)
	}
}

// obey makes due the jobs that have new orders, and wakes book.keep of those that are being executed.
func (t *table) obey(n orderNews) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, j := range t.jobs {
		if n.allSpecs || slices.Contains(n.specs, name) {
			t.lookSoon(j)
		}
		if !n.allJobs && !slices.Contains(n.jobs, name) {
			continue
		}
		switch {
		case j.busy:
			select {
			case j.ordered <- struct{}{}:
			default:
			}
		case j.order != t.orders.of(name).Fence:
			t.due.put(j, time.Time{})
		}
	}
	t.wake()
}

// admit notes that a function of j begins now under the lock, and returns false if j is gone, so no function begins
// after Remove has returned.
func (t *table) admit(j *job, lock *joblock.Lock) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !j.gone {
		t.held[lock] = j
	}
	return !j.gone
}

// ended notes that the function under the lock has returned.
func (t *table) ended(lock *joblock.Lock) { t.do(func() { delete(t.held, lock) }) }

// here returns how many functions of the job run on this node, with those of the jobs that j has replaced. A function
// that goes on after its lock is lost counts, although the ledger does not have it.
func (t *table) here(j *job) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, other := range t.held {
		if other.name == j.name {
			n++
		}
	}
	return n
}

// strand stops the renewal of all locks of functions that run, and returns the names of their jobs, sorted. The locks
// are not released: a function may still be running, and another node would start at once.
func (t *table) strand() (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for lock, j := range t.held {
		records.StopRenewing(lock)
		names = append(names, j.name)
	}
	slices.Sort(names)
	return names
}

// setLane notes whether this node executes j in a lane, or waits for the lane.
func (t *table) setLane(j *job, number int, in bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in && number > 0 {
		t.lanes[lane{j.name, number}] = true
	} else {
		delete(t.lanes, lane{j.name, number})
	}
}

// mine returns a function that reports whether this node is in a lane of j.
func (t *table) mine(j *job) func(number int) bool {
	return func(number int) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.lanes[lane{j.name, number}]
	}
}

// setTrouble records why this node cannot execute the job, nil if it can, and reports whether the reason has changed.
func (t *table) setTrouble(j *job, err error) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := j.trouble
	j.trouble = err
	return text(was) != text(err)
}

// dueHeap is a heap.Interface of jobs by job.at, the time to read the ledger.
type dueHeap []*job

// put sets job.at, and adds j to the heap if it is not there.
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
