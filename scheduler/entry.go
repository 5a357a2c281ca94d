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

const maxNextTicks = 1000

// State is the state or the result of an execution.
type State string

const (
	StateRunning     State = "running"
	StateDone        State = "done"
	StateEnqueued    State = "enqueued" // of a Task, instead of StateDone: the task is in the queue; how the task ends is not known
	StateFailed      State = "failed"
	StateCancelled   State = "cancelled"   // with OverlapCancel: the next tick came during the execution
	StateInterrupted State = "interrupted" // the node was stopped; another node takes the tick over or counts it as lost
	StateDied        State = "died"        // the node died or was cut off; another node takes the tick over
	StateLost        State = "lost"        // the execution was broken off, and no node executes the tick again
	StateOverlapped  State = "overlapped"  // of a Task: the task of an earlier tick is not done
)

// Counts has, for one job, the number of executions with each result, and the number of skipped ticks. The counting
// begins when a node first sees the job.
type Counts struct {
	Done       int64 `json:"done"`
	Enqueued   int64 `json:"enqueued"` // of a Task, instead of Done
	Failed     int64 `json:"failed"`
	Cancelled  int64 `json:"cancelled"`
	Lost       int64 `json:"lost"`       // ticks whose execution was broken off and that no node executes again
	TakenOver  int64 `json:"taken_over"` // executions that replace an execution that was broken off
	Missed     int64 `json:"missed"`     // skipped ticks: no node claimed them in time
	Overlapped int64 `json:"overlapped"` // skipped ticks: the job was running
	Paused     int64 `json:"paused"`     // skipped ticks: the job was paused
}

// Execution is one execution of a job. Its times are the store's, in UTC.
type Execution struct {
	Tick     Tick      `json:"tick"`
	State    State     `json:"state"`
	Node     string    `json:"node"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last attempt, or the cause of Overrun, cut to about 200 bytes

	// Overrun is when the node found that the function goes on although its context has ended: 5 s after the end. Zero if
	// the function did not do that, or has returned and is called again. See EventOverrun.
	Overrun time.Time `json:"overrun,omitzero"`
}

// Duration returns how long the execution took. Duration returns 0 if the execution has not ended.
func (x Execution) Duration() time.Duration {
	if x.Ended.IsZero() {
		return 0
	}
	return x.Ended.Sub(x.Started)
}

// FormerSpec is a spec of a job that was in force.
type FormerSpec struct {
	Spec  string    `json:"spec"`
	Until time.Time `json:"until"` // ticks up to this time were those of Spec
}

// OtherSpec is a node that is up and has another spec of a job than the one in force.
type OtherSpec struct {
	Node  string    `json:"node"`
	Spec  string    `json:"spec"`
	Since time.Time `json:"since"` // when the node first saw that another spec was in force
}

// Entry is the state of a job in the whole cluster.
type Entry struct {
	Name string `json:"name"`
	Spec string `json:"spec"` // the spec in force, with its zone, in the form of spec.Spec.String
	Zone string `json:"zone"` // of Spec; "" if this process cannot parse Spec
	// Words is Spec in English, like "at 03:00 on the last Friday of each month, Europe/Berlin".
	Words string `json:"words,omitempty"`

	// Policies says in English what the options of the job are, as the node has them that has written the ledger last. "" if
	// none has.
	Policies string `json:"policies,omitempty"`
	Here     bool   `json:"here"` // the job is registered with this Scheduler

	// Nodes has the names of the nodes that are up and have the job, sorted. Each of these nodes can execute a tick, and take
	// an execution over. If Nodes is empty, the job was removed or renamed, or all its nodes are down. See Scheduler.Nodes.
	Nodes []string `json:"nodes,omitempty"`

	// Since is the time from which on ticks are those of Spec. SpecBy is the node that has registered Spec last: as long as it
	// is up with the job, Spec stays in force, unless a node registers another one. Former has the specs before Spec, the
	// newest first, two at most.
	Since  time.Time    `json:"since,omitzero"`
	SpecBy string       `json:"spec_by,omitempty"`
	Former []FormerSpec `json:"former,omitempty"`

	// OtherSpecs has the nodes that are up and have another spec, sorted by node. A node says so after three times Config.Sync,
	// and of some dozens of jobs at most.
	OtherSpecs []OtherSpec `json:"other_specs,omitempty"`

	// Next is when the next tick is due, jitter included. Next is zero if the job is paused. Next is also zero if
	// Overdue is set and Here is false.
	Next   time.Time `json:"next,omitzero"`
	Paused bool      `json:"paused,omitempty"`
	// Pauses has the pauses that go on: of the job, of all jobs, or both. Resumed is the end of the latest pause, or nil.
	Pauses  []PauseInfo `json:"pauses,omitempty"`
	Resumed *ResumeInfo `json:"resumed,omitempty"`

	// Overdue is the due time of the first tick that no node has claimed within a minute, or zero. The job was then
	// removed or renamed, or all nodes with the job run Config.Concurrency functions.
	Overdue time.Time `json:"overdue,omitzero"`

	// Behind is how far the store's clock is behind the job's latest tick. Behind is 0 unless the clock was set back by
	// more than 10 s. Ticks wait until Next; triggers do not wait.
	Behind time.Duration `json:"behind,omitempty"`

	// Contested is set if nodes have disagreed for at least 15 minutes: one of OtherSpecs, or two definitions of the job have
	// taken turns at least three times. A node of another release was left up; or two applications with the same Config.Scope
	// have a job of this name, and each application executes some of the ticks. DisagreeSince is the begin, also of a
	// disagreement that is shorter, as during a deploy; zero if OtherSpecs is empty and Contested is not set.
	Contested     bool      `json:"contested,omitempty"`
	DisagreeSince time.Time `json:"disagree_since,omitzero"`

	// Problem is the reason why this process cannot execute the job or cannot show the whole Entry: the ledger cannot
	// be decoded or written, or the store does not answer.
	Problem string `json:"problem,omitempty"`

	// Overlaps is how many ticks in a row were skipped as overlapped, since an execution has ended with another result. If
	// there are at least three and the job is not paused, OverlapsSince is the first of them. If that is at least 10 minutes
	// ago, Stuck is set: an execution does not end or, of a Task, the task of an earlier tick is not done. See EventStuck.
	Overlaps      int       `json:"overlaps,omitempty"`
	OverlapsSince time.Time `json:"overlaps_since,omitzero"`
	Stuck         bool      `json:"stuck,omitempty"`

	Waiting int `json:"waiting,omitempty"` // how many executions are due and have not begun
	// InLine is how many nodes wait for the job's lock, to take the running execution over: one or none, if all is well.
	// With AtOnce above 1, nodes wait for the locks of executions, which InLine does not count.
	InLine int       `json:"in_line,omitempty"`
	Latest Execution `json:"latest,omitzero"` // the execution that has begun last of those that run, or the last one
	// Running has the executions that have no result yet, in the order of their begin. With AtOnce above 1, an execution
	// whose node has died is shown as running until another node takes it over.
	Running []Execution `json:"running,omitempty"`
	History []Execution `json:"history,omitempty"` // executions before Latest, the newest first; see KeepHistory
	Counts  Counts      `json:"counts"`

	Backfill *Backfill `json:"backfill,omitempty"` // the latest backfill; nil: there was none
}

// Entries returns the entries of the named jobs, or without names those of the jobs that are registered with this
// Scheduler, sorted by name. A job that neither the store nor this Scheduler has is left out. On an error, Entries
// returns no entries. Errors: joblock.ErrUnavailable, joblock.ErrClosed, the cause of ctx, and an error without a
// sentinel if the record of pauses and triggers cannot be decoded.
func (s *Scheduler) Entries(ctx context.Context, names ...string) ([]Entry, error) {
	const op = "entries"
	if err := s.check(op); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return s.readEntries(ctx, s.names())
	}
	for _, name := range names {
		if err := s.checkJob(op, name); err != nil {
			return nil, err
		}
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	entries, err := s.readEntries(ctx, names)
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Spec == "" && e.Problem == "" }), err
}

// AllEntries returns the entries of all jobs of the scope, sorted by name: the jobs that are registered with this
// Scheduler, and each job that a node has had in the last 366 days and that nobody has forgotten since. No node that is up
// has a job without Entry.Nodes. AllEntries reads 34 records, one for each node and one for each job, in a few round trips,
// whatever else the store has. See Entries for errors.
func (s *Scheduler) AllEntries(ctx context.Context) ([]Entry, error) {
	if err := s.check("all entries"); err != nil {
		return nil, err
	}
	names, err := s.readNames(ctx)
	if err != nil {
		return nil, err
	}
	names = append(names, s.names()...)
	slices.Sort(names)
	entries, err := s.readEntries(ctx, slices.Compact(names))
	return slices.DeleteFunc(entries, func(e Entry) bool {
		return !e.Here && e.Spec == "" && e.Problem == "" // the job has no ledger any more
	}), err
}

// Entry returns the entry of the named job, also if the job is not registered with this Scheduler. Errors:
// joblock.ErrNotFound if neither the store nor this Scheduler has the job, joblock.ErrInvalid for a bad name, and the
// errors of Entries.
func (s *Scheduler) Entry(ctx context.Context, name string) (Entry, error) {
	const op = "entry"
	if err := s.checkJob(op, name); err != nil {
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

// NextTicks returns when the next n ticks of a job are due, from 1 to 1000, with what clock changes do to them: the ticks
// of the spec in force, whether or not the job is paused. Forecast.At includes the jitter. The result is shorter if the
// spec has fewer ticks. For a spec that no job has yet, see [spec.Spec.Forecast]. Errors are those of Entry.
func (s *Scheduler) NextTicks(ctx context.Context, name string, n int) ([]spec.Forecast, error) {
	const op = "next ticks of"
	if err := s.checkJob(op, name); err != nil {
		return nil, err
	}
	if n < 1 || n > maxNextTicks {
		return nil, invalid(op, name, "the number of ticks is %d, must be from 1 to %d", n, maxNextTicks)
	}
	views, err := s.readJobs(ctx, []string{name})
	if err != nil {
		return nil, err
	}
	l, err := ledger.Decode(views[1].Memo)
	if err != nil {
		return nil, err
	}
	rules, _, err := s.rulesOf(name, l)
	if err != nil {
		return nil, err
	}
	if rules.SpecText == "" {
		return nil, notFound(op, name)
	}
	now := s.timeOf(views)
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

// timeOf returns the store's time at a read. A record that the store does not have has no time. If the store has none of them,
// the result is what this node knows of the store's clock, or else its own clock.
func (s *Scheduler) timeOf(views []memo.View) (now time.Time) {
	for _, v := range views {
		if v.Now.After(now) {
			now = v.Now
		}
	}
	switch {
	case !now.IsZero():
		return now
	case s.clock.synced():
		return s.clock.now()
	}
	return s.clock.local()
}

// rulesOf returns the rules of a job with the spec in force, and the job if the job is registered here. An error says that
// the spec cannot be parsed: then the rules have no ticks.
func (s *Scheduler) rulesOf(name string, l *ledger.Ledger) (*ledger.Job, *job, error) {
	s.mu.Lock()
	j := s.jobs[name]
	s.mu.Unlock()
	if j != nil {
		return s.inForce(j, l), j, nil
	}
	rules := &ledger.Job{SpecText: l.Spec, Delay: time.Duration(l.Delay) * time.Millisecond}
	if l.Spec == "" {
		return rules, nil, nil
	}
	var err error
	rules.Spec, err = s.parse(l.Spec)
	return rules, nil, err
}

func (s *Scheduler) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.jobs))
}

// readEntries reads the entries of the named jobs. A job that is neither in the store nor registered with this
// Scheduler gets an Entry without a Spec.
func (s *Scheduler) readEntries(ctx context.Context, names []string) ([]Entry, error) {
	nodes, err := s.readNodes(ctx)
	if err != nil {
		return nil, err
	}
	apart := make(map[string][]OtherSpec)
	for _, n := range nodes {
		for _, a := range n.Apart {
			apart[a.Job] = append(apart[a.Job], OtherSpec{n.Name, a.Spec, time.UnixMilli(a.Since).UTC()})
		}
	}
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
		now := s.timeOf(views)
		for i, name := range part {
			e := s.makeEntry(name, views[i+1], all.For(name), now)
			for _, n := range nodes {
				if n.has(name) {
					e.Nodes = append(e.Nodes, n.Name)
				}
			}
			e.disagree(apart[name], now)
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// disagree adds the nodes that have another spec.
func (e *Entry) disagree(nodes []OtherSpec, now time.Time) {
	for _, n := range nodes {
		if n.Spec == e.Spec {
			continue // the node has not yet seen that its spec is in force
		}
		e.OtherSpecs = append(e.OtherSpecs, n)
		if e.DisagreeSince.IsZero() || n.Since.Before(e.DisagreeSince) {
			e.DisagreeSince = n.Since
		}
	}
	if len(e.OtherSpecs) > 0 && now.Sub(e.DisagreeSince) >= ledger.Rollout {
		e.Contested = true
	}
}

func (s *Scheduler) makeEntry(name string, v memo.View, o ledger.Order, now time.Time) Entry {
	l, problem := ledger.Decode(v.Memo)
	if problem != nil {
		l = new(ledger.Ledger)
	}
	rules, j, err := s.rulesOf(name, l)
	problem = errors.Join(problem, err)
	if j != nil {
		s.mu.Lock()
		problem = errors.Join(problem, j.trouble)
		s.mu.Unlock()
	}
	e, err := showLedger(name, l, rules, j != nil, v.State == joblock.StateFree, o, now)
	e.InLine = v.Waiters
	if problem = errors.Join(problem, err); problem != nil {
		e.Problem = problem.Error()
	}
	return e
}

// showLedger makes an Entry from a ledger. If here is true, the rules are those of a registered job, not those of the
// ledger. If free is true, nobody holds the job's lock. On an error the Entry has no History.
func showLedger(name string, l *ledger.Ledger, rules *ledger.Job, here, free bool,
	o ledger.Order, now time.Time) (Entry, error) {
	e := Entry{
		Name: name, Spec: rules.SpecText, Here: here, Paused: o.Paused(), Waiting: len(l.Due),
		Policies: l.Definition.Policies, Counts: Counts(l.Counts), Contested: l.Definition.Contested(), Behind: l.Behind(now),
		Backfill: showBackfill(l, o), Resumed: showResumed(l.Resumption(o)), SpecBy: l.Decider.Node,
	}
	e.Overlaps = int(l.Overlaps.Ticks)
	if !e.Paused && l.Overlaps.Several() {
		e.OverlapsSince, e.Stuck = time.UnixMilli(l.Overlaps.First).UTC(), l.Overlaps.Stuck(now)
	}
	if e.Contested {
		e.DisagreeSince = time.UnixMilli(l.Definition.First).UTC()
	}
	if rules.Spec.String() != "" { // the node can parse the spec in force
		e.Zone, e.Words = rules.Spec.Zone().String(), rules.Spec.Words()
	}
	for i, p := range o.Pauses() {
		e.Pauses = append(e.Pauses, PauseInfo{time.UnixMilli(p.From).UTC(), p.By, p.Note, i > 0 || !o.Alone()})
	}
	if l.From > 0 {
		e.Since = time.UnixMilli(l.From).UTC()
	}
	for _, f := range l.Former {
		e.Former = append(e.Former, FormerSpec{f.Spec, time.UnixMilli(f.Until).UTC()})
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
			e.Latest.State = StateDied // no node has taken the tick over yet
		}
	}
	if n := len(l.Lanes); n > 0 {
		if l.Execution != nil {
			e.History = append(e.History, e.Latest)
		}
		for i := range l.Lanes {
			e.Running = append(e.Running, showExecution(name, &l.Lanes[i]))
		}
		e.Latest = e.Running[n-1]
	} else if l.BrokenOff() {
		e.Running = append(e.Running, e.Latest)
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
	if x.Overrun > 0 {
		out.Overrun = time.UnixMilli(x.Overrun).UTC()
	}
	return out
}
