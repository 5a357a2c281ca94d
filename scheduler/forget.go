package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// forgotten is how long the store remembers the latest tick of a job that Forget has removed: longer than a node with an
// older list of jobs may need to notice, so that no node executes that tick again.
const forgotten = time.Hour

// Forget removes the record of a job that no node has any more: its history, counts, spec and pause. AllEntries then lacks
// the job. If the job is registered again later, it is a new job, whose ticks count from then on. The store remembers the
// latest tick for another hour. Repeating a Forget does no harm.
//
// Errors:
//
//	joblock.ErrHeld         a node that is up has the job, or the job is being executed
//	joblock.ErrNotFound     the store does not have the job
//	joblock.ErrInvalid      the name is bad
//	joblock.ErrUnavailable  or the cause of ctx: parts of the record may be left; AllEntries may still have the job
func (s *Scheduler) Forget(ctx context.Context, name string) error {
	const op = "forget"
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	up, err := s.readNodes(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(up, func(n upNode) bool { return n.has(name) }); i >= 0 {
		return &ownError{fmt.Sprintf("%s %q: node %q has the job", op, name, up[i].Name), joblock.ErrHeld}
	}
	lock, err := s.locks.TryAcquire(ctx, s.keyOf(name), door.OwnKey[joblock.Option](), joblock.Holder(s.cfg.Node), memo.WithGrant(),
		joblock.Retain(forgotten), joblock.MaxRenew(driver.MaxPeriod))
	if errors.Is(err, joblock.ErrHeld) {
		return &ownError{fmt.Sprintf("%s %q: the job is being executed", op, name), joblock.ErrHeld}
	}
	if err != nil {
		return err
	}
	defer s.release(ctx, lock)
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		l = new(ledger.Ledger) // a ledger that cannot be read is forgotten as well
	}
	if err := s.checkLanes(ctx, op, name, l); err != nil {
		return err
	}
	found := err != nil || l.Spec != ""
	hasLedger := found
	err = s.rewrite(ctx, s.ordersKey, func(text []byte) ([]byte, error) {
		all, err := ledger.DecodeOrders(text)
		if _, ok := all.Jobs[name]; !ok || err != nil {
			return nil, err
		}
		found = true
		delete(all.Jobs, name)
		return all.Encode(), nil
	})
	if err != nil {
		return err
	}
	// The ledger is emptied after the orders: a trigger or backfill that is left would be new to an empty ledger.
	if hasLedger {
		if err := memo.Write(ctx, lock, l.Forgotten().Encode()); err != nil {
			return err
		}
	}
	select {
	case s.enlisting <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.enlisting }()
	s.doubt(name)
	err = s.rewrite(ctx, keyspace.CronNames(s.scope, roster.Page(name)), func(text []byte) ([]byte, error) {
		on, err := roster.DecodeNames(text)
		if _, ok := on.Jobs[name]; !ok || err != nil {
			return nil, err
		}
		found = true
		delete(on.Jobs, name)
		return on.Encode(), nil
	})
	if err == nil && !found {
		return notFound(op, name)
	}
	return err
}
