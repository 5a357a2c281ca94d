package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parse parses a spec; the package documentation has the syntax. Parse reads the spec in the parameter zone, or in UTC
// if zone is nil, unless the spec names a zone itself. An error names the field, its value and the allowed values. A
// spec without ticks, such as "0 0 30 2 *", is no error: [Spec.Next] returns the zero time.
func Parse(spec string, zone *time.Location) (s Spec, err error) {
	// asynq reads the syntax of robfig/cron. The parser of robfig/cron is not used here: it does not name the wrong
	// field, panics at "TZ=UTC", and accepts ",", "*-5" and "*/90". A test compares the two parsers.
	defer func() {
		if err != nil {
			s, err = Spec{}, fmt.Errorf("spec %.80q: %w", spec, err)
		}
	}()
	if len(spec) > MaxBytes {
		return Spec{}, fmt.Errorf("is %d bytes long, must be at most %d", len(spec), MaxBytes)
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

// cutZone splits a spec's words into the zone and the other words. If the first word sets no zone, cutZone returns the
// parameter zone, or UTC for nil, and all words. cutZone refuses the name Local. A comparison with time.Local would be
// wrong: time.Local may have the name of the zone in the environment variable TZ, and programs set time.Local to
// time.UTC.
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
		return nil, nil, fmt.Errorf("zone is %q, must be a zone that is the same on each node, like Europe/Berlin", name)
	}
	if own {
		var err error
		if zone, err = time.LoadLocation(name); err != nil {
			return nil, nil, fmt.Errorf("zone is %q, must be in the time zone database: %w", name, err)
		}
	}
	// Only an invented zone can be further from UTC. Next does not look further.
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
	const minEvery, maxEvery = time.Second, 366 * 24 * time.Hour
	switch {
	case err != nil:
		return Spec{}, fmt.Errorf("@every is %q, must be like 1m30s", words[0])
	case period < minEvery || period > maxEvery:
		return Spec{}, fmt.Errorf("@every is %s, must be %s to %s", period, minEvery, maxEvery)
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
	var c calendar
	var stars [len(c)]bool
	for i, f := range fields {
		var err error
		if c[i], stars[i], err = f.parse(words[i]); err != nil {
			return calendar{}, err
		}
	}
	c[dow] = c[dow]&^(1<<sunday) | c[dow]>>sunday
	// If both fields are restricted, one match is enough. So a range over all values of one field matches every day.
	// Such a spec gets all values in both fields: the method days then treats neither field as restricted.
	allDays, allWeek := fields[dom].all(), fields[dow].all()
	if !stars[dom] && !stars[dow] && (c[dom] == allDays || c[dow] == allWeek) {
		c[dom], c[dow] = allDays, allWeek
	}
	return c, nil
}

// field has the name and the possible values of a field of a spec.
type field struct {
	name     string
	min, max int      // the lowest and the highest value
	limit    int      // the highest number in a spec: max, or 7 for Sunday
	names    []string // the names of the values from min on, in lower case
}

// sunday is the second number of Sunday in a spec. The first number is 0.
const sunday = 7

var fields = [len(calendar{})]field{
	second: {"second", 0, 59, 59, nil},
	minute: {"minute", 0, 59, 59, nil},
	hour:   {"hour", 0, 23, 23, nil},
	dom:    {"day of month", 1, 31, 31, nil},
	month:  {"month", 1, 12, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	dow:    {"day of week", 0, 6, sunday, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

func (f field) all() uint64 { return stepped(f.min, f.max, 1) }

// stepped returns the set of the values first, first+step and so on up to last.
func stepped(first, last, step int) uint64 {
	var set uint64
	for v := first; v <= last; v += step {
		set |= 1 << v
	}
	return set
}

// parse returns the set of the values that the parameter text lists. The result star reports a * or ? without a step.
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

// parsePart parses one element of a comma-separated list. The element stands for the values first, first+step and so on
// up to last.
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
		from, isRange = values, false // "-1": a sign, not a range
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
			last = sunday
		}
		if last < first {
			return 0, 0, 0, fmt.Errorf("%s is %q, must not end before it begins", f.name, values)
		}
	} else if hasStep {
		last = max(first, f.max)
	}
	return first, last, step, nil
}

// value returns a value of the field. The parameter text is the number or the name of the value.
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

// number parses decimal digits. Unlike strconv.Atoi, number refuses a sign.
func number(text string) (int, error) {
	v, err := strconv.ParseUint(text, 10, 16)
	return int(v), err
}
