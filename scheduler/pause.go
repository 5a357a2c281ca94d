package scheduler

import (
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Pause skips the ticks of a job, from the next one on, until Resume. It does not touch a
// running execution. An execution that was broken off is still taken over.
//
// Pause, Resume and Trigger work on any Scheduler with the same store and Config.Scope, even
// without the job and without Run. They return when the request is on record. Pausing a
// paused job is no error, nor is resuming a job that is not paused.
//
// Errors:
//
//	joblock.ErrNotFound     neither the store nor this Scheduler has the job
//	joblock.ErrInvalid      the name is bad, or the record is full: about a thousand jobs
//	                        are paused
//	joblock.ErrUnavailable  the request may be on record
//	the cause of ctx        the request may be on record
func (s *Scheduler) Pause(ctx context.Context, name string) error {
	return s.changeOrder(ctx, "pause", name, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		return o.Pause(l, now)
	})
}

// Resume ends a pause. Ticks that came during the pause stay skipped. See Pause for errors.
func (s *Scheduler) Resume(ctx context.Context, name string) error {
	return s.changeOrder(ctx, "resume", name, func(o *ledger.Order, _ *ledger.Ledger, now time.Time) bool {
		return o.Resume(now)
	})
}

// Trigger executes a job once, now, even if it is paused. Its ticks do not change. If this
// Scheduler has the job and Run is running, it executes the job at once; otherwise a node
// that has the job does so within Config.Sync. If the job is running, it is executed again
// afterwards. Triggers that wait at the same time count as one. See Pause for errors.
func (s *Scheduler) Trigger(ctx context.Context, name string) error {
	return s.changeOrder(ctx, "trigger", name, func(o *ledger.Order, _ *ledger.Ledger, now time.Time) bool {
		o.Trigger(now)
		return true
	})
}

// changeOrder changes the order for a job. change gets the order with the Fence of this
// write, and reports whether there is anything to write.
func (s *Scheduler) changeOrder(ctx context.Context, op, name string, change func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool) error {
	if err := s.check(op); err != nil {
		return err
	}
	if err := checkName(op, name); err != nil {
		return err
	}
	lock, err := s.locks.Acquire(ctx, s.ordersKey, s.waitOptions()...)
	if err != nil {
		return err
	}
	defer s.release(ctx, lock)
	all, err := ledger.DecodeOrders(memo.Of(lock))
	if err != nil {
		return err
	}
	ledgers, now, err := s.readLedgers(ctx, name, all)
	if err != nil {
		return err
	}
	s.mu.Lock()
	known := s.jobs[name] != nil
	s.mu.Unlock()
	if ledgers[name].New() && !known {
		return notFound(op, name)
	}
	all.Tidy(ledgers)
	o := all.Jobs[name]
	o.Fence = lock.Fence()
	if !change(&o, ledgers[name], now) {
		return nil
	}
	all.Jobs[name] = o
	orders := all.Encode()
	if err := memo.Write(ctx, lock, orders); err != nil {
		return err
	}
	s.mu.Lock()
	s.wrote++
	s.mu.Unlock()
	s.applyOrders(orders, s.ordersWritten())
	return nil
}

// readLedgers reads the ledgers of the named job and of all jobs that have orders, and the
// store's time. If another job's ledger cannot be read, it is left out.
func (s *Scheduler) readLedgers(ctx context.Context, name string, all ledger.Orders) (map[string]*ledger.Ledger, time.Time, error) {
	names := []string{name}
	for other := range all.Jobs {
		if other != name {
			names = append(names, other)
		}
	}
	keys := []string{s.ordersKey}
	for _, n := range names {
		keys = append(keys, s.keyOf(n))
	}
	sent := s.clock.local()
	views, err := memo.Read(ctx, s.locks, keys...)
	if err != nil {
		return nil, time.Time{}, err
	}
	s.learnTime(sent, views[0].Now)
	ledgers := make(map[string]*ledger.Ledger, len(names))
	for i, n := range names {
		l, err := ledger.Decode(views[i+1].Memo)
		if err == nil {
			ledgers[n] = l
		} else if n == name {
			return nil, time.Time{}, err
		}
	}
	return ledgers, views[0].Now, nil
}
