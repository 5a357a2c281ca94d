package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// ParseSpec parses a schedule, which is one of:
//
//	30 2 * * 1-5           minute, hour, day of month, month, day of week
//	*/10 30 2 * * 1-5      six fields: the first is the second
//	@hourly @daily (or @midnight) @weekly @monthly @yearly (or @annually)
//	@every 1m30s           the multiples of a period since 1970-01-01 00:00:00 UTC
//
// A field is a list of values, ranges and steps: 0,30 or 9-17 or */5 or 10-40/10 or
// 5/20, which goes on from 5 to the end. * and ? are all values. Months and days of the
// week also go by the first three letters of their English names. Sunday is 0 or 7, and
// sun ends a range as 7 does: sat-sun is 6-7. A day must match day of month and day of
// week; if both are restricted, one of them is enough, and */2 is restricted.
//
// The clock is that of zone, nil for UTC, or of the zone with which the spec begins, as in
// "CRON_TZ=Europe/Berlin 30 2 * * *" or TZ=. [Spec] says what happens on the days on
// which clocks change. A zone that has no name, or the name Local, is refused: each node
// might mean another; and so is one more than 26 hours from UTC. Zones come from the system's database; programs for systems that
// have none import time/tzdata.
//
// The period of @every is in whole seconds, from MinEvery to MaxEvery; the zone is of no
// concern to it.
//
// A spec that cannot be parsed is ErrInvalid, with a text that names the field, its value
// and what is allowed. One that has no ticks, "0 0 30 2 *", is not an error; see
// [Spec.Next].
func ParseSpec(spec string, zone *time.Location) (Spec, error) {
	s, err := parseSpec(spec, zone)
	if err != nil {
		return Spec{}, &joblock.Error{
			Code:   joblock.CodeInvalid,
			Op:     "parse spec",
			Detail: fmt.Sprintf("%.80q", spec),
			Err:    err,
		}
	}
	return s, nil
}

// parseSpec reads the syntax of robfig/cron, because asynq has it, but not by its parser:
// that one does not name the field that is wrong, panics at "TZ=UTC", and accepts ",",
// "*-5" and "*/90". A test holds the two against each other.
func parseSpec(spec string, zone *time.Location) (Spec, error) {
	if len(spec) > MaxSpecBytes {
		return Spec{}, fmt.Errorf("is %d bytes long, must be at most %d", len(spec), MaxSpecBytes)
	}
	zone, words, err := cutZone(strings.Fields(spec), zone)
	if err != nil {
		return Spec{}, err
	}
	if len(words) > 0 && strings.HasPrefix(words[0], "@") {
		if words[0] == "@every" {
			return parseEvery(words[1:])
		}
		meaning, known := descriptors[words[0]]
		if !known || len(words) > 1 {
			return Spec{}, fmt.Errorf("is %q, must be @every with a period, or one of %s",
				strings.Join(words, " "), strings.Join(slices.Sorted(maps.Keys(descriptors)), " "))
		}
		words = strings.Fields(meaning)
	}
	cal, err := parseCalendar(words)
	return Spec{cal: cal, zone: zone}, err
}

var descriptors = map[string]string{
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
	"@monthly":  "0 0 1 * *",
	"@weekly":   "0 0 * * 0",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@hourly":   "0 * * * *",
}

// cutZone returns the zone with which a spec begins, or else the given one, and the words
// that follow.
//
// Local is refused by its name, not by comparing with time.Local, which may bear the name
// of the TZ variable's zone, and which programs set to time.UTC.
func cutZone(words []string, zone *time.Location) (*time.Location, []string, error) {
	if zone == nil {
		zone = time.UTC
	}
	name, own := zone.String(), false
	if len(words) > 0 {
		key, value, ok := strings.Cut(words[0], "=")
		if ok && (key == "CRON_TZ" || key == "TZ") {
			name, own, words = value, true, words[1:]
		}
	}
	if name == "" || name == "Local" {
		return nil, nil, fmt.Errorf("zone is %q, must be one that is the same on each node, like Europe/Berlin", name)
	}
	if own {
		var err error
		if zone, err = time.LoadLocation(name); err != nil {
			return nil, nil, fmt.Errorf("zone is %q, must be in the time zone database: %w", name, err)
		}
	}
	// Only a zone that a program made up can be further off: Next looks no further.
	if _, offset := time.Unix(0, 0).In(zone).Zone(); max(offset, -offset) > farOff {
		return nil, nil, fmt.Errorf("zone %q is %s from UTC, must be at most %s", name, time.Duration(offset)*time.Second, farOff*time.Second)
	}
	return zone, words, nil
}

func parseEvery(words []string) (Spec, error) {
	if len(words) != 1 {
		return Spec{}, fmt.Errorf("@every has %d words after it, must have one, like 1m30s", len(words))
	}
	period, err := time.ParseDuration(words[0])
	switch {
	case err != nil:
		return Spec{}, fmt.Errorf("@every is %q, must be like 1m30s", words[0])
	case period < MinEvery || period > MaxEvery:
		return Spec{}, fmt.Errorf("@every is %s, must be %s to %s", period, MinEvery, MaxEvery)
	case period%time.Second != 0:
		return Spec{}, fmt.Errorf("@every is %s, must be whole seconds", period)
	}
	return Spec{every: int64(period / time.Second)}, nil
}

func parseCalendar(words []string) (calendar, error) {
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}
	if len(words) != len(fields) {
		return calendar{}, fmt.Errorf("has %d fields, must have 5, or 6 with seconds", len(words))
	}
	var sets [len(fields)]uint64
	var stars [len(fields)]bool
	for i, f := range fields {
		var err error
		if sets[i], stars[i], err = f.parse(words[i]); err != nil {
			return calendar{}, err
		}
	}
	c := calendar{second: sets[0], minute: sets[1], hour: sets[2], dom: sets[3], month: sets[4], dow: sets[5]}
	c.dow = c.dow&^(1<<sunday) | c.dow>>sunday
	// Where both fields are restricted one is enough, so that a range over all values
	// makes it every day. Stars say the same, and from here on only they do.
	if !stars[3] && !stars[5] && (c.dom == domField.all() || c.dow == dowField.all()) {
		c.dom, c.dow = domField.all(), dowField.all()
	}
	return c, nil
}

// field is one of the fields of a calendar: what may stand in it.
type field struct {
	name     string
	min, max int      // the values
	limit    int      // the highest number that may be written
	names    []string // of the values from min, in lower case
}

// sunday is the other number for Sunday, the one that it has as the end of a week.
const sunday = 7

var (
	secondField = field{"second", 0, 59, 59, nil}
	minuteField = field{"minute", 0, 59, 59, nil}
	hourField   = field{"hour", 0, 23, 23, nil}
	domField    = field{"day of month", 1, 31, 31, nil}
	monthField  = field{"month", 1, 12, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}}
	dowField    = field{"day of week", 0, 6, sunday, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}}

	fields = [...]field{secondField, minuteField, hourField, domField, monthField, dowField}
)

// all returns the set of all values.
func (f field) all() uint64 { return stepped(f.min, f.max, 1) }

// stepped returns the set of first, first+step and so on up to last.
func stepped(first, last, step int) uint64 {
	var set uint64
	for v := first; v <= last; v += step {
		set |= 1 << v
	}
	return set
}

// parse returns the set of a field's values, and whether a star in it says that the
// field is not restricted.
func (f field) parse(text string) (set uint64, star bool, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, step, err := f.parsePart(part)
		if err != nil {
			return 0, false, err
		}
		set |= stepped(first, last, step)
		star = star || step == 1 && strings.ContainsAny(part, "*?")
	}
	return set, star, nil
}

// parsePart parses one element of a list.
func (f field) parsePart(part string) (first, last, step int, err error) {
	values, by, hasStep := strings.Cut(part, "/")
	step = 1
	if hasStep {
		count := f.max - f.min + 1
		if step, err = number(by); err != nil || step < 1 || step > count {
			return 0, 0, 0, fmt.Errorf("%s has the step %q, must be 1 to %d", f.name, by, count)
		}
	}
	if values == "*" || values == "?" {
		return f.min, f.max, step, nil
	}
	from, to, isRange := strings.Cut(values, "-")
	if from == "" && isRange {
		from, isRange = values, false // "-1": a sign, and no range
	}
	if first, err = f.value(from); err != nil {
		return 0, 0, 0, err
	}
	last = first
	if isRange {
		if last, err = f.value(to); err != nil {
			return 0, 0, 0, err
		}
		if f.limit == sunday && last < first && strings.EqualFold(to, "sun") {
			last = sunday // by its name it is the end of a week too
		}
		if last < first {
			return 0, 0, 0, fmt.Errorf("%s is %q, must not end before it begins", f.name, values)
		}
	} else if hasStep {
		last = max(first, f.max)
	}
	return first, last, step, nil
}

// value parses a number or a name.
func (f field) value(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.min + i, nil
	}
	if v, err := number(text); err == nil && v >= f.min && v <= f.limit {
		return v, nil
	}
	allowed := fmt.Sprintf("%d to %d", f.min, f.limit)
	if f.names != nil {
		allowed += fmt.Sprintf(" or %s to %s", f.names[0], f.names[len(f.names)-1])
	}
	return 0, fmt.Errorf("%s is %q, must be %s", f.name, text, allowed)
}

// number parses decimal digits, without the signs that strconv.Atoi takes.
func number(text string) (int, error) {
	v, err := strconv.ParseUint(text, 10, 16)
	return int(v), err
}
