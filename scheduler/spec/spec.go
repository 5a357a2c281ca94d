package spec

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// MaxBytes is how many bytes a spec may have.
const MaxBytes = 1024

const (
	minEvery = time.Second
	maxEvery = 366 * 24 * time.Hour
)

// Spec is a parsed spec: a set of instants, the ticks. All nodes that parse the same text
// get the same ticks. The zero Spec has none. A Spec is a value, safe for concurrent use.
type Spec struct {
	every int64 // period in seconds; 0 if cal and zone count
	cal   calendar
	zone  *time.Location
}

// Next returns the first tick after the given time, in UTC. It returns the zero time if the
// spec has no ticks ("0 0 30 2 *"), or if after is outside the years 1 to 9999. The search
// is bounded, because ticks are at most 8 years apart.
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

// Prev returns the last tick at or before the given time, in UTC, or the zero time if there
// is none. So Prev(t) ≤ t < Next(t).
func (s Spec) Prev(at time.Time) time.Time {
	// due is true before the last tick and false from it on, so bisection finds the tick.
	// A backward search through calendar and zone would state the rules a second time.
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

// Ticks returns the ticks that are later than after and not later than until, in order.
func (s Spec) Ticks(after, until time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for t := s.Next(after); !t.IsZero() && !t.After(until) && yield(t); {
			t = s.Next(t)
		}
	}
}

// Zone returns the time zone in which the spec is read, for @every UTC. It is never nil.
func (s Spec) Zone() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// String returns the spec in canonical form, which Parse reads back:
// "CRON_TZ=Europe/Berlin 0,30 9-17 * * 1-5", always with the zone, or "@every 1m30s", which
// needs none. Specs with equal strings have the same ticks, given the same time zone
// database. The zero Spec returns "".
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

// format writes a set of the field's values: all values as *, steps up to the highest value
// as a step, anything else as a list of numbers and ranges.
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
