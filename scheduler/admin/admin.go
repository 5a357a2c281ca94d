// Package admin monitors and controls the jobs of a scope, for people on call and their tools. It works on the records
// that the nodes keep in the store, so any process can use it, whether it has jobs or not.
//
//	a, err := admin.New(locks, "shop", "alice")
//	...
//	entries, err := a.Entries(ctx)
//	err = a.Pause(ctx, "rollup", "the disk is full")
package admin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/records"
	"github.com/joblock/toolkit/scheduler/spec"
)

const (
	batch        = 500 // jobs in one round trip
	maxNextTicks = 1000
)

// Admin monitors and controls the jobs of a scope. It is safe for concurrent use.
type Admin struct {
	recs  *records.Scope
	specs records.Specs
	node  *scheduler.Scheduler // the Scheduler given to Of, or nil
}

// New returns an Admin for a scope: the scheduler.Config.Scope of some nodes. by is the author that pauses show: at
// most 256 bytes of UTF-8 without control characters; "" means "host:pid". New sends nothing. It returns
// joblock.ErrInvalid if locks is nil, or scope or by is out of bounds.
func New(locks *joblock.Locker, scope, by string) (*Admin, error) {
	recs, err := records.New("new", locks, scope, by, "the scope", "the parameter by", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &Admin{recs: recs}, nil
}

// Of returns an Admin for the scope of s, under its Config.Node. While Run of s is running, s applies each action at
// once. Entries includes the jobs of s even before their first tick, and whether s can execute them.
func Of(s *scheduler.Scheduler) *Admin {
	return &Admin{recs: s.Records(), node: s} // without records if s was not made by scheduler.New; see check
}

func (a *Admin) check(op string) error {
	if a == nil || a.recs == nil {
		return records.Invalid(op, "", "the Admin is nil or was not made by New")
	}
	return nil
}

// own returns the jobs of the Scheduler given to Of, by name.
func (a *Admin) own() map[string]scheduler.Job {
	jobs := make(map[string]scheduler.Job)
	if a.node != nil {
		for _, j := range a.node.Jobs() {
			jobs[j.Name] = j
		}
	}
	return jobs
}

// refresh makes the Scheduler given to Of obey at once. After an error, the Scheduler obeys within Config.Sync.
func (a *Admin) refresh(ctx context.Context) {
	if a.recs.Refresh != nil {
		_ = a.recs.Refresh(ctx)
	}
}

// Scopes returns the scopes that any node has had in the last year, sorted: each is a Config.Scope of some Scheduler
// whose Run has run with the same store and prefix. Scopes reads one record. A scope may have no jobs left, because
// Forget has removed them. Errors: joblock.ErrInvalid for a nil Locker, joblock.ErrUnavailable, joblock.ErrClosed, the
// cause of ctx, and an error without a sentinel if the record cannot be decoded.
func Scopes(ctx context.Context, locks *joblock.Locker) ([]string, error) {
	return records.Scopes(ctx, locks)
}

// Node is a node that is up: Run is running there.
type Node struct {
	Name    string    `json:"name"`    // Config.Node
	Program string    `json:"program"` // the path of the main module
	Build   string    `json:"build"`   // the version of the main module or its revision; "" if the build recorded neither
	Started time.Time `json:"started"` // when Run began, by the store's clock
	Jobs    int       `json:"jobs"`    // how many jobs the node has
}

// Nodes returns the nodes of the scope that are up, sorted by name. A stopped node disappears at once, one that has
// died after 90 s. Errors: joblock.ErrUnavailable, joblock.ErrClosed, the cause of ctx, and an error without a sentinel
// if a record cannot be decoded.
func (a *Admin) Nodes(ctx context.Context) ([]Node, error) {
	if err := a.check("nodes"); err != nil {
		return nil, err
	}
	up, err := a.recs.Nodes(ctx)
	nodes := make([]Node, len(up))
	for i, n := range up {
		nodes[i] = Node{n.Name, n.Program, n.Build, time.UnixMilli(n.Start).UTC(), n.Count}
	}
	return nodes, err
}

// Entries returns the entries of the named jobs, or without names those of all jobs of the scope, sorted by name. These
// are the jobs of the Scheduler that Of was given, and each job that a node has had in the last 366 days, unless Forget
// has removed it. If Entry.Nodes is empty, no node that is up has the job. A named job that does not exist is left out.
// Without names Entries reads 34 records, and one more for each node and for each job, in a few round trips, whatever
// else the store has. On error, Entries returns no entries. Errors: joblock.ErrUnavailable, joblock.ErrClosed,
// joblock.ErrInvalid for a bad name, the cause of ctx, and an error without a sentinel if a record of the scope cannot
// be decoded.
func (a *Admin) Entries(ctx context.Context, names ...string) (entries []Entry, err error) {
	const op = "entries"
	if err := a.check(op); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := records.CheckName(op, name); err != nil {
			return nil, err
		}
	}
	own := a.own()
	all := len(names) == 0
	names = slices.Clone(names)
	if all {
		if names, err = a.recs.Jobs(ctx); err != nil {
			return nil, err
		}
		for name := range own {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	entries, err = a.read(ctx, slices.Compact(names), own)
	return slices.DeleteFunc(entries, func(e Entry) bool { return !(all && e.Here) && e.Spec == "" && e.Problem == "" }), err
}

// Entry returns the entry of the named job, even if the job is not registered with the Scheduler given to Of. Errors:
// joblock.ErrNotFound if neither the store nor that Scheduler has the job, joblock.ErrInvalid for a bad name, and the
// errors of Entries.
func (a *Admin) Entry(ctx context.Context, name string) (Entry, error) {
	const op = "entry"
	if err := cmp.Or(a.check(op), records.CheckName(op, name)); err != nil {
		return Entry{}, err
	}
	entries, err := a.Entries(ctx, name)
	if err == nil && len(entries) == 0 {
		err = records.NotFound(op, name)
	}
	if err != nil {
		return Entry{}, err
	}
	return entries[0], nil
}

// NextTicks returns when the next n ticks of the spec in force are due, with what clock changes do to them, whether or
// not the job is paused. n is from 1 to 1000. Forecast.At includes the jitter. The list is shorter if the spec has
// fewer ticks. For a spec that no job has yet, see [spec.Spec.Forecast]. Errors are those of Entry.
func (a *Admin) NextTicks(ctx context.Context, name string, n int) ([]spec.Forecast, error) {
	const op = "next ticks of"
	if err := cmp.Or(a.check(op), records.CheckName(op, name)); err != nil {
		return nil, err
	}
	if n < 1 || n > maxNextTicks {
		return nil, records.Invalid(op, name, "the number of ticks is %d, must be from 1 to %d", n, maxNextTicks)
	}
	views, err := a.recs.Read(ctx, name)
	if err != nil {
		return nil, err
	}
	l, err := ledger.Decode(views[1].Memo)
	if err != nil {
		return nil, err
	}
	rules, here, err := a.rules(name, l, a.own())
	switch {
	case err != nil && !here:
		return nil, err
	case rules.SpecText == "":
		return nil, records.NotFound(op, name)
	}
	now := timeOf(views)
	after := now.Add(-rules.Delay)
	if l.Behind(now) > 0 {
		after = l.LastTick()
	}
	ticks := rules.Spec.Forecast(after, n)
	for i := range ticks {
		ticks[i].At = ticks[i].At.Add(rules.Delay)
	}
	return ticks, nil
}

// timeOf returns the store's time at a read. A record that the store does not have has no time. If the store has none
// of the records, timeOf returns the time of this machine.
func timeOf(views []memo.View) (now time.Time) {
	for _, v := range views {
		if v.Now.After(now) {
			now = v.Now
		}
	}
	if now.IsZero() {
		return time.Now()
	}
	return now
}

// rules returns the rules of a job with the spec in force; here reports whether the job is one of own. An error means
// that the spec cannot be parsed: then the rules have no ticks.
func (a *Admin) rules(name string, l *ledger.Ledger, own map[string]scheduler.Job) (rules *ledger.Job, here bool, err error) {
	j, here := own[name]
	rules = &ledger.Job{SpecText: cmp.Or(l.Spec, j.Spec), Delay: time.Duration(l.Delay) * time.Millisecond}
	if here {
		rules.Delay = j.Jitter
	}
	if rules.SpecText != "" {
		rules.Spec, err = a.specs.Parse(rules.SpecText)
	}
	return rules, here, err
}

// read reads the entries of the named jobs. A job that does not exist gets an Entry without a Spec.
func (a *Admin) read(ctx context.Context, names []string, own map[string]scheduler.Job) ([]Entry, error) {
	nodes, err := a.recs.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	apart := make(map[string][]OtherSpec)
	for _, n := range nodes {
		for _, o := range n.Conflicts {
			apart[o.Job] = append(apart[o.Job], OtherSpec{n.Name, o.Spec, time.UnixMilli(o.Since).UTC()})
		}
	}
	entries := make([]Entry, 0, len(names))
	for part := range slices.Chunk(names, batch) {
		views, err := a.recs.Read(ctx, part...)
		if err != nil {
			return nil, err
		}
		orders, err := ledger.DecodeOrders(views[0].Memo)
		if err != nil {
			return nil, err
		}
		now := timeOf(views)
		for i, name := range part {
			e := a.entry(name, views[i+1], orders.For(name), now, own)
			for _, n := range nodes {
				if n.Has(name) {
					e.Nodes = append(e.Nodes, n.Name)
				}
			}
			e.disagree(apart[name], now)
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// entry makes an Entry from the view of a job's record.
func (a *Admin) entry(name string, v memo.View, o ledger.Order, now time.Time, own map[string]scheduler.Job) Entry {
	l, problem := ledger.Decode(v.Memo)
	if problem != nil {
		l = new(ledger.Ledger)
	}
	rules, here, err := a.rules(name, l, own)
	if here {
		err = own[name].Problem
	}
	problem = errors.Join(problem, err)
	e, err := showLedger(name, l, rules, here, v.State == joblock.StateFree, o, now)
	e.InLine = v.Waiters
	if problem = errors.Join(problem, err); problem != nil {
		e.Problem = problem.Error()
	}
	return e
}
