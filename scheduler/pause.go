package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// ResumeInfo is the end of a pause.
type ResumeInfo struct {
	At   time.Time `json:"at"`
	By   string    `json:"by,omitempty"` // Config.Node of the Scheduler whose method was called
	Note string    `json:"note,omitempty"`
	All  bool      `json:"all,omitempty"` // of all jobs
}

// PauseInfo is a pause that goes on.
type PauseInfo struct {
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"` // Config.Node of the Scheduler whose method was called, or of the node; see PauseAfter
	Note  string    `json:"note,omitempty"`
	All   bool      `json:"all,omitempty"` // of all jobs
}

// Pause skips the ticks of a job, from the next tick on, until Resume. The running execution goes on. Another node
// still takes over an execution that was broken off. The note says why, for Entry.Pauses: at most 256 bytes of UTF-8
// without control characters, or "".
//
// Pause, Resume and Trigger work on any Scheduler with the same store and Config.Scope, with or without the job,
// whether Run is running or not. Each call returns when its request is on record. A pause lasts until
// Resume: nodes that are up keep it on record. If none is up for 350 days, the record may end. Pause of a paused job returns
// nil: a new note replaces the note and the name of who has paused the job, and without a new note nothing changes. Resume
// of a job that is not paused returns nil.
//
// Errors:
//
//	joblock.ErrNotFound     neither the store nor this Scheduler has the job
//	joblock.ErrInvalid      the name or the note is bad, or the record is full: about a thousand jobs are paused, or fewer with
//	                        long notes
//	joblock.ErrUnavailable  or the cause of ctx: the request may be on record
func (s *Scheduler) Pause(ctx context.Context, name, note string) error {
	const op = "pause"
	if err := s.checkNote(op, note); err != nil {
		return err
	}
	_, err := s.changeOrder(ctx, op, name, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		return o.Pause(l, now, s.cfg.Node, note)
	})
	return err
}

// Resume ends a pause of one job. Ticks that came during the pause stay skipped. If all jobs are paused, the job is still
// paused with them. The note is for Entry.Resumed. See Pause for the bounds of the note and for errors.
func (s *Scheduler) Resume(ctx context.Context, name, note string) error {
	const op = "resume"
	if err := s.checkNote(op, note); err != nil {
		return err
	}
	_, err := s.changeOrder(ctx, op, name, func(o *ledger.Order, _ *ledger.Ledger, now time.Time) bool {
		return o.Resume(now, s.cfg.Node, note)
	})
	return err
}

// PauseAll pauses all jobs of the scope, also jobs that are registered later, until ResumeAll. Pauses of single jobs are
// independent of PauseAll. See Pause for the note and for errors.
func (s *Scheduler) PauseAll(ctx context.Context, note string) error {
	const op = "pause all"
	if err := s.check(op); err != nil {
		return err
	}
	if err := s.checkNote(op, note); err != nil {
		return err
	}
	return s.changeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
		now, err := s.storeTime(ctx)
		return err == nil && all.PauseAll(fence, now, s.cfg.Node, note), err
	})
}

// ResumeAll ends the pause of all jobs. Jobs that Pause has paused stay paused. The note is for Entry.Resumed. See Pause for
// the bounds of the note and for errors.
func (s *Scheduler) ResumeAll(ctx context.Context, note string) error {
	const op = "resume all"
	if err := s.check(op); err != nil {
		return err
	}
	if err := s.checkNote(op, note); err != nil {
		return err
	}
	return s.changeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
		now, err := s.storeTime(ctx)
		return err == nil && all.ResumeAll(fence, now, s.cfg.Node, note), err
	})
}

// showResumed returns the end of the latest pause, or nil.
func showResumed(r ledger.Resumed) *ResumeInfo {
	if r.At == 0 {
		return nil
	}
	return &ResumeInfo{time.UnixMilli(r.At).UTC(), r.By, r.Note, r.All}
}

func (s *Scheduler) checkNote(op, note string) error {
	return door.CheckText("scheduler: "+op, "", "note", note, 0, driver.MaxLabelBytes)
}

// changeOrder changes the order for a job. The function change gets the order with a new Fence. The function change
// returns false if there is nothing to write. The result is the order after that.
func (s *Scheduler) changeOrder(ctx context.Context, op, name string,
	change func(*ledger.Order, *ledger.Ledger, time.Time) bool) (o ledger.Order, err error) {
	if err := s.checkJob(op, name); err != nil {
		return o, err
	}
	return o, s.changeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
		ledgers, now, err := s.readLedgers(ctx, name, *all)
		if err != nil {
			return false, err
		}
		s.mu.Lock()
		known := s.jobs[name] != nil
		s.mu.Unlock()
		if ledgers[name].Spec == "" && !known {
			return false, notFound(op, name)
		}
		all.Tidy(ledgers)
		o = all.Jobs[name]
		o.Fence = fence
		if !change(&o, ledgers[name], now) {
			return false, nil
		}
		all.Jobs[name] = o
		return true, nil
	})
}

// changeOrders changes the orders under their lock. The function change gets the fence of the write, and returns false if
// there is nothing to write.
func (s *Scheduler) changeOrders(ctx context.Context, change func(all *ledger.Orders, fence int64) (bool, error)) error {
	lock, err := s.locks.Acquire(ctx, s.ordersKey, s.waitOptions()...)
	if err != nil {
		return err
	}
	defer s.release(ctx, lock)
	all, err := ledger.DecodeOrders(memo.Of(lock))
	if err != nil {
		return err
	}
	if ok, err := change(&all, lock.Fence()); !ok || err != nil {
		return err
	}
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

// storeTime asks the store for its time. The caller holds the lock on the orders.
func (s *Scheduler) storeTime(ctx context.Context) (time.Time, error) {
	sent := s.clock.local()
	views, err := s.readJobs(ctx, nil)
	if err != nil {
		return time.Time{}, err
	}
	s.learnTime(sent, views[0].Now)
	return views[0].Now, nil
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
