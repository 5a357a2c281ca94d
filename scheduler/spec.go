package scheduler

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Bounds of what ParseSpec accepts.
const (
	// MaxSpecBytes is how long a spec may be.
	MaxSpecBytes = 1024
	// MinEvery and MaxEvery bound the period of @every.
	MinEvery = time.Second
	MaxEvery = driver.MaxPeriod
)

// Spec is a parsed schedule: it says when a job's ticks are. Every node that parses
// the same spec means the same instants, whenever it was started. Specs are made by
// ParseSpec; the zero Spec has no ticks. A Spec is a value, safe for concurrent use.
//
// # Clock changes
//
// If the hour field has every hour (*, 0-23), the spec is a rhythm. It ticks whenever
// the clock on the wall shows a time that matches, so an hour that the clock shows
// twice has its ticks twice, an hour that it leaves out has none, and as time is
// counted every hour has passed once.
//
// If the hour field has fewer hours, the spec names times of the day, and each of them
// happens once on every day: when the clock on the wall first reaches or passes it. A
// time shown twice is the first of the two. A time left out is the first instant after
// the gap; so is every other in the same gap, and they are one tick. This holds for a
// gap of a whole day too (Pacific/Apia had no 30 December 2011).
//
// In Europe/Berlin the clock goes from 02:00 to 03:00 on one day of the year, and from
// 03:00 back to 02:00 on another. In summer time, s:
//
//	spec          hours  on the first day                on the second day
//	0 * * * *     all    01:00 03:00s 04:00s             01:00s 02:00s 02:00 03:00
//	*/30 * * * *  all    01:00 01:30 03:00s 03:30s       01:30s 02:00s 02:30s 02:00 02:30 03:00
//	30 2 * * *    named  03:00s                          02:30s
//	30 1,2 * * *  named  01:30 03:00s                    01:30s 02:30s
//	*/15 2 * * *  named  03:00s                          02:00s 02:15s 02:30s 02:45s
//	0 1-5 * * *   named  01:00 03:00s 04:00s 05:00s      01:00s 02:00s 03:00 04:00 05:00
//	0 */2 * * *   named  00:00 03:00s 04:00s 06:00s      00:00s 02:00s 04:00 06:00
//
// The minute field decides nothing: it would be a guess whether 0,30 means two times
// or a rhythm. Where a zone moves by half an hour (Australia/Lord_Howe), the one
// interval of an hourly rhythm that spans the change is 30 or 90 minutes long.
type Spec struct {
	every int64 // period in seconds; 0: by the calendar
	cal   calendar
	zone  *time.Location
}

// Next returns the first tick after the given time, strictly, in UTC. It is the zero
// time only if the spec has no ticks at all ("0 0 30 2 *": between any other two lie 8
// years at most), and for a time before the year 1 or after 9999. What it does is
// bounded: it looks at no more than 8 years of months, and at some days of the zone.
func (s Spec) Next(after time.Time) time.Time {
	at := after.Unix()
	if at < earliest || at > latest {
		return time.Time{}
	}
	if s.every > 0 {
		return time.Unix(s.nextMultiple(at), 0).UTC()
	}
	if s.zone == nil {
		return time.Time{}
	}
	if next, ok := s.nextInZone(at); ok {
		return time.Unix(next, 0).UTC()
	}
	return time.Time{}
}

// Prev returns the last tick at or before the given time, in UTC, the zero time if
// there is none: Prev(t) ≤ t < Next(t).
func (s Spec) Prev(at time.Time) time.Time {
	// The last tick is where "the next tick is not after at" stops being true, which
	// is found by halving. A search of its own, backwards through calendar and zone,
	// would be a second statement of the rules above.
	//
	// The steps back double up to farthest: there are 29 at most, and as many to halve.
	end := at.Unix()
	due := func(from int64) bool {
		next := s.Next(time.Unix(from, 0))
		return !next.IsZero() && next.Unix() <= end
	}
	lo, hi := end, end
	for step := int64(1); !due(lo); step *= 2 {
		if step > farthest {
			return time.Time{}
		}
		lo, hi = max(end-step, earliest), lo
	}
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; due(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return time.Unix(hi, 0).UTC()
}

// Ticks returns the ticks after the first time, up to and including the second, in
// order.
func (s Spec) Ticks(after, until time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for t := s.Next(after); !t.IsZero() && !t.After(until) && yield(t); {
			t = s.Next(t)
		}
	}
}

// Zone returns the time zone by which the spec is read, never nil. It is UTC for
// @every, which has none.
func (s Spec) Zone() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// String returns the spec in one form for all its spellings, with its zone:
// "CRON_TZ=Europe/Berlin 0,30 9-17 * * 1-5", "@every 1m30s". Specs with equal strings
// have the same ticks, as far as zones of the same name are the same. ParseSpec reads
// it back. It is "" for the zero Spec.
func (s Spec) String() string {
	switch {
	case s.every > 0:
		return "@every " + (time.Duration(s.every) * time.Second).String()
	case s.zone == nil:
		return ""
	}
	words := []string{"CRON_TZ=" + s.zone.String()}
	if s.cal.second != 1 {
		words = append(words, secondField.format(s.cal.second))
	}
	return strings.Join(append(words,
		minuteField.format(s.cal.minute),
		hourField.format(s.cal.hour),
		domField.format(s.cal.dom),
		monthField.format(s.cal.month),
		dowField.format(s.cal.dow),
	), " ")
}

// format writes a set of the field's values: all as *, steps that go on to the end as
// such, the rest as a list of numbers and ranges.
func (f field) format(set uint64) string {
	if set == f.all() {
		return "*"
	}
	first, count := bits.TrailingZeros64(set), bits.OnesCount64(set)
	if count > 3 { // fewer are plainer as a list
		step := bits.TrailingZeros64(set&(set-1)) - first
		if step > 1 && set == stepped(first, f.max, step) {
			from := "*"
			if first != f.min {
				from = strconv.Itoa(first) + "-" + strconv.Itoa(f.max)
			}
			return from + "/" + strconv.Itoa(step)
		}
	}
	var parts []string
	for set != 0 {
		lo := bits.TrailingZeros64(set)
		run := bits.TrailingZeros64(^(set >> lo))
		set &^= (1<<run - 1) << lo
		part := strconv.Itoa(lo)
		if run > 1 {
			part += "-" + strconv.Itoa(lo+run-1)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}
