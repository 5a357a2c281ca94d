package measure

import (
	"cmp"
	"slices"
	"time"
)

// fifoSlack is by how much a waiter must have asked earlier than another to have
// been overtaken by it: less may be the machine's doing, between reading the clock
// and the server.
const fifoSlack = 5 * time.Millisecond

// grant is one holding of the lock, in nanoseconds of Unix time.
type grant struct {
	Asked    int64 `json:"a"` // just before Acquire was called
	Granted  int64 `json:"g"` // just after it returned
	Released int64 `json:"r"` // just before Release was called
}

// before returns the grants of all answers up to a time: that of the order to stop.
// It does not reach all processes at once, and to rueidislock the end of the
// context that was waited with is the end of the lock too. So after it a lock
// can be granted to a process that has not been told yet, while the old holder
// has not come to noting down its release.
func before(stopped int64, answers []answer) (out []grant) {
	for _, a := range answers {
		for _, g := range a.Grants {
			if g.Granted <= stopped {
				out = append(out, g)
			}
		}
	}
	return out
}

// sequence is how a lock went from holder to holder.
type sequence struct {
	latencies  []float64 // of each hand-over, in milliseconds
	overtakes  int       // grants at which somebody who had asked earlier still waited
	violations int       // grants before the holder before had begun to release
}

// follow puts grants in order. The first lock was released at the given time.
func follow(released int64, grants []grant) sequence {
	ordered := slices.Clone(grants)
	slices.SortFunc(ordered, func(a, b grant) int { return cmp.Compare(a.Granted, b.Granted) })
	var s sequence
	for i, g := range ordered {
		if g.Granted < released {
			s.violations++
		}
		s.latencies = append(s.latencies, float64(g.Granted-released)/float64(time.Millisecond))
		released = g.Released
		if slices.ContainsFunc(ordered[i+1:], func(later grant) bool {
			return later.Asked+int64(fifoSlack) < g.Asked
		}) {
			s.overtakes++
		}
	}
	return s
}
