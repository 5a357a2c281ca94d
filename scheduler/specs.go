package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/records"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// Nodes may have different specs for a job. Follows in package ledger decides which spec is in force. This file has a
// node's part: it takes part in that decision at each look at a ledger (moment), replaces the decision of a node that
// is no longer up (settleConflicts), and announces its own decision to the other nodes (announce).

const (
	// A job is in conflict if this node has a spec other than the one in force. This node then checks whether the node that has
	// decided is still up, every lookSyncs times Config.Sync, but at least every lookMost.
	lookSyncs = 3
	lookMost  = 5 * time.Minute
)

// registration is what a node knows about its spec of a job. The mutex of the table guards the fields.
type registration struct {
	since   time.Time // Moment.Since; zero: this node does not know the store's clock yet
	decided bool      // this node has put its spec into force

	conflict time.Time       // since when this node has seen another spec in force; zero: its own spec is in force
	decision ledger.Decision // about the spec in force; only in a conflict
	watched  string          // this node does nothing while the node with this ID is up and has the job; only in a conflict
	over     ledger.Decision // Moment.Over, until the next look
}

// date sets the time of the registration, unless it has one. This must not wait until this node looks at the ledger:
// while the job runs, no node looks, and at its end all nodes that have started meanwhile would look in a random order.
func (r *registration) date(now time.Time) {
	if r.since.IsZero() {
		r.since = now
	}
}

// specs is a node's part in deciding which specs are in force.
type specs struct {
	*node
	presence *presence
	parsed   records.Specs

	mu        sync.Mutex // guards the fields below
	unsent    []string   // jobs whose spec this node has put into force without an announcement; see ledger.AddName
	announces bool       // a goroutine is emptying unsent
}

// inForce returns the rules of j with the spec in force. If this node cannot parse that spec, the rules have no ticks.
func (s *specs) inForce(j *job, l *ledger.Ledger) *ledger.Job {
	if l.Spec == "" || l.Spec == j.SpecText {
		return &j.Job
	}
	parsed, _ := s.parsed.Parse(l.Spec) // moment reports the error
	return l.InForce(&j.Job, parsed)
}

// moment returns the present moment, for decisions about j, or an error if this node must follow a spec that it cannot
// parse. It also notes in j which order the decision obeys, what the floor is, and whether another spec is in force.
func (s *specs) moment(j *job, l *ledger.Ledger) (m ledger.Moment, err error) {
	m = ledger.Moment{Now: s.clock.now(), Order: s.orders.of(j.name), Node: s.cfg.Node, ID: s.presence.id()}
	if l.Spec != "" && l.Spec != j.SpecText {
		m.Spec, err = s.parsed.Parse(l.Spec)
	}
	up := s.presence.up()
	s.table.do(func() {
		j.order = m.Order.Fence
		j.date(m.Now)
		if j.since.After(m.Now.Add(ledger.SetBack)) {
			j.since = time.UnixMilli(0) // the store's clock was set back: any later registration wins
		}
		if j.floor.IsZero() {
			j.floor = m.Now
		}
		if last := l.LastTick(); last.After(j.floor) && last.Before(m.Now) {
			j.floor = last // in case the store loses the ledger
		}
		m.Floor, m.Since, m.Over, m.Unseen = j.floor, j.since, j.over, j.decided && !up
		j.noteConflict(l, m)
	})
	if err != nil && l.Follows(&j.Job, m) {
		return m, fmt.Errorf("scheduler: newer nodes execute the job, by a spec that this node cannot parse: %w", err)
	}
	return m, nil
}

// noteConflict records whether j is in conflict, as the ledger says. The caller has locked the table.
func (j *job) noteConflict(l *ledger.Ledger, m ledger.Moment) {
	if !l.Follows(&j.Job, m) {
		j.conflict = time.Time{}
		j.decided = j.decided || l.Spec == j.SpecText && l.Decider.ID == m.ID
		return
	}
	if j.conflict.IsZero() {
		j.conflict = m.Now
	}
	if d := l.Decision(); d != j.decision {
		j.decision, j.watched = d, d.ID
	}
}

// keep looks after the jobs that are in conflict, until ctx ends. While none is, keep sends nothing.
func (s *specs) keep(ctx context.Context) {
	every, trouble := min(lookSyncs*s.cfg.Sync, lookMost), once{}
	for sleep.For(ctx, every) == nil {
		if err := s.settleConflicts(ctx, every); trouble.isNew(err) && ctx.Err() == nil {
			s.cfg.Logger.Warn("scheduler: the specs in force are kept, because this node cannot see which nodes are up", "scope", s.cfg.Scope, "err", err)
		}
	}
}

// conflicting is a job that is in conflict, with its state at a look.
type conflicting struct {
	*job
	decision ledger.Decision
	watched  string
}

// settleConflicts puts this node's spec of a job into force if the node that has decided is no longer up with the job, and
// this node is the youngest that is. When in doubt it does nothing. every is the time between two looks.
func (s *specs) settleConflicts(ctx context.Context, every time.Duration) error {
	now := s.clock.now()
	jobs := s.conflicts(now, every)
	if s.presence.quiet(now) {
		return nil
	}
	// The node that has just decided may not have its record yet, so for now it would look as if it were not up.
	jobs = slices.DeleteFunc(jobs, func(j conflicting) bool { return j.watched == "" || now.Sub(j.decision.Latest()) < every })
	if len(jobs) == 0 {
		return nil
	}
	var ids []string
	for _, j := range jobs {
		ids = append(ids, j.watched)
	}
	slices.Sort(ids)
	has, err := s.recs.MayHave(ctx, slices.Compact(ids))
	if err != nil {
		return err
	}
	jobs = slices.DeleteFunc(jobs, func(j conflicting) bool { f := has[j.watched]; return f != nil && f(j.name) })
	if len(jobs) == 0 {
		return nil
	}
	up, err := s.recs.Nodes(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(up, func(a, b records.Node) int { return cmp.Or(cmp.Compare(b.Start, a.Start), cmp.Compare(b.ID, a.ID)) }) // the youngest first
	own := s.presence.id()
	if len(up) == 0 || time.UnixMilli(up[0].Start).After(now.Add(ledger.SetBack)) || // the store's clock was set back
		!slices.ContainsFunc(up, func(n records.Node) bool { return n.ID == own }) {
		return nil
	}
	s.table.do(func() {
		for _, j := range jobs {
			youngest := slices.IndexFunc(up, func(n records.Node) bool { return n.Has(j.name) })
			switch {
			case youngest < 0 || j.gone || j.conflict.IsZero() || j.job.decision != j.decision:
			case up[youngest].ID == own:
				j.over = j.decision
				s.table.lookSoon(j.job)
			default:
				j.job.watched = up[youngest].ID // that node acts, or has the spec in force
			}
		}
	})
	return nil
}

// conflicts returns the jobs that are in conflict, sorted by name. In this node's record it shows the jobs that have
// been in conflict for at least the time every. It also ends Moment.Over of all jobs.
func (s *specs) conflicts(now time.Time, every time.Duration) (jobs []conflicting) {
	var shown []roster.Conflict
	s.table.do(func() {
		for _, j := range s.table.jobs {
			j.over = ledger.Decision{}
			if !j.conflict.IsZero() {
				jobs = append(jobs, conflicting{j, j.decision, j.watched})
			}
		}
		slices.SortFunc(jobs, func(a, b conflicting) int { return cmp.Compare(a.name, b.name) })
		for _, j := range jobs {
			if now.Sub(j.conflict) >= every {
				shown = append(shown, roster.Conflict{Job: j.name, Spec: j.SpecText, Since: j.conflict.UnixMilli()})
			}
		}
	})
	s.presence.showConflicts(shown)
	return jobs
}

// announce makes all nodes look at a job whose spec this node has changed, within Config.Sync. Changes of many jobs at
// a time are announced in few writes. Only a goroutine that Run has started may call announce.
func (s *specs) announce(ctx context.Context, j *job) {
	s.table.do(func() { j.decided = true })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent = ledger.AddName(s.unsent, j.name)
	if !s.announces {
		s.announces = true
		s.started.Go(func() { s.announceUnsent(ctx) })
	}
}

// announceUnsent writes the names in s.unsent into the orders, until there are none or ctx ends. At the end of ctx the
// names are dropped: this node stops, and the other nodes look at the ledger at the next tick that they know of.
func (s *specs) announceUnsent(ctx context.Context) {
	trouble := once{}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		var names []string
		written, err := s.recs.ChangeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			names, s.unsent = s.unsent, nil
			all.Specs.Add(fence, names)
			return true, nil
		})
		s.wrote(written)
		s.mu.Lock()
		if err != nil {
			for _, name := range names {
				s.unsent = ledger.AddName(s.unsent, name)
			}
		}
		if ctx.Err() != nil {
			s.unsent = nil
		}
		left := len(s.unsent)
		s.announces = left > 0
		s.mu.Unlock()
		if left == 0 {
			return
		}
		if err == nil {
			pause = firstPause
			continue
		}
		if trouble.isNew(err) {
			s.cfg.Logger.Warn("scheduler: other nodes do not know yet that the specs of jobs have changed", "key", s.recs.OrdersKey(), "jobs", left, "err", err)
		}
		_ = sleep.For(ctx, pause/2+jitter.N(pause/2))
	}
}
