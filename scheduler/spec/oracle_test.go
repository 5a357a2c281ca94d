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
	d := &diary{zone: zone, begin: read(from), step: step}
	d.first = slices.Repeat([]int64{skipped}, int(until.Sub(from)/step+48*time.Hour/step))
	end := 0
	for at := from; at.Before(until); at = at.Add(step) {
		clock := read(at)
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

// ticks returns the ticks of a schedule according to the package documentation.
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

// matching returns the pages of the diary whose times match a schedule.
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

// plan is a schedule as it was drawn.
type plan struct {
	text                                  string
	second, minute, hour, dom, month, dow set
	anyDom, anyDow                        bool // a star
}

func (p plan) day(clock time.Time) bool {
	byDom, byDow := p.dom[clock.Day()], p.dow[clock.Weekday()]
	switch {
	case !p.month[clock.Month()]:
		return false
	case p.anyDom || p.anyDow:
		return byDom && byDow
	}
	return byDom || byDow
}

// drawPlan draws a schedule, with seconds if asked for. A third of the schedules name an
// hour near those in which clocks change, and a third are rhythms. Most have all days,
// because few would ever meet a change otherwise.
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
	}
	if r.IntN(3) == 0 {
		texts[4], p.month, _ = drawField(r, 1, 12)
	}
	if r.IntN(3) == 0 {
		texts[5], p.dow, p.anyDow = drawField(r, 0, 6)
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
		switch r.IntN(10) {
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

// compare compares a schedule's ticks between two instants with those of the diary: from
// tick to tick, and from a thousand instants between ticks.
func compare(t *testing.T, d *diary, p plan, from, until time.Time) (ticks int) {
	t.Helper()
	s, err := spec.Parse(p.text, d.zone)
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	for _, at := range d.ticks(p) {
		if at > from.Unix() && at <= until.Unix() {
			want = append(want, at)
		}
	}
	i := 0
	for tick := range s.Ticks(from, until) {
		if i == len(want) || tick.Unix() != want[i] {
			t.Fatalf("%s (%s): tick %d is %s, the oracle has %s", s, p.text, i, tick.In(d.zone), at(want, i, d.zone))
		}
		i++
	}
	if i < len(want) {
		t.Fatalf("%s (%s): no tick where the oracle has %s", s, p.text, at(want, i, d.zone))
	}
	for x := from; x.Before(until); x = x.Add(until.Sub(from) / 1000) {
		i, _ := slices.BinarySearch(want, x.Unix()+1)
		if next := s.Next(x); i < len(want) && next.Unix() != want[i] {
			t.Fatalf("%s (%s): after %s comes %s, the oracle has %s", s, p.text, x.In(d.zone), next.In(d.zone), at(want, i, d.zone))
		}
	}
	return i
}

func at(list []int64, i int, zone *time.Location) string {
	if i >= len(list) {
		return "none"
	}
	return time.Unix(list[i], 0).In(zone).String()
}
