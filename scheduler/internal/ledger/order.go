package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/joblock/toolkit/scheduler/internal/codec"
)

const ordersVersion = 1

// keptSpans is how many pauses of all jobs are remembered, more than operators make between two ticks of a job. Ticks
// in older pauses would count as missed.
const keptSpans = 8

// keptChanges bounds the names in SpecChanges, which take at most some 20 KiB.
const keptChanges = 100

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

// Span is a pause. Times are milliseconds of the store's clock.
type Span struct {
	From  int64  `json:"p"` // later ticks are skipped; 0: no pause
	Until int64  `json:"r,omitempty"`
	By    string `json:"by,omitempty"` // who has paused or, if Until is set, who has resumed
	Note  string `json:"note,omitempty"`
}

// BackfillOrder is a request for a backfill. The zero BackfillOrder is no request.
type BackfillOrder struct {
	ID   int64 `json:"id"`          // Order.Fence of the request
	At   int64 `json:"at"`          // the time of the request
	From int64 `json:"from"`        // the first millisecond of the range
	To   int64 `json:"to"`          // the last millisecond of the range
	Stop bool  `json:"s,omitempty"` // the backfill ends before its next tick
}

// SpecChanges names the jobs whose spec in force has changed recently. A node with the former spec would otherwise not
// look at the ledger before that spec's next tick.
type SpecChanges struct {
	Jobs []SpecChange `json:"jobs,omitempty"` // the newest first
	Gone int64        `json:"gone,omitempty"` // the greatest fence that Jobs had and no longer has
}

// SpecChange is the name of a job and the fence of the write that changed its spec in force.
type SpecChange struct {
	Name  string `json:"j"`
	Fence int64  `json:"f"`
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

// For returns the order for a job, with the pauses of all jobs. The Fence of the result grows with each write that
// concerns the job.
func (o Orders) For(name string) Order {
	order := o.Jobs[name]
	order.all, order.Fence = o.All, max(order.Fence, o.AllTold)
	return order
}

// PauseAll pauses all jobs. fence is the fence of the write. If all jobs are already paused, it changes only By and
// Note, and returns false if there is no new note.
func (o *Orders) PauseAll(fence int64, now time.Time, by, note string) bool {
	if len(o.All) > 0 && o.All[0].Until == 0 {
		if note == "" || note == o.All[0].Note {
			return false
		}
		o.All = slices.Clone(o.All)
		o.All[0].By, o.All[0].Note = by, note
		o.AllTold = fence
		return true
	}
	o.All = prepend(Span{From: now.UnixMilli(), By: by, Note: note}, slices.Clone(o.All), keptSpans)
	o.AllTold = fence
	return true
}

// ResumeAll ends the pause of all jobs. It returns false if there is none.
func (o *Orders) ResumeAll(fence int64, now time.Time, by, note string) bool {
	if len(o.All) == 0 || o.All[0].Until != 0 {
		return false
	}
	o.All = slices.Clone(o.All)
	o.All[0] = Span{From: o.All[0].From, Until: now.UnixMilli(), By: by, Note: note}
	o.AllTold = fence
	return true
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

// Unfinished reports whether a backfill has not ended, or has been ordered and no node has begun it yet.
func (o Order) Unfinished(l *Ledger) bool {
	return l.Backfilling() || o.Backfill.ID > l.backfillID()
}

// StartBackfill orders a backfill of the ticks between from and to. The caller must first set o.Fence, and must make
// sure that no backfill is unfinished.
func (o *Order) StartBackfill(now, from, to time.Time) {
	o.Backfill = BackfillOrder{ID: o.Fence, At: now.UnixMilli(), From: from.UnixMilli(), To: to.UnixMilli()}
}

// StopBackfill ends an unfinished backfill before its next tick. It returns false if there is none.
func (o *Order) StopBackfill(l *Ledger, _ time.Time) bool {
	if !o.Unfinished(l) || o.Backfill.Stop {
		return false
	}
	if o.Backfill.ID <= l.backfillID() {
		o.Backfill = l.Backfill.BackfillOrder // Tidy has removed the order
	}
	o.Backfill.Stop = true
	return true
}

// done reports whether a ledger shows the order as carried out.
func (o BackfillOrder) done(l *Ledger) bool {
	return o.ID <= l.backfillID() && (!o.Stop || !l.Backfilling())
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

func (s Span) has(tick int64) bool {
	return s.From != 0 && tick > s.From && (s.Until == 0 || tick <= s.Until)
}

// Resumed returns the end of the latest pause, of the job alone or of all jobs, or the zero Resumed if there was none.
func (o Order) Resumed() (r Resumed) {
	if o.PausedUntil != 0 {
		r = Resumed{At: o.PausedUntil, By: o.By, Note: o.Note}
	}
	for _, s := range o.all {
		if s.Until > r.At {
			r = Resumed{At: s.Until, By: s.By, Note: s.Note, All: true}
		}
	}
	return r
}

// PauseNote returns the note of a pause after the given number of failures in a row, the latest with the error last.
func PauseNote(failures int, last error) string {
	text := ""
	if last != nil {
		text = ", the last one with: " + last.Error()
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, shortenJSON(fmt.Sprintf("%d executions in a row have failed%s", failures, text), maxErrBytes))
	return text
}

// Newest returns the fence of the latest change, or 0.
func (c SpecChanges) Newest() int64 {
	if len(c.Jobs) == 0 {
		return c.Gone
	}
	return c.Jobs[0].Fence
}

// AddName adds a name to a list for Add, unless it is there. If the list has more names than SpecChanges keeps, AddName
// drops the name: Add then makes nodes look at all jobs.
func AddName(names []string, name string) []string {
	if len(names) > keptChanges || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// Add adds the jobs of one write.
func (c *SpecChanges) Add(fence int64, names []string) {
	all := make([]SpecChange, 0, len(names)+len(c.Jobs))
	for _, name := range names {
		all = append(all, SpecChange{name, fence})
	}
	for _, old := range c.Jobs {
		if !slices.Contains(names, old.Name) {
			all = append(all, old)
		}
	}
	for len(all) > keptChanges {
		last := len(all) - 1
		c.Gone = max(c.Gone, all[last].Fence)
		all = all[:last]
	}
	c.Jobs = all
}

// After returns the jobs whose spec has changed in writes with a greater fence. If all is true, the spec of any job may
// have changed.
func (c SpecChanges) After(fence int64) (names []string, all bool) {
	for _, change := range c.Jobs {
		if change.Fence > fence {
			names = append(names, change.Name)
		}
	}
	return names, c.Gone > fence
}
