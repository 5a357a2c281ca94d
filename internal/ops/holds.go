package ops

import (
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/event"
)

// HoldStats says how long recent holders had a key, from when they got it until the next holder could get it.
type HoldStats struct {
	N      int    `json:"n"`         // how many holdings the numbers cover, the latest ones
	Since  Time   `json:"since"`     // when the oldest of these holdings began
	Median Millis `json:"median_ms"` // half of them took less
	Least  Millis `json:"least_ms"`
	Most   Millis `json:"most_ms"`
}

const (
	// holdsOf is the maximum number of holdings that a HoldStats covers.
	holdsOf = 20

	// holdsRead is how many of the latest entries of the journal are read for HoldStats and RecentEvents, and holdsPage
	// is how many a single call reads.
	holdsRead = 10 * holdsPage
	holdsPage = 100
)

// holdsIn returns the HoldStats of events, or nil if they show no complete holding. With the defaults of package journal,
// a journal has the acquires that waited, and no releases. So a holding also counts as ended when a caller that waited
// for most of it gets the key. A release says how long the holder had the key, even if the journal lacks the acquire.
func holdsIn(events []Event) *HoldStats {
	type holding struct {
		owner    string
		from, to time.Time
	}
	var all []holding
	end := func(h holding, at time.Time) {
		if h.to = at; h.from.Before(at) {
			all = append(all, h)
		}
	}
	// For each key the present holding, and the one before. The release of the one before may come after the next
	// acquire, because different processes report the two, some milliseconds apart.
	begun, before := make(map[string]holding), make(map[string]holding)
	counted := make(map[string]string) // by key: the owner whose holding was counted as ended by a waiter's acquire
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At.Time) })
	for _, e := range events {
		is, known := begun[e.Key]
		mine := known && (e.Owner == "" || is.owner == "" || e.Owner == is.owner)
		switch e.Kind {
		case event.Acquired.String():
			delete(before, e.Key)
			switch {
			case !known || e.Prior == "lapsed":
			case e.Waited.Duration() >= e.At.Sub(is.from)/3*2:
				end(is, e.At.Time)
				counted[e.Key] = is.owner
			default:
				before[e.Key] = is
			}
			begun[e.Key] = holding{owner: e.Owner, from: e.At.Time}
		case event.Released.String(), event.ReleasedByToken.String(), event.Freed.String(), event.Forced.String():
			was, late := before[e.Key]
			switch {
			case mine:
				delete(begun, e.Key)
				end(is, e.At.Time)
			case late && e.Owner == was.owner:
				delete(before, e.Key)
				end(was, e.At.Time)
			case e.Held > 0 && (e.Owner == "" || e.Owner != counted[e.Key]): // the acquire is not in the journal: there was no wait
				end(holding{from: e.At.Add(-e.Held.Duration())}, e.At.Time)
			}
		case event.Lost.String():
			if mine {
				delete(begun, e.Key)
			}
		}
	}
	if all = all[max(0, len(all)-holdsOf):]; len(all) == 0 {
		return nil
	}
	h := &HoldStats{N: len(all), Since: Time{all[0].from}}
	var took []Millis
	for _, one := range all {
		took = append(took, Millis(one.to.Sub(one.from)))
		if one.from.Before(h.Since.Time) {
			h.Since.Time = one.from
		}
	}
	slices.Sort(took)
	h.Least, h.Median, h.Most = took[0], took[(len(took)-1)/2], took[len(took)-1]
	return h
}

// Pace describes in sentences how long recent holders took, for waiters who want to know when their turn comes. It is ""
// if there are no waiters.
func (l Lock) Pace() string {
	if len(l.Line) == 0 {
		return ""
	}
	if l.Holds == nil {
		return "How long the wait will take is not known: no journal says how long recent holders had the key."
	}
	h := l.Holds
	text := fmt.Sprintf("The last holder had the key for %s.", length(h.Median.Duration()))
	if h.N > 1 {
		text = fmt.Sprintf("The last %d holders had the key for %s to %s, typically %s.",
			h.N, length(h.Least.Duration()), length(h.Most.Duration()), length(h.Median.Duration()))
		if length(h.Least.Duration()) == length(h.Most.Duration()) {
			text = fmt.Sprintf("The last %d holders had the key for %s each.", h.N, length(h.Most.Duration()))
		}
	}
	if l.Locked() {
		text += fmt.Sprintf(" The present one has had it for %s", length(l.Age.Duration()))
		if l.Age > h.Most {
			text += ", which is longer than any of them"
		}
		text += "."
	}
	return text
}
