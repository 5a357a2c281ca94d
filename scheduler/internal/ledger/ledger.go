package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	version     = 1
	historySize = 10  // executions, besides the latest
	maxErrBytes = 200 // of the JSON of an error
	keptStarts  = 8
	maxWaiting  = MaxBacklog + 1 // ticks; one more for OverlapQueue
)

// Bounds that package scheduler checks.
const (
	MaxBacklog      = 1000 // ticks that wait until they are caught up with
	MaxStartIDBytes = 128
)

// Ledger says how far a job has come. It is stored as one line of JSON; times are
// milliseconds of the store's clock. New fields may be added: nodes that do not know them
// drop them. A change of meaning needs a new version. Every part is bounded, so the whole
// always fits into a memo. A test adds the bounds up.
type Ledger struct {
	Version    int        `json:"v"`                   // 0: nobody has written it yet
	Spec       string     `json:"spec"`                // of the node that wrote it
	Delay      int64      `json:"delay,omitempty"`     // ms of Jitter on that node
	Last       int64      `json:"last"`                // every tick up to here was executed, was skipped, or is in Due
	Due        []Due      `json:"due,omitempty"`       // what waits, the next first; at most maxWaiting ticks, one trigger and one start
	Execution  *Execution `json:"execution,omitempty"` // the running one, or the latest
	Counts     Counts     `json:"counts"`
	Triggered  int64      `json:"trigger,omitempty"` // the newest trigger that was taken up
	Starts     starts     `json:"starts,omitempty"`  // the latest IDs of RunAtStart
	Definition Definition `json:"def,omitzero"`

	// The executions before Execution, the newest first: a JSON array on a second line,
	// decoded only for Entry. Every node reads every ledger, but only people the history.
	past []byte
}

// Cause is why a job is executed. A Due without one has CauseTick.
type Cause string

const (
	CauseTick    Cause = "tick"
	CauseStart   Cause = "start"
	CauseTrigger Cause = "trigger"
)

// Due is an execution that has not begun.
type Due struct {
	At    int64 `json:"t"`
	Cause Cause `json:"c,omitempty"`
}

// State says how an execution stands or how it ended.
type State string

const (
	Running     State = "running"
	Done        State = "done"
	Failed      State = "failed"
	Cancelled   State = "cancelled"
	Interrupted State = "interrupted"
	Died        State = "died"
	Lost        State = "lost"
	Overlapped  State = "overlapped"
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
}

// Tick is a Due in the form that package scheduler shows.
type Tick struct {
	At     time.Time // UTC
	Cause  Cause
	Broken int
}

// Counts are the counts of a job. Package scheduler documents the fields.
type Counts struct {
	Done       int64 `json:"done"`
	Failed     int64 `json:"failed"`
	Cancelled  int64 `json:"cancelled"`
	Lost       int64 `json:"lost"`
	TakenOver  int64 `json:"taken_over"`
	Missed     int64 `json:"missed"`
	Overlapped int64 `json:"overlapped"`
	Paused     int64 `json:"paused"`
}

// starts are the latest IDs of RunAtStart. More than one is kept, because nodes of the
// previous release may restart during a rollout.
type starts []string

func (s starts) add(id string) starts {
	s = append(s, id)
	return s[max(0, len(s)-keptStarts):]
}

// Decode reads a memo. An empty memo is the ledger of a new job. A ledger of a later version
// is an error, like anything else that is no ledger.
func Decode(memo []byte) (*Ledger, error) {
	l := new(Ledger)
	if len(memo) == 0 {
		return l, nil
	}
	memo, l.past, _ = bytes.Cut(memo, []byte("\n"))
	if err := json.Unmarshal(memo, l); err != nil {
		return nil, fmt.Errorf("scheduler: the memo is no ledger: %w", err)
	}
	if l.Version < 1 {
		return nil, fmt.Errorf("scheduler: the memo is no ledger: its version is %d", l.Version)
	}
	if l.Version > version {
		return nil, fmt.Errorf("scheduler: the ledger has version %d, this node knows up to %d: left to newer nodes", l.Version, version)
	}
	return l, nil
}

// Encode returns the memo.
func (l *Ledger) Encode() []byte {
	memo := encode(l)
	if len(l.past) > 0 {
		memo = append(append(memo, '\n'), l.past...)
	}
	return memo
}

// New reports whether nobody has written the job's ledger yet.
func (l *Ledger) New() bool { return l.Version == 0 }

// LastTick returns the time up to which every tick is accounted for.
func (l *Ledger) LastTick() time.Time { return time.UnixMilli(l.Last).UTC() }

// History returns the executions before the present one, the newest first.
func (l *Ledger) History() (past []Execution, err error) {
	if len(l.past) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(l.past, &past); err != nil {
		return nil, fmt.Errorf("scheduler: the second line of the memo is no history: %w", err)
	}
	return past, nil
}

// start makes x the present execution, on the node of m.
func (l *Ledger) start(x Execution, m Moment) *Execution {
	x.State, x.Node, x.Start = Running, m.Node, m.Now.UnixMilli()
	if l.Execution != nil {
		past, err := l.History()
		if err != nil {
			past = nil // only people read it, and Entry has shown them the error
		}
		past = slices.Insert(past, 0, *l.Execution)
		l.past = encode(past[:min(len(past), historySize)])
	}
	l.Execution = &x
	l.Definition.Since++
	return l.Execution
}

// End records how the present execution ended, and counts it.
func (l *Ledger) End(state State, at time.Time, attempts int, err error) {
	l.Execution.State, l.Execution.End, l.Execution.Attempts = state, at.UnixMilli(), attempts
	if err != nil {
		l.Execution.Err = shortenJSON(err.Error(), maxErrBytes)
	}
	switch state {
	case Done:
		l.Counts.Done++
	case Failed:
		l.Counts.Failed++
	case Cancelled:
		l.Counts.Cancelled++
	case Lost:
		l.Counts.Lost++
	case Overlapped:
		l.Counts.Overlapped++
	}
}

// wait adds d to Due. Only the newest trigger and the newest start wait; they replace
// earlier ones. A trigger goes first.
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

// cut removes the oldest ticks from Due until no more than room are left, and returns them.
func (l *Ledger) cut(room int) (gone []Due) {
	surplus := -room
	for _, d := range l.Due {
		if d.cause() == CauseTick {
			surplus++
		}
	}
	l.Due = slices.DeleteFunc(l.Due, func(d Due) bool {
		if len(gone) >= surplus || d.cause() != CauseTick {
			return false
		}
		gone = append(gone, d)
		return true
	})
	return gone
}

func (d Due) cause() Cause {
	if d.Cause == "" {
		return CauseTick
	}
	return d.Cause
}

func (x *Execution) Tick() Tick {
	return Tick{At: time.UnixMilli(x.At).UTC(), Cause: x.cause(), Broken: x.Broken}
}

// unfinished reports whether somebody still has to execute the tick of x. It is for a
// ledger whose lock is free: otherwise x may be going on.
func (x *Execution) unfinished() bool {
	return x != nil && (x.State == Running || x.State == Interrupted)
}

// encode is json.Marshal for types that always have a JSON form. It leaves <, > and & as
// they are, because people read it.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// shortenJSON cuts s so that its JSON form has about n bytes. It counts the JSON form,
// because a control character takes six bytes there.
func shortenJSON(s string, n int) string {
	size := 0
	for i, r := range s {
		if size += len(encode(string(r))) - len(`""`); size > n {
			return shorten(s, i)
		}
	}
	return shorten(s, n)
}

// shorten returns s if it has at most n bytes, else its first n bytes and an ellipsis. It
// removes what is not UTF-8, such as a character that was cut in two.
func shorten(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
