package scheduler

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// applyOrders decodes the orders in the memo text and keeps the orders in s. Jobs that have a new order become due. The
// parameter sent is when this node asked the store for the memo, by the node's own clock.
func (s *Scheduler) applyOrders(text []byte, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.ordersRead
	s.ordersRead = true
	if bytes.Equal(text, s.ordersMemo) {
		return
	}
	o, err := ledger.DecodeOrders(text)
	if err != nil {
		s.ordersMemo = text
		s.cfg.Logger.Error("scheduler: pauses and triggers cannot be decoded; the previous ones stay in force", "key", s.ordersKey, "err", err)
		return
	}
	if !sent.After(s.wrote) && o.Newest() < s.orders.Newest() {
		return // text is older than an order that this node has written since
	}
	all := o.AllTold != s.orders.AllTold
	changed, any := o.Specs.After(s.orders.Specs.Newest())
	if first {
		changed, any = nil, false // all jobs are due at the begin of Run
	}
	s.ordersMemo, s.orders = text, o
	for _, name := range changed {
		if j := s.jobs[name]; j != nil && !any {
			s.lookSoon(j)
		}
	}
	if any {
		for _, j := range s.jobs {
			s.lookSoon(j)
		}
	}
	for name := range o.Jobs {
		if j := s.jobs[name]; j != nil && !all {
			s.putOrdered(j)
		}
	}
	if all {
		for _, j := range s.jobs {
			s.putOrdered(j)
		}
	}
	s.wake()
}

// lookSoon makes j due now or, if j is busy, when j is no longer busy. The caller has locked s.mu.
func (s *Scheduler) lookSoon(j *job) {
	if j.busy {
		j.again = true // the ledger that j was busy with may be older
		return
	}
	s.due.put(j, time.Time{})
}

// putOrdered makes j due if j has a new order. The caller has locked s.mu.
func (s *Scheduler) putOrdered(j *job) {
	if !j.busy && j.order != s.orders.For(j.name).Fence {
		s.due.put(j, time.Time{})
	}
}

func (s *Scheduler) rereadOrders(ctx context.Context) {
	sent := s.clock.local()
	views, err := s.readJobs(ctx, nil)
	switch {
	case err == nil && !views[0].Now.IsZero():
		s.applyOrders(views[0].Memo, sent)
	case err != nil && ctx.Err() == nil:
		s.cfg.Logger.Warn("scheduler: pauses and triggers cannot be read; the previous ones stay in force", "key", s.ordersKey, "err", err)
	}
}

// readJobs returns first the view of the Orders, then the views of the ledgers of the named jobs.
func (s *Scheduler) readJobs(ctx context.Context, names []string) ([]memo.View, error) {
	keys := []string{s.ordersKey}
	for _, name := range names {
		keys = append(keys, s.keyOf(name))
	}
	return memo.Read(ctx, s.locks, keys...)
}

// createOrders creates the record of the orders, if the store is new or has lost the record.
func (s *Scheduler) createOrders(ctx context.Context) error {
	lock, err := s.locks.TryAcquire(ctx, s.ordersKey, s.lockOptions()...)
	if errors.Is(err, joblock.ErrHeld) {
		return nil // another node creates the record now
	}
	if err == nil {
		err = lock.Release(ctx)
	}
	return err
}
