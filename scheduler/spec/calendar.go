package spec

import (
	"math/bits"
	"time"
)

// calendar is a set of wall-clock times without a zone. A wall-clock time is the Unix seconds at which a clock in UTC
// shows that time. A calendar has a bit set of the matching values for each field, and three more sets for days that
// depend on the month:
//
//	fromEnd  bit n: the day n days before the last, L-n; bit 0: the last day
//	nearest  bit n: the weekday nearest to day n, nW; bit 0: the last weekday, LW
//	nth      bit 6*day+n: the n-th such day of the week, day#n; bit 6*day: the last one, dayL
type calendar [9]uint64

// The indexes of the elements of a calendar. The first six are also those of fields.
const second, minute, hour, dom, month, dow, fromEnd, nearest, nth = 0, 1, 2, 3, 4, 5, 6, 7, 8

const (
	nthBits = 6              // how many bits of nth a day of the week has
	allNth  = 1<<nthBits - 1 // the bits of Sunday
)

// sparsest is how far apart two ticks of a calendar may be, in months: "0 0 * 2 5#5" ticks in leap years in which
// 29 February is a Friday, and 2100 is no leap year.
const sparsest = 40 * 12

// farthest is longer than sparsest, in seconds.
const farthest = 1 << 31

// next returns the first time of the calendar at or after from, or false if there is none.
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
	for range sparsest + 1 {
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
	length := first.AddDate(0, 1, -1).Day()
	week := c[dow] | c[dow]<<7 | c[dow]<<14 | c[dow]<<21 | c[dow]<<28 | c[dow]<<35
	byWeek := week>>first.Weekday()<<1 | c.nthDays(first.Weekday(), length)
	byDay := c[dom] | c.daysFromEnd(length) | c.nearestDays(first.Weekday(), length)
	exist := uint64(2<<length - 2)
	if c[dom] == fields[dom].all() || c[dow] == fields[dow].all() {
		return byDay & byWeek & exist
	}
	return (byDay | byWeek) & exist
}

// daysFromEnd returns the days of fromEnd in a month of the given length.
func (c calendar) daysFromEnd(length int) (days uint64) {
	for set := c[fromEnd]; set != 0; set &= set - 1 {
		if n := bits.TrailingZeros64(set); n < length {
			days |= 1 << (length - n)
		}
	}
	return days
}

// nearestDays returns the days of nearest in a month that begins with the day of the week first. The weekday is in the
// same month, and a month that is too short for a day has no weekday nearest to it.
func (c calendar) nearestDays(first time.Weekday, length int) (days uint64) {
	for set := c[nearest]; set != 0; set &= set - 1 {
		d := bits.TrailingZeros64(set)
		if d > length {
			continue
		}
		if d == 0 {
			d = length
		}
		switch weekday := (int(first) + d - 1) % 7; {
		case weekday == int(time.Saturday) && d == 1:
			d = 3
		case weekday == int(time.Saturday):
			d--
		case weekday == int(time.Sunday) && d == length:
			d -= 2
		case weekday == int(time.Sunday):
			d++
		}
		days |= 1 << d
	}
	return days
}

// nthDays returns the days of nth in a month that begins with the day of the week first.
func (c calendar) nthDays(first time.Weekday, length int) (days uint64) {
	for set := c[nth]; set != 0; set &= set - 1 {
		day, n := bits.TrailingZeros64(set)/nthBits, bits.TrailingZeros64(set)%nthBits
		d := 1 + (day-int(first)+7)%7 // the first such day of the month
		if n > 0 {
			d += 7 * (n - 1)
		} else {
			d += (length - d) / 7 * 7
		}
		days |= 1 << d // the caller drops days that do not exist
	}
	return days
}

// timeOfDay returns the first matching time of day at or after sec, in seconds since midnight, or false if there is
// none.
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
