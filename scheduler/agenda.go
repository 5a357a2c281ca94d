package scheduler

import (
	"container/heap"
	"time"
)

// agenda is the jobs by when they are to be looked at. Its methods need Scheduler.mu.
type agenda []*job

// put has j looked at at the given time, in place of what was planned.
func (a *agenda) put(j *job, at time.Time) {
	j.at = at
	if j.index < 0 {
		heap.Push(a, j)
	} else {
		heap.Fix(a, j.index)
	}
}

// drop takes j out.
func (a *agenda) drop(j *job) {
	if j.index >= 0 {
		heap.Remove(a, j.index)
	}
}

// take takes out up to limit jobs whose time has come.
func (a *agenda) take(now time.Time, limit int) (jobs []*job) {
	for len(*a) > 0 && len(jobs) < limit && !(*a)[0].at.After(now) {
		jobs = append(jobs, heap.Pop(a).(*job))
	}
	return jobs
}

// first is when the first job is to be looked at.
func (a agenda) first() (time.Time, bool) {
	if len(a) == 0 {
		return time.Time{}, false
	}
	return a[0].at, true
}

// Len, Less, Swap, Push and Pop implement heap.Interface.

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, k int) bool { return a[i].at.Before(a[k].at) }
func (a agenda) Swap(i, k int) {
	a[i], a[k] = a[k], a[i]
	a[i].index, a[k].index = i, k
}

func (a *agenda) Push(x any) {
	j := x.(*job)
	j.index = len(*a)
	*a = append(*a, j)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	j := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	j.index = -1
	return j
}
