package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// The rules that Check, CheckGuard, CheckLimit, CheckLine and Linearizable know.
const (
	RuleOverlap     = "two holders at once"
	RuleLate        = "trusted after its deadline"
	RuleForced      = "renewed after it was forced away"
	RuleFence       = "a fence that did not grow"
	RuleInterleaved = "the guard let two holders in, one between the other's writes"
	RuleOrder       = "no order of the calls explains their answers"
	RuleLimit       = "more holders at once than there are permits"
	RuleLine        = "past a job that waited longer"
)

// Violation is one broken promise.
type Violation struct {
	Rule string
	Key  string
	Text string // who, and by how much
}

// String returns the violation in one line.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Key, v.Rule, v.Text) }

// Check looks for beliefs that overlap, for locks that were trusted too long, and for fences that do not grow. Events
// may come in any order, except that the events of one holding must be in order.
func Check(events []Event) []Violation {
	var out []Violation
	keys := byKey(events)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		stories, forced := bookOf(keys[key])
		out = append(out, checkDeadlines(keys[key])...)
		out = append(out, checkForced(stories, forced)...)
		out = append(out, checkOverlaps(stories)...)
		out = append(out, checkFences(keys[key])...)
	}
	return out
}

// checkDeadlines finds locks that were trusted after their deadline.
func checkDeadlines(events []Event) (out []Violation) {
	for _, e := range events {
		if e.Kind == Trusted && e.Call > e.Trust {
			out = append(out, Violation{RuleLate, e.Key, fmt.Sprintf("%s, %v after it", e.Holding, time.Duration(e.Call-e.Trust))})
		}
	}
	return out
}

// checkForced finds holders that renewed a lock after it was forced away: a deadline more
// than a TTL after the answer to ForceRelease comes from a later renewal. It ends the
// beliefs of the other holders at the ForceRelease, since they cannot know of it before
// their next renewal. That includes waiters: a grant may be forced away before its answer.
func checkForced(stories []*story, forced []Event) (out []Violation) {
	for _, f := range forced {
		for _, s := range stories {
			if s.grant.Call >= f.At {
				continue
			}
			if s.grant.At < f.Call && s.end() > f.At+int64(s.grant.TTL) {
				out = append(out, Violation{RuleForced, f.Key, fmt.Sprintf("%s, trusted until %v after it",
					s.grant.Holding, time.Duration(s.end()-f.At))})
			}
			s.ended = min(s.ended, f.Call)
		}
	}
	return out
}

// checkOverlaps compares each belief, and its fence, with the longest-lasting one that
// began before it.
func checkOverlaps(stories []*story) (out []Violation) {
	var longest *story // of those that began before
	for _, s := range stories {
		if s.end() <= s.grant.At {
			continue // ended before its user could act
		}
		if longest != nil {
			if by := min(longest.end(), s.end()) - s.grant.At; by > 0 {
				out = append(out, Violation{RuleOverlap, s.grant.Key, fmt.Sprintf("%s (fence %d) and %s (fence %d), for %v",
					longest.grant.Holding, longest.grant.Fence, s.grant.Holding, s.grant.Fence, time.Duration(by))})
			}
			if s.grant.Fence <= longest.grant.Fence {
				out = append(out, grew(longest.grant, s.grant))
			}
		}
		if longest == nil || s.end() > longest.end() {
			longest = s
		}
	}
	return out
}

// checkFences finds fences that are not larger than one that was answered before their
// call, and fences that were given twice.
func checkFences(events []Event) (out []Violation) {
	var given []Event
	lastFence := make(map[string]int64) // the last fence that each job in line got
	for _, e := range events {
		again := e.Kind == Taken && lastFence[e.Chain] == e.Fence
		if e.Fence != 0 && e.Kind != FreeBegun && !again { // a FreeBegun gets no fence, it names one
			given = append(given, e)
		}
		if e.Kind == Taken {
			lastFence[e.Chain] = e.Fence
		}
	}
	answered := slices.Clone(given)
	slices.SortFunc(answered, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	slices.SortFunc(given, func(a, b Event) int { return cmp.Compare(a.Call, b.Call) })
	var largest Event // of those answered before
	for _, e := range given {
		for len(answered) > 0 && answered[0].At < e.Call {
			if answered[0].Fence > largest.Fence {
				largest = answered[0]
			}
			answered = answered[1:]
		}
		if e.Fence <= largest.Fence {
			out = append(out, grew(largest, e))
		}
	}
	seen := make(map[int64]Event)
	for _, e := range given {
		if before, twice := seen[e.Fence]; twice {
			out = append(out, grew(before, e))
		}
		seen[e.Fence] = e
	}
	return out
}

func grew(before, after Event) Violation {
	return Violation{RuleFence, after.Key, fmt.Sprintf("%s %s %d after %s %s %d",
		after.Holding, after.Kind, after.Fence, before.Holding, before.Kind, before.Fence)}
}

// Write is a write that a guarded resource has accepted. Such a resource refuses a fence
// that is smaller than the largest it has seen.
type Write struct {
	Fence   int64
	Holding string
}

// CheckGuard looks for holders that wrote again after another holder had. writes are in the
// order in which the resource accepted them.
func CheckGuard(key string, writes []Write) (out []Violation) {
	var last Write
	over := make(map[string]bool)
	for i, w := range writes {
		if i > 0 && w.Holding != last.Holding {
			over[last.Holding] = true
			if w.Fence <= last.Fence {
				out = append(out, Violation{RuleFence, key, fmt.Sprintf("write %d of %s has %d, the one of %s before it %d",
					i, w.Holding, w.Fence, last.Holding, last.Fence)})
			}
		}
		if over[w.Holding] {
			out = append(out, Violation{RuleInterleaved, key, fmt.Sprintf("write %d of %s, after one of %s", i, w.Holding, last.Holding)})
		}
		last = w
	}
	return out
}
