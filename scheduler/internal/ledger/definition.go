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
	maxPolicyBytes  = 500

	// contested is how often an earlier definition must come back to make a contest. In a deploy that is rolled back
	// the earlier definition comes back once.
	contested = 3

	// Rollout is how long definitions may alternate without a contest, as they do in a deploy.
	Rollout = 15 * time.Minute

	settled  = 50        // how many executions under one definition end a contest
	reminder = time.Hour // the shortest time between two reports of a contest
)

var errContested = errors.New("scheduler: conflicting definitions of this job in one scope; give each application a Config.Scope of its own")

// Contested reports whether conflicting definitions of the job alternate.
func (d Definition) Contested() bool {
	return d.Back >= contested && d.Latest-d.First >= Rollout.Milliseconds() && d.Since <= settled
}

// define records that a node with j's definition updates the ledger, and returns the News of a change of the
// definition, if any. Such a change alone need not be written.
func (l *Ledger) define(j *Job, m Moment) []News {
	d, now := &l.Definition, m.Now.UnixMilli()
	change := errors.New("its options have changed")
	if l.Spec != j.SpecText || d.Program != j.Program {
		change = fmt.Errorf("the spec was %q, of program %q, and is now %q, of program %q", l.Spec, d.Program, j.SpecText, j.Program)
	}
	at := slices.Index(d.By, j.Fingerprint)
	others := slices.DeleteFunc(d.By, func(other string) bool { return other == j.Fingerprint })
	d.By = prepend(j.Fingerprint, others, keptDefinitions)
	d.Program, d.Policies, l.Delay = j.Program, j.Policies, j.Delay.Milliseconds()
	switch {
	case at == 0 || len(d.By) == 1:
		return nil
	case at < 0:
		d.Back = 0
		return []News{{Kind: NewsRedefined, Node: m.Node, Err: change}}
	}
	if d.Back == 0 || d.Since > settled {
		d.Back, d.First, d.Reported = 0, now, 0
	}
	d.Back, d.Latest, d.Since = d.Back+1, now, 0
	if !d.Contested() || now-d.Reported < reminder.Milliseconds() {
		return nil
	}
	d.Reported = now
	return []News{{Kind: NewsContested, Node: m.Node, Count: d.Back, Err: fmt.Errorf("%w: %w", errContested, change)}}
}

// ShortenPolicies cuts the words of options so that they fit into a ledger.
func ShortenPolicies(words string) string { return shortenJSON(words, maxPolicyBytes) }

// ShortenProgram cuts the name of a program so that it fits into a ledger.
func ShortenProgram(name string) string { return shortenJSON(name, maxProgramBytes) }
