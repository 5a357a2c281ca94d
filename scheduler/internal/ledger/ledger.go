package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/codec"
)

const (
	MaxHistory      = 50  // failures, and other executions, in the history; package scheduler checks the bound
	MaxStartIDBytes = 128 // the ID of RunAtStart; package scheduler checks the bound

	version     = 1
	maxPast     = 12 * 1024 // bytes of the history
	maxErrBytes = 200       // of the JSON form of an error
	keptStarts  = 8         // several: nodes of the previous release may restart during a rollout
	keptFormer  = 2         // for people
)

// Ledger is the progress of a job. It is stored as one line of JSON; times are milliseconds of the store's clock. A new
// field needs no new version: nodes that do not know the field drop it. A change of meaning needs a new version. Every
// part is bounded, so that the whole always fits into a memo; a test adds up the bounds.
type Ledger struct {
	Version    int         `json:"v"`               // 0: the ledger is not written yet
	Spec       string      `json:"spec"`            // the spec in force; "": none yet
	Since      int64       `json:"since,omitempty"` // the latest Moment.Since of a node that has written Spec: the Decider's
	Decider    Decider     `json:"decider,omitzero"`
	From       int64       `json:"from,omitempty"`     // later ticks are those of Spec
	Former     []Former    `json:"former,omitempty"`   // the specs before Spec, the newest first
	Delay      int64       `json:"delay,omitempty"`    // ms of the job's Jitter on that node
	Last       int64       `json:"last"`               // all ticks up to this time were executed or skipped, or are in Due
	Due        []Due       `json:"due,omitempty"`      // the next first; maxWaiting ticks, a trigger and a start at most
	Running    []Execution `json:"running,omitempty"`  // executions without a result, in the order in which they began; one per lane
	Latest     *Execution  `json:"latest,omitempty"`   // the latest execution with a result, unless it is in the history
	Backfill   *Backfill   `json:"backfill,omitempty"` // the latest backfill
	Counts     Counts      `json:"counts"`
	Streak     int         `json:"streak,omitempty"`  // executions in a row that have failed or were lost
	Tasks      []Due       `json:"tasks,omitempty"`   // the executions whose tasks count for Streak, and whose ends are not known
	Overlaps   Overlaps    `json:"overlaps,omitzero"` // ticks in a row that were skipped as overlapped
	Triggered  int64       `json:"trigger,omitempty"` // Order.Triggered of the newest trigger that was put into Due
	Starts     []string    `json:"starts,omitempty"`  // the latest IDs of RunAtStart, the newest first
	Resumed    Resumed     `json:"resumed,omitzero"`  // the end of the latest pause, for people
	Definition Definition  `json:"def,omitzero"`

	// past has the executions before Latest, the newest first: a JSON array on a second line of the memo. Only
	// History decodes the array: every node reads every ledger, but only people read the history.
	past []byte
}

// Cause is the reason for an execution. In a Due, "" means CauseTick.
type Cause string

const (
	CauseTick     Cause = "tick"
	CauseStart    Cause = "start"
	CauseTrigger  Cause = "trigger"
	CauseBackfill Cause = "backfill"
)

// Due is an execution that has not begun.
type Due struct {
	At       int64 `json:"t"`
	Cause    Cause `json:"c,omitempty"`
	Backfill int64 `json:"f,omitempty"` // BackfillOrder.ID, with CauseBackfill
	Newest   bool  `json:"w,omitempty"` // waits because of Overlap.Newest
}

// State is the state or the result of an execution. Package scheduler documents the states.
type State string

const (
	Running     State = "running"
	Done        State = "done"
	Enqueued    State = "enqueued" // instead of Done if the function only enqueues a task
	Failed      State = "failed"
	Cancelled   State = "cancelled"
	Interrupted State = "interrupted"
	Died        State = "died"
	Lost        State = "lost"
	Overlapped  State = "overlapped"

	// NotBegun is no State of an execution. With NotBegun, End undoes Begin and TakeOver.
	NotBegun State = "not begun"
)

// Execution is an execution that has begun.
type Execution struct {
	Due
	State    State  `json:"s"`
	Node     string `json:"node"`
	Start    int64  `json:"b"`
	End      int64  `json:"e,omitempty"`
	Attempts int    `json:"a,omitempty"`
	Broken   int    `json:"k,omitempty"` // earlier executions of the same tick, all broken off
	Err      string `json:"err,omitempty"`
	Overrun  int64  `json:"o,omitempty"` // when the node found that the function ignores the end of its context, for the reason Err
	Lane     int    `json:"i,omitempty"` // 0: under the job's own lock
	Fence    int64  `json:"q,omitempty"` // of the lane's lock; only in Ledger.Running
}

// Tick is a Due in the form that package scheduler shows.
type Tick struct {
	At       time.Time // UTC
	Cause    Cause
	Broken   int
	Backfill int64 // BackfillOrder.ID, with CauseBackfill
}

// Resumed is the end of a pause.
type Resumed struct {
	At   int64  `json:"t"`
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
	All  bool   `json:"all,omitempty"` // of all jobs
}

// Counts are the counts of a job. Package scheduler documents the fields.
type Counts struct {
	Done       int64 `json:"done"`
	Enqueued   int64 `json:"enqueued"`
	Failed     int64 `json:"failed"`
	Cancelled  int64 `json:"cancelled"`
	Lost       int64 `json:"lost"`
	TakenOver  int64 `json:"taken_over"`
	Missed     int64 `json:"missed"`
	Overlapped int64 `json:"overlapped"`
	Paused     int64 `json:"paused"`
}

// Former is a spec that was in force.
type Former struct {
	Spec  string `json:"spec"`
	Until int64  `json:"until"` // Ledger.From of the next spec: the ticks up to this time were those of Spec
}

// Decider is the node that has registered Ledger.Spec last.
type Decider struct {
	Node string `json:"node"`
	ID   string `json:"id"` // of the node's record; see package roster
}

// Backfill is the progress of a backfill. Times are milliseconds of the store's clock.
type Backfill struct {
	BackfillOrder
	Ticks  int   `json:"n"`           // that have begun or will begin, MaxBackfill at most
	Cursor int64 `json:"c"`           // the ticks of the range up to this time have begun
	Done   int   `json:"d,omitempty"` // executions with the result Done or Enqueued
	Failed int   `json:"x,omitempty"`
	Lost   int   `json:"l,omitempty"`
	End    int64 `json:"e,omitempty"` // 0: the backfill has not ended
}

// Overlaps are the ticks that were skipped as overlapped since an execution has ended with another result. Times are
// milliseconds of the store's clock.
type Overlaps struct {
	Ticks    int64 `json:"n"`
	First    int64 `json:"t"`           // the time of the first of them
	Reported bool  `json:"r,omitempty"` // a node has reported that the job is stuck
}

// Definition records with which definitions of the job nodes have written the ledger. It shows whether two applications
// share a job by mistake. Times are milliseconds of the store's clock.
type Definition struct {
	Program  string   `json:"by"`             // of the node that wrote last
	By       []string `json:"is"`             // the latest fingerprints, the newest first
	Back     int      `json:"back,omitempty"` // how often an earlier definition came back, since the last new definition
	First    int64    `json:"t,omitempty"`    // the time of the first return that Back counts
	Latest   int64    `json:"u,omitempty"`    // the time of the latest return that Back counts
	Since    int      `json:"n,omitempty"`    // executions since Latest
	Reported int64    `json:"w,omitempty"`    // the time at which a node last reported Back

	Policies string `json:"o,omitempty"` // the options in words, of the node that wrote last
}

// Decode reads a memo. An empty memo is the ledger of a new job. A ledger of a later version is an error, and so is
// any text that is not a ledger.
func Decode(memo []byte) (*Ledger, error) {
	l := new(Ledger)
	if len(memo) == 0 {
		return l, nil
	}
	memo, l.past, _ = bytes.Cut(memo, []byte("\n"))
	if err := json.Unmarshal(memo, l); err != nil {
		return nil, fmt.Errorf("scheduler: the memo is not a ledger: %w", err)
	}
	if l.Version < 1 {
		return nil, fmt.Errorf("scheduler: the memo is not a ledger: its version is %d, must be at least 1", l.Version)
	}
	if l.Version > version {
		return nil, fmt.Errorf("scheduler: the ledger has version %d, this node knows versions up to %d: newer nodes execute the job", l.Version, version)
	}
	return l, nil
}

// Encode returns the memo that Decode reads.
func (l *Ledger) Encode() []byte {
	memo := codec.Encode(l)
	if len(l.past) > 0 {
		memo = append(append(memo, '\n'), l.past...)
	}
	return memo
}

// New reports whether the job's ledger is not written yet.
func (l *Ledger) New() bool { return l.Version == 0 }

// LastTick returns Last as a time in UTC.
func (l *Ledger) LastTick() time.Time { return time.UnixMilli(l.Last).UTC() }

// Resumption returns the end of the latest pause, according to the ledger or to o, whichever is later.
func (l *Ledger) Resumption(o Order) Resumed {
	if r := o.Resumed(); r.At > l.Resumed.At {
		return r
	}
	return l.Resumed
}

// History returns the executions before Latest, the newest first.
func (l *Ledger) History() (past []Execution, err error) {
	if len(l.past) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(l.past, &past); err != nil {
		return nil, fmt.Errorf("scheduler: the second line of the memo is not a history: %w", err)
	}
	return past, nil
}

// remember adds x to the history. It drops the oldest failures or other executions if there are too many of them, and
// the oldest executions if the history has too many bytes, because errors and names of nodes are long.
func (l *Ledger) remember(j *Job, x Execution) {
	past, err := l.History()
	if err != nil {
		past = nil // only people read the history, and Entry has shown them the error
	}
	failures, others := j.KeepFailures, j.KeepOthers
	past = slices.DeleteFunc(slices.Insert(past, 0, x), func(x Execution) bool {
		room := &others
		if x.State.failure() {
			room = &failures
		}
		*room--
		return *room < 0
	})
	for l.past = codec.Encode(past); len(l.past) > maxPast; l.past = codec.Encode(past) {
		past = past[:len(past)-1]
	}
}

// SetOverrun records that the function of x ignores the end of its context, whose cause is cause, or with a nil cause
// that it has returned. In a lane other than 0, where the cause is the timeout, Err stays empty: twenty causes would
// not fit into a memo.
func (x *Execution) SetOverrun(now time.Time, cause error) {
	x.Overrun, x.Err = 0, ""
	if cause == nil {
		return
	}
	x.Overrun = now.UnixMilli()
	if x.Lane == 0 {
		x.Err = shortenJSON(cause.Error(), maxErrBytes)
	}
}

// failure reports whether an execution with the result s counts as a failure in the history.
func (s State) failure() bool { return s == Failed || s == Died || s == Lost }

// Ended reports whether x has its final result. An execution that was broken off does not: another node takes it over.
func (x *Execution) Ended() bool {
	return x.State != Running && x.State != Interrupted && x.State != Died
}

// wait adds d to Due, a trigger at the front. Due has one trigger and one start at most: the newest.
func (l *Ledger) wait(d Due) {
	if d.cause() != CauseTick {
		l.Due = slices.DeleteFunc(l.Due, func(other Due) bool { return other.Cause == d.Cause })
	}
	if d.Cause == CauseTrigger {
		l.Due = slices.Insert(l.Due, 0, d)
	} else {
		l.Due = append(l.Due, d)
	}
}

// waiting returns how many ticks wait.
func (l *Ledger) waiting() (n int) {
	for _, d := range l.Due {
		if d.cause() == CauseTick {
			n++
		}
	}
	return n
}

// expire removes from Due the ticks whose deadline has passed, and returns them.
func (l *Ledger) expire(j *Job, now time.Time) (gone []time.Time) {
	l.Due = slices.DeleteFunc(l.Due, func(d Due) bool {
		late := d.cause() == CauseTick && j.late(time.UnixMilli(d.At), now)
		if late {
			gone = append(gone, time.UnixMilli(d.At).UTC())
		}
		return late
	})
	return gone
}

// cut removes the oldest ticks from Due and returns them. room is how many ticks may stay.
func (l *Ledger) cut(room int) (gone []time.Time) {
	surplus := l.waiting() - room
	l.Due = slices.DeleteFunc(l.Due, func(d Due) bool {
		if len(gone) >= surplus || d.cause() != CauseTick {
			return false
		}
		gone = append(gone, time.UnixMilli(d.At).UTC())
		return true
	})
	return gone
}

func (d Due) cause() Cause { return cmp.Or(d.Cause, CauseTick) }

// Tick returns the tick that x executes.
func (x *Execution) Tick() Tick {
	t := x.Due.Tick()
	t.Broken = x.Broken
	return t
}

// Tick returns the tick of d.
func (d Due) Tick() Tick {
	return Tick{At: time.UnixMilli(d.At).UTC(), Cause: d.cause(), Backfill: d.Backfill}
}

// prepend returns first followed by list, cut to at most most elements.
func prepend[T any](first T, list []T, most int) []T {
	list = slices.Insert(list, 0, first)
	return list[:min(len(list), most)]
}

// shortenJSON cuts s so that its JSON form has about n bytes, and marks a cut with an ellipsis. It also removes bytes
// that are not UTF-8. The length of s itself is no measure: a control character takes six bytes in JSON.
func shortenJSON(s string, n int) string {
	size := 0
	for i, r := range s {
		if size += len(codec.Encode(string(r))) - len(`""`); size > n {
			s = s[:i] + "…"
			break
		}
	}
	return strings.ToValidUTF8(s, "")
}
