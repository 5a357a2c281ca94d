package spec

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// MaxBytes is the length of the longest spec in bytes.
const MaxBytes = 1024

// Spec is a parsed spec: a set of instants, the ticks. All nodes that parse the same text get the same ticks. The zero
// Spec has no ticks. A Spec is a value, safe for concurrent use.
type Spec struct {
	every int64          // the period in seconds; 0: the ticks are those of cal in zone
	cal   calendar       // unused with every
	zone  *time.Location // nil with every, and in the zero Spec
}

// Next returns the first tick after the given time, in UTC. Next returns the zero time if the spec has no ticks, like
// "0 0 30 2 *", or if the given time is outside the years 1 to 9999. The search ends: ticks are at most 8 years apart.
func (s Spec) Next(after time.Time) time.Time {
	at := after.Unix()
	var next int64
	var ok bool
	switch {
	case at < earliest || at > latest || s == Spec{}:
	case s.every > 0:
		next, ok = s.nextMultiple(at), true
	case s.cal[hour] == fields[hour].all(): // a rhythm
		next, ok = s.nextShown(at)
	default:
		next, ok = s.nextReached(at)
	}
	if !ok {
		return time.Time{}
	}
	return time.Unix(next, 0).UTC()
}

// Prev returns the last tick at or before the given time, in UTC. Prev returns the zero time if there is no such tick.
// So Prev(t) ≤ t < Next(t).
func (s Spec) Prev(at time.Time) time.Time {
	// The function due is true before the last tick, and false at the last tick and later. So bisection finds the tick.
	// The road not taken is a backward search through calendar and zone, which would state the rules a second time.
	// The steps back double up to farthest: at most 29 steps, and as many bisections.
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

// Ticks returns the ticks that are later than the parameter after and not later than the parameter until, in order.
func (s Spec) Ticks(after, until time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for t := s.Next(after); !t.IsZero() && !t.After(until) && yield(t); {
			t = s.Next(t)
		}
	}
}

// Zone returns the time zone in which the spec is read. For @every and for the zero Spec the zone is UTC.
func (s Spec) Zone() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// String returns the spec in canonical form, like "CRON_TZ=Europe/Berlin 0,30 9-17 * * 1-5" or "@every 1m30s". Parse
// reads that form back. Without @every the form always has the zone. Two specs with equal strings have the same ticks
// on nodes with the same time zone database. For the zero Spec String returns "".
func (s Spec) String() string {
	switch {
	case s.every > 0:
		return "@every " + (time.Duration(s.every) * time.Second).String()
	case s.zone == nil:
		return ""
	}
	words := []string{"CRON_TZ=" + s.zone.String()}
	for i, f := range fields {
		if i != second || s.cal[second] != 1 {
			words = append(words, f.format(s.cal[i]))
		}
	}
	return strings.Join(words, " ")
}

// format writes a set of the field's values. All values are written as "*", and equal steps up to the highest value as
// a step, like "*/5". Every other set is written as a list of numbers and ranges.
func (f field) format(set uint64) string {
	if set == f.all() {
		return "*"
	}
	first, count := bits.TrailingZeros64(set), bits.OnesCount64(set)
	if count > 3 { // up to three values read better as a list
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
