package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// actsRead is how many actions Explain reads at most, the newest first. Refused actions do not count.
	actsRead = 500

	// actsBack is how far back Explain reads actions. If the present or last holding began earlier, it reads from there.
	actsBack = 24 * time.Hour

	// actsShown is the maximum number of actions in an explanation.
	actsShown = 8
)

// actsOn returns the latest actions on l and on its job, the newest first. It leaves out refused actions, which changed
// nothing.
func (d *Desk) actsOn(ctx context.Context, l Lock) (acts []AuditEntry, err error) {
	now := l.Now.Time
	if now.IsZero() {
		now = time.Now() // the store has no record of the key
	}
	since := now.Add(-actsBack)
	if begun := l.Since.Add(-time.Minute); !l.Since.IsZero() && begun.Before(since) {
		since = begun
	}
	read := 0
	for e, err := range Actions(d.Audit(ctx, AuditQuery{Since: since})) {
		if err != nil {
			return acts, err
		}
		if e.Outcome == OutcomeRefused {
			continue // refused actions do not count towards actsRead
		}
		if read++; l.Concerns(e) {
			e.From, e.Before, e.Keys = "", nil, nil
			acts = append(acts, e)
		}
		if len(acts) == actsShown || read == actsRead {
			break
		}
	}
	return acts, nil
}

// Concerns reports whether e is about l, one of its permits or slots, or a task that has or had the lock.
func (l Lock) Concerns(e AuditEntry) bool {
	_, group, _ := roleOf(e.Key)
	return e.Scope == "" && e.Key != "" && (e.Key == l.Key || group == l.Key || e.Key == l.Job || slices.Contains(e.Keys, l.Key))
}

// unreadActs returns a sentence about err, the error from reading the actions, or "" if err is nil. An operator who may
// not read the record of actions sees the sentence only if the record might explain something: a forced release, or a
// missing task.
func (s *story) unreadActs(err error) string {
	if err == nil || Denied(err) && s.FreedBy != FreedByForce && s.task.State != TaskAbsent {
		return ""
	}
	return fmt.Sprintf("What operators have done could not be read: %s.", strings.TrimPrefix(err.Error(), "joblock: "))
}

// forcedBy returns the operator's action that ended the last holding, or nil.
func (s *story) forcedBy() *AuditEntry {
	return s.act(func(e AuditEntry) bool {
		return s.FreedBy == FreedByForce && (e.Action == ActForce || e.Action == ActFreeIdle) && e.Key == s.Key && e.Fence == s.Fence
	})
}

// deletedBy returns the deletion of the task of the job, or nil.
func (s *story) deletedBy() *AuditEntry {
	return s.act(func(e AuditEntry) bool {
		return s.Job != "" && (e.Action == ActDeleteTask || e.Action == ActEndDelete) && e.Key == s.Job
	})
}

func (s *story) act(is func(AuditEntry) bool) *AuditEntry {
	for i := range s.acts {
		if is(s.acts[i]) {
			return &s.acts[i]
		}
	}
	return nil
}

// operators describes the actions of operators that the other sentences do not mention.
func (s *story) operators() string {
	forced, deleted := s.forcedBy(), s.deletedBy()
	if s.task.State != TaskAbsent {
		deleted = nil
	}
	var all []string
	for i := range s.acts {
		e := &s.acts[i]
		if e == forced || e == deleted {
			continue
		}
		what := fmt.Sprintf("%s: %s", s.when(e.At.Time), visible(e.Action))
		if e.Key != s.Key {
			what += " on " + quote(e.Key)
		}
		all = append(all, what+s.byWhom(e))
	}
	if len(all) == 0 {
		return ""
	}
	text := "What operators did: " + strings.Join(all, "; ") + "."
	if len(s.acts) == actsShown {
		text += " The record of actions has all that they did to the key."
	}
	return text
}

// byWhom returns a phrase with the operator of e and the reason.
func (s *story) byWhom(e *AuditEntry) string {
	text := fmt.Sprintf(" by %s (%s)", visible(e.By), visible(e.Reason))
	if e.Outcome == OutcomeUnknown && e != s.forcedBy() { // the key's record shows that a forced release took effect
		text += ", and whether it took effect is not known"
	}
	return text
}

// when returns a time of day, and how long ago that was.
func (s *story) when(t time.Time) string {
	if s.now.IsZero() {
		return s.clock(t)
	}
	return fmt.Sprintf("%s (%s)", s.clock(t), s.ago(t))
}
