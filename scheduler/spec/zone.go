package spec

import "time"

// wallClock is a wall clock in a zone.
type wallClock struct{ zone *time.Location }

// The methods of wallClock ask the zone only for its offset at an instant, and only in two short windows: around the
// given time and around the calendar's next time. No method uses time.Time.ZoneBounds: on 31 December of leap years
// ZoneBounds returns an end before that day (golang/go#81583). No method uses time.Date, which does not report whether
// the clock shows a time twice or skips it.

// earliest and latest are Unix seconds, the other constants are durations in seconds.
const (
	earliest = -62135596800 // the first second of the year 1
	latest   = 253402300799 // the last second of the year 9999

	farOff = 26 * 3600  // how far from UTC a zone may be, as in RFC 9636
	around = 2 * farOff // the longest time between two instants with the same wall-clock time
	stride = 24 * 3600  // less than between two changes of a zone; the least was 4 days, in Africa/Freetown in 1939
)

// maxSkipped bounds the search for a rhythm's next tick: how many matching days in a row a zone may skip. No zone has
// skipped two.
const maxSkipped = 16

// reached returns the latest wall-clock time that the clock has shown up to an instant. So the clock has reached all
// wall-clock times up to the result. The result does not go back when the clock goes back.
func (w wallClock) reached(at int64) int64 {
	shown := at + w.offset(at)
	for from := at - around; from < at; {
		change, changed := w.change(from, at)
		if !changed {
			break
		}
		shown = max(shown, change-1+w.offset(change-1))
		from = change
	}
	return shown
}

// reach returns the first instant after the given instant at which the clock has reached wall. The clock must not have
// reached it at the given instant. The result is false only in an invented zone, further than farOff from UTC.
func (w wallClock) reach(wall, after int64) (int64, bool) {
	until := wall + farOff
	for at := max(wall-farOff, after+1); at <= until; {
		due := wall - w.offset(at)
		if due <= at {
			return at, true // the clock skips wall, and passes it at this instant
		}
		change, changed := w.change(at, min(due, until))
		if !changed {
			return due, due <= until
		}
		at = change
	}
	return 0, false
}

// nextReached returns the first instant after the given instant at which a time of the calendar is reached: when the
// clock shows or passes it, and not when the clock shows it again.
func (w wallClock) nextReached(c calendar, after int64) (int64, bool) {
	wall, ok := c.next(w.reached(after) + 1)
	if !ok {
		return 0, false
	}
	return w.reach(wall, after)
}

// nextShown returns the first instant after the given instant at which the clock shows a time of the calendar.
func (w wallClock) nextShown(c calendar, after int64) (int64, bool) {
	at := after + 1
	for range 2 + maxSkipped {
		until := at + around
		for at < until {
			offset := w.offset(at)
			wall, ok := c.next(at + offset)
			if !ok {
				return 0, false
			}
			due := wall - offset
			change, changed := w.change(at, min(due, until))
			if !changed && due <= until {
				return due, true
			}
			if !changed {
				break
			}
			at = change
		}
		// The clock shows no time of the calendar before until. Go on at the first instant at which the clock may show
		// the calendar's next time, with whatever offset the zone has then.
		wall, ok := c.next(until - farOff)
		if !ok {
			return 0, false
		}
		at = max(until, wall-farOff)
	}
	return 0, false
}

// offset returns the offset of the zone at an instant, in seconds east of UTC.
func (w wallClock) offset(at int64) int64 {
	_, offset := time.Unix(at, 0).In(w.zone).Zone()
	return int64(offset)
}

// change returns the first instant in (from, until] at which the zone's offset differs from the offset at from, or
// false if there is none. The search samples one instant a day.
func (w wallClock) change(from, until int64) (int64, bool) {
	offset := w.offset(from)
	for from < until {
		next := min(from+stride, until)
		if w.offset(next) == offset {
			from = next
			continue
		}
		for next-from > 1 {
			if mid := from + (next-from)/2; w.offset(mid) == offset {
				from = mid
			} else {
				next = mid
			}
		}
		return next, true
	}
	return 0, false
}
