package scheduler

import (
	"encoding/json"
	"fmt"
	"time"
)

const ordersVersion = 1

// orders is what people have asked for, by job: the memo of a record of its own, which
// all nodes read together with the ledgers. A job's own ledger belongs to whoever runs
// the job, perhaps for hours.
type orders struct {
	Version int              `json:"v"`
	Jobs    map[string]order `json:"jobs,omitempty"`
}

// order is what was asked for one job. Times are ms of the store's clock.
type order struct {
	Fence     int64 `json:"f"`           // of whoever wrote it: grows with every change
	PausedAt  int64 `json:"p,omitempty"` // ticks after it are skipped
	ResumedAt int64 `json:"r,omitempty"` // up to here; 0: still paused
	Trigger   int64 `json:"n,omitempty"` // the Fence of the newest trigger
	TriggerAt int64 `json:"t,omitempty"`
}

func decodeOrders(memo []byte) (orders, error) {
	o := orders{Version: ordersVersion}
	if len(memo) > 0 {
		if err := json.Unmarshal(memo, &o); err != nil {
			return o, fmt.Errorf("scheduler: the memo holds no orders: %w", err)
		}
		if o.Version != ordersVersion {
			return o, fmt.Errorf("scheduler: the orders have version %d, this node knows %d", o.Version, ordersVersion)
		}
	}
	if o.Jobs == nil {
		o.Jobs = make(map[string]order)
	}
	return o, nil
}

// newest is the Fence of the order that was written last: it is always kept, others may
// have been obeyed and forgotten.
func (o orders) newest() (fence int64) {
	for _, order := range o.Jobs {
		fence = max(fence, order.Fence)
	}
	return fence
}

func (o order) paused() bool { return o.PausedAt != 0 && o.ResumedAt == 0 }

func (o order) pausedAt(tick time.Time) bool {
	t := tick.UnixMilli()
	return o.PausedAt != 0 && t > o.PausedAt && (o.ResumedAt == 0 || t <= o.ResumedAt)
}

// obeyed reports whether l shows that nothing of the order is to be done any more.
func (o order) obeyed(l *ledger) bool {
	return !o.paused() && l.Last >= o.ResumedAt && l.Order >= o.Trigger
}
