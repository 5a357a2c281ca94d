package memstore

import (
	"container/heap"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// index has the keys that were bound to jobs. It is a heap by the time at which they are
// due, so due entries are found without reading the others.
type index struct {
	order []*entry
	find  map[pair]*entry
}

type pair struct{ key, job string }

type entry struct {
	pair
	// mark is when the entry is due, in us. It is even if bound has written it, and odd
	// if due has, so that forget can tell them apart.
	mark int64
	at   int // its place in order
}

func newIndex() index { return index{find: make(map[pair]*entry)} }

// bound writes that the lock on key is bound to job. It drops up to two entries that have
// been due for JobKeep, so that without a keeper more go than come.
func (x *index) bound(now instant, key, job string, grace time.Duration) {
	for range 2 {
		if len(x.order) > 0 && x.order[0].mark <= now.us-driver.JobKeep.Microseconds() {
			x.remove(x.order[0])
		}
	}
	e := x.find[pair{key, job}]
	if e == nil {
		e = &entry{pair: pair{key, job}}
		x.find[e.pair] = e
		heap.Push(x, e)
	}
	due := now.us + grace.Microseconds()
	x.move(e, due+due%2)
}

// due returns entries that are due, and makes them due again req.Later from now.
func (x *index) due(now instant, req driver.DueRequest) []driver.JobLock {
	later := now.us + req.Later.Microseconds()
	mark := later + 1 - later%2
	var out []driver.JobLock
	for len(out) < req.Limit && len(x.order) > 0 && x.order[0].mark <= now.us {
		e := x.order[0]
		x.move(e, mark)
		out = append(out, driver.JobLock{Key: e.key, Job: e.job, Mark: mark})
	}
	return out
}

func (x *index) forget(l driver.JobLock) {
	if e := x.find[pair{l.Key, l.Job}]; e != nil && e.mark == l.Mark {
		x.remove(e)
	}
}

func (x *index) move(e *entry, mark int64) {
	e.mark = mark
	heap.Fix(x, e.at)
}

func (x *index) remove(e *entry) {
	heap.Remove(x, e.at)
	delete(x.find, e.pair)
}

// The rest is for package heap.

func (x *index) Len() int           { return len(x.order) }
func (x *index) Less(i, j int) bool { return x.order[i].mark < x.order[j].mark }

func (x *index) Swap(i, j int) {
	x.order[i], x.order[j] = x.order[j], x.order[i]
	x.order[i].at, x.order[j].at = i, j
}

func (x *index) Push(e any) {
	e.(*entry).at = len(x.order)
	x.order = append(x.order, e.(*entry))
}

func (x *index) Pop() any {
	last := len(x.order) - 1
	e := x.order[last]
	x.order[last] = nil // else the array would keep it
	x.order = x.order[:last]
	return e
}

// Due is the call of driver.Store.
func (s *Store) Due(ctx context.Context, req driver.DueRequest) ([]driver.JobLock, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return s.jobs.due(now, req), nil
}

// Forget is the call of driver.Store. No other call comes in the middle of the batch.
func (s *Store) Forget(ctx context.Context, entries []driver.JobLock) error {
	if _, err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, e := range entries {
		s.jobs.forget(e)
	}
	return nil
}
