package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	keptDefinitions = 4
	maxProgramBytes = 100

	// rollout is how long definitions may take turns before that counts as a contest: in a
	// deploy they take turns too.
	rollout = 15 * time.Minute

	// contested is how often a definition must come back after another one to make a
	// contest. In a deploy that is rolled back it comes back once.
	contested = 3

	// settled is how many executions under one definition a contest outlasts.
	settled = 50

	// reminder is the shortest time between two reports of a contest.
	reminder = time.Hour
)

// Definition says by which definitions of the job a ledger was written. It shows that two
// applications share a job by mistake.
type Definition struct {
	Program string   `json:"by"`             // of the latest writer
	By      []string `json:"is"`             // the latest fingerprints, the newest first
	Back    int      `json:"back,omitempty"` // how often an earlier one came back, since the last new one
	First   int64    `json:"t,omitempty"`    // ms: when one came back for the first time
	Latest  int64    `json:"u,omitempty"`    // and for the last time
	Since   int      `json:"n,omitempty"`    // executions since then
	Told    int64    `json:"w,omitempty"`    // ms: when Back was last reported
}

var errContested = errors.New("scheduler: two different definitions of the job take turns in one scope; give each application a Config.Scope of its own")

// Contested reports whether several definitions take turns with the job.
func (d Definition) Contested() bool {
	return d.Back >= contested && d.Latest-d.First >= rollout.Milliseconds() && d.Since <= settled
}

// define records that the ledger is updated by j's definition, and reports a change. The
// change alone is not worth a write.
func (l *Ledger) define(j *Job, m Moment) []News {
	d := &l.Definition
	mine, now := j.Fingerprint, m.Now.UnixMilli()
	at := slices.Index(d.By, mine)
	change := errors.New("its options have changed")
	if l.Spec != j.SpecText || d.Program != j.Program {
		change = fmt.Errorf("the job was %q of program %q, and is now %q of program %q", l.Spec, d.Program, j.SpecText, j.Program)
	}
	if at != 0 {
		d.By = slices.DeleteFunc(d.By, func(other string) bool { return other == mine })
		d.By = slices.Insert(d.By, 0, mine)
		d.By = d.By[:min(len(d.By), keptDefinitions)]
	}
	d.Program, l.Delay = j.Program, j.Delay.Milliseconds()
	switch {
	case at == 0 || len(d.By) == 1:
		return nil
	case at < 0:
		d.Back = 0
		return []News{{Kind: NewsRedefined, Node: m.Node, Err: change}}
	}
	if d.Back == 0 || d.Since > settled {
		d.Back, d.First, d.Told = 0, now, 0
	}
	d.Back, d.Latest, d.Since = d.Back+1, now, 0
	if !d.Contested() || now-d.Told < reminder.Milliseconds() {
		return nil
	}
	d.Told = now
	return []News{{Kind: NewsContested, Node: m.Node, Count: d.Back, Err: fmt.Errorf("%w: %w", errContested, change)}}
}

// ShortenProgram cuts the name of a program to the room for it in a ledger.
func ShortenProgram(name string) string { return shortenJSON(name, maxProgramBytes) }
