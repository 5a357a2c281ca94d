package memstore

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// settled is Mark % 4 of an entry that was settled with Settled.
const settled = 2

// index is the index of jobs. index.order is a heap by Mark, so that due reads only due entries.
type index struct {
	order []*entry
	find  map[driver.Entry]*entry // by key and job, with Mark 0
}

type entry struct {
	// Mark is when the entry is due, in µs. due sets an odd Mark, and all other methods set an even Mark, so that
	// Settle sees whether the entry was written or settled after the Due that returned it. The Mark of an entry that
	// was settled with Settled is not a multiple of 4, and any other even Mark is one.
	driver.Entry
	at int // position in index.order
}

// bound writes the entry of key and job, and makes the entry due after grace. bound also drops up to two entries that
// have been due for JobKeep, so that the index stays small where no keeper runs.
func (x *index) bound(now instant, key, job string, grace time.Duration) {
	for range 2 {
		if len(x.order) > 0 && x.order[0].Mark <= now.us-driver.JobKeep.Microseconds() {
			x.remove(x.order[0])
		}
	}
	l := driver.Entry{Key: key, Job: job}
	e := x.find[l]
	if e == nil {
		e = &entry{Entry: l}
		x.find[l] = e
		heap.Push(x, e)
	}
	x.put(now, e, grace, 0)
}

// put gives e a new Mark, and makes it due after wait or up to 3 µs later. kind is the new Mark modulo 4.
func (x *index) put(now instant, e *entry, wait time.Duration, kind int64) {
	due := now.us + wait.Microseconds()
	x.move(e, due+(kind+4-due%4)%4)
}

// due claims up to req.Limit entries that are due.
func (x *index) due(now instant, req driver.DueRequest) driver.DueReply {
	mark := now.us + req.Claim.Microseconds()
	mark += 1 - mark%2
	var out []*entry
	for len(out) < req.Limit && len(x.order) > 0 && x.order[0].Mark <= now.us {
		out = append(out, heap.Pop(x).(*entry))
	}
	reply := driver.DueReply{Next: driver.MaxPeriod}
	if len(x.order) > 0 {
		wait := time.Duration(max(0, x.order[0].Mark-now.us)) * time.Microsecond
		reply.Next = min(wait, driver.MaxPeriod)
	}
	for _, e := range out {
		lock := e.Entry
		lock.Mark, lock.Settled = mark, e.Mark%4 == settled && now.us-e.Mark <= driver.SettledFor.Microseconds()
		e.Mark = mark
		heap.Push(x, e)
		reply.Entries = append(reply.Entries, lock)
	}
	return reply
}

// settle carries out the settlement l if the entry still has the Mark of l.
func (x *index) settle(now instant, l driver.Settlement) {
	e := x.find[driver.Entry{Key: l.Key, Job: l.Job}]
	switch {
	case e == nil || e.Mark != l.Mark:
	case l.Again == 0:
		x.remove(e)
	default:
		kind := int64(0)
		if l.Settled {
			kind = settled
		}
		x.put(now, e, l.Again, kind)
	}
}

func (x *index) move(e *entry, mark int64) {
	e.Mark = mark
	heap.Fix(x, e.at)
}

func (x *index) remove(e *entry) {
	heap.Remove(x, e.at)
	delete(x.find, driver.Entry{Key: e.Key, Job: e.Job})
}

// Package heap calls the methods below.

func (x *index) Len() int           { return len(x.order) }
func (x *index) Less(i, j int) bool { return x.order[i].Mark < x.order[j].Mark }

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
	x.order[last] = nil // a pointer left in the array would keep the entry in memory
	x.order = x.order[:last]
	return e
}

// Parts implements driver.Store.
func (s *store) Parts() int { return 1 }

// Due implements driver.Store.
func (s *store) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return driver.DueReply{}, err
	}
	defer s.mu.Unlock()
	return s.jobs.due(now, req), nil
}

// Entries implements driver.Store. Pages are in the order of a hash of key and job. A cursor is the hash of the last
// entry of the previous page.
func (s *store) Entries(ctx context.Context, req driver.EntriesRequest) (driver.EntriesPage, error) {
	var page driver.EntriesPage
	if _, err := s.enter(ctx); err != nil {
		return page, err
	}
	defer s.mu.Unlock()
	// The cursor is a hash because it reaches callers who may not know every key.
	text := func(l driver.Entry) string {
		sum := sha256.Sum256([]byte(l.Key + "\n" + l.Job))
		return hex.EncodeToString(sum[:])
	}
	var after []driver.Entry
	for l := range s.jobs.find {
		if req.Cursor == "" || text(l) > req.Cursor {
			after = append(after, l)
		}
	}
	slices.SortFunc(after, func(a, b driver.Entry) int { return strings.Compare(text(a), text(b)) })
	page.Entries = after
	if count := cmp.Or(max(req.Count, 0), pageSize); len(after) > count {
		page.Entries = after[:count:count]
		page.Next = text(page.Entries[count-1])
	}
	for _, l := range page.Entries {
		if due := time.UnixMicro(s.jobs.find[l].Mark); page.Due.IsZero() || due.Before(page.Due) {
			page.Due = due
		}
	}
	page.Progress = float64(len(page.Entries)) / float64(max(1, len(s.jobs.find)))
	return page, nil
}

// Settle implements driver.Store. The batch is one atomic step.
func (s *store) Settle(ctx context.Context, entries []driver.Settlement) error {
	now, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, l := range entries {
		s.jobs.settle(now, l)
	}
	return nil
}
