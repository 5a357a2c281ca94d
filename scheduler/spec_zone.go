package scheduler

import (
	"math"
	"time"
)

// What Next works on, in seconds since 1970: the years 1 to 9999.
const (
	earliest = -62135596800
	latest   = 253402300799
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
// The zone is walked in spans between its changes. time.Date cannot be asked instead:
// it answers for a time shown twice, and for one left out, but not which of them it is.
func (s Spec) nextInZone(after int64) (int64, bool) {
	in := spanAt(s.zone, after)
	from := after + in.offset + 1
	if !s.cal.rhythm() {
		// What the clock showed before it was last set back is not shown first any more.
		// One change is enough to look at: no zone ever had two within a day.
		_, before := time.Unix(in.start-1, 0).In(s.zone).Zone()
		from = max(from, in.start+int64(before))
	}
	for {
		wall, ok := s.cal.next(from)
		if !ok {
			return 0, false
		}
		if wall < in.end+in.offset {
			return wall - in.offset, true
		}
		in = spanAt(s.zone, in.end)
		switch start := in.start + in.offset; {
		case s.cal.rhythm():
			from = start
		case wall < start: // left out: due as the clock passes it
			return in.start, true
		default:
			from = wall
		}
	}
}

// span is a time in which a zone has one offset from UTC: from start until before end.
type span struct {
	start, end int64 // seconds since 1970
	offset     int64 // seconds east of UTC
}

// spanAt returns the span that a time lies in.
func spanAt(zone *time.Location, at int64) span {
	t := time.Unix(at, 0).In(zone)
	_, offset := t.Zone()
	sp := span{start: math.MinInt64 / 2, end: math.MaxInt64 / 2, offset: int64(offset)}
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		sp.start = start.Unix()
	}
	if !end.IsZero() {
		sp.end = end.Unix()
	}
	return sp
}
