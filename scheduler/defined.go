package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime/debug"
	"slices"
	"time"
)

const (
	keptDefinitions = 4
	maxProgramBytes = 100

	// In a deploy nodes with the old definition and nodes with the new one take turns.
	// rollout is how long that may last, at least.
	rollout = 15 * time.Minute

	// contested is how often a definition must have come back after another: a deploy
	// that was taken back does it once.
	contested = 3

	// settled is after how many runs of one definition it is all over.
	settled = 50

	// reminder is how often it is told at most that two definitions take turns.
	reminder = time.Hour
)

// defined is who has written a ledger: it shows whether two applications share a job
// without knowing of it.
type defined struct {
	Program string   `json:"by"`             // which has written it last
	By      []string `json:"is"`             // fingerprints of the latest few definitions, the newest first
	Back    int      `json:"back,omitempty"` // how often one came back after another, since there was a new one
	First   int64    `json:"t,omitempty"`    // ms: when that began
	Latest  int64    `json:"u,omitempty"`    // when it was last
	Since   int      `json:"n,omitempty"`    // runs since then
	Told    int64    `json:"w,omitempty"`    // when it was told
}

// contested reports whether several definitions take turns with the job.
func (d defined) contested() bool {
	return d.Back >= contested && d.Latest-d.First >= rollout.Milliseconds() && d.Since <= settled
}

// define notes whose definition of the job the ledger goes by from now on, and tells if it
// is another one. That alone is not worth a write.
func (l *ledger) define(j *job, m moment) []Event {
	d := &l.Defined
	mine, now := j.print, m.now.UnixMilli()
	at := slices.Index(d.By, mine)
	change := errors.New("its options are others")
	if l.Spec != j.text || d.Program != j.program {
		change = fmt.Errorf("it was %q of program %q, and is %q of program %q", l.Spec, d.Program, j.text, j.program)
	}
	if at != 0 {
		d.By = slices.DeleteFunc(d.By, func(other string) bool { return other == mine })
		d.By = slices.Insert(d.By, 0, mine)
		d.By = d.By[:min(len(d.By), keptDefinitions)]
	}
	d.Program, l.Delay = j.program, j.delay.Milliseconds()
	e := Event{Tick: Tick{Name: j.name}, Node: m.node}
	switch {
	case at == 0 || len(d.By) == 1:
		return nil
	case at < 0:
		d.Back = 0
		e.Kind = EventRedefined
		e.Err = change
		return []Event{e}
	}
	if d.Back == 0 || d.Since > settled {
		d.Back, d.First, d.Told = 0, now, 0
	}
	d.Back, d.Latest, d.Since = d.Back+1, now, 0
	if !d.contested() || now-d.Told < reminder.Milliseconds() {
		return nil
	}
	d.Told = now
	e.Kind, e.Count = EventContested, d.Back
	e.Err = fmt.Errorf("%w: %w", errContested, change)
	return []Event{e}
}

var errContested = errors.New("scheduler: two different definitions of the job take turns in one scope; give each application a Config.Scope of its own")

// fingerprint is a short text for what was registered under the job's name. What is
// different from one release to the next by nature, the id of RunAtStart, is not in it.
func (j *job) fingerprint() string {
	h := fnv.New64a()
	fmt.Fprint(h, j.program, "\n", j.text, "\n", j.task, j.catchUp, j.overlap, j.atMostOnce, j.timeout, j.retries, j.retryFirst, j.retryMost, j.jitter, j.atStart)
	return fmt.Sprintf("%016x", h.Sum64())
}

// program is the module that this program was built from, so that all programs of one
// module are the same. It is "" where the build did not note it.
func program() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return shortenJSON(cmp.Or(info.Main.Path, info.Path), maxProgramBytes)
}
