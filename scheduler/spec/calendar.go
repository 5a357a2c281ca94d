package spec

import (
	"math/bits"
	"time"
)

// calendar is a set of wall-clock times without a zone. For each field a calendar has the bit set of the matching
// values. A wall-clock time is the Unix seconds at which a clock in UTC shows that time.
type calendar [6]uint64

// The indexes of the elements of a calendar, and of the array that is named fields.
const second, minute, hour, dom, month, dow = 0, 1, 2, 3, 4, 5

// farthest is more than the longest time between two ticks, in seconds: 8 years, because 2100 has no 29 February.
const farthest = 1 << 28

// next returns the first time of the calendar at or after the time from; false if there is no such time.
func (c calendar) next(from int64) (int64, bool) {
	t := time.Unix(from, 0).UTC()
	y, m, d := t.Date()
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()
	if c.days(y, m)&(1<<d) != 0 {
		if sec, ok := c.timeOfDay(int(from - midnight)); ok {
			return midnight + int64(sec), true
		}
	}
	d++
	for range 8*12 + 1 {
		if left := notBelow(c.days(y, m), d); left != 0 {
			sec, ok := c.timeOfDay(0)
			return time.Date(y, m, bits.TrailingZeros64(left), 0, 0, sec, 0, time.UTC).Unix(), ok
		}
		if m++; m > time.December {
			y, m = y+1, time.January
		}
		d = 1
	}
	return 0, false
}

// days returns the bit set of the matching days of a month.
func (c calendar) days(y int, m time.Month) uint64 {
	if c[month]&(1<<m) == 0 {
		return 0
	}
	first := time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	week := c[dow] | c[dow]<<7 | c[dow]<<14 | c[dow]<<21 | c[dow]<<28 | c[dow]<<35
	byWeek := week >> first.Weekday() << 1
	length := first.AddDate(0, 1, -1).Day()
	exist := uint64(2<<length - 2)
	if c[dom] == fields[dom].all() || c[dow] == fields[dow].all() {
		return c[dom] & byWeek & exist
	}
	return (c[dom] | byWeek) & exist
}

// timeOfDay returns the first matching time of day at or after sec, in seconds since midnight; false if there is none.
func (c calendar) timeOfDay(sec int) (int, bool) {
	h, m, s := sec/3600, sec/60%60, sec%60
	if c[hour]&(1<<h) != 0 {
		if c[minute]&(1<<m) != 0 {
			if left := notBelow(c[second], s); left != 0 {
				return h*3600 + m*60 + bits.TrailingZeros64(left), true
			}
		}
		if left := notBelow(c[minute], m+1); left != 0 {
			return h*3600 + bits.TrailingZeros64(left)*60 + bits.TrailingZeros64(c[second]), true
		}
	}
	left := notBelow(c[hour], h+1)
	if left == 0 {
		return 0, false
	}
	return bits.TrailingZeros64(left)*3600 + bits.TrailingZeros64(c[minute])*60 + bits.TrailingZeros64(c[second]), true
}

// notBelow returns the elements of set that are at least n.
func notBelow(set uint64, n int) uint64 { return set >> n << n }
