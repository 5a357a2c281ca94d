package spec

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// limits drops ticks of a Spec. All times are wall-clock times. A tick is compared by wallClock.reached: the latest time
// that the clock has shown up to the tick. That time never goes back, so each limit covers one unbroken stretch of real
// time, even where the clock goes back.
type limits struct {
	from, until int64      // drop ticks before from, and from until on
	spans       []span     // what to leave out; after normalize sorted, with time between any two
	yearly      [12]uint32 // bit d of element m-1: leave out day d of month m in each year
}

// span is the times from begin until just before end.
type span struct{ begin, end int64 }

var noLimits = limits{from: math.MinInt64, until: math.MaxInt64}

func (l limits) none() bool {
	return l.from == noLimits.from && l.until == noLimits.until && !l.leavesOut()
}

func (l limits) leavesOut() bool { return len(l.spans) > 0 || l.yearly != [12]uint32{} }

const day = 24 * 3600

func isLimit(word string) bool { return word == "from" || word == "until" || word == "except" }

// parse adds the limit that keyword and the words after it stand for.
func (l *limits) parse(keyword string, words []string) error {
	text := strings.Join(words, " ")
	if keyword == "except" {
		for part := range strings.SplitSeq(text, ",") {
			if err := l.parseExcept(strings.TrimSpace(part)); err != nil {
				return err
			}
		}
		return nil
	}
	at, ok := parseSpan(text)
	switch {
	case !ok:
		return fmt.Errorf("%s is %q, must be like 2026-12-01 or 2026-12-01T18:00", keyword, text)
	case keyword == "from" && l.from != noLimits.from, keyword == "until" && l.until != noLimits.until:
		return fmt.Errorf("has %q twice, must have one", keyword)
	case keyword == "from":
		l.from = at.begin
	default:
		l.until = at.end
	}
	return nil
}

func (l *limits) parseExcept(text string) error {
	first, last, isRange := strings.Cut(text, "..")
	if !isRange {
		last = first
	}
	begin, ok := parseSpan(first)
	end, ok2 := parseSpan(last)
	if ok && ok2 {
		if end.end <= begin.begin {
			return fmt.Errorf("except is %q, must not end before it begins", text)
		}
		l.spans = append(l.spans, span{begin.begin, end.end})
		return nil
	}
	from, ok := parseYearly(first)
	to, ok2 := parseYearly(last)
	if !ok || !ok2 {
		return fmt.Errorf("except is %q, must be like 2026-12-24, 2026-12-24T18:00, 12-24 for each year, or a range of two of one form, such as 12-24..01-02", text)
	}
	for d := from; ; {
		l.yearly[d.Month()-1] |= 1 << d.Day()
		if d.Month() == to.Month() && d.Day() == to.Day() {
			return nil
		}
		if d = d.AddDate(0, 0, 1); d.Year() != leapYear.Year() {
			d = leapYear
		}
	}
}

// parseSpan parses a date, which is a span of a day, or a time, which is a span of a second.
func parseSpan(text string) (span, bool) {
	for layout, length := range map[string]int64{time.DateOnly: day, toMinute: 1, toSecond: 1} {
		// Parse accepts 3:04 for 03:04. Years before 1 have no ticks.
		if t, err := time.Parse(layout, text); err == nil && len(text) == len(layout) && t.Year() > 0 {
			return span{t.Unix(), t.Unix() + length}, true
		}
	}
	return span{}, false
}

const toMinute, toSecond = "2006-01-02T15:04", "2006-01-02T15:04:05"

// parseYearly returns a day such as 02-29 of a leap year.
func parseYearly(text string) (time.Time, bool) {
	t, err := time.Parse(time.DateOnly, "2000-"+text)
	return t, err == nil
}

// normalize sorts spans, and joins those that overlap or touch.
func (l *limits) normalize() {
	slices.SortFunc(l.spans, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
	var joined []span
	for _, s := range l.spans {
		if n := len(joined); n > 0 && s.begin <= joined[n-1].end {
			joined[n-1].end = max(joined[n-1].end, s.end)
		} else {
			joined = append(joined, s)
		}
	}
	l.spans = joined
}

// free returns the first time at or after wall that is not left out. Parse refuses limits that leave out all days of a
// year, so the search ends: apart from the spans, at most eight years of days in a row are left out.
func (l limits) free(wall int64) int64 {
	for {
		i, _ := slices.BinarySearchFunc(l.spans, wall, func(s span, wall int64) int { return cmp.Compare(s.end, wall+1) })
		if i < len(l.spans) && l.spans[i].begin <= wall {
			wall = l.spans[i].end
			continue
		}
		t := time.Unix(wall, 0).UTC()
		if l.yearly[t.Month()-1]&(1<<t.Day()) == 0 {
			return wall
		}
		wall = t.Truncate(24*time.Hour).Unix() + day
	}
}

// leavesOutAll reports whether each day of each year is left out.
func (l limits) leavesOutAll() bool {
	return !slices.Contains(l.eachDay(), false)
}

// eachDay returns for each day of a leap year whether the day is left out.
func (l limits) eachDay() (days []bool) {
	for d := leapYear; d.Year() == leapYear.Year(); d = d.AddDate(0, 0, 1) {
		days = append(days, l.yearly[d.Month()-1]&(1<<d.Day()) != 0)
	}
	return days
}

var leapYear = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// texts returns the limits in canonical form, which parse reads.
func (l limits) texts() (texts []string) {
	if l.from != noLimits.from {
		texts = append(texts, "from "+formatBegin(l.from))
	}
	if l.until != noLimits.until {
		texts = append(texts, "until "+formatEnd(l.until))
	}
	if l.leavesOut() {
		texts = append(texts, "except "+strings.Join(append(l.yearlyTexts("01-02", ".."), l.spanTexts("..")...), ","))
	}
	return texts
}

func (l limits) spanTexts(dots string) (texts []string) {
	for _, s := range l.spans {
		first, last := formatBegin(s.begin), formatEnd(s.end)
		if last != first {
			first += dots + last
		}
		texts = append(texts, first)
	}
	return texts
}

// yearlyTexts returns the days of each year that are left out, one text for consecutive days. December 31 and January 1
// are consecutive.
func (l limits) yearlyTexts(layout, dots string) (texts []string) {
	days := l.eachDay()
	left := func(i int) bool { return days[(i+len(days))%len(days)] }
	date := func(i int) string { return leapYear.AddDate(0, 0, i%len(days)).Format(layout) }
	for i := range days {
		if !left(i) || left(i-1) {
			continue
		}
		last := i
		for left(last + 1) {
			last++
		}
		text := date(i)
		if last > i {
			text += dots + date(last)
		}
		texts = append(texts, text)
	}
	return texts
}

// formatBegin writes the first time of a span.
func formatBegin(wall int64) string { return formatWall(wall, wall) }

// formatEnd writes the last time of a span that ends just before wall.
func formatEnd(wall int64) string { return formatWall(wall, wall-1) }

// formatWall writes the wall-clock time shown, as a date if a day begins at edge.
func formatWall(edge, shown int64) string {
	layout := toSecond
	switch {
	case edge%day == 0:
		layout = time.DateOnly
	case shown%60 == 0:
		layout = toMinute
	}
	return time.Unix(shown, 0).UTC().Format(layout)
}
