package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	first, refused := !s.ordersRead, s.ordersErr != nil
	if bytes.Equal(text, s.ordersMemo) && (!first || len(text) == 0) {
		s.ordersRead, s.ordersErr = true, nil
		if !first || !refused {
			return
		}
	}
	o, err := ledger.DecodeOrders(text)
	if err != nil {
		s.refuseOrders(err)
		return
	}
	s.ordersRead, s.ordersErr = true, nil
	if !sent.After(s.wrote) && o.Newest() < s.orders.Newest() {
		return // text is older than an order that this node has written since
	}
	all := o.AllTold != s.orders.AllTold
	changed, any := o.Specs.After(s.orders.Specs.Newest())
	if first {
		changed, any = nil, refused // all jobs are due at the begin of Run
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

// refuseOrders notes and logs that this node cannot read the orders. The caller has locked s.mu.
func (s *Scheduler) refuseOrders(err error) {
	isNew := fmt.Sprint(err) != fmt.Sprint(s.ordersErr)
	s.ordersErr = err
	if isNew {
		s.cfg.Logger.Error(unreadOrders(s.ordersRead), "key", s.ordersKey, "err", err)
	}
}

// unreadOrders says what a node does that cannot read the orders. The parameter readBefore says whether it has read them
// before.
func unreadOrders(readBefore bool) string {
	if readBefore {
		return "scheduler: pauses and triggers cannot be read; the previous ones stay in force"
	}
	return "scheduler: pauses and triggers cannot be read, and this node has read none before: it executes no jobs until it can, " +
		"because jobs may be paused"
}

// errOrdersUnread ends a dispatch of a node that has started beside orders that it cannot read, and has no time of the store.
var errOrdersUnread = errors.New("scheduler: the pauses and triggers cannot be read")

// applyView is applyOrders for the view of the record of the orders.
func (s *Scheduler) applyView(v memo.View, sent time.Time) {
	if v.State != joblock.StateForeign {
		s.applyOrders(v.Memo, sent)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseOrders(errors.New("scheduler: the value at the key of pauses and triggers is no lock"))
}

// withoutOrders returns why this node knows nothing of pauses: it has never read the orders. The result is nil if it has.
func (s *Scheduler) withoutOrders() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ordersRead:
		return nil
	case s.ordersErr != nil:
		return s.ordersErr
	}
	return errors.New("scheduler: the store has not answered for the pauses and triggers")
}

// lookSoon makes j due now or, if j is busy, when j is no longer busy. The caller has locked s.mu.
func (s *Scheduler) lookSoon(j *job) {
	if j.busy {
		j.again = true // the ledger that j was busy with may be older
		return
	}
	s.due.put(j, time.Time{})
}

// putOrdered makes j due if j has a new order, or wakes the booking of its execution. The caller has locked s.mu.
func (s *Scheduler) putOrdered(j *job) {
	if j.busy {
		select {
		case j.ordered <- struct{}{}:
		default:
		}
		return
	}
	if j.order != s.orders.For(j.name).Fence {
		s.due.put(j, time.Time{})
	}
}

// readOrders reads the orders.
func (s *Scheduler) readOrders(ctx context.Context) error {
	sent := s.clock.local()
	views, err := s.readJobs(ctx, nil)
	if err == nil && (!views[0].Now.IsZero() || views[0].State == joblock.StateForeign) {
		s.applyView(views[0], sent)
	}
	return err
}

func (s *Scheduler) rereadOrders(ctx context.Context) {
	if err := s.readOrders(ctx); err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn(unreadOrders(s.withoutOrders() == nil), "key", s.ordersKey, "err", err)
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

// touchOrders creates the record of the orders, if the store is new or has lost the record. If the record exists, the store
// keeps it for another driver.MaxPeriod.
func (s *Scheduler) touchOrders(ctx context.Context) error {
	lock, err := s.locks.TryAcquire(ctx, s.ordersKey, s.lockOptions()...)
	if errors.Is(err, joblock.ErrHeld) {
		return nil // another node does that now
	}
	if err == nil {
		err = lock.Release(ctx)
	}
	return err
}
