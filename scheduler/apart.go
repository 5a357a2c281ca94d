package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// A job is apart if this node has another spec than the one in force. Then this node looks from time to time whether the
// node that has decided is still up: after this many Config.Sync, at most after lookMost.
const (
	lookSyncs = 3
	lookMost  = 5 * time.Minute
)

// registration is what this node knows about its spec of a job. Scheduler.mu guards the fields.
type registration struct {
	since   time.Time // Moment.Since; zero: this node does not know the store's clock yet, see Scheduler.undated
	decided bool      // this node has put its spec into force

	apart    time.Time       // since when this node has seen another spec in force; zero: its own spec is in force
	decision ledger.Decision // about the spec in force; only if apart
	watched  string          // as long as the node with this ID is up and has the job, this node does nothing; only if apart
	over     ledger.Decision // Moment.Over, until the next look
}

// register sets the time of the registration, unless there is one. That must not wait for a look at the ledger: while the
// job runs there is none, and at its end those of all nodes that have started meanwhile would come in any order. The caller
// has locked Scheduler.mu.
func (r *registration) register(now time.Time) {
	if r.since.IsZero() {
		r.since = now
	}
}

// apartJob is a job that is apart, with its state at a look.
type apartJob struct {
	*job
	decision ledger.Decision
	watched  string
}

// noteSpec records whether the job is apart, as the ledger says. The caller has locked s.mu.
func (s *Scheduler) noteSpec(j *job, l *ledger.Ledger, m ledger.Moment) {
	if !l.Follows(&j.Job, m) {
		j.apart = time.Time{}
		j.decided = j.decided || l.Spec == j.SpecText && l.Decider.ID == s.nodeID
		return
	}
	if j.apart.IsZero() {
		j.apart = m.Now
	}
	if d := l.Decision(); d != j.decision {
		j.decision, j.watched = d, d.ID
	}
}

// seen reports whether the others can see that this node is up. The caller has locked s.mu.
func (s *Scheduler) seen() bool { return s.record != nil && s.record.Err() == nil }

// setRecord says that this node's record is written. The lock is that of the record, which lasts for ttl.
func (s *Scheduler) setRecord(lock *joblock.Lock, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == lock {
		return
	}
	if s.record != nil {
		// The store may have lost the records of other nodes as well. Within a TTL each of them has noticed that.
		s.quiet = s.clock.now().Add(ttl)
	}
	s.record = lock
	for _, j := range s.jobs {
		if !j.apart.IsZero() {
			s.lookSoon(j) // see Moment.Unseen
		}
	}
	s.wake()
}

// keepSpecs looks after the jobs that are apart, until ctx ends. While none is apart, keepSpecs sends nothing.
func (s *Scheduler) keepSpecs(ctx context.Context) {
	every, trouble := min(lookSyncs*s.cfg.Sync, lookMost), ""
	for sleep.For(ctx, every) == nil {
		err := s.lookAround(ctx, every)
		text := ""
		if err != nil {
			text = fmt.Sprint(err)
		}
		if text != "" && text != trouble && ctx.Err() == nil {
			s.cfg.Logger.Warn("scheduler: the specs in force stay, because this node cannot see which nodes are up", "scope", s.cfg.Scope, "err", err)
		}
		trouble = text
	}
}

// lookAround puts this node's spec of a job into force if the node that has decided is not up with the job any more, and this
// node is the youngest that is. On doubt lookAround does nothing. The parameter every is the time between two looks.
func (s *Scheduler) lookAround(ctx context.Context, every time.Duration) error {
	now := s.clock.now()
	jobs := s.apartJobs(now, every)
	// A node may decide before it has a record, so a new decision says nothing.
	jobs = slices.DeleteFunc(jobs, func(j apartJob) bool { return j.watched == "" || now.Sub(j.decision.Latest()) < every })
	if len(jobs) == 0 {
		return nil
	}
	jobs, err := s.undecided(ctx, jobs)
	if err != nil || len(jobs) == 0 {
		return err
	}
	up, err := s.readNodes(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(up, func(a, b upNode) int { return cmp.Or(cmp.Compare(b.Start, a.Start), cmp.Compare(b.id, a.id)) }) // the youngest first
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(up) == 0 || time.UnixMilli(up[0].Start).After(now.Add(ledger.SetBack)) || // the store's clock was set back
		!slices.ContainsFunc(up, func(n upNode) bool { return n.id == s.nodeID }) {
		return nil
	}
	for _, j := range jobs {
		youngest := slices.IndexFunc(up, func(n upNode) bool { return n.has(j.name) })
		switch {
		case youngest < 0 || j.gone || j.apart.IsZero() || j.job.decision != j.decision:
		case up[youngest].id == s.nodeID:
			j.over = j.decision
			s.lookSoon(j.job)
		default:
			j.job.watched = up[youngest].id // that node acts, or has the spec in force
		}
	}
	s.wake()
	return nil
}

// apartJobs returns the jobs that are apart, sorted by name, or none if this node must not act. The jobs that have been apart
// for a look are told in this node's record. Moment.Over of all jobs ends.
func (s *Scheduler) apartJobs(now time.Time, every time.Duration) (jobs []apartJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		j.over = ledger.Decision{}
		if !j.apart.IsZero() {
			jobs = append(jobs, apartJob{j, j.decision, j.watched})
		}
	}
	slices.SortFunc(jobs, func(a, b apartJob) int { return cmp.Compare(a.name, b.name) })
	var told []roster.Apart
	for _, j := range jobs {
		if now.Sub(j.apart) >= every {
			told = append(told, roster.Apart{Job: j.name, Spec: j.SpecText, Since: j.apart.UnixMilli()})
		}
	}
	if !slices.Equal(told, s.apart) {
		s.apart = told
		s.jobsChanged()
	}
	if !s.seen() || now.Before(s.quiet) {
		return nil
	}
	return jobs
}

// undecided returns the jobs whose watched node is not up with the job.
func (s *Scheduler) undecided(ctx context.Context, jobs []apartJob) ([]apartJob, error) {
	var ids []string
	for _, j := range jobs {
		ids = append(ids, j.watched)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	has := make(map[string]func(job string) bool) // nil: not up
	for part := range slices.Chunk(ids, batch) {
		keys := make([]string, len(part))
		for i, id := range part {
			keys[i] = keyspace.CronNode(s.scope, id)
		}
		views, err := memo.Read(ctx, s.locks, keys...)
		if err != nil {
			return nil, err
		}
		for i, v := range views {
			if v.State == joblock.StateFree {
				continue
			}
			has[part[i]] = func(string) bool { return true } // unless the record says something else
			if n, err := roster.DecodeNode(v.Memo); err == nil && len(v.Memo) > 0 {
				has[part[i]] = n.Has()
			}
		}
	}
	return slices.DeleteFunc(jobs, func(j apartJob) bool {
		f := has[j.watched]
		return f != nil && f(j.name)
	}), nil
}
