package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/joblock/toolkit/internal/keyspace"
)

// CheckLimit looks for moments at which more than n holders believe that they have a permit of one limit. Two holders of
// the same permit are found by Check.
func CheckLimit(events []Event, n int) (out []Violation) {
	limits := make(map[string][]*story)
	for key, es := range byKey(events) {
		if limit, ok := keyspace.Limit(key); ok {
			stories, forced := bookOf(es)
			_ = checkForced(stories, forced) // for the beliefs that it ends
			limits[limit] = append(limits[limit], stories...)
		}
	}
	for _, limit := range slices.Sorted(maps.Keys(limits)) {
		out = append(out, crowds(limit, limits[limit], n)...)
	}
	return out
}

// crowds returns the beliefs that were one too many when they began.
func crowds(limit string, stories []*story, n int) (out []Violation) {
	slices.SortFunc(stories, func(a, b *story) int { return cmp.Compare(a.grant.At, b.grant.At) })
	var inside []*story
	for _, s := range stories {
		if s.end() <= s.grant.At {
			continue // ended before its user could act
		}
		inside = slices.DeleteFunc(inside, func(other *story) bool { return other.end() <= s.grant.At })
		if inside = append(inside, s); len(inside) > n {
			out = append(out, Violation{RuleLimit, limit, fmt.Sprintf("%s (%s) makes %d of %d",
				s.grant.Holding, s.grant.Key, len(inside), n)})
		}
	}
	return out
}
