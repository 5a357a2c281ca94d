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

// applyOrders decodes text and keeps its orders in s. Jobs that have a new order become due. The parameter wrote is
// what ordersWritten returned before text was read.
func (s *Scheduler) applyOrders(text []byte, wrote int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Equal(text, s.ordersMemo) {
		return
	}
	o, err := ledger.DecodeOrders(text)
	if err != nil {
		s.ordersMemo = text
		s.cfg.Logger.Error("scheduler: pauses and triggers cannot be decoded; the previous ones stay in force", "key", s.ordersKey, "err", err)
		return
	}
	if wrote != s.wrote && o.Newest() < s.orders.Newest() {
		return // text is older than an order that this node has written in the meantime
	}
	s.ordersMemo, s.orders = text, o
	for name, order := range o.Jobs {
		if j := s.jobs[name]; j != nil && !j.busy && j.order != order.Fence {
			s.due.put(j, time.Time{})
		}
	}
	s.wake()
}

// rereadOrders reads the orders. After an error the previous orders stay in force.
func (s *Scheduler) rereadOrders(ctx context.Context) {
	wrote := s.ordersWritten()
	views, err := s.readJobs(ctx, nil)
	switch {
	case err == nil && !views[0].Now.IsZero():
		s.applyOrders(views[0].Memo, wrote)
	case err != nil && ctx.Err() == nil:
		s.cfg.Logger.Warn("scheduler: pauses and triggers cannot be read; the previous ones stay in force", "key", s.ordersKey, "err", err)
	}
}

// readJobs reads the record of the orders and, after it, the ledgers of the named jobs. It returns the views in this
// order.
func (s *Scheduler) readJobs(ctx context.Context, names []string) ([]memo.View, error) {
	keys := []string{s.ordersKey}
	for _, name := range names {
		keys = append(keys, s.keyOf(name))
	}
	return memo.Read(ctx, s.locks, keys...)
}

// createOrders creates the record of the orders: the store is new, or has lost the record.
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

// ordersWritten returns how many orders this node has written.
func (s *Scheduler) ordersWritten() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

func (s *Scheduler) orderOf(j *job) ledger.Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders.Jobs[j.name]
}
