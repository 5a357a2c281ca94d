package spec

import "time"

// The range of Next in Unix seconds: the years 1 to 9999.
const (
	earliest = -62135596800
	latest   = 253402300799
)

const (
	// farOff is how far from UTC a zone may be, in seconds, as in RFC 9636.
	farOff = 26 * 3600

	// around is the longest time between two instants with one wall-clock time, in seconds.
	around = 2 * farOff

	// stride is less than the time between any two changes of a zone, in seconds. The
	// shortest so far was 4 days, in Africa/Freetown in 1939.
	stride = 24 * 3600

	// maxSkipped bounds the search of a rhythm: how many matching days in a row a zone may
	// skip. No zone ever skipped two.
	maxSkipped = 16
)

// nextMultiple returns the first tick of @every after an instant.
func (s Spec) nextMultiple(after int64) int64 {
	n := after / s.every
	if after%s.every < 0 { // Go divides towards zero
		n--
	}
	return (n + 1) * s.every
}

// nextInZone returns the first tick of a calendar after an instant.
//
// It only asks the zone for its offset at an instant, and only in two short windows:
// around the given time and around the calendar's next time. It does not use
// time.Time.ZoneBounds, which on 31 December of leap years says that the offset ended before
// that day (golang/go#81583). Nor does time.Date help: it does not say whether a time is
// shown twice or skipped.
func (s Spec) nextInZone(after int64) (int64, bool) {
	if s.cal.rhythm() {
		return s.nextShown(after)
	}
	return s.nextReached(after)
}

// nextReached returns the first instant after the given one at which the clock reaches or
// passes a time of the calendar for the first time.
func (s Spec) nextReached(after int64) (int64, bool) {
	// shown is the latest time that the clock has shown: times up to it were reached before.
	shown := after + s.offset(after)
	for at := after - around; at < after; {
		change, changed := s.change(at, after)
		if !changed {
			break
		}
		shown = max(shown, change-1+s.offset(change-1))
		at = change
	}
	wall, ok := s.cal.next(shown + 1)
	if !ok {
		return 0, false
	}
	until := wall + farOff
	for at := max(wall-farOff, after+1); at <= until; {
		due := wall - s.offset(at)
		if due <= at {
			return at, true // skipped: due when the clock passes it
		}
		change, changed := s.change(at, min(due, until))
		if !changed {
			return due, due <= until
		}
		at = change
	}
	return 0, false
}

// nextShown returns when the clock next shows a time of the calendar.
func (s Spec) nextShown(after int64) (int64, bool) {
	at := after + 1
	for range 2 + maxSkipped {
		until := at + around
		for at < until {
			offset := s.offset(at)
			wall, ok := s.cal.next(at + offset)
			if !ok {
				return 0, false
			}
			due := wall - offset
			change, changed := s.change(at, min(due, until))
			if !changed && due <= until {
				return due, true
			}
			if !changed {
				break
			}
			at = change
		}
		// Nothing so far. Go on to where the clock may show the calendar's next time,
		// whatever its offset will be.
		wall, ok := s.cal.next(until - farOff)
		if !ok {
			return 0, false
		}
		at = max(until, wall-farOff)
	}
	return 0, false
}

// offset returns the offset of the zone at an instant, in seconds east of UTC.
func (s Spec) offset(at int64) int64 {
	_, offset := time.Unix(at, 0).In(s.zone).Zone()
	return int64(offset)
}

// change returns the first instant in (from, until] with another offset than at from, false
// if there is none. It samples one instant a day.
func (s Spec) change(from, until int64) (int64, bool) {
	offset := s.offset(from)
	for from < until {
		next := min(from+stride, until)
		if s.offset(next) == offset {
			from = next
			continue
		}
		for next-from > 1 {
			if mid := from + (next-from)/2; s.offset(mid) == offset {
				from = mid
			} else {
				next = mid
			}
		}
		return next, true
	}
	return 0, false
}
