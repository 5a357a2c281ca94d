package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Pause skips the ticks of a job, from the next tick on, until Resume. The running execution goes on. Another node
// still takes over an execution that was broken off.
//
// Pause, Resume and Trigger work on any Scheduler with the same store and Config.Scope, with or without the job,
// whether Run is running or not. Each call returns when its request is on record. The store forgets a request after 366
// days without another request. Pause of a paused job returns nil, and so does Resume of a job that is not paused.
//
// Errors:
//
//	joblock.ErrNotFound     neither the store nor this Scheduler has the job
//	joblock.ErrInvalid      the name is bad, or the record is full: about a thousand jobs are paused
//	joblock.ErrUnavailable  or the cause of ctx: the request may be on record
func (s *Scheduler) Pause(ctx context.Context, name string) error {
	return s.changeOrder(ctx, "pause", name, (*ledger.Order).Pause)
}

// Resume ends a pause. Ticks that came during the pause stay skipped. See Pause for errors.
func (s *Scheduler) Resume(ctx context.Context, name string) error {
	return s.changeOrder(ctx, "resume", name, (*ledger.Order).Resume)
}

// Trigger executes a job once, now, even if the job is paused. The ticks of the job do not change. If this Scheduler
// has the job and Run is running, this Scheduler executes the job at once. In every other case a node that has the job
// executes the job within Config.Sync. If the job is running, the new execution follows the running one. Several
// triggers that wait at the same time lead to one execution. See Pause for errors.
func (s *Scheduler) Trigger(ctx context.Context, name string) error {
	return s.changeOrder(ctx, "trigger", name, (*ledger.Order).Trigger)
}

// changeOrder changes the order for a job. The function change gets the order with a new Fence. The function change
// returns false if there is nothing to write.
func (s *Scheduler) changeOrder(ctx context.Context, op, name string,
	change func(*ledger.Order, *ledger.Ledger, time.Time) bool) error {
	if err := s.checkJob(op, name); err != nil {
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
	s.wrote = s.clock.local()
	s.mu.Unlock()
	s.applyOrders(orders, time.Time{})
	return nil
}

// readLedgers returns the store's time, the ledger of the named job, and the ledgers of all jobs that have orders. A
// ledger that cannot be decoded is left out, except the ledger of the named job.
func (s *Scheduler) readLedgers(ctx context.Context, name string, all ledger.Orders) (map[string]*ledger.Ledger, time.Time, error) {
	names := slices.Collect(maps.Keys(all.Jobs))
	if _, ok := all.Jobs[name]; !ok {
		names = append(names, name)
	}
	sent := s.clock.local()
	views, err := s.readJobs(ctx, names)
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
