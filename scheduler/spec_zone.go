package scheduler

import "time"

// What Next works on, in seconds since 1970: the years 1 to 9999.
const (
	earliest = -62135596800
	latest   = 253402300799
)

const (
	// farOff is the farthest that a zone may be from UTC, in seconds: what RFC 9636
	// allows.
	farOff = 26 * 3600

	// around is how far apart two instants can be at most at which a zone's clock shows
	// the same.
	around = 2 * farOff

	// stride is less than the time between any two changes of a zone. The shortest yet
	// was 4 days, Africa/Freetown in 1939.
	stride = 24 * 3600

	// maxLeftOut bounds how many matching days in a row, each of which the clock leaves
	// out as a whole, a rhythm is searched past. No zone ever left out two.
	maxLeftOut = 16
)

// nextMultiple returns the first multiple of the period after a time.
func (s Spec) nextMultiple(after int64) int64 {
	n := after / s.every
	if after%s.every < 0 { // Go divides towards zero
		n--
	}
	return (n + 1) * s.every
}

// nextInZone returns the first tick of a calendar after a time.
//
// It asks the zone for nothing but its offset at an instant, and looks at the zone in
// short windows only: around the given time, and around the time that the calendar has
// next. It does not walk from one change of the zone to the next by time.Time.ZoneBounds,
// which on 31 December of leap years says that the offset ended before that day
// (golang/go#81583). Nor can time.Date be asked: it answers for a time shown twice, and
// for one left out, but not which of them it is.
func (s Spec) nextInZone(after int64) (int64, bool) {
	if s.cal.rhythm() {
		return s.nextShown(after)
	}
	return s.nextReached(after)
}

// nextReached returns when the clock first reaches or passes a time of the calendar, the
// first such instant after the given one.
func (s Spec) nextReached(after int64) (int64, bool) {
	// The farthest that the clock has come. Times up to there are not reached any more.
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
			return at, true // left out: due as the clock passes it
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
	for range 2 + maxLeftOut {
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
		// Nothing up to here. On to where the clock may show the calendar's next time,
		// whatever its offset is then.
		wall, ok := s.cal.next(until - farOff)
		if !ok {
			return 0, false
		}
		at = max(until, wall-farOff)
	}
	return 0, false
}

// offset is that of the zone at a time, in seconds east of UTC.
func (s Spec) offset(at int64) int64 {
	_, offset := time.Unix(at, 0).In(s.zone).Zone()
	return int64(offset)
}

// change returns the first instant after from, and up to until, at which the zone has
// another offset than at from. It looks at one instant a day.
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
