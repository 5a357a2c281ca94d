package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

// node is what the parts of a Scheduler share.
type node struct {
	cfg     *Config
	recs    *records.Scope
	clock   *storeClock
	orders  *orders
	table   *table
	program string          // the path of the module that registers the jobs
	started *sync.WaitGroup // the goroutines of this Run; only Run uses it
	slots   chan struct{}   // has an element for each running function
}

// takeSlot takes one of the slots for running functions. It returns false if the node is full.
func (n *node) takeSlot() bool {
	select {
	case n.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// freeSlot gives a slot back.
func (n *node) freeSlot() { <-n.slots }

// learn corrects the clock with an answer that has the store's time. After a large step back the times in the heap are
// too late, so all jobs become due.
func (n *node) learn(sent, store time.Time) {
	if n.clock.learn(sent, store) < -time.Minute {
		n.table.recheckAll()
	}
	now := n.clock.now()
	n.table.do(func() {
		for _, j := range n.table.undated {
			j.date(now)
		}
		n.table.undated = nil
	})
}

// readOrders reads the orders.
func (n *node) readOrders(ctx context.Context) error {
	sent := n.clock.local()
	views, err := n.recs.Read(ctx)
	if err == nil && (!views[0].Now.IsZero() || views[0].State == joblock.StateForeign) {
		n.obey(n.orders.apply(views[0], sent))
	}
	return err
}

// reread calls readOrders, and logs an error.
func (n *node) reread(ctx context.Context) {
	if err := n.readOrders(ctx); err != nil && ctx.Err() == nil {
		n.cfg.Logger.Warn(unreadOrders(n.orders.missing() == nil), "key", n.recs.OrdersKey(), "err", err)
	}
}

// wrote applies orders that this node has just written. With nil it does nothing.
func (n *node) wrote(orders []byte) {
	if orders != nil {
		n.obey(n.orders.apply(memo.View{Memo: orders}, n.clock.local()))
	}
}

// obey makes due the jobs that what names, and logs the error if the orders could not be read.
func (n *node) obey(what orderNews) {
	if what.refused != nil {
		n.cfg.Logger.Error(unreadOrders(n.orders.missing() == nil), "key", n.recs.OrdersKey(), "err", what.refused)
	}
	n.table.obey(what)
}

// unreadOrders describes what a node does if it cannot read the orders. readBefore: it has read them before.
func unreadOrders(readBefore bool) string {
	if readBefore {
		return "scheduler: pauses and triggers cannot be read; the previous ones stay in force"
	}
	return "scheduler: pauses and triggers cannot be read, and this node has read none before: it executes no jobs until it can, " +
		"because jobs may be paused"
}

// report logs an event and passes it to Config.Observe.
func (n *node) report(e Event) {
	attrs := []any{"scope", n.cfg.Scope, "job", e.Tick.Name, "node", e.Node}
	add := func(isSet bool, key string, value any) {
		if isSet {
			attrs = append(attrs, key, value)
		}
	}
	add(!e.Tick.At.IsZero(), "tick", e.Tick.At)
	add(e.Late > 0, "late", e.Late)
	add(e.Took > 0, "took", e.Took)
	add(e.Count > 0, "count", e.Count)
	add(e.Err != nil, "err", e.Err)
	level, ok := eventLevels[e.Kind]
	if !ok {
		level = slog.LevelInfo
	}
	n.cfg.Logger.Log(context.Background(), level, "scheduler: "+string(e.Kind), attrs...)
	n.cfg.Observe(e)
}

// reportClock reports, once for each Ledger.Last, that the store's clock was set back behind the ledger. rules has the
// spec in force.
func (n *node) reportClock(j *job, rules *ledger.Job, l *ledger.Ledger, now time.Time) {
	if l.Behind(now) == 0 {
		return
	}
	known := false
	n.table.do(func() { known, j.behind = j.behind == l.Last, l.Last })
	if known {
		return
	}
	last := l.LastTick()
	n.report(Event{Kind: ClockSetBack, Tick: Tick{Name: j.name, At: last, Cause: CauseTick}, Node: n.cfg.Node,
		Err: fmt.Errorf("scheduler: the store's clock was set back to %s, and the job's latest tick is %s; the next tick to be executed is %s",
			now.UTC().Format(time.RFC3339), last.Format(time.RFC3339), rules.Spec.Next(last).Format(time.RFC3339))})
}

// unreadable records and logs that this node cannot use the value at the job's key.
func (n *node) unreadable(j *job, err error) {
	n.table.setTrouble(j, err)
	n.cfg.Logger.Error("scheduler: this node cannot execute the job", "job", j.name, "key", j.key, "err", err)
}

// trouble records that the store refused or did not answer a step; the caller retries. The same trouble is logged again
// only after a different one or none.
func (n *node) trouble(j *job, step string, err error) {
	err = fmt.Errorf("%s: %w", step, err)
	if n.table.setTrouble(j, err) {
		n.cfg.Logger.Warn("scheduler: the store refused or did not answer a call for the job; trying again", "job", j.name, "key", j.key, "err", err)
	}
}

// once recognizes a repeated error, so that it is logged once.
type once struct{ last string }

func (o *once) isNew(err error) bool {
	was := o.last
	o.last = text(err)
	return err != nil && o.last != was
}
