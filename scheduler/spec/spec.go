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

// maxRules is how many rules a spec may have.
const maxRules = 32

// Spec is a parsed spec: a set of instants, the ticks. All nodes that parse the same text get the same ticks. The zero
// Spec has no ticks. A Spec is a value, safe for concurrent use. To compare specs, compare their strings.
type Spec struct {
	rules  []rule // sorted by their texts, no two equal; empty in the zero Spec
	limits limits
	zone   *time.Location // of all rules and limits; nil if no rule and no limit needs a zone

	warning string // see Warning; the canonical form never has one
}

// rule is one of the rules of a Spec.
type rule struct {
	every, offset int64    // in seconds; if every is 0, the ticks are those of cal
	cal           calendar // unused with every
}

// Next returns the first tick after the given time, in UTC. It returns the zero time if there is none: the spec has no
// ticks, like "0 0 30 2 *", has ended, or excludes all ticks of 68 years. Next also returns the zero time if the given
// time is outside the years 1 to 9999.
func (s Spec) Next(after time.Time) time.Time {
	next, ok := s.next(after.Unix())
	if !ok {
		return time.Time{}
	}
	return time.Unix(next, 0).UTC()
}

func (s Spec) next(at int64) (int64, bool) {
	if at < earliest || at > latest {
		return 0, false
	}
	var next cursor
	if s.zone == nil || s.limits.none() {
		return next.after(s, at)
	}
	clock := wallClock{s.zone}
	if l := s.limits.from; clock.reached(at) < l {
		begin, ok := clock.reach(l, at)
		if !ok {
			return 0, false
		}
		at = begin - 1
	}
	giveUp := at
	if n := len(s.limits.spans); n > 0 {
		giveUp = max(at, s.limits.spans[n-1].end)
	}
	for giveUp += farthest; ; {
		tick, ok := next.after(s, at)
		if !ok || tick > giveUp {
			return 0, false
		}
		wall := clock.reached(tick)
		free := s.limits.free(wall)
		switch {
		case wall >= s.limits.until:
			return 0, false
		case free == wall:
			return tick, true
		}
		begin, ok := clock.reach(free, tick)
		if !ok {
			return 0, false
		}
		at = begin - 1
	}
}

// cursor has the next tick of each rule, so that a search that passes many ticks asks each rule only for its own.
// Otherwise 32 rules whose ticks are all left out would take seconds. The zero cursor knows nothing.
type cursor struct {
	known, ended [maxRules]bool
	tick         [maxRules]int64
}

// after returns the first tick of any rule of s after the instant at, which must not be before the at of an earlier
// call.
func (c *cursor) after(s Spec, at int64) (first int64, found bool) {
	for i, r := range s.rules {
		if !c.known[i] || !c.ended[i] && c.tick[i] <= at {
			next, ok := r.next(wallClock{s.zone}, at)
			c.known[i], c.ended[i], c.tick[i] = true, !ok, next
		}
		if !c.ended[i] && (!found || c.tick[i] < first) {
			first, found = c.tick[i], true
		}
	}
	return first, found
}

func (r rule) next(clock wallClock, at int64) (int64, bool) {
	switch {
	case r.every > 0:
		n := (at - r.offset) / r.every
		if (at-r.offset)%r.every < 0 { // Go divides towards zero
			n--
		}
		return (n+1)*r.every + r.offset, true
	case r.rhythm():
		return clock.nextShown(r.cal, at)
	default:
		return clock.nextReached(r.cal, at)
	}
}

// rhythm reports whether the rule matches every hour of the day: the package documentation calls such a spec a rhythm.
func (r rule) rhythm() bool { return r.every == 0 && r.cal[hour] == fields[hour].all() }

// Prev returns the last tick at or before the given time, in UTC, or the zero time if there is none. So Prev(t) ≤ t <
// Next(t).
func (s Spec) Prev(at time.Time) time.Time {
	// due is true before the last tick, and false at the last tick and later, so bisection finds the tick. A backward
	// search through calendar and zone would need all the rules a second time. The steps back double: at most 39 steps,
	// and as many bisections.
	end := at.Unix()
	if end < earliest || end > latest+farthest {
		return time.Time{}
	}
	due := func(from int64) bool {
		next, ok := s.next(from)
		return ok && next <= end
	}
	lo, hi := end, end
	for step := int64(1); !due(lo); step *= 2 {
		if lo == earliest {
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

// Warning returns a sentence if the spec may have been written for another scheduler, in which it has another meaning, and
// "" otherwise. The signs are a "?" next to the number of a weekday, as in Quartz, or in the field of the hour or the month,
// as in AWS expressions.
func (s Spec) Warning() string { return s.warning }

// Zone returns the time zone in which the spec is read. For the zero Spec, and for @every alone, the zone is UTC.
func (s Spec) Zone() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// String returns the spec in canonical form, like "CRON_TZ=Europe/Berlin 0,30 9-17 * * 1-5; except 12-24..12-26" or
// "@every 1m30s". Parse reads that form back. Unless all rules are @every, the form has the zone. Two specs with equal
// strings have the same ticks on nodes with the same time zone database. The string of the zero Spec is "".
func (s Spec) String() string {
	var items []string
	for _, r := range s.rules {
		items = append(items, r.text())
	}
	if items == nil {
		return ""
	}
	text := strings.Join(append(items, s.limits.texts()...), "; ")
	if s.zone != nil {
		text = "CRON_TZ=" + s.zone.String() + " " + text
	}
	return text
}

func (r rule) compare(other rule) int { return strings.Compare(r.text(), other.text()) }

func (r rule) text() string {
	if r.every > 0 {
		text := "@every " + seconds(r.every).String()
		if r.offset > 0 {
			text += " offset " + seconds(r.offset).String()
		}
		return text
	}
	var words []string
	for i, f := range fields {
		if i == second && r.cal[second] == 1 {
			continue
		}
		var parts []string
		if r.cal[i] != 0 {
			parts = append(parts, f.format(r.cal[i]))
		}
		switch i {
		case dom:
			parts = append(parts, r.cal.domTexts()...)
		case dow:
			parts = append(parts, r.cal.dowTexts()...)
		}
		words = append(words, strings.Join(parts, ","))
	}
	return strings.Join(words, " ")
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// domTexts writes the days of the month that depend on the month: 15W, LW, L-3, L.
func (c calendar) domTexts() (texts []string) {
	for n := 1; n <= 31; n++ {
		if c[nearest]&(1<<n) != 0 {
			texts = append(texts, strconv.Itoa(n)+"W")
		}
	}
	if c[nearest]&1 != 0 {
		texts = append(texts, "LW")
	}
	for n := 30; n > 0; n-- {
		if c[fromEnd]&(1<<n) != 0 {
			texts = append(texts, "L-"+strconv.Itoa(n))
		}
	}
	if c[fromEnd]&1 != 0 {
		texts = append(texts, "L")
	}
	return texts
}

// dowTexts writes the days of the week that depend on the month: 5#3, 5L.
func (c calendar) dowTexts() (texts []string) {
	for set := c[nth]; set != 0; set &= set - 1 {
		day, n := bits.TrailingZeros64(set)/nthBits, bits.TrailingZeros64(set)%nthBits
		text := strconv.Itoa(day)
		if n > 0 {
			text += "#" + strconv.Itoa(n)
		} else {
			text += "L"
		}
		texts = append(texts, text)
	}
	return texts
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
		if step > 1 && set == f.stepped(first, f.max, step) {
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
