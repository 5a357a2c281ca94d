package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/codec"
)

const ordersVersion = 1

// Orders has the pauses and triggers of all jobs, by the job's name. A new field needs no new version, but each write
// drops, for all jobs, the fields that the writing process does not know. A change of meaning needs a new version: a
// node that does not know it keeps to the orders that it has read before, and executes nothing if it has read none.
type Orders struct {
	Version int              `json:"v"`
	Jobs    map[string]Order `json:"jobs,omitempty"`
	All     []Span           `json:"all,omitempty"` // the pauses of all jobs, the newest first
	AllTold int64            `json:"f,omitempty"`   // the fence of the latest write that changed All
	Specs   SpecChanges      `json:"specs,omitzero"`
}

// Order is the pause and the trigger of one job. Times are milliseconds of the store's clock.
type Order struct {
	Fence       int64         `json:"f"`              // of the latest write that changed this Order; only grows
	PausedFrom  int64         `json:"p,omitempty"`    // later ticks are skipped; 0: the job is not paused
	PausedUntil int64         `json:"r,omitempty"`    // the last time at which ticks are skipped; 0: the pause goes on
	By          string        `json:"by,omitempty"`   // who has paused the job or, if PausedUntil is set, who has resumed it
	Note        string        `json:"note,omitempty"` // why
	Triggered   int64         `json:"n,omitempty"`    // the Fence of the write with the newest trigger
	TriggeredAt int64         `json:"t,omitempty"`
	Backfill    BackfillOrder `json:"b,omitzero"` // the latest

	all []Span // Orders.All; see Orders.For
}

// DecodeOrders reads a memo. An empty memo has no orders. In the result, Jobs is never nil.
func DecodeOrders(memo []byte) (Orders, error) {
	o := Orders{Version: ordersVersion}
	if len(memo) > 0 {
		if err := json.Unmarshal(memo, &o); err != nil {
			return o, fmt.Errorf("scheduler: the record of pauses and triggers cannot be read: %w", err)
		}
	}
	if o.Version != ordersVersion {
		return o, fmt.Errorf("scheduler: the record of pauses and triggers has version %d, this node knows %d", o.Version, ordersVersion)
	}
	if o.Jobs == nil {
		o.Jobs = make(map[string]Order)
	}
	return o, nil
}

// Encode returns the memo that DecodeOrders reads.
func (o Orders) Encode() []byte { return codec.Encode(o) }

// Newest returns the highest Fence of all orders, or 0. The order of the latest write has that Fence: Tidy runs before
// a write adds an order, so it does not remove the latest one.
func (o Orders) Newest() (fence int64) {
	fence = max(o.AllTold, o.Specs.Newest())
	for _, order := range o.Jobs {
		fence = max(fence, order.Fence)
	}
	return fence
}

// Tidy removes the orders that the ledgers show as carried out. An order of a job without a ledger stays.
func (o Orders) Tidy(ledgers map[string]*Ledger) {
	maps.DeleteFunc(o.Jobs, func(name string, order Order) bool {
		l := ledgers[name]
		return l != nil && !order.Alone() && min(l.Last, l.Resumed.At) >= order.PausedUntil && l.Triggered >= order.Triggered && order.Backfill.done(l)
	})
}

// Pause skips the ticks after now. If the job is already paused, it changes only By and Note, and returns false if
// there is no new note.
func (o *Order) Pause(l *Ledger, now time.Time, by, note string) bool {
	if o.Alone() {
		if note == "" || note == o.Note {
			return false
		}
		o.By, o.Note = by, note
		return true
	}
	o.By, o.Note = by, note
	// If no node has updated the ledger since the previous pause ended, the new pause continues the previous one.
	// A new PausedFrom would make ticks of the previous pause count as missed.
	if l.Last >= o.PausedUntil {
		o.PausedFrom = now.UnixMilli()
	}
	o.PausedUntil = 0
	return true
}

// Resume ends a pause at now. It returns false if the job is not paused.
func (o *Order) Resume(now time.Time, by, note string) bool {
	if !o.Alone() {
		return false
	}
	o.PausedUntil, o.By, o.Note = now.UnixMilli(), by, note
	return true
}

// Trigger requests an execution, and returns true. The caller must first set o.Fence.
func (o *Order) Trigger(_ *Ledger, now time.Time) bool {
	o.Triggered, o.TriggeredAt = o.Fence, now.UnixMilli()
	return true
}

// Paused reports whether the job is paused, alone or with all jobs.
func (o Order) Paused() bool { return len(o.Pauses()) > 0 }

// Alone reports whether the job itself is paused, whether or not all jobs are.
func (o Order) Alone() bool { return o.PausedFrom != 0 && o.PausedUntil == 0 }

// Pauses returns the pauses in force: of the job alone, and of all jobs.
func (o Order) Pauses() (on []Span) {
	if o.Alone() {
		on = append(on, Span{From: o.PausedFrom, By: o.By, Note: o.Note})
	}
	if len(o.all) > 0 && o.all[0].Until == 0 {
		on = append(on, o.all[0])
	}
	return on
}

// Skips reports whether tick came during a pause.
func (o Order) Skips(tick time.Time) bool {
	t := tick.UnixMilli()
	return Span{From: o.PausedFrom, Until: o.PausedUntil}.has(t) || slices.ContainsFunc(o.all, func(s Span) bool { return s.has(t) })
}
