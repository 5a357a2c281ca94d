package spec

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Forecast is a coming tick.
type Forecast struct {
	At   time.Time `json:"at"`             // in Spec.Zone
	Note string    `json:"note,omitempty"` // what a clock change does to this tick; on most days ""
}

// Forecast returns the first n ticks after the given time. The notes say which times of the clock are skipped, moved or
// shown twice, like "the clock goes from 02:00 to 03:00: the tick of 02:30 comes at 03:00". A skipped time without a
// tick is in the note of the next tick. @every has no notes: it does not look at the clock.
func (s Spec) Forecast(after time.Time, n int) (list []Forecast) {
	for previous := after; len(list) < n; {
		tick := s.Next(previous)
		if tick.IsZero() {
			break
		}
		list = append(list, Forecast{At: tick.In(s.Zone()), Note: s.note(previous.Unix(), tick.Unix())})
		previous = tick
	}
	return list
}

// note returns the note of a tick. previous is the instant of the previous tick.
func (s Spec) note(previous, tick int64) string {
	if s.zone == nil {
		return ""
	}
	clock := wallClock{s.zone}
	var notes []string
	for from := previous; ; {
		change, changed := clock.change(from, tick)
		if !changed {
			break
		}
		notes = append(notes, s.gapNotes(change, tick)...)
		from = change
	}
	for from := tick - around; ; {
		change, changed := clock.change(from, tick+around)
		if !changed {
			break
		}
		if note := s.repeatNote(change, tick); note != "" {
			notes = append(notes, note)
		}
		from = change
	}
	return strings.Join(notes, "; ")
}

// gapNotes returns notes about the times of the spec that a clock change skips. tick is the first tick at or after the
// change.
func (s Spec) gapNotes(change, tick int64) (notes []string) {
	clock := wallClock{s.zone}
	before, after := change+clock.offset(change-1), change+clock.offset(change)
	reached := clock.reached(change - 1)
	var moved, lost []int64
	for _, r := range s.rules {
		for wall := before - 1; r.every == 0; {
			var ok bool
			if wall, ok = r.cal.next(wall + 1); !ok || wall >= after {
				break
			}
			switch {
			case r.rhythm() && wall >= s.limits.from && wall < s.limits.until && s.limits.free(wall) == wall:
				lost = append(lost, wall)
			case !r.rhythm() && tick == change && wall > reached:
				moved = append(moved, wall)
			}
		}
	}
	lost = slices.DeleteFunc(lost, func(wall int64) bool { return slices.Contains(moved, wall) })
	from, to := clockWords(before, after)
	if n, times := timesWords(moved, before, after); n == 1 {
		notes = append(notes, fmt.Sprintf("the clock goes from %s to %s: the tick of %s comes at %s", from, to, times, to))
	} else if n > 1 {
		notes = append(notes, fmt.Sprintf("the clock goes from %s to %s: the ticks of %s come at %s, as one", from, to, times, to))
	}
	if n, times := timesWords(lost, before, after); n > 0 {
		notes = append(notes, fmt.Sprintf("the clock jumped from %s to %s: no tick at %s", from, to, times))
	}
	return notes
}

// repeatNote returns a note that says whether this is the first or the second of two ticks, if the clock shows the
// tick's time twice because of a change. For other ticks, and if only @every ticks, it returns "".
func (s Spec) repeatNote(change, tick int64) string {
	clock := wallClock{s.zone}
	before, after := change+clock.offset(change-1), change+clock.offset(change)
	again := before - after // for how long the clock shows times a second time
	twin, which, other := tick+again, "first", "second"
	switch {
	case tick < change-again || tick >= change+again:
		return ""
	case tick >= change:
		twin, which, other = tick-again, "second", "first"
	}
	if !slices.ContainsFunc(s.rules, func(r rule) bool {
		return r.every == 0 && (r.ticks(clock, tick) || r.ticks(clock, twin))
	}) {
		return ""
	}
	from, to := clockWords(before, after)
	_, time := timesWords([]int64{tick + clock.offset(tick)}, before, after)
	note := fmt.Sprintf("the clock goes from %s back to %s and shows %s twice: ", from, to, time)
	if next, ok := s.next(twin - 1); ok && next == twin {
		return note + "this is the " + which + " of two ticks"
	}
	return note + "no " + other + " tick"
}

func (r rule) ticks(clock wallClock, at int64) bool {
	next, ok := r.next(clock, at-1)
	return ok && next == at
}

// clockWords writes the times before and after a clock change, with dates if the dates differ.
func clockWords(before, after int64) (from, to string) {
	layout := clockLayout(before, after)
	return wallWords(before, layout), wallWords(after, layout)
}

// timesWords writes times that the clock skips or shows twice, and returns their number. More than four times are
// written as the first, the last and the number.
func timesWords(times []int64, before, after int64) (n int, text string) {
	slices.Sort(times)
	times = slices.Compact(times)
	layout := clockLayout(before, after)
	var texts []string
	for _, wall := range times {
		texts = append(texts, wallWords(wall, layout))
	}
	if n = len(texts); n > maxTimes {
		return n, fmt.Sprintf("%s to %s (%d times)", texts[0], texts[n-1], n)
	}
	return n, list(texts)
}

func clockLayout(before, after int64) string {
	if before/day != after/day {
		return "2006-01-02 15:04"
	}
	return "15:04"
}

func wallWords(wall int64, layout string) string {
	if wall%60 != 0 {
		layout += ":05"
	}
	return time.Unix(wall, 0).UTC().Format(layout)
}
