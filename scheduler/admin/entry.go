package admin

import (
	"time"

	"github.com/joblock/toolkit/scheduler"
)

// Counts has the numbers of a job's executions by result, and of its skipped ticks, since a node first saw the job.
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
	Tick     scheduler.Tick `json:"tick"`
	State    scheduler.Kind `json:"state"`
	Node     string         `json:"node"`
	Started  time.Time      `json:"started"`
	Ended    time.Time      `json:"ended,omitzero"`
	Attempts int            `json:"attempts,omitempty"`
	Error    string         `json:"error,omitempty"` // of the last attempt, or the cause of Overrun, cut to about 200 bytes

	// Overrun is when the node found that the function was still running 5 s after its context ended. Zero if the function
	// returned in time, or has returned since and is called again. See scheduler.Overrun.
	Overrun time.Time `json:"overrun,omitzero"`
}

// Duration returns how long the execution took, or 0 if it has not ended.
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

// OtherSpec is a node that is up and has a spec of a job other than the one in force.
type OtherSpec struct {
	Node  string    `json:"node"`
	Spec  string    `json:"spec"`
	Since time.Time `json:"since"` // when the node first saw that another spec was in force
}

// Entry is the state of a job in the whole cluster.
type Entry struct {
	Name  string `json:"name"`
	Spec  string `json:"spec"`            // the spec in force, with its zone, in the form of spec.Spec.String
	Zone  string `json:"zone"`            // of Spec; "" if this process cannot parse Spec
	Words string `json:"words,omitempty"` // Spec in English, like "at 03:00 on the last Friday of each month, Europe/Berlin"
	Here  bool   `json:"here"`            // the job is registered with the Scheduler given to Of

	// Nodes has the names of the nodes that are up and have the job, sorted. Each of these nodes can execute a tick, and
	// take an execution over. If Nodes is empty, the job was removed or renamed, or all its nodes are down. See
	// Admin.Nodes.
	Nodes []string `json:"nodes,omitempty"`

	// Next is when the next tick is due, jitter included. It is zero if the job is paused, and if Overdue is set and Here
	// is false.
	Next   time.Time `json:"next,omitzero"`
	Paused bool      `json:"paused,omitempty"`
	Latest Execution `json:"latest,omitzero"` // of the running executions the one that began last; if none runs, the last execution
	Counts Counts    `json:"counts"`

	// Overdue is the due time of the first tick that no node has claimed within a minute, or zero. The job was then
	// removed or renamed, or all nodes with the job run scheduler.Config.Concurrency functions.
	Overdue time.Time `json:"overdue,omitzero"`

	// Stuck is set if at least three ticks in a row were skipped as overlapped, the first of them at least 10 minutes
	// ago, and the job is not paused: an execution, or the task of an earlier tick, does not end. See scheduler.Stuck.
	Stuck bool `json:"stuck,omitempty"`

	// Contested is set if nodes have disagreed for at least 15 minutes: a node has been in OtherSpecs for that long, or
	// two conflicting definitions of the job have alternated at least three times. Either a node of another release was
	// left up, or two applications with the same scope have a job of this name, and each executes some of the ticks.
	Contested bool `json:"contested,omitempty"`

	// Problem is why this process cannot execute the job or cannot show the whole Entry: the ledger cannot be decoded or
	// written, or the store does not answer.
	Problem string `json:"problem,omitempty"`

	// The fields below explain those above.

	Policies string `json:"policies,omitempty"` // the options of the job in English, as on the node that has written the ledger last

	// Since is the time from which on ticks are those of Spec. SpecBy is the node that has registered Spec last: as long
	// as it is up with the job, Spec stays in force, unless a node registers another one. Former has the specs before
	// Spec, the newest first, two at most.
	Since  time.Time    `json:"since,omitzero"`
	SpecBy string       `json:"spec_by,omitempty"`
	Former []FormerSpec `json:"former,omitempty"`

	// OtherSpecs has the nodes that are up and have a spec other than the one in force, sorted by node. A node reports its
	// spec after 3 × scheduler.Config.Sync, for some dozens of jobs at most. DisagreeSince is when the disagreement began,
	// even if that is too recent for Contested; zero if OtherSpecs is empty and Contested is not set.
	OtherSpecs    []OtherSpec `json:"other_specs,omitempty"`
	DisagreeSince time.Time   `json:"disagree_since,omitzero"`

	Pauses  []Pause `json:"pauses,omitempty"`  // the pauses in force: of the job, of all jobs, or both
	Resumed *Pause  `json:"resumed,omitempty"` // the end of the latest pause; nil: there was none

	// Behind is how far the store's clock is behind the job's latest tick, 0 unless the clock was set back by more than 10
	// s. Ticks wait until Next; triggers do not wait.
	Behind time.Duration `json:"behind,omitempty"`

	// Overlaps is how many ticks in a row were skipped as overlapped, since an execution last ended with another
	// result. If there are at least three and the job is not paused, OverlapsSince is the first of them.
	Overlaps      int       `json:"overlaps,omitempty"`
	OverlapsSince time.Time `json:"overlaps_since,omitzero"`

	Waiting int `json:"waiting,omitempty"` // how many executions are due and have not begun

	// InLine is how many nodes wait for the job's lock, to take the running execution over: one or none, if all is well.
	// With MaxConcurrent above 1, nodes wait for the locks of executions, which InLine does not count.
	InLine int `json:"in_line,omitempty"`

	// Running has the executions that have no result yet, in the order in which they began. With MaxConcurrent above 1, an
	// execution whose node has died is shown as running until another node takes it over.
	Running []Execution `json:"running,omitempty"`
	History []Execution `json:"history,omitempty"` // executions before Latest, the newest first; see scheduler.KeepHistory

	Backfill *Backfill `json:"backfill,omitempty"` // the latest backfill; nil: there was none
}

// Pause is a pause that is in force or, in Entry.Resumed, the end of the latest pause.
type Pause struct {
	At   time.Time `json:"at"`           // its start; of Entry.Resumed its end
	By   string    `json:"by,omitempty"` // who has paused or resumed: the argument by of New, or a node; see scheduler.PauseAfter
	Note string    `json:"note,omitempty"`
	All  bool      `json:"all,omitempty"` // of all jobs
}

// Backfill is the progress of the latest backfill of a job. Times are the store's, in UTC.
type Backfill struct {
	Number   int64     `json:"number"` // scheduler.Tick.Backfill of its executions
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Ticks    int       `json:"ticks"` // have begun or will begin; 0 until a node has seen the request
	Done     int       `json:"done"`
	Failed   int       `json:"failed"`
	Lost     int       `json:"lost"`
	Upto     time.Time `json:"upto,omitzero"` // the latest tick that has begun; zero: none has
	Asked    time.Time `json:"asked"`
	Ended    time.Time `json:"ended,omitzero"` // zero: the backfill has not ended
	Stopping bool      `json:"stopping,omitempty"`
}
