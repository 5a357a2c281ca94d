package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parse parses a spec; the package documentation has the syntax. The spec is read in zone, or in UTC if zone is nil,
// unless it names a zone itself. An error names the field, its value and the allowed values. A spec without ticks, such
// as "0 0 30 2 *", is no error: [Spec.Next] returns the zero time.
func Parse(spec string, zone *time.Location) (s Spec, err error) {
	defer func() {
		if err != nil {
			s, err = Spec{}, fmt.Errorf("spec %.80q: %w", spec, err)
		}
	}()
	if len(spec) > MaxBytes {
		return Spec{}, fmt.Errorf("is %d bytes long, must be at most %d", len(spec), MaxBytes)
	}
	items := strings.Split(spec, ";")
	zone, words, err := cutZone(strings.Fields(items[0]), zone)
	if err != nil {
		return Spec{}, err
	}
	s = Spec{limits: noLimits}
	for i := range items {
		if i > 0 {
			words = strings.Fields(items[i])
		}
		if len(words) > 0 && isLimit(words[0]) {
			err = s.limits.parse(words[0], words[1:])
		} else {
			err = s.parseRule(words)
		}
		if err != nil {
			return Spec{}, err
		}
	}
	if err := s.finish(zone); err != nil {
		return Spec{}, err
	}
	if n := len(s.String()); n > MaxBytes {
		return Spec{}, fmt.Errorf("is %d bytes long in canonical form, must be at most %d", n, MaxBytes)
	}
	return s, nil
}

// parseRule adds the rule that the words stand for.
func (s *Spec) parseRule(words []string) error {
	if len(s.rules) == maxRules {
		return fmt.Errorf("has more than %d rules, must have at most %d", maxRules, maxRules)
	}
	var r rule
	var err error
	switch {
	case len(words) > 0 && words[0] == "@every":
		r, err = parseEvery(words[1:])
	case len(words) > 0 && strings.HasPrefix(words[0], "@"):
		meaning, known := descriptors[words[0]]
		if !known || len(words) > 1 {
			return fmt.Errorf("is %q, must be @every with a period, or one of %s",
				strings.Join(words, " "), strings.Join(slices.Sorted(maps.Keys(descriptors)), " "))
		}
		words = strings.Fields(meaning)
		fallthrough
	default:
		if r.cal, err = parseCalendar(words); err == nil && s.warning == "" {
			s.warning = warn(words, r.cal)
		}
	}
	s.rules = append(s.rules, r)
	return err
}

// finish puts s into canonical form, after Parse has read all rules and limits.
func (s *Spec) finish(zone *time.Location) error {
	switch {
	case len(s.rules) == 0:
		return errors.New("has no rule, must have one, like 0 3 * * *")
	case s.limits.from >= s.limits.until:
		return fmt.Errorf("is from %s until %s, must not end before it begins", formatBegin(s.limits.from), formatEnd(s.limits.until))
	}
	if s.limits.leavesOutAll() {
		return errors.New("except leaves out every day of the year, must leave at least one")
	}
	slices.SortFunc(s.rules, rule.compare)
	s.rules = slices.Compact(s.rules)
	s.limits.normalize()
	if !s.limits.none() || slices.ContainsFunc(s.rules, func(r rule) bool { return r.every == 0 }) {
		s.zone = zone // otherwise the zone has no effect
	}
	return nil
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

// cutZone splits a spec's words into the zone and the other words. If the first word sets no zone, it returns zone, or
// UTC for nil, and all words. It refuses the name Local. A comparison with time.Local would be wrong: time.Local may
// have the name of the zone in the environment variable TZ, and programs set time.Local to time.UTC.
func cutZone(words []string, zone *time.Location) (*time.Location, []string, error) {
	if zone == nil {
		zone = time.UTC
	}
	name, own := zone.String(), false
	if len(words) > 0 {
		if value, ok := zoneWord(words[0]); ok {
			name, own, words = value, true, words[1:]
		}
	}
	if name == "" || name == "Local" {
		return nil, nil, fmt.Errorf("zone is %q, must be a zone that is the same on each node, like Europe/Berlin", name)
	}
	if own {
		var err error
		if zone, err = loadZone(name, time.LoadLocation); err != nil {
			return nil, nil, err
		}
	}
	// Only an invented zone can be further from UTC, and Next does not look further.
	if _, offset := time.Unix(0, 0).In(zone).Zone(); max(offset, -offset) > farOff {
		return nil, nil, fmt.Errorf("zone %q is %s from UTC, must be at most %s", name, time.Duration(offset)*time.Second, farOff*time.Second)
	}
	return zone, words, nil
}

// loadZone loads a zone with load. If load knows no zone at all, the error says how a program gets them.
func loadZone(name string, load func(string) (*time.Location, error)) (*time.Location, error) {
	zone, err := load(name)
	if err == nil {
		return zone, nil
	}
	if _, other := load("Europe/London"); other != nil {
		return nil, fmt.Errorf("zone is %q, but this process finds no time zone database: add import _ %q to the program, or install tzdata in its image: %w", name, "time/tzdata", err)
	}
	return nil, fmt.Errorf("zone is %q, must be in the time zone database: %w", name, err)
}

// zoneWord returns the name of the zone that a word like "CRON_TZ=Europe/Berlin" sets.
func zoneWord(word string) (name string, ok bool) {
	key, name, ok := strings.Cut(word, "=")
	return name, ok && (key == "CRON_TZ" || key == "TZ")
}

func parseEvery(words []string) (rule, error) {
	const minEvery, maxEvery = time.Second, 366 * 24 * time.Hour
	if len(words) != 1 && (len(words) != 3 || words[1] != "offset") {
		return rule{}, fmt.Errorf("@every has %q after it, must have a period like 1m30s, or a period and an offset like 1h offset 10m",
			strings.Join(words, " "))
	}
	period, err := parseSeconds("@every", words[0], minEvery, maxEvery)
	if err != nil || len(words) == 1 {
		return rule{every: period}, err
	}
	offset, err := parseSeconds("the offset of @every", words[2], 0, seconds(period-1))
	return rule{every: period, offset: offset}, err
}

// parseSeconds parses a duration in whole seconds.
func parseSeconds(name, text string, least, most time.Duration) (int64, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s is %q, must be like 1m30s", name, text)
	case d < least || d > most:
		return 0, fmt.Errorf("%s is %s, must be %s to %s", name, d, least, most)
	case d%time.Second != 0:
		return 0, fmt.Errorf("%s is %s, must be whole seconds", name, d)
	}
	return int64(d / time.Second), nil
}

func parseCalendar(words []string) (calendar, error) {
	if len(words) > 0 {
		if name, ok := zoneWord(words[0]); ok {
			return calendar{}, fmt.Errorf("has the zone %q in the middle, must have one zone, at the beginning", name)
		}
	}
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}
	if len(words) == len(fields)+1 {
		return calendar{}, fmt.Errorf("has 7 fields, must have 5, or 6 with seconds; instead of a field for the year, use from and until")
	}
	if len(words) != len(fields) {
		return calendar{}, fmt.Errorf("has %d fields, must have 5, or 6 with seconds", len(words))
	}
	var c calendar
	var stars [len(fields)]bool
	for i := range fields {
		for part := range strings.SplitSeq(words[i], ",") {
			star, err := c.parsePart(i, part)
			if err != nil {
				return calendar{}, err
			}
			stars[i] = stars[i] || star
		}
	}
	// If both fields are restricted, one match is enough, so a range over all values of one field matches every day. Such
	// a spec gets all values in both fields, and days then treats neither field as restricted.
	allDays, allWeek := fields[dom].all(), fields[dow].all()
	if !stars[dom] && !stars[dow] && (c[dom] == allDays || c[dow] == allWeek) {
		c[dom], c[dow] = allDays, allWeek
	}
	if c[dom] == allDays {
		c[fromEnd], c[nearest] = 0, 0
	}
	for day := range 7 {
		if c[dow]&(1<<day) != 0 {
			c[nth] &^= allNth << (nthBits * day)
		}
	}
	return c, nil
}

// warn returns Spec.Warning of a rule. words are the fields that c was parsed from.
func warn(words []string, c calendar) string {
	if len(words) == len(fields) {
		for _, i := range []int{hour, month} {
			if words[i] == "?" {
				return fmt.Sprintf("%s is \"?\": in the expressions of AWS, six fields begin with the minute and end with the year; here they begin with the second", fields[i].name)
			}
		}
	}
	days, weekdays := words[len(words)-3], words[len(words)-1]
	if days == "?" && c[dow] != fields[dow].all() && hasNumber(weekdays) {
		return fmt.Sprintf("day of week is %q with \"?\" as day of month: in Quartz 1 is Sunday and 7 is Saturday, here 1 is Monday and 7 is Sunday; names, like fri, mean the same in both", weekdays)
	}
	return ""
}

// hasNumber reports whether the text of a field has a value that is a number. Steps, and what follows a #, are no
// values.
func hasNumber(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		value, _, _ := strings.Cut(part, "/")
		value, _, _ = strings.Cut(value, "#")
		if strings.ContainsAny(value, "01234567") {
			return true
		}
	}
	return false
}

// field has the name and the possible values of a field of a spec.
type field struct {
	name     string
	min, max int      // the lowest and the highest value
	limit    int      // the highest number in a spec: max, or 7 for Sunday
	names    []string // the names of the values from min on, in lower case
	also     string   // examples of what the field also allows, for errors
}

// sunday is the second number of Sunday in a spec. The first number is 0.
const sunday = 7

var fields = [6]field{
	second: {name: "second", min: 0, max: 59, limit: 59},
	minute: {name: "minute", min: 0, max: 59, limit: 59},
	hour:   {name: "hour", min: 0, max: 23, limit: 23},
	dom:    {name: "day of month", min: 1, max: 31, limit: 31, also: "L, L-3, 15W, LW"},
	month: {name: "month", min: 1, max: 12, limit: 12,
		names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	dow: {name: "day of week", min: 0, max: 6, limit: sunday, also: "5L, 5#3",
		names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

func (f field) all() uint64 { return f.stepped(f.min, f.max, 1) }

// stepped returns the set of the values first, first+step and so on up to last. If last is greater than f.max, the set
// continues at f.min: January follows December.
func (f field) stepped(first, last, step int) uint64 {
	var set uint64
	for v := first; v <= last; v += step {
		if v > f.max {
			set |= 1 << (v - (f.max - f.min + 1))
		} else {
			set |= 1 << v
		}
	}
	return set
}

// parsePart adds one element of a comma-separated list to field i. star reports a * or ? without a step.
func (c *calendar) parsePart(i int, part string) (star bool, err error) {
	f := fields[i]
	text := strings.ToUpper(part)
	switch before, after, hash := strings.Cut(text, "#"); {
	case i == dom && text == "L":
		c[fromEnd] |= 1
	case i == dom && text == "LW":
		c[nearest] |= 1
	case i == dom && strings.HasSuffix(text, "-L") && !strings.HasPrefix(text, "L"):
		return false, fmt.Errorf("%s is %q, must be a range of numbers: %s31 goes on to the last day of each month", f.name, part, text[:len(text)-1])
	case i == dow && text == "L":
		return false, fmt.Errorf("%s is %q, must be sat for each Saturday, which is the L of Quartz, or like satL for the last Saturday of the month", f.name, part)
	case i == dom && strings.HasPrefix(text, "L-"):
		n, err := number(text[2:])
		if err != nil || n < 1 || n > 30 {
			return false, fmt.Errorf("%s is %q, must be L-1 to L-30", f.name, part)
		}
		c[fromEnd] |= 1 << n
	case i == dom && strings.HasSuffix(text, "W"):
		n, err := number(text[:len(text)-1])
		if err != nil || n < 1 || n > 31 {
			return false, fmt.Errorf("%s is %q, must be 1W to 31W or LW", f.name, part)
		}
		c[nearest] |= 1 << n
	case i == dow && hash:
		n, err := number(after)
		if err != nil || n < 1 || n > 5 {
			return false, fmt.Errorf("%s is %q, must have 1 to 5 after the #", f.name, part)
		}
		return false, c.addNth(before, part, n)
	case i == dow && strings.HasSuffix(text, "L"):
		return false, c.addNth(text[:len(text)-1], part, 0)
	default:
		first, last, step, err := f.parseRange(part)
		if err != nil {
			return false, err
		}
		c[i] |= f.stepped(first, last, step)
		return step == 1 && strings.ContainsAny(part, "*?"), nil
	}
	return false, nil
}

// addNth adds the n-th of a day of the week in a month, or the last for n = 0. part is the whole text.
func (c *calendar) addNth(day, part string, n int) error {
	v, err := fields[dow].value(day)
	if err != nil {
		return fmt.Errorf("%w: %q", err, part)
	}
	c[nth] |= 1 << (nthBits*(v%7) + n)
	return nil
}

// parseRange parses a value, a range or a step. The text stands for the values first, first+step and so on up to last.
// A range that wraps has a last that is greater than f.max.
func (f field) parseRange(part string) (first, last, step int, err error) {
	values, by, hasStep := strings.Cut(part, "/")
	count := f.max - f.min + 1
	step = 1
	if hasStep {
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
		if last < first {
			last += count // 22-2
		}
	} else if hasStep {
		last = max(first, f.max)
	}
	return first, last, step, nil
}

// value returns a value of the field. text is the number or the name of the value.
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
	if f.also != "" {
		allowed += ", or like " + f.also
	}
	return 0, fmt.Errorf("%s is %q, must be %s", f.name, text, allowed)
}

// number parses decimal digits. Unlike strconv.Atoi, it refuses a sign.
func number(text string) (int, error) {
	v, err := strconv.ParseUint(text, 10, 16)
	return int(v), err
}
