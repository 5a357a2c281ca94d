package spec_test

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// The oracle watches a wall clock and writes down when it showed what: for a year minute by
// minute, or second by second for the days around a change. It only asks the time package
// what the clock shows at an instant. It knows a schedule from how it was drawn, not from
// its text.

// diary says when the clock of a zone first showed each time, and what it showed again.
// Times of the clock are counted in steps from the first time in the diary.
type diary struct {
	zone  *time.Location
	begin time.Time // what the clock showed first, as if in UTC
	step  time.Duration
	first []int64 // by time of the clock: the instant, or skipped
	again []showing

	from    time.Time   // the first instant
	reached []time.Time // by instant: the latest time that the clock has shown so far
}

type showing struct {
	clock time.Time
	at    int64
}

const skipped = math.MinInt64

func keepDiary(zone *time.Location, from, until time.Time, step time.Duration) *diary {
	read := func(at time.Time) time.Time {
		there := at.In(zone)
		y, mo, d := there.Date()
		h, m, s := there.Clock()
		return time.Date(y, mo, d, h, m, s, 0, time.UTC)
	}
	d := &diary{zone: zone, begin: read(from), step: step, from: from}
	d.first = slices.Repeat([]int64{skipped}, int(until.Sub(from)/step+48*time.Hour/step))
	end := 0
	reached := d.begin
	for at := from; at.Before(until); at = at.Add(step) {
		clock := read(at)
		if clock.After(reached) {
			reached = clock
		}
		d.reached = append(d.reached, reached)
		// The clock runs on for a step before it may be set back.
		if ran := clock.Add(step - time.Second); ran.After(reached) {
			reached = ran
		}
		i := int(clock.Sub(d.begin) / step)
		switch {
		case i < 0: // set back to before the first page
		case d.first[i] == skipped:
			d.first[i] = at.Unix()
			end = max(end, i+1)
		default:
			d.again = append(d.again, showing{clock, at.Unix()})
		}
	}
	d.first = d.first[:end]
	return d
}

// ticksOf returns the ticks of all plans and periods of a schedule, less those that its limits drop.
func (d *diary) ticksOf(s schedule) []int64 {
	var out []int64
	for _, p := range s.plans {
		out = append(out, d.ticks(p)...)
	}
	for _, p := range s.periods {
		for i := range d.reached {
			at := d.from.Unix() + int64(i)*int64(d.step/time.Second)
			for range d.step / time.Second {
				if (at-p.offset)%p.every == 0 {
					out = append(out, at)
				}
				at++
			}
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(at int64) bool {
		i := (at - d.from.Unix()) / int64(d.step/time.Second)
		ran := time.Duration((at-d.from.Unix())%int64(d.step/time.Second)) * time.Second
		return i < 0 || i >= int64(len(d.reached)) || s.drops(d.reached[i].Add(ran))
	})
}

// ticks returns the ticks of a plan according to the package documentation.
func (d *diary) ticks(p plan) []int64 {
	rhythm := p.hour == values(0, 23, 1)
	var out []int64
	for i := range d.matching(p) {
		at := d.first[i]
		// A skipped time of day is due when the clock goes on.
		for later := i; at == skipped && !rhythm; later++ {
			at = d.first[later]
		}
		if at != skipped {
			out = append(out, at)
		}
	}
	for _, s := range d.again {
		if h, m, sec := s.clock.Clock(); rhythm && p.day(s.clock) && p.hour[h] && p.minute[m] && p.second[sec] {
			out = append(out, s.at)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// matching returns the pages of the diary whose times match a plan.
func (d *diary) matching(p plan) iter.Seq[int] {
	return func(yield func(int) bool) {
		for day := d.begin.Truncate(24 * time.Hour); ; day = day.AddDate(0, 0, 1) {
			if day.Sub(d.begin)/d.step >= time.Duration(len(d.first)) {
				return
			}
			for h := 0; h < 24 && p.day(day); h++ {
				for m := 0; m < 60 && p.hour[h]; m++ {
					for s := 0; s < 60 && p.minute[m]; s++ {
						if !p.second[s] {
							continue
						}
						clock := day.Add(time.Duration(h*3600+m*60+s) * time.Second)
						if i := int(clock.Sub(d.begin) / d.step); i >= 0 && i < len(d.first) && !yield(i) {
							return
						}
					}
				}
			}
		}
	}
}

// set has the values of a field.
type set [60]bool

func values(first, last, step int) (s set) {
	for v := first; v <= last; v += step {
		s[v] = true
	}
	return s
}

// plan is a rule of a schedule as it was drawn.
type plan struct {
	text                                  string
	second, minute, hour, dom, month, dow set
	anyDom, anyDow                        bool // a star
	alsoDom, alsoDow                      []func(day time.Time) bool
}

func (p plan) day(clock time.Time) bool {
	byDom, byDow := p.dom[clock.Day()], p.dow[clock.Weekday()]
	for _, also := range p.alsoDom {
		byDom = byDom || also(clock)
	}
	for _, also := range p.alsoDow {
		byDow = byDow || also(clock)
	}
	switch {
	case !p.month[clock.Month()]:
		return false
	case p.anyDom || p.anyDow:
		return byDom && byDow
	}
	return byDom || byDow
}

// drawPlan draws a plan, with seconds if asked for. A third of the plans name an hour near
// those in which clocks change, and a third are rhythms. Most have all days, because few
// would ever meet a change otherwise.
func drawPlan(r *rand.Rand, seconds bool) plan {
	p := plan{second: values(0, 0, 1), hour: values(0, 23, 1), anyDom: true, anyDow: true,
		dom: values(1, 31, 1), month: values(1, 12, 1), dow: values(0, 6, 1)}
	texts := []string{"", "*", "*", "*", "*", "*"}
	if seconds {
		texts[0], p.second, _ = drawField(r, 0, 59)
	}
	texts[1], p.minute, _ = drawField(r, 0, 59)
	switch r.IntN(3) {
	case 0:
		texts[2], p.hour, _ = drawField(r, 0, 23)
	case 1:
		h := (r.IntN(5) + 23) % 24
		texts[2], p.hour = strconv.Itoa(h), values(h, h, 1)
	}
	if r.IntN(3) == 0 {
		texts[3], p.dom, p.anyDom = drawField(r, 1, 31)
	} else if r.IntN(4) == 0 {
		texts[3], p.alsoDom = drawDays(r, drawDom)
		p.dom, p.anyDom = set{}, false
	}
	if r.IntN(3) == 0 {
		texts[4], p.month, _ = drawField(r, 1, 12)
	}
	if r.IntN(3) == 0 {
		texts[5], p.dow, p.anyDow = drawField(r, 0, 6)
	} else if r.IntN(4) == 0 {
		texts[5], p.alsoDow = drawDays(r, drawDow)
		p.dow, p.anyDow = set{}, false
	}
	if r.IntN(4) == 0 && len(p.alsoDom) > 0 { // 1,15,L
		first := 1 + r.IntN(31)
		texts[3] = fmt.Sprintf("%d,%s", first, texts[3])
		p.dom[first] = true
	}
	p.text = strings.Join(texts, " ")
	return p
}

// drawField draws the text of a field. It returns the text, its values, and whether it has
// a star.
func drawField(r *rand.Rand, lo, hi int) (text string, all set, star bool) {
	var parts []string
	for range 1 + r.IntN(3) {
		first := lo + r.IntN(hi-lo+1)
		last := first + r.IntN(hi-first+1)
		step := 1 + r.IntN(hi-lo)
		var part string
		var some set
		switch r.IntN(12) {
		case 10, 11: // perhaps a range that wraps
			last := lo + r.IntN(hi-lo+1)
			part, some = fmt.Sprintf("%d-%d/%d", first, last, step), circle(lo, hi, first, last, step)
			if r.IntN(2) == 0 {
				part, some = fmt.Sprintf("%d-%d", first, last), circle(lo, hi, first, last, 1)
			}
		case 0:
			part, some, star = "*", values(lo, hi, 1), true
		case 1:
			part, some = fmt.Sprintf("*/%d", step), values(lo, hi, step)
			star = star || step == 1
		case 2:
			part, some = fmt.Sprintf("%d-%d/%d", first, last, step), values(first, last, step)
		case 3:
			part, some = fmt.Sprintf("%d/%d", first, step), values(first, hi, step)
		case 4, 5:
			part, some = fmt.Sprintf("%d-%d", first, last), values(first, last, 1)
		default:
			part, some = strconv.Itoa(first), values(first, first, 1)
		}
		parts = append(parts, part)
		for v, in := range some {
			all[v] = all[v] || in
		}
	}
	return strings.Join(parts, ","), all, star
}

// circle walks round the values of a field, from first to last, and takes every step-th.
func circle(lo, hi, first, last, step int) (s set) {
	for v, n := first, 0; ; n++ {
		if n%step == 0 {
			s[v] = true
		}
		if v == last {
			return s
		}
		if v++; v > hi {
			v = lo
		}
	}
}

// drawDays draws some of the days that depend on the month.
func drawDays(r *rand.Rand, draw func(*rand.Rand) (string, func(time.Time) bool)) (string, []func(time.Time) bool) {
	var texts []string
	var days []func(time.Time) bool
	for range 1 + r.IntN(2) {
		text, is := draw(r)
		if r.IntN(2) == 0 {
			text = strings.ToLower(text)
		}
		texts, days = append(texts, text), append(days, is)
	}
	return strings.Join(texts, ","), days
}

func drawDom(r *rand.Rand) (string, func(time.Time) bool) {
	weekday := func(d time.Time) bool { return d.Weekday() != time.Saturday && d.Weekday() != time.Sunday }
	switch n := 1 + r.IntN(31); r.IntN(4) {
	case 0:
		return "L", lastOfMonth
	case 1:
		n = 1 + r.IntN(30)
		return fmt.Sprintf("L-%d", n), func(d time.Time) bool {
			return lastOfMonth(d.AddDate(0, 0, n)) && d.AddDate(0, 0, n).Month() == d.Month()
		}
	case 2:
		return fmt.Sprintf("%dW", n), func(d time.Time) bool {
			target := time.Date(d.Year(), d.Month(), n, 0, 0, 0, 0, time.UTC)
			for away := 0; target.Month() == d.Month(); away++ {
				for _, near := range []time.Time{target.AddDate(0, 0, -away), target.AddDate(0, 0, away)} {
					if near.Month() == d.Month() && weekday(near) {
						return near.Day() == d.Day()
					}
				}
			}
			return false
		}
	default:
		return "LW", func(d time.Time) bool {
			if !weekday(d) {
				return false
			}
			for later := d; !lastOfMonth(later); {
				if later = later.AddDate(0, 0, 1); weekday(later) {
					return false
				}
			}
			return true
		}
	}
}

func lastOfMonth(d time.Time) bool { return d.AddDate(0, 0, 1).Month() != d.Month() }

func drawDow(r *rand.Rand) (string, func(time.Time) bool) {
	day, n := time.Weekday(r.IntN(7)), 1+r.IntN(5)
	name := strconv.Itoa(int(day))
	if r.IntN(2) == 0 {
		name = day.String()[:3]
	} else if day == time.Sunday && r.IntN(2) == 0 {
		name = "7"
	}
	if r.IntN(2) == 0 {
		return name + "L", func(d time.Time) bool {
			return d.Weekday() == day && d.AddDate(0, 0, 7).Month() != d.Month()
		}
	}
	return fmt.Sprintf("%s#%d", name, n), func(d time.Time) bool {
		count := 0
		for e := d; e.Month() == d.Month(); e = e.AddDate(0, 0, -1) {
			if e.Weekday() == day {
				count++
			}
		}
		return d.Weekday() == day && count == n
	}
}

// period is an @every.
type period struct{ every, offset int64 }

// schedule is a spec as it was drawn.
type schedule struct {
	text    string
	plans   []plan
	periods []period
	drop    []func(clock time.Time) bool
}

func (s schedule) drops(clock time.Time) bool {
	return slices.ContainsFunc(s.drop, func(drop func(time.Time) bool) bool { return drop(clock) })
}

// only makes a schedule of one plan.
func only(p plan) schedule { return schedule{text: p.text, plans: []plan{p}} }

// drawSchedule draws a schedule for the time from begin to end. Half of the schedules have
// one plan only.
func drawSchedule(r *rand.Rand, seconds bool, begin, end time.Time) schedule {
	if r.IntN(2) == 0 {
		return only(drawPlan(r, seconds))
	}
	var s schedule
	var texts []string
	for range 1 + r.IntN(3) {
		p := drawPlan(r, seconds)
		s.plans, texts = append(s.plans, p), append(texts, p.text)
	}
	if r.IntN(3) == 0 {
		p := period{every: 60 * (30 + r.Int64N(3000))}
		text := fmt.Sprintf("@every %ds", p.every)
		if r.IntN(2) == 0 {
			p.offset = 60 * r.Int64N(p.every/60)
			text += fmt.Sprintf(" offset %ds", p.offset)
		}
		s.periods, texts = append(s.periods, p), append(texts, text)
	}
	point := func() time.Time {
		return begin.Add(time.Duration(r.Int64N(int64(end.Sub(begin))))).Truncate(15 * time.Minute)
	}
	if r.IntN(3) == 0 {
		text, before, _ := drawEdge(r, point())
		texts, s.drop = append(texts, "from "+text), append(s.drop, before)
	}
	if r.IntN(3) == 0 {
		text, _, after := drawEdge(r, point())
		if from := texts[len(texts)-1]; !strings.HasPrefix(from, "from ") || from[5:] <= text {
			texts, s.drop = append(texts, "until "+text), append(s.drop, after)
		}
	}
	for range r.IntN(3) {
		from, to := point(), point()
		if to.Before(from) {
			from, to = to, from
		}
		if r.IntN(3) == 0 { // a day of each year
			first, last := from.Format("01-02"), to.Format("01-02")
			texts = append(texts, "except "+first+".."+last)
			s.drop = append(s.drop, func(clock time.Time) bool {
				day := clock.Format("01-02")
				if first <= last {
					return first <= day && day <= last
				}
				return first <= day || day <= last
			})
			continue
		}
		first, before, _ := drawEdge(r, from)
		last, _, after := drawEdge(r, to)
		if last[:10] <= first[:10] { // perhaps out of order
			first = from.Format(time.DateOnly)
			last, before, after = first, nil, nil
		}
		if last == first {
			texts = append(texts, "except "+first)
			s.drop = append(s.drop, func(clock time.Time) bool { return clock.Format(time.DateOnly) == first })
			continue
		}
		texts = append(texts, fmt.Sprintf("except %s..%s", first, last))
		s.drop = append(s.drop, func(clock time.Time) bool { return !before(clock) && !after(clock) })
	}
	r.Shuffle(len(texts), func(i, k int) { texts[i], texts[k] = texts[k], texts[i] })
	s.text = strings.Join(texts, "; ")
	return s
}

// drawEdge writes a time as a date or as a time. It returns what tells the times before and
// after.
func drawEdge(r *rand.Rand, at time.Time) (text string, before, after func(clock time.Time) bool) {
	layout := []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05"}[r.IntN(3)]
	text = at.Format(layout)
	exact := text
	if len(text) == 16 {
		exact, layout = text+":00", "2006-01-02T15:04:05"
	}
	return text, func(clock time.Time) bool { return clock.Format(layout) < exact },
		func(clock time.Time) bool { return clock.Format(layout) > exact }
}

// compare compares a schedule's ticks between two instants with those of the diary: from
// tick to tick, and from a thousand instants between ticks.
func compare(t *testing.T, d *diary, p schedule, from, until time.Time) (ticks int) {
	t.Helper()
	ticks, err := differ(d, p, from, until, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return ticks
}

// differ returns the first difference between a schedule's ticks and those of the diary.
func differ(d *diary, p schedule, from, until time.Time, probes int) (ticks int, err error) {
	s, err := spec.Parse(p.text, d.zone)
	if err != nil {
		return 0, err
	}
	var want []int64
	for _, at := range d.ticksOf(p) {
		if at > from.Unix() && at <= until.Unix() {
			want = append(want, at)
		}
	}
	i := 0
	for tick := range s.Ticks(from, until) {
		if i == len(want) || tick.Unix() != want[i] {
			return i, fmt.Errorf("%s (%s): tick %d is %s, the oracle has %s", s, p.text, i, tick.In(d.zone), at(want, i, d.zone))
		}
		i++
	}
	if i < len(want) {
		return i, fmt.Errorf("%s (%s): no tick where the oracle has %s", s, p.text, at(want, i, d.zone))
	}
	for x := from; x.Before(until); x = x.Add(until.Sub(from) / time.Duration(probes)) {
		i, _ := slices.BinarySearch(want, x.Unix()+1)
		if next := s.Next(x); i < len(want) && next.Unix() != want[i] {
			return i, fmt.Errorf("%s (%s): after %s comes %s, the oracle has %s", s, p.text, x.In(d.zone), next.In(d.zone), at(want, i, d.zone))
		}
	}
	return i, nil
}

func at(list []int64, i int, zone *time.Location) string {
	if i >= len(list) {
		return "none"
	}
	return time.Unix(list[i], 0).In(zone).String()
}
