package records

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// CheckNote returns joblock.ErrInvalid for a text that cannot be the note of a pause.
func CheckNote(op, note string) error {
	return core.CheckText("scheduler: "+op, "", "note", note, 0, driver.MaxLabelBytes)
}

// ChangeOrders changes the orders under their lock. change gets the fence of the write, and returns false if there is
// nothing to write. written is the memo that was written, or nil.
func (s *Scope) ChangeOrders(ctx context.Context, change func(all *ledger.Orders, fence int64) (bool, error)) (written []byte, err error) {
	err = s.rewrite(ctx, s.OrdersKey(), func(text []byte, fence int64) ([]byte, error) {
		all, err := ledger.DecodeOrders(text)
		if err != nil {
			return nil, err
		}
		if ok, err := change(&all, fence); !ok || err != nil {
			return nil, err
		}
		written = all.Encode()
		return written, nil
	})
	if err != nil {
		return nil, err
	}
	return written, nil
}

// A Change changes the order for one job. It gets the order with a new Fence, the ledger, and the store's time, and
// returns false if there is nothing to write.
type Change func(*ledger.Order, *ledger.Ledger, time.Time) bool

// ChangeOrder changes the order for a job, and returns the order after that. The error is joblock.ErrNotFound if known
// is false and the store does not have the job.
func (s *Scope) ChangeOrder(ctx context.Context, op, name string, known bool, change Change) (o ledger.Order, written []byte, err error) {
	if err := CheckName(op, name); err != nil {
		return o, nil, err
	}
	written, err = s.ChangeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
		ledgers, now, err := s.ordered(ctx, name, *all)
		if err != nil {
			return false, err
		}
		if ledgers[name].Spec == "" && !known {
			return false, NotFound(op, name)
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
	return o, written, err
}

// ordered returns the store's time, the ledger of the named job, and the ledgers of all jobs that have orders. A ledger
// that cannot be decoded is left out, but it is an error if that is the ledger of the named job.
func (s *Scope) ordered(ctx context.Context, name string, all ledger.Orders) (map[string]*ledger.Ledger, time.Time, error) {
	names := slices.Collect(maps.Keys(all.Jobs))
	if _, ok := all.Jobs[name]; !ok {
		names = append(names, name)
	}
	views, err := s.Read(ctx, names...)
	if err != nil {
		return nil, time.Time{}, err
	}
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

// Touch creates the record of the orders if the store is new or has lost it. If the record exists, the store keeps it
// for another driver.MaxPeriod.
func (s *Scope) Touch(ctx context.Context) error {
	lock, err := s.Locks.TryAcquire(ctx, s.OrdersKey(), s.options(0)...)
	if errors.Is(err, joblock.ErrHeld) {
		return nil // another node does that now
	}
	if err == nil {
		err = lock.Release(ctx)
	}
	return err
}
