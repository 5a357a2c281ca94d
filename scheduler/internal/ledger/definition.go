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

	// During a deploy, nodes with the old and the new definition take turns. rollout is
	// how long that may last at least.
	rollout = 15 * time.Minute

	// contested is how often a definition must have come back after another one. A deploy
	// that is rolled back does it once.
	contested = 3

	// settled is after how many executions by one definition the contest is over.
	settled = 50

	// reminder is the shortest time between two reports of a contest.
	reminder = time.Hour
)

// Definition is who has written a ledger: it shows when two applications share a job
// without knowing of each other.
type Definition struct {
	Program string   `json:"by"`             // of the latest writer
	By      []string `json:"is"`             // the latest fingerprints, the newest first
	Back    int      `json:"back,omitempty"` // how often one came back after another, since the last new one
	First   int64    `json:"t,omitempty"`    // ms: when that was for the first time
	Latest  int64    `json:"u,omitempty"`    // and for the last time
	Since   int      `json:"n,omitempty"`    // executions since then
	Told    int64    `json:"w,omitempty"`    // when it was last reported
}

var errContested = errors.New("scheduler: two different definitions of the job take turns in one scope; give each application a Config.Scope of its own")

// Contested reports whether several definitions take turns with the job.
func (d Definition) Contested() bool {
	return d.Back >= contested && d.Latest-d.First >= rollout.Milliseconds() && d.Since <= settled
}

// define records by whose definition the ledger is updated, and reports a change. The
// change alone is not worth a write.
func (l *Ledger) define(j *Job, m Moment) []News {
	d := &l.Definition
	mine, now := j.Fingerprint, m.Now.UnixMilli()
	at := slices.Index(d.By, mine)
	change := errors.New("its options have changed")
	if l.Spec != j.SpecText || d.Program != j.Program {
		change = fmt.Errorf("it was %q of program %q, and is %q of program %q", l.Spec, d.Program, j.SpecText, j.Program)
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

// ShortenProgram cuts the name of a program to what a ledger has room for.
func ShortenProgram(name string) string { return shortenJSON(name, maxProgramBytes) }
