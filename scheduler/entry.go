package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/spec"
)

// State is what became of a run.
type State string

// The states.
const (
	StateRunning     State = "running"
	StateDone        State = "done"
	StateFailed      State = "failed"
	StateCancelled   State = "cancelled"   // OverlapCancel: the next tick came
	StateInterrupted State = "interrupted" // its node was stopped; another takes over, or writes it off as lost
	StateDied        State = "died"        // its node died or was cut off; another has taken over
	StateLost        State = "lost"        // interrupted or died, and not to be run again
	StateOverlapped  State = "overlapped"  // Task: that of an earlier tick is not done
)

// Counts is what became of a job's ticks since the first node saw it, triggers and
// starts among them.
type Counts struct {
	Done       int64 `json:"done"`
	Failed     int64 `json:"failed"`
	Cancelled  int64 `json:"cancelled"`
	Lost       int64 `json:"lost"`       // broken off, and not run again
	TakenOver  int64 `json:"taken_over"` // runs in place of one that was broken off
	Missed     int64 `json:"missed"`     // skipped: nobody was there at the time
	Overlapped int64 `json:"overlapped"` // skipped: the job was running
	Paused     int64 `json:"paused"`     // skipped: the job was paused
}

// Run is one run of a job.
type Run struct {
	Tick     Tick      `json:"tick"`
	State    State     `json:"state"`
	Node     string    `json:"node"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// Duration is how long the run took, 0 while it is going on.
func (r Run) Duration() time.Duration {
	if r.Ended.IsZero() {
		return 0
	}
	return r.Ended.Sub(r.Started)
}

// Entry is what is known of a job in the whole cluster.
type Entry struct {
	Name   string    `json:"name"`
	Spec   string    `json:"spec"`          // as Spec.String, with its zone
	Here   bool      `json:"here"`          // the job was registered with this Scheduler
	Next   time.Time `json:"next,omitzero"` // when the next tick will be run, jitter included; zero while paused, and for a job that is Overdue and not Here
	Paused bool      `json:"paused,omitempty"`

	// Overdue is since when a tick waits, if for more than a minute, and no node has come for
	// it: no node that is up has the job, for it was removed or renamed, or those that have
	// it are as busy as they may be. So a job that nobody has is known by its next tick.
	Overdue time.Time `json:"overdue,omitzero"`

	// Behind is how far the store's clock is behind the latest tick, if by more than 10 s:
	// it was set back. No tick is run before Next, which is after that one: each would be
	// run a second time. A trigger is.
	Behind time.Duration `json:"behind,omitempty"`

	// Contested: two different definitions of the job have taken turns, at least three times
	// and for longer than a deploy takes. Two applications with the same Config.Scope have
	// each a job of that name, and each runs some of its ticks.
	Contested bool `json:"contested,omitempty"`

	// Problem is what keeps this process from running the job, or from showing all of it:
	// a ledger that cannot be read or written, a store that does not answer.
	Problem string `json:"problem,omitempty"`

	Waiting int    `json:"waiting,omitempty"` // ticks and triggers that are due and not yet begun
	Latest  Run    `json:"latest,omitzero"`   // the run that is going on, or the last one
	History []Run  `json:"history,omitempty"` // those before it, the newest first; ten at most
	Counts  Counts `json:"counts"`
}

// Entries returns the entries of the jobs that were registered here, by name. Errors:
// joblock.ErrUnavailable, and then there are none; joblock.ErrClosed.
func (s *Scheduler) Entries(ctx context.Context) ([]Entry, error) {
	if err := s.check("entries"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	names := make([]string, 0, len(s.jobs))
	for name := range s.jobs {
		names = append(names, name)
	}
	s.mu.Unlock()
	slices.Sort(names)
	entries := make([]Entry, 0, len(names))
	for part := range slices.Chunk(names, batch) {
		some, err := s.entries(ctx, part)
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	return entries, nil
}

// AllEntries returns the entries of all jobs of the scope, by name: of those that are
// registered here, and of those that have a ledger in the store, which any node of the
// cluster has registered in the last 366 days; Entry.Here tells them apart. It looks
// through all keys of the store, so it is for people and not for every second. A job that
// begins for the first time meanwhile may be missing. Errors are those of Entries.
func (s *Scheduler) AllEntries(ctx context.Context) ([]Entry, error) {
	if err := s.check("all entries"); err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for status, err := range s.locks.List(ctx, joblock.ListOptions{Prefix: s.control + ":", Ended: true}) {
		if err != nil {
			return nil, err
		}
		if name, ok := s.nameOf(status.Key); ok {
			names[name] = true
		}
	}
	s.mu.Lock()
	for name := range s.jobs {
		names[name] = true
	}
	s.mu.Unlock()
	var entries []Entry
	for part := range slices.Chunk(slices.Sorted(maps.Keys(names)), batch) {
		some, err := s.entries(ctx, part)
		if err != nil {
			return nil, err
		}
		for _, e := range some {
			if e.Here || e.Spec != "" || e.Problem != "" { // else it is some other lock
				entries = append(entries, e)
			}
		}
	}
	return entries, nil
}

// Entry returns the entry of one job, which need not be registered here. Errors:
// joblock.ErrNotFound if there is no such job in the store and none here, and those of
// Entries.
func (s *Scheduler) Entry(ctx context.Context, name string) (Entry, error) {
	const op = "entry"
	if err := s.check(op); err != nil {
		return Entry{}, err
	}
	if err := checkName(op, name); err != nil {
		return Entry{}, err
	}
	entries, err := s.entries(ctx, []string{name})
	if err != nil {
		return Entry{}, err
	}
	if entries[0].Spec == "" && entries[0].Problem == "" {
		return Entry{}, notFound(op, name)
	}
	return entries[0], nil
}

// entries reads the entries of the named jobs in one round trip. Of a job that is neither
// in the store nor here the entry has no Spec.
func (s *Scheduler) entries(ctx context.Context, names []string) ([]Entry, error) {
	keys := []string{s.control}
	for _, name := range names {
		keys = append(keys, s.keyOf(name))
	}
	views, err := s.locks.Peek(ctx, keys...)
	if err != nil {
		return nil, err
	}
	all, err := decodeOrders(views[0].Memo)
	if err != nil {
		return nil, err
	}
	now := views[0].Now
	entries := make([]Entry, len(names))
	for i, name := range names {
		l, problem := decodeLedger(views[i+1].Memo)
		if problem != nil {
			l = new(ledger) // left alone by this node
		}
		s.mu.Lock()
		j := s.jobs[name]
		here := j != nil
		if here {
			problem = errors.Join(problem, j.trouble)
		}
		s.mu.Unlock()
		if !here {
			j = &job{name: name, text: l.Spec, delay: time.Duration(l.Delay) * time.Millisecond}
			if l.Spec != "" {
				var err error
				j.spec, err = spec.Parse(l.Spec, nil) // if this node cannot, it does not know when the next tick is
				problem = errors.Join(problem, err)
			}
		}
		e, err := l.entry(j, here, views[i+1].State == joblock.StateFree, all.Jobs[name], now)
		if problem = errors.Join(problem, err); problem != nil {
			e.Problem = problem.Error()
		}
		entries[i] = e
	}
	return entries, nil
}

// entry shows the ledger to people. here says that j is a registered job, and not one made
// up from the ledger; free, that nobody has the job's lock. What cannot be shown is the error.
func (l *ledger) entry(j *job, here, free bool, o order, now time.Time) (Entry, error) {
	e := Entry{Name: j.name, Spec: j.text, Here: here, Paused: o.paused(), Waiting: len(l.Due), Counts: l.Counts, Contested: l.Defined.contested()}
	last := time.UnixMilli(l.Last)
	if ahead := last.Sub(now); ahead > setBack && ahead <= clockReset {
		e.Behind = ahead
	}
	// Of another spec than the ledger's it is not known from when on it counts.
	if due := j.next(last); l.Version > 0 && free && l.Spec == j.text && !due.IsZero() && now.Sub(due) > punctual {
		e.Overdue = due
	}
	if !e.Paused && (here || e.Overdue.IsZero()) {
		from := now.Add(-j.delay)
		if e.Behind > 0 {
			from = last
		}
		e.Next = j.next(from)
	}
	if l.Run != nil {
		e.Latest = l.Run.show(j.name)
		if free && e.Latest.State == StateRunning {
			e.Latest.State = StateDied // and nobody has taken over yet
		}
	}
	past, err := l.history()
	for _, r := range past {
		e.History = append(e.History, r.show(j.name))
	}
	return e, err
}

// show makes a Run of r.
func (r *run) show(name string) Run {
	out := Run{
		Tick: r.tick(name), State: r.State, Node: r.Node, Started: time.UnixMilli(r.Start).UTC(),
		Attempts: r.Attempts, Error: r.Err,
	}
	if r.End > 0 {
		out.Ended = time.UnixMilli(r.End).UTC()
	}
	return out
}
