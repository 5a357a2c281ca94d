package spec

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Words returns the spec in plain English, like "at 03:00 on the last Friday of each month, Europe/Berlin". Specs with
// equal words have equal strings. The zero Spec is "never".
func (s Spec) Words() string {
	if len(s.rules) == 0 {
		return "never"
	}
	var rules []string
	for _, r := range s.rules {
		rules = append(rules, r.words())
	}
	text := strings.Join(rules, "; and ")
	if s.zone != nil {
		text += ", " + s.zone.String()
	}
	return text + s.limits.words()
}

func (r rule) words() string {
	if r.every > 0 {
		return everyWords(r.every, r.offset)
	}
	days := r.cal.dayWords()
	text := r.cal.timeWords()
	switch {
	case days != "":
		text += " " + days
	case r.cal.fewTimes():
		text += " every day"
	}
	return text
}

// everyWords says when @every ticks. A period that divides the day has the same times on each day.
func everyWords(every, offset int64) string {
	from := "from " + timeWord(int(offset%day)) + " UTC"
	if day%every != 0 {
		from = "counted from " + time.Unix(offset, 0).UTC().Format("2006-01-02 15:04:05") + " UTC"
	}
	return "every " + durationWords(every) + ", " + from
}

// durationWords writes a period like "1 hour 30 minutes", or "minute" for one minute.
func durationWords(n int64) string {
	var parts []string
	for _, unit := range []struct {
		name    string
		seconds int64
	}{{"day", day}, {"hour", 3600}, {"minute", 60}, {"second", 1}} {
		if count := n / unit.seconds; count > 0 {
			parts = append(parts, plural(int(count), unit.name))
			n -= count * unit.seconds
		}
	}
	if text := strings.Join(parts, " "); len(parts) > 1 || !strings.HasPrefix(text, "1 ") {
		return text
	}
	return strings.TrimPrefix(parts[0], "1 ")
}

func plural(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return strconv.Itoa(n) + " " + unit + "s"
}

// maxTimes is how many times of day Words lists one by one.
const maxTimes = 4

// fewTimes reports whether Words lists the times of day one by one.
func (c calendar) fewTimes() bool {
	n := bits.OnesCount64(c[second]) * bits.OnesCount64(c[minute]) * bits.OnesCount64(c[hour])
	return n <= maxTimes && c[hour] != fields[hour].all()
}

// timeWords says at which times of a day the calendar ticks.
func (c calendar) timeWords() string {
	if c.fewTimes() {
		var times []string
		for sec, ok := c.timeOfDay(0); ok; sec, ok = c.timeOfDay(sec + 1) {
			times = append(times, timeWord(sec))
		}
		return "at " + list(times)
	}
	atZero := c[second] == 1
	allMinutes, allHours := c[minute] == fields[minute].all(), c[hour] == fields[hour].all()
	if step, first, last, ok := evenly(fields[hour], c[hour]); ok && atZero && bits.OnesCount64(c[minute]) == 1 && !allHours {
		m := bits.TrailingZeros64(c[minute]) * 60 // 30 9-17 * * *
		return fmt.Sprintf("every %s from %s to %s", durationWords(int64(step)*3600), timeWord(first*3600+m), timeWord(last*3600+m))
	}
	hours := " of " + valueWords(fields[hour], c[hour])
	if first, last, ok := inARow(c[hour]); ok {
		hours = fmt.Sprintf(" from %02d:00 to %02d:59", first, last)
	}
	if allHours {
		hours = " of every hour"
	}
	minuteStep, minuteOften := often(fields[minute], c[minute])
	switch secondStep, secondOften := often(fields[second], c[second]); {
	case atZero && c[minute] == 1 && allHours:
		return "every hour"
	case atZero && minuteOften && allHours:
		return "every " + durationWords(int64(minuteStep)*60)
	case atZero && minuteOften:
		return "every " + durationWords(int64(minuteStep)*60) + hours
	case atZero:
		return "at " + valueWords(fields[minute], c[minute]) + hours
	case secondOften && allMinutes && allHours:
		return "every " + durationWords(int64(secondStep))
	case secondOften && allMinutes:
		return "every " + durationWords(int64(secondStep)) + hours
	case secondOften:
		return "every " + durationWords(int64(secondStep)) + " of " + valueWords(fields[minute], c[minute]) + hours
	case allMinutes && allHours:
		return "at " + valueWords(fields[second], c[second]) + " of every minute"
	case allMinutes:
		return "at " + valueWords(fields[second], c[second]) + " of every minute" + hours
	default:
		return "at " + valueWords(fields[second], c[second]) + " of " + valueWords(fields[minute], c[minute]) + hours
	}
}

// often reports whether a set has every step-th value of a field, from the field's first value on and all the way
// round: one step after the last value, the first comes again.
func often(f field, set uint64) (step int, ok bool) {
	step, first, last, ok := evenly(f, set)
	return step, ok && first == f.min && last+step == f.max+1
}

// inARow returns the first and the last value of a set without holes.
func inARow(set uint64) (first, last int, ok bool) {
	first, last = bits.TrailingZeros64(set), 63-bits.LeadingZeros64(set)
	return first, last, bits.OnesCount64(set) == last-first+1
}

// evenly reports whether a set has at least three values with equal steps between them, and returns the step, the first
// and the last value.
func evenly(f field, set uint64) (step, first, last int, ok bool) {
	if bits.OnesCount64(set) < 3 {
		return 0, 0, 0, false
	}
	first, last = bits.TrailingZeros64(set), 63-bits.LeadingZeros64(set)
	step = bits.TrailingZeros64(set&(set-1)) - first
	return step, first, last, set == f.stepped(first, last, step)
}

// valueWords writes the values of a field, like "minute 30" or "hours 0, 6 and 12 to 14".
func valueWords(f field, set uint64) string {
	name := f.name
	if set&(set-1) != 0 {
		name += "s"
	}
	return name + " " + list(ranges(set, strconv.Itoa))
}

// ranges writes a set of values, three or more in a row as a range.
func ranges(set uint64, name func(int) string) (texts []string) {
	for set != 0 {
		first := bits.TrailingZeros64(set)
		run := bits.TrailingZeros64(^(set >> first))
		set &^= (1<<run - 1) << first
		switch last := first + run - 1; run {
		case 1:
			texts = append(texts, name(first))
		case 2:
			texts = append(texts, name(first), name(last))
		default:
			texts = append(texts, name(first)+" to "+name(last))
		}
	}
	return texts
}

func list(texts []string) string {
	n := len(texts)
	if n < 2 {
		return strings.Join(texts, "")
	}
	return strings.Join(texts[:n-1], ", ") + " and " + texts[n-1]
}

// timeWord writes a time of day, given in seconds since midnight.
func timeWord(sec int) string {
	layout := "15:04"
	if sec%60 != 0 {
		layout = "15:04:05"
	}
	return time.Unix(int64(sec), 0).UTC().Format(layout)
}

// dayWords says on which days the calendar ticks, "" for all days.
func (c calendar) dayWords() string {
	anyDay, anyWeekday := c[dom] == fields[dom].all(), c[dow] == fields[dow].all()
	months := "each month"
	if c[month] != fields[month].all() {
		months = list(ranges(c[month], func(m int) string { return time.Month(m).String() }))
	}
	var texts []string
	if !anyDay {
		texts = append(texts, "on "+list(c.domWords())+" of "+months)
	}
	if !anyWeekday {
		if plain := weekdayWords(c[dow]); plain != "" {
			texts = append(texts, plain)
			if months != "each month" {
				texts[len(texts)-1] += " in " + months
			}
		}
		if c[nth] != 0 {
			texts = append(texts, "on "+list(c.nthWords())+" of "+months)
		}
	}
	if len(texts) == 0 && months != "each month" {
		return "in " + months
	}
	return strings.Join(texts, " and also ")
}

// domWords names the days of the month, like "the 1st" or "the weekday nearest to the 15th".
func (c calendar) domWords() (texts []string) {
	for _, text := range ranges(c[dom], ordinal) {
		texts = append(texts, "the "+text)
	}
	for set := c[nearest] &^ 1; set != 0; set &= set - 1 {
		texts = append(texts, "the weekday nearest to the "+ordinal(bits.TrailingZeros64(set)))
	}
	if c[nearest]&1 != 0 {
		texts = append(texts, "the last weekday")
	}
	for set := c[fromEnd] &^ 1; set != 0; set &= set - 1 {
		texts = append(texts, "the day "+plural(bits.TrailingZeros64(set), "day")+" before the last day")
	}
	if c[fromEnd]&1 != 0 {
		texts = append(texts, "the last day")
	}
	return texts
}

// weekdayWords names days of the week, beginning with Monday.
func weekdayWords(set uint64) string {
	if set == 0 {
		return ""
	}
	names := ranges(set>>1|set&1<<6, func(d int) string { return time.Weekday((d + 1) % 7).String() })
	if len(names) == 1 && strings.Contains(names[0], " to ") {
		return "from " + names[0]
	}
	return "on " + list(names)
}

// nthWords names days like "the third Friday".
func (c calendar) nthWords() (texts []string) {
	names := [...]string{"last", "first", "second", "third", "fourth", "fifth"}
	for set := c[nth]; set != 0; set &= set - 1 {
		n := bits.TrailingZeros64(set)
		texts = append(texts, fmt.Sprintf("the %s %s", names[n%nthBits], time.Weekday(n/nthBits)))
	}
	return texts
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n%100/10 == 1:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return strconv.Itoa(n) + suffix
}

func (l limits) words() (text string) {
	if l.from != noLimits.from {
		text += ", from " + spaced(formatBegin(l.from))
	}
	if l.until != noLimits.until {
		text += ", until " + spaced(formatEnd(l.until))
	}
	if l.leavesOut() {
		var texts []string
		for _, out := range append(l.yearlyTexts("2 January", " to "), l.spanTexts(" to ")...) {
			texts = append(texts, spaced(out))
		}
		text += ", except " + list(texts)
	}
	return text
}

// spaced writes times like 2026-12-24T18:00 with a space.
func spaced(text string) string { return strings.ReplaceAll(text, "T", " ") }
