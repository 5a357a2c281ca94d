package scheduler

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// orders are the pauses, triggers and backfills as this node last read them.
type orders struct {
	mu    sync.Mutex // guards the fields below
	all   ledger.Orders
	text  []byte    // the memo from which all was decoded
	read  bool      // this node has read them
	err   error     // why this node could not read them when it last tried; or nil
	asked time.Time // when this node asked for them or wrote them, by its own clock
}

// orderNews names the jobs that have new orders. Not to be confused with ledger.News, of which events are made.
type orderNews struct {
	jobs     []string // that have an order, which may be new
	allJobs  bool     // all jobs have
	specs    []string // whose spec has changed
	allSpecs bool     // the spec of any job may have changed
	refused  error    // the record could not be read; the error differs from the one before
}

var (
	errOrdersForeign = errors.New("scheduler: the value at the key of pauses and triggers is not a lock")
	errOrdersSilent  = errors.New("scheduler: no answer from the store about pauses and triggers")

	// errOrdersUnread ends a dispatch of a node that has not been able to read the orders since its start, and does not
	// know the store's time.
	errOrdersUnread = errors.New("scheduler: the pauses and triggers cannot be read")
)

// apply replaces the orders with those in v, the view of their record, unless these are older. sent is the time, by
// this node's own clock, at which it asked for the view or wrote its content.
func (o *orders) apply(v memo.View, sent time.Time) (n orderNews) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if v.State == joblock.StateForeign {
		return o.refuse(errOrdersForeign)
	}
	first, refused := !o.read, o.err != nil
	if bytes.Equal(v.Memo, o.text) && (!first || len(v.Memo) == 0) {
		o.read, o.err = true, nil
		if !first || !refused {
			return n
		}
	}
	all, err := ledger.DecodeOrders(v.Memo)
	if err != nil {
		return o.refuse(err)
	}
	o.read, o.err = true, nil
	if !sent.After(o.asked) && all.Newest() < o.all.Newest() {
		return n // older than what this node has asked for or written since
	}
	if n.specs, n.allSpecs = all.Specs.After(o.all.Specs.Newest()); first {
		n.specs, n.allSpecs = nil, refused // all jobs are due when Run begins
	}
	n.allJobs = all.AllTold != o.all.AllTold
	for name := range all.Jobs {
		n.jobs = append(n.jobs, name)
	}
	o.text, o.all, o.asked = v.Memo, all, sent
	return n
}

// refuse notes that this node cannot read the orders. The caller has locked o.mu.
func (o *orders) refuse(err error) (n orderNews) {
	if text(err) != text(o.err) {
		n.refused = err
	}
	o.err = err
	return n
}

// of returns the order for a job.
func (o *orders) of(name string) ledger.Order {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.For(name)
}

// missing returns why this node knows no pauses: it has never read the orders. It returns nil if it has.
func (o *orders) missing() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.read:
		return nil
	case o.err != nil:
		return o.err
	}
	return errOrdersSilent
}
