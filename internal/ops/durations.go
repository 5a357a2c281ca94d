package ops

import (
	"fmt"
	"time"
)

// Durations is how long the latest successful attempts of a type of task took; it covers up to workerstats.MostDurations
// attempts. Workers write these durations about once a minute.
type Durations struct {
	Count    int    `json:"count"`
	Shortest Millis `json:"shortest_ms"`
	Median   Millis `json:"median_ms"`
	Longest  Millis `json:"longest_ms"`
}

const (
	// fewDurations is how many successful attempts a type needs before another attempt is compared with them.
	fewDurations = 5

	// An attempt is slow if it has run for at least slowTimes the longest of them, and for at least slowMore longer than
	// that.
	slowTimes = 3
	slowMore  = 10 * time.Second
)

// Text returns the range, such as "3 s to 8 s".
func (u *Durations) Text() string {
	shortest, longest := length(u.Shortest.Duration()), length(u.Longest.Duration())
	if shortest == longest {
		return longest
	}
	return shortest + " to " + longest
}

// durations returns how long tasks of a type usually take, nil if no attempt is known.
func (k Keeper) durations(task string) *Durations {
	all := k.lengths.Of(task)
	if len(all) == 0 {
		return nil
	}
	return &Durations{len(all), Millis(all[0]), Millis(all[len(all)/2]), Millis(all[len(all)-1])}
}

// slower returns a sentence if the present attempt has run for far longer than usual, or "".
func (s *story) slower() string {
	u, ran := s.keeper.durations(s.task.Type), s.ran()
	if u == nil || u.Count < fewDurations || ran < slowTimes*u.Longest.Duration() || ran < u.Longest.Duration()+slowMore {
		return ""
	}
	return fmt.Sprintf("The attempt has run for %s, and the latest %d of its type that succeeded took %s: it may hang.", length(ran), u.Count, u.Text())
}
