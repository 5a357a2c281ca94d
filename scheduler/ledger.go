package scheduler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	ledgerVersion = 1
	historyRuns   = 10  // besides the latest
	maxErrBytes   = 200 // of an error in the ledger
	maxRoom       = MaxCatchUp + 1
)

// ledger is the memo of a job's lock: how far the job has come, as one line of JSON. Times
// are ms of the store's clock. Fields may be added, and are then dropped by nodes that do
// not know them; a change of meaning is a new version.
//
// Each part of it is bounded, so that together they are never more than a memo may have;
// a test adds them up.
type ledger struct {
	Version int     `json:"v"`
	Spec    string  `json:"spec"`            // of the node that wrote it
	Delay   int64   `json:"delay,omitempty"` // ms: what that node adds to each tick, by Jitter
	Last    int64   `json:"last"`            // every tick up to here is run, skipped, or in Due
	Due     []due   `json:"due,omitempty"`   // to be run, in this order; maxRoom ticks, a trigger and a start at most
	Run     *run    `json:"run,omitempty"`   // the present one, or the latest
	Counts  Counts  `json:"counts"`
	Order   int64   `json:"order,omitempty"`  // the newest trigger that was taken up
	Starts  starts  `json:"starts,omitempty"` // what RunAtStart was run for
	Defined defined `json:"def,omitzero"`     // by whom

	// The runs before Run are a JSON array on a second line, the newest first: every
	// node reads every ledger, and only people ask for these.
	past []byte
}

// due is a run to come.
type due struct {
	At    int64 `json:"t"`
	Cause Cause `json:"c,omitempty"` // "" is CauseTick
}

// run is a run that has begun.
type run struct {
	due
	State    State  `json:"s"`
	Node     string `json:"node"`
	Start    int64  `json:"b"`
	End      int64  `json:"e,omitempty"`
	Attempts int    `json:"a,omitempty"`
	Broken   int    `json:"k,omitempty"`
	Err      string `json:"err,omitempty"`
}

// starts are the newest few identifiers given to RunAtStart. More than one is kept
// because nodes of the release before may start again while the next is rolled out.
type starts []string

const keptStarts = 8

func (s starts) add(id string) starts {
	s = append(s, id)
	return s[max(0, len(s)-keptStarts):]
}

// decodeLedger reads a memo. No memo is the ledger of a new job, with Version 0.
func decodeLedger(memo []byte) (*ledger, error) {
	l := new(ledger)
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
	if l.Version > ledgerVersion {
		return nil, fmt.Errorf("scheduler: the ledger has version %d, this node knows up to %d: left to newer nodes", l.Version, ledgerVersion)
	}
	return l, nil
}

func (l *ledger) encode() []byte {
	memo := encode(l)
	if len(l.past) > 0 {
		memo = append(append(memo, '\n'), l.past...)
	}
	return memo
}

// history is the runs before the present one.
func (l *ledger) history() (past []run, err error) {
	if len(l.past) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(l.past, &past); err != nil {
		return nil, fmt.Errorf("scheduler: the second line of the memo is no history: %w", err)
	}
	return past, nil
}

// begin makes r the present run, on the node of m.
func (l *ledger) begin(r run, m moment) *run {
	r.State, r.Node, r.Start = StateRunning, m.node, m.now.UnixMilli()
	if l.Run != nil {
		past, err := l.history()
		if err != nil {
			past = nil // it was for people, and Entry has shown them why there is none
		}
		past = slices.Insert(past, 0, *l.Run)
		l.past = encode(past[:min(len(past), historyRuns)])
	}
	l.Run = &r
	l.Defined.Since++
	return l.Run
}

// end settles the present run.
func (l *ledger) end(state State, at time.Time, attempts int, err error) {
	l.Run.State, l.Run.End, l.Run.Attempts = state, at.UnixMilli(), attempts
	if err != nil {
		l.Run.Err = shortenJSON(err.Error(), maxErrBytes)
	}
	switch state {
	case StateDone:
		l.Counts.Done++
	case StateFailed:
		l.Counts.Failed++
	case StateCancelled:
		l.Counts.Cancelled++
	case StateLost:
		l.Counts.Lost++
	case StateOverlapped:
		l.Counts.Overlapped++
	}
}

// encode is json.Marshal for what JSON has a form for. It leaves <, > and & as they are,
// for people to read.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// wait puts a run in Due. Of triggers, and of starts, that wait there is one at a time:
// the newest stands for those before it.
func (l *ledger) wait(d due) {
	if d.cause() != CauseTick {
		l.Due = slices.DeleteFunc(l.Due, func(other due) bool { return other.Cause == d.Cause })
	}
	if d.Cause == CauseTrigger {
		l.Due = slices.Insert(l.Due, 0, d)
	} else {
		l.Due = append(l.Due, d)
	}
}

// cut takes the oldest ticks out of Due, so that as many are left as there is room for, and
// returns them.
func (l *ledger) cut(room int) (gone []due) {
	surplus := -room
	for _, d := range l.Due {
		if d.cause() == CauseTick {
			surplus++
		}
	}
	l.Due = slices.DeleteFunc(l.Due, func(d due) bool {
		if len(gone) >= surplus || d.cause() != CauseTick {
			return false
		}
		gone = append(gone, d)
		return true
	})
	return gone
}

func (d due) cause() Cause {
	if d.Cause == "" {
		return CauseTick
	}
	return d.Cause
}

// tick is what the run's function gets to see.
func (r *run) tick(name string) Tick {
	return Tick{Name: name, At: time.UnixMilli(r.At).UTC(), Cause: r.cause(), Broken: r.Broken}
}

// unfinished reports whether the tick of r is still to be run by somebody. It is for
// a ledger whose lock is free: else r may be going on.
func (r *run) unfinished() bool {
	return r != nil && (r.State == StateRunning || r.State == StateInterrupted)
}

// shortenJSON cuts s to at most n bytes of UTF-8, counted as JSON has them: a control
// character has six.
func shortenJSON(s string, n int) string {
	size := 0
	for i, r := range s {
		if size += len(encode(string(r))) - len(`""`); size > n {
			return shorten(s, i)
		}
	}
	return shorten(s, n)
}

// shorten cuts s to at most n bytes of UTF-8.
func shorten(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
