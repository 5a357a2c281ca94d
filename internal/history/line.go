package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

// place is a place in the line of a key: all that was seen of one job that waited under one Since.
type place struct {
	chain, job string
	since      int64
	seen       int64 // when the first answer that showed it arrived
	asked      int64 // when the last call that found it was made
}

// came is a grant to a waiter, with the earliest time at which the waiter can have begun to wait.
type came struct {
	grant Event
	since int64 // the Since of its place, 0 if none is known
	call  int64 // when it was first asked for
}

// CheckLine looks for keys that were given to another caller while a job that had come earlier waited, and for places
// that have changed their owner. It reports only what is certain: an answer after the grant shows that the job still
// has a place, which is older. A slot is given to the waiters for the key of the slots: see driver, Slots.
func CheckLine(events []Event) (out []Violation) {
	keys := make(map[string][]Event)
	for key, of := range byKey(events) {
		line, _ := driver.LineOf(key)
		keys[line] = append(keys[line], of...)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		out = append(out, checkLine(keys[key])...)
	}
	return out
}

func checkLine(events []Event) (out []Violation) {
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.Call, b.Call) })
	type id struct {
		job   string
		since int64
	}
	places := make(map[id]*place)
	begun := make(map[string]int64) // the first TakeBegun of each chain
	var grants []came
	for _, e := range events {
		switch e.Kind {
		case TakeBegun:
			if begun[e.Chain] == 0 {
				begun[e.Chain] = e.Call
			}
		case Waiting:
			at := places[id{e.Job, e.Since}]
			if at == nil {
				at = &place{e.Chain, e.Job, e.Since, e.At, e.Call}
				places[id{e.Job, e.Since}] = at
			}
			if at.chain != e.Chain {
				out = append(out, Violation{RuleLine, e.Key, fmt.Sprintf("the place of %s was %s's, and is %s's", e.Job, at.chain, e.Chain)})
			}
			at.seen, at.asked = min(at.seen, e.At), e.Call
		case Acquired:
			grants = append(grants, came{grant: e, call: e.Call})
		case Taken, Resumed:
			if begun[e.Chain] == 0 {
				continue // of no job in line
			}
			grants = append(grants, came{grant: e, call: begun[e.Chain]})
		}
	}
	for _, g := range grants {
		_, slot := driver.LineOf(g.grant.Key)
		for _, p := range places { // it has come from its own last place, or from a later one
			if slot {
				break // a job that has got a slot, and asks again, also has a new place
			}
			if p.chain == g.grant.Chain && p.seen < g.grant.Call {
				g.since = max(g.since, p.since)
			}
		}
		for _, p := range places {
			if p.chain == g.grant.Chain || g.grant.At >= p.asked {
				continue
			}
			if g.call > p.seen || g.since > p.since {
				out = append(out, Violation{RuleLine, g.grant.Key, fmt.Sprintf("%s %s to %s%s, while %s waited since %d",
					g.grant.Kind, g.grant.Holding, g.grant.Chain, g.grant.Job, p.job, p.since)})
			}
		}
	}
	return out
}
