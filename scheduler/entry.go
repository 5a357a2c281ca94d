package scheduler

import (
	"context"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
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
	Name    string    `json:"name"`
	Spec    string    `json:"spec"`          // as Spec.String, with its zone
	Next    time.Time `json:"next,omitzero"` // when the next tick will be run, jitter included; zero while paused
	Paused  bool      `json:"paused,omitempty"`
	Waiting int       `json:"waiting,omitempty"` // ticks and triggers that are due and not yet begun
	Latest  Run       `json:"latest,omitzero"`   // the run that is going on, or the last one
	History []Run     `json:"history,omitempty"` // those before it, the newest first; ten at most
	Counts  Counts    `json:"counts"`
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
	if entries[0].Spec == "" {
		return Entry{}, &joblock.Error{Code: joblock.CodeNotFound, Op: op, Key: s.keyOf(name), Detail: "no node has seen a job of that name"}
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
		l, err := decodeLedger(views[i+1].Memo)
		if err != nil {
			l = new(ledger) // left alone by this node; see the log
		}
		s.mu.Lock()
		j := s.jobs[name]
		s.mu.Unlock()
		if j == nil {
			j = &job{name: name}
			j.spec, _ = ParseSpec(l.Spec, nil) // if this node cannot, it does not know when the next tick is
			j.text = l.Spec
		}
		entries[i] = l.entry(j, views[i+1].State == joblock.StateFree, all.Jobs[name], now)
	}
	return entries, nil
}

// entry shows the ledger to people. free says that nobody has the job's lock.
func (l *ledger) entry(j *job, free bool, o order, now time.Time) Entry {
	e := Entry{Name: j.name, Spec: j.text, Paused: o.paused(), Waiting: len(l.Due), Counts: l.Counts}
	if !e.Paused {
		e.Next = j.next(now.Add(-j.delay))
	}
	if l.Run != nil {
		e.Latest = l.Run.show(j.name)
		if free && e.Latest.State == StateRunning {
			e.Latest.State = StateDied // and nobody has taken over yet
		}
	}
	for _, r := range l.history() {
		e.History = append(e.History, r.show(j.name))
	}
	return e
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
