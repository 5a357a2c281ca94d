package scheduler

import (
	"context"
	"time"
)

// Pause has the ticks of a job skipped, from the next one on, until Resume. A run that is
// going on is not touched, and one that was broken off is taken over all the same.
//
// Pause, Resume and Trigger need not be called on a node that runs, or knows, the job: New
// with the same store and Config.Scope will do. They return when the request is on record.
// Errors: joblock.ErrNotFound if there is no such job in the store and none here;
// joblock.ErrInvalid, also when so many jobs are paused, about a thousand, that they do
// not fit in the record; joblock.ErrUnavailable, after which the request may have been
// recorded; the cause of ctx. Pausing what is paused and resuming what is not is no error.
func (s *Scheduler) Pause(ctx context.Context, name string) error {
	return s.order(ctx, "pause", name, func(o *order, l *ledger, now int64) bool {
		if o.paused() {
			return false
		}
		if l.Last >= o.ResumedAt { // else no node has yet seen that it was resumed
			o.PausedAt = now
		}
		o.ResumedAt = 0
		return true
	})
}

// Resume ends a Pause. What came during it stays skipped. See Pause for errors.
func (s *Scheduler) Resume(ctx context.Context, name string) error {
	return s.order(ctx, "resume", name, func(o *order, _ *ledger, now int64) bool {
		paused := o.paused()
		if paused {
			o.ResumedAt = now
		}
		return paused
	})
}

// Trigger has a job run now, once, paused or not; its ticks stay as they are. It is run at
// once by this node, if it has the job and Run is under way, or within Config.Sync by one
// that has. If the job is running it is run again afterwards. See Pause for errors.
func (s *Scheduler) Trigger(ctx context.Context, name string) error {
	return s.order(ctx, "trigger", name, func(o *order, _ *ledger, now int64) bool {
		o.Trigger, o.TriggerAt = o.Fence, now
		return true
	})
}

// order changes the order for a job. change is given the order with a new Fence, and
// reports whether there is anything to write.
func (s *Scheduler) order(ctx context.Context, op, name string, change func(o *order, l *ledger, now int64) bool) error {
	if err := s.check(op); err != nil {
		return err
	}
	if err := checkName(op, name); err != nil {
		return err
	}
	lock, err := s.locks.Acquire(ctx, s.control, s.waitOptions()...)
	if err != nil {
		return err
	}
	defer s.release(ctx, lock)
	all, err := decodeOrders(lock.Memo())
	if err != nil {
		return err
	}
	ledgers, now, err := s.ledgersOf(ctx, name, all)
	if err != nil {
		return err
	}
	s.mu.Lock()
	known := s.jobs[name] != nil
	s.mu.Unlock()
	if ledgers[name].Version == 0 && !known {
		return notFound(op, name)
	}
	for other, o := range all.Jobs {
		if l := ledgers[other]; l != nil && o.obeyed(l) {
			delete(all.Jobs, other)
		}
	}
	o := all.Jobs[name]
	o.Fence = lock.Fence()
	if !change(&o, ledgers[name], now.UnixMilli()) {
		return nil
	}
	all.Jobs[name] = o
	memo := encode(all)
	if err := lock.SetMemo(ctx, memo); err != nil {
		return err
	}
	s.mu.Lock()
	s.wrote++
	s.mu.Unlock()
	s.heed(memo, s.written())
	return nil
}

// ledgersOf reads the ledgers of the job and of all that there are orders for; of those
// that cannot be read there is none. It also returns the store's time.
func (s *Scheduler) ledgersOf(ctx context.Context, name string, all orders) (map[string]*ledger, time.Time, error) {
	names := []string{name}
	for other := range all.Jobs {
		if other != name {
			names = append(names, other)
		}
	}
	keys := []string{s.control}
	for _, n := range names {
		keys = append(keys, s.keyOf(n))
	}
	sent := s.clock.local()
	views, err := s.locks.Peek(ctx, keys...)
	if err != nil {
		return nil, time.Time{}, err
	}
	s.learn(sent, views[0].Now)
	ledgers := make(map[string]*ledger, len(names))
	for i, n := range names {
		l, err := decodeLedger(views[i+1].Memo)
		if err == nil {
			ledgers[n] = l
		} else if n == name {
			return nil, time.Time{}, err
		}
	}
	return ledgers, views[0].Now, nil
}
