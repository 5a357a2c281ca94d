package spec

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// MaxBytes is how long a spec may be.
const MaxBytes = 1024

// The bounds of the period of @every.
const (
	minEvery = time.Second
	maxEvery = 366 * 24 * time.Hour
)

// Spec is a parsed spec: a set of instants, the ticks. All nodes that parse the same text
// get the same instants. Specs are made by Parse; the zero Spec has no ticks. A Spec is a
// value, safe for concurrent use.
type Spec struct {
	every int64 // period in seconds; 0 if the calendar counts
	cal   calendar
	zone  *time.Location
}

// Next returns the first tick strictly after the given time, in UTC. It returns the zero
// time if the spec has no ticks ("0 0 30 2 *") and if after is before the year 1 or after
// 9999. Ticks are at most 8 years apart, so the search is bounded: 8 years of months and
// a few days of the zone.
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

// Prev returns the last tick at or before the given time, in UTC, or the zero time if
// there is none: Prev(t) ≤ t < Next(t).
func (s Spec) Prev(at time.Time) time.Time {
	// The last tick is where "the next tick is not after at" stops being true, so it
	// is found by bisection. A backward search of its own through calendar and zone
	// would state the rules a second time.
	//
	// The steps back double up to farthest: at most 29, and as many bisections.
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

// Ticks returns, in order, the ticks that are after the first time and not after the
// second.
func (s Spec) Ticks(after, until time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for t := s.Next(after); !t.IsZero() && !t.After(until) && yield(t); {
			t = s.Next(t)
		}
	}
}

// Zone returns the time zone in which the spec is read. It is never nil; for @every it is
// UTC.
func (s Spec) Zone() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// String returns the spec, with its zone, in a form that is the same for all spellings:
// "CRON_TZ=Europe/Berlin 0,30 9-17 * * 1-5", "@every 1m30s". Specs with equal strings have
// the same ticks, provided that zones of the same name are the same. Parse reads the form
// back. The zero Spec returns "".
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

// format writes a set of the field's values: all of them as *, steps to the end as a
// step, everything else as a list of numbers and ranges.
func (f field) format(set uint64) string {
	if set == f.all() {
		return "*"
	}
	first, count := bits.TrailingZeros64(set), bits.OnesCount64(set)
	if count > 3 { // fewer read better as a list
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
