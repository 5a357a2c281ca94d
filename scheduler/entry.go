package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/spec"
)

// State says how an execution stands or how it ended.
type State string

const (
	StateRunning     State = "running"
	StateDone        State = "done"
	StateFailed      State = "failed"
	StateCancelled   State = "cancelled"   // OverlapCancel: the next tick came
	StateInterrupted State = "interrupted" // its node was stopped; another takes over or writes it off
	StateDied        State = "died"        // its node died or was cut off; another takes over
	StateLost        State = "lost"        // it was interrupted or died, and is not executed again
	StateOverlapped  State = "overlapped"  // Task: the task of an earlier tick is not done
)

// Counts says how the executions of a job ended and how many of its ticks were skipped,
// since a node first saw the job.
type Counts struct {
	Done       int64 `json:"done"`
	Failed     int64 `json:"failed"`
	Cancelled  int64 `json:"cancelled"`
	Lost       int64 `json:"lost"`       // broken off, and not executed again
	TakenOver  int64 `json:"taken_over"` // executions in place of one that was broken off
	Missed     int64 `json:"missed"`     // skipped: no node came in time
	Overlapped int64 `json:"overlapped"` // skipped: the job was running
	Paused     int64 `json:"paused"`     // skipped: the job was paused
}

// Execution is one execution of a job. Its times are the store's, in UTC.
type Execution struct {
	Tick     Tick      `json:"tick"`
	State    State     `json:"state"`
	Node     string    `json:"node"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last attempt, cut to about 200 bytes
}

// Duration returns how long the execution took; 0 if it has not ended.
func (x Execution) Duration() time.Duration {
	if x.Ended.IsZero() {
		return 0
	}
	return x.Ended.Sub(x.Started)
}

// Entry is what the whole cluster knows about a job.
type Entry struct {
	Name   string    `json:"name"`
	Spec   string    `json:"spec"`          // with its zone, as spec.Spec.String returns it
	Here   bool      `json:"here"`          // the job is registered with this Scheduler
	Next   time.Time `json:"next,omitzero"` // when the next tick is due, jitter included; zero while paused, and if Overdue is set and Here is not
	Paused bool      `json:"paused,omitempty"`

	// Overdue is when a tick was due that no node has claimed for more than a minute; zero
	// if there is none. Either the job was removed or renamed, so that no node has it any
	// more, or the nodes that have it are full.
	Overdue time.Time `json:"overdue,omitzero"`

	// Behind is how far the store's clock is behind the job's latest tick, because it was
	// set back by more than 10 s; otherwise 0. Ticks wait until Next; triggers do not.
	Behind time.Duration `json:"behind,omitempty"`

	// Contested is set if two definitions of the job have taken turns at least three times
	// and for at least 15 minutes. Probably two applications with the same Config.Scope
	// have a job of that name, and each executes some of its ticks.
	Contested bool `json:"contested,omitempty"`

	// Problem is what keeps this process from executing the job or from showing all of it:
	// a ledger that cannot be read or written, or a store that does not answer.
	Problem string `json:"problem,omitempty"`

	Waiting int         `json:"waiting,omitempty"` // executions that are due and have not begun
	Latest  Execution   `json:"latest,omitzero"`   // the running execution, or the last one
	History []Execution `json:"history,omitempty"` // at most ten before Latest, the newest first
	Counts  Counts      `json:"counts"`
}

// Entries returns the entries of the jobs that are registered here, sorted by name. On an
// error it returns none: joblock.ErrUnavailable, joblock.ErrClosed, the cause of ctx, or an
// error without a sentinel if the record of pauses and triggers cannot be read.
func (s *Scheduler) Entries(ctx context.Context) ([]Entry, error) {
	if err := s.check("entries"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.jobs))
	s.mu.Unlock()
	return s.readEntries(ctx, names)
}

// AllEntries returns the entries of all jobs of the scope, sorted by name: the jobs that are
// registered here (Entry.Here), and those that any node had in the last 366 days. A job that
// is executed for the first time meanwhile may be missing. AllEntries scans all keys of the
// store, so it is meant for people, not for every second. See Entries for errors.
func (s *Scheduler) AllEntries(ctx context.Context) ([]Entry, error) {
	if err := s.check("all entries"); err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for status, err := range s.locks.List(ctx, joblock.ListOptions{Prefix: s.ordersKey + ":", Ended: true}) {
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
	entries, err := s.readEntries(ctx, slices.Sorted(maps.Keys(names)))
	return slices.DeleteFunc(entries, func(e Entry) bool {
		return !e.Here && e.Spec == "" && e.Problem == "" // another kind of lock
	}), err
}

// Entry returns the entry of one job, which need not be registered here. Errors:
// joblock.ErrNotFound if neither the store nor this Scheduler has the job,
// joblock.ErrInvalid for a bad name, and those of Entries.
func (s *Scheduler) Entry(ctx context.Context, name string) (Entry, error) {
	const op = "entry"
	if err := s.check(op); err != nil {
		return Entry{}, err
	}
	if err := checkName(op, name); err != nil {
		return Entry{}, err
	}
	entries, err := s.readEntries(ctx, []string{name})
	if err != nil {
		return Entry{}, err
	}
	if entries[0].Spec == "" && entries[0].Problem == "" {
		return Entry{}, notFound(op, name)
	}
	return entries[0], nil
}

// readEntries reads the entries of the named jobs. The entry of a job that neither the store
// nor this Scheduler has has no Spec.
func (s *Scheduler) readEntries(ctx context.Context, names []string) ([]Entry, error) {
	entries := make([]Entry, 0, len(names))
	for part := range slices.Chunk(names, batch) {
		views, err := s.readJobs(ctx, part)
		if err != nil {
			return nil, err
		}
		all, err := ledger.DecodeOrders(views[0].Memo)
		if err != nil {
			return nil, err
		}
		for i, name := range part {
			entries = append(entries, s.makeEntry(name, views[i+1], all.Jobs[name], views[0].Now))
		}
	}
	return entries, nil
}

// makeEntry makes the entry of a job from v, the view of its ledger.
func (s *Scheduler) makeEntry(name string, v memo.View, o ledger.Order, now time.Time) Entry {
	l, problem := ledger.Decode(v.Memo)
	if problem != nil {
		l = new(ledger.Ledger)
	}
	rules := ledger.Job{SpecText: l.Spec, Delay: time.Duration(l.Delay) * time.Millisecond}
	s.mu.Lock()
	j := s.jobs[name]
	if j != nil {
		rules, problem = j.Job, errors.Join(problem, j.trouble)
	}
	s.mu.Unlock()
	if j == nil && l.Spec != "" {
		var err error
		rules.Spec, err = spec.Parse(l.Spec, nil) // if this fails, the next tick is unknown here
		problem = errors.Join(problem, err)
	}
	e, err := showLedger(name, l, &rules, j != nil, v.State == joblock.StateFree, o, now)
	if problem = errors.Join(problem, err); problem != nil {
		e.Problem = problem.Error()
	}
	return e
}

// showLedger makes an Entry of a ledger. here: rules are from a registered job, not from the
// ledger. free: nobody holds the job's lock. The error says what cannot be shown.
func showLedger(name string, l *ledger.Ledger, rules *ledger.Job, here, free bool, o ledger.Order, now time.Time) (Entry, error) {
	e := Entry{
		Name: name, Spec: rules.SpecText, Here: here, Paused: o.Paused(), Waiting: len(l.Due),
		Counts: Counts(l.Counts), Contested: l.Definition.Contested(), Behind: l.Behind(now),
	}
	if free {
		e.Overdue = l.Overdue(rules, now)
	}
	if !e.Paused && (here || e.Overdue.IsZero()) {
		from := now.Add(-rules.Delay)
		if e.Behind > 0 {
			from = l.LastTick()
		}
		e.Next = rules.NextDue(from)
	}
	if l.Execution != nil {
		e.Latest = showExecution(name, l.Execution)
		if free && e.Latest.State == StateRunning {
			e.Latest.State = StateDied // nobody has taken over yet
		}
	}
	past, err := l.History()
	for i := range past {
		e.History = append(e.History, showExecution(name, &past[i]))
	}
	return e, err
}

func showExecution(name string, x *ledger.Execution) Execution {
	out := Execution{
		Tick: tickOf(name, x.Tick()), State: State(x.State), Node: x.Node, Started: time.UnixMilli(x.Start).UTC(),
		Attempts: x.Attempts, Error: x.Err,
	}
	if x.End > 0 {
		out.Ended = time.UnixMilli(x.End).UTC()
	}
	return out
}
