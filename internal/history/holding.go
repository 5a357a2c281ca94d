package history

import (
	"cmp"
	"math"
	"slices"
)

// story is all that was seen of one holding.
type story struct {
	grant Event
	trust int64   // the last deadline
	ended int64   // when the user gave it up or knew of its loss; MaxInt64 if neither was seen
	calls []*call // its Parks, Reclaims and Releases
}

// call is a Park, a Reclaim, a Release or a jobs.Free.
type call struct {
	begun  Event
	answer Event // of Kind "" if none was seen
}

// end returns when the belief ended, as far as was seen.
func (s *story) end() int64 { return min(s.trust, s.ended) }

// freesOf returns the calls of jobs.Free.
func freesOf(events []Event) (frees []*call) {
	byID := make(map[string]*call)
	for _, e := range events {
		switch c := byID[e.Holding]; {
		case e.Kind == FreeBegun:
			c = &call{begun: e}
			byID[e.Holding] = c
			frees = append(frees, c)
		case c != nil:
			c.answer = e
		}
	}
	return frees
}

// isGrant reports whether a holding began with e.
func isGrant(e Event) bool { return e.Kind == Acquired || e.Kind == Resumed || e.Kind == Reclaimed }

// bookOf returns the stories in events, in the order of their grants, and the Forced events.
func bookOf(events []Event) (stories []*story, forced []Event) {
	byID := make(map[string]*story)
	for _, e := range events {
		if isGrant(e) {
			s := &story{grant: e, trust: e.Trust, ended: math.MaxInt64}
			byID[e.Holding] = s
			stories = append(stories, s)
		}
	}
	for _, e := range events {
		s := byID[e.Holding]
		if s == nil {
			if e.Kind == Forced {
				forced = append(forced, e)
			}
			continue
		}
		switch e.Kind {
		case Trusted:
			s.trust = e.Trust
		case Lost:
			s.ended = min(s.ended, e.At)
		case ParkBegun, ReleaseBegun, ReclaimBegun:
			s.ended = min(s.ended, e.Call)
			s.calls = append(s.calls, &call{begun: e})
		case Parked, Released, Refused, Answered:
			// A holding makes one call at a time, so this answers the last one.
			if n := len(s.calls); n > 0 {
				s.calls[n-1].answer = e
			}
		}
	}
	slices.SortStableFunc(stories, func(a, b *story) int { return cmp.Compare(a.grant.At, b.grant.At) })
	return stories, forced
}

// byKey splits events by their key.
func byKey(events []Event) map[string][]Event {
	out := make(map[string][]Event)
	for _, e := range events {
		out[e.Key] = append(out[e.Key], e)
	}
	return out
}
