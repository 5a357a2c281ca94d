package spec_test

import (
	"archive/zip"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler/spec"
)

// zoneData says where the data of time zones come from. Go's own are slim: they have a rule
// for future years. Those of many systems are fat: they list each change up to 2037.
// time.Time.ZoneBounds is wrong on different days with slim and with fat data.
var zoneData = []struct {
	name string
	load func(testing.TB) []*time.Location
}{
	{"Go", goZones},
	{"system", systemZones},
}

// goZones are the zones that come with Go, without those that only are second names.
var goZones = onceFor(func(t testing.TB) []*time.Location {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := make(map[string]bool)
	var zones []*time.Location
	for _, f := range file.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) == 0 || seen[string(data)] { // a folder, or a second name
			continue
		}
		seen[string(data)] = true
		zone, err := time.LoadLocationFromTZData(f.Name, data)
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		zones = append(zones, zone)
	}
	if len(zones) < 300 {
		t.Fatalf("Go has %d zones only", len(zones))
	}
	return zones
})

// systemZones are the zones of the system, if it has any.
var systemZones = onceFor(func(t testing.TB) []*time.Location {
	var zones []*time.Location
	for _, zone := range goZones(t) {
		data, err := os.ReadFile(filepath.Join("/usr/share/zoneinfo", zone.String()))
		if err != nil {
			continue
		}
		theirs, err := time.LoadLocationFromTZData(zone.String(), data)
		if err != nil {
			t.Fatalf("%s: %v", zone, err)
		}
		zones = append(zones, theirs)
	}
	return zones
})

func onceFor(load func(testing.TB) []*time.Location) func(testing.TB) []*time.Location {
	var once sync.Once
	var zones []*time.Location
	return func(t testing.TB) []*time.Location {
		once.Do(func() { zones = load(t) })
		return zones
	}
}

// shapes are kinds of specs as the oracle knows them. All tick at quarters of an hour, so
// that a diary by quarters will do: today no zone changes at other times.
var shapes = func() []schedule {
	base := plan{second: values(0, 0, 1), minute: values(30, 30, 1), hour: values(0, 23, 1), dom: values(1, 31, 1),
		month: values(1, 12, 1), dow: values(0, 6, 1), anyDom: true, anyDow: true}
	rhythm, named, weekday, monthday, leapday, newYear := base, base, base, base, base, base
	rhythm.text = "30 * * * *"
	named.text, named.hour = "30 0,2 * * *", values(0, 2, 2)
	weekday.text, weekday.hour, weekday.dow, weekday.anyDow = "30 1 * * 0", values(1, 1, 1), values(0, 0, 1), false
	monthday.text, monthday.hour, monthday.dom, monthday.anyDom = "30 23 31 * *", values(23, 23, 1), values(31, 31, 1), false
	leapday.text, leapday.hour, leapday.dom, leapday.month, leapday.anyDom = "30 0 29 2 *", values(0, 0, 1), values(29, 29, 1), values(2, 2, 1), false
	newYear.text, newYear.hour, newYear.dom, newYear.month, newYear.anyDom = "30 0 1 1 *", values(0, 0, 1), values(1, 1, 1), values(1, 1, 1), false
	last, near, third, wrap := base, base, base, base
	last.text, last.hour, last.dom, last.anyDom = "30 0 L * *", values(0, 0, 1), set{}, false
	last.alsoDom = []func(time.Time) bool{lastOfMonth}
	near.text, near.hour, near.dom, near.anyDom = "30 1 LW * *", values(1, 1, 1), set{}, false
	near.alsoDom = []func(time.Time) bool{func(d time.Time) bool {
		next := 1 // day of the next weekday
		if d.Weekday() == time.Friday {
			next = 3
		}
		return d.Weekday()%6 != 0 && d.AddDate(0, 0, next).Month() != d.Month()
	}}
	third.text, third.hour, third.dow, third.anyDow = "30 2 * * SUN#3", values(2, 2, 1), set{}, false
	third.alsoDow = []func(time.Time) bool{func(d time.Time) bool { return d.Weekday() == time.Sunday && (d.Day()+6)/7 == 3 }}
	wrap.text, wrap.hour, wrap.dow, wrap.anyDow = "30 23-2 * * SAT-MON", circle(0, 23, 23, 2, 1), circle(0, 6, 6, 1, 1), false
	all := schedule{
		text:  "30 0 L * *; 30 1 LW * *; 30 2 * * SUN#3; 30 23-2 * * SAT-MON; except 12-24..01-02",
		plans: []plan{last, near, third, wrap},
		drop: []func(time.Time) bool{func(clock time.Time) bool {
			return clock.Month() == time.December && clock.Day() >= 24 || clock.YearDay() <= 2
		}},
	}
	return []schedule{only(rhythm), only(named), only(weekday), only(monthday), only(leapday), only(newYear), all}
}()

// figures count what was compared.
type figures struct{ zones, windows, again, specs, ticks, probes int }

func (f *figures) add(g figures) {
	f.zones, f.windows, f.again, f.specs = f.zones+g.zones, f.windows+g.windows, f.again+g.again, f.specs+g.specs
	f.ticks, f.probes = f.ticks+g.ticks, f.probes+g.probes
}

func (f figures) String() string {
	return fmt.Sprintf("%d zones, %d windows and %d in which the clock is that of another zone, %d specs, %d ticks, %d instants between them",
		f.zones, f.windows, f.again, f.specs, f.ticks, f.probes)
}

// clocks remembers what the clocks of zones have shown. Package spec asks a zone only for its offset at an instant, and
// so does the oracle. So one zone stands for all that have its clock, in the same data.
type clocks struct{ seen sync.Map }

// window is the function window, unless a zone with the same clock was looked at between these instants: by the hour
// around them, and by every fifth day of the twelve years in which a spec may look for its next tick.
func (c *clocks) window(data string, zone *time.Location, from, until time.Time, step time.Duration) (figures, error) {
	type shown struct {
		data        string
		from, until int64
		clock       uint64
	}
	h := fnv.New64a()
	note := func(from, until time.Time, step time.Duration) {
		for at := from; at.Before(until); at = at.Add(step) {
			_, offset := at.In(zone).Zone()
			_, _ = h.Write([]byte{byte(offset), byte(offset >> 8), byte(offset >> 16)})
		}
	}
	note(from.AddDate(0, 0, -3), until.AddDate(0, 0, 3), time.Hour)
	note(until, until.AddDate(12, 0, 0), 5*24*time.Hour)
	if _, again := c.seen.LoadOrStore(shown{data, from.Unix(), until.Unix(), h.Sum64()}, true); again {
		return figures{again: 1}, nil
	}
	return window(zone, from, until, step)
}

// window compares the ticks of all shapes and of @every between two instants with what the
// clock of the zone shows at each quarter of an hour.
func window(zone *time.Location, from, until time.Time, step time.Duration) (f figures, err error) {
	d := keepDiary(zone, from.AddDate(0, 0, -2), until.AddDate(0, 0, 2), 15*time.Minute)
	f.windows, f.specs = 1, len(shapes)+1
	for _, p := range shapes {
		s, err := spec.Parse(p.text, zone)
		if err != nil {
			return f, err
		}
		want := slices.DeleteFunc(d.ticksOf(p), func(at int64) bool { return at <= from.Unix() || at > until.Unix() })
		g, err := follow(s, want, from, until, step)
		f.add(g)
		if err != nil {
			return f, err
		}
	}
	every, err := spec.Parse("@every 7h offset 2h", zone)
	if err != nil {
		return f, err
	}
	var want []int64
	for at := from.Unix() + 1; at <= until.Unix(); at++ {
		if at%(7*3600) == 2*3600 {
			want = append(want, at)
			at += 7*3600 - 1
		}
	}
	g, err := follow(every, want, from, until, step)
	f.add(g)
	return f, err
}

// follow goes from tick to tick, and also asks for the next tick at instants between them.
func follow(s spec.Spec, want []int64, from, until time.Time, step time.Duration) (f figures, err error) {
	ask := func(after time.Time, i int) (time.Time, error) {
		next := s.Next(after)
		switch {
		case !next.After(after):
			return next, fmt.Errorf("%s: after %s comes %s", s, after.In(s.Zone()), next.In(s.Zone()))
		case i < len(want) && next.Unix() != want[i], i == len(want) && !next.After(until):
			return next, fmt.Errorf("%s: after %s comes %s, the oracle has %s", s, after.In(s.Zone()), next.In(s.Zone()), at(want, i, s.Zone()))
		}
		return next, nil
	}
	after := from
	for i := range len(want) + 1 {
		if after, err = ask(after, i); err != nil {
			return f, err
		}
	}
	f.ticks = len(want)
	for x := from; x.Before(until); x = x.Add(step) {
		i, _ := slices.BinarySearch(want, x.Unix()+1)
		if _, err := ask(x, i); err != nil {
			return f, err
		}
		f.probes++
	}
	return f, nil
}

// eachZone calls f for all zones, on all processors, and logs what was compared.
func eachZone(t *testing.T, f func(data string, zone *time.Location) (figures, error)) {
	for _, data := range zoneData {
		t.Run(data.name, func(t *testing.T) {
			zones := data.load(t)
			if len(zones) == 0 {
				t.Skip("the system has no zone data")
			}
			var all figures
			var mu sync.Mutex
			t.Run("zones", func(t *testing.T) {
				for part := range slices.Chunk(zones, 40) {
					t.Run(part[0].String(), func(t *testing.T) {
						t.Parallel()
						for _, zone := range part {
							g, err := f(data.name, zone)
							if err != nil {
								t.Error(err)
							}
							g.zones = 1
							mu.Lock()
							all.add(g)
							mu.Unlock()
						}
					})
				}
			})
			t.Logf("%s: %s", data.name, all)
		})
	}
}

// On the last days of leap years, time.Time.ZoneBounds returns an end that has passed
// (golang/go#81583). In every zone the ticks are those of the wall clock all the same, and
// they are in order.
func TestLastDaysOfLeapYears(t *testing.T) {
	var c clocks
	eachZone(t, func(data string, zone *time.Location) (all figures, err error) {
		first, last := 2028, 2096
		if data == "system" {
			first, last = 2036, 2044 // fat data end in 2037
		}
		for year := first; year <= last; year += testkit.Size(16, 4) {
			from := time.Date(year, 12, 30, 12, 0, 0, 0, time.UTC)
			f, err := c.window(data, zone, from, from.AddDate(0, 0, 2), 5*time.Hour)
			all.add(f)
			if err != nil {
				return all, err
			}
		}
		return all, nil
	})
}

// The days on which clocks change, in every zone: in a year whose changes fat data list, and
// in one whose changes no data list.
func TestDaysOnWhichClocksChangeInEveryZone(t *testing.T) {
	var c clocks
	eachZone(t, func(data string, zone *time.Location) (all figures, err error) {
		for _, year := range []int{2027, 2048} {
			begin := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
			for day := begin; day.Year() == year; day = day.AddDate(0, 0, 1) {
				_, before := day.In(zone).Zone()
				if _, after := day.AddDate(0, 0, 1).In(zone).Zone(); before == after {
					continue
				}
				f, err := c.window(data, zone, day.AddDate(0, 0, -1), day.AddDate(0, 0, 2), 3*time.Hour)
				all.add(f)
				if err != nil {
					return all, err
				}
			}
		}
		return all, nil
	})
}

// class is the zones whose clocks show the same from 2026 to 2100. Package spec asks a zone only for its offset at an
// instant, and so does the oracle. So one zone stands for its class.
type class struct {
	zone    *time.Location // the first
	zones   int            // of Go and of the system together
	changes []change
}

// change is an instant from which on a zone has another offset. The first change of a class is where its clock begins.
type change struct {
	at     int64
	offset int
}

// changesOf looks at the zone's clock every six hours: no zone changes twice within six hours any more.
func changesOf(zone *time.Location) (all []change) {
	offset := func(at int64) int {
		_, offset := time.Unix(at, 0).In(zone).Zone()
		return offset
	}
	at := time.Date(2025, 12, 20, 0, 0, 0, 0, time.UTC).Unix()
	all = append(all, change{at, offset(at)})
	for end := time.Date(2101, 1, 20, 0, 0, 0, 0, time.UTC).Unix(); at < end; at += 6 * 3600 {
		before, after := at, at+6*3600
		if offset(before) == offset(after) {
			continue
		}
		for after-before > 1 {
			if middle := before + (after-before)/2; offset(middle) == offset(at) {
				before = middle
			} else {
				after = middle
			}
		}
		all = append(all, change{after, offset(after)})
	}
	return all
}

// eachClass calls f for a zone of each class, on all processors, and logs what was compared. It takes long; see make zones.
func eachClass(t *testing.T, f func(c *class) (figures, error)) {
	if os.Getenv("JOBLOCK_ZONES") == "" {
		t.Skip("JOBLOCK_ZONES is not set; see make zones")
	}
	byChanges := make(map[string]*class)
	var classes []*class
	for _, data := range zoneData {
		zones := data.load(t)
		for _, zone := range zones {
			changes := changesOf(zone)
			key := fmt.Sprint(changes)
			if byChanges[key] == nil {
				byChanges[key] = &class{zone: zone, changes: changes}
				classes = append(classes, byChanges[key])
			}
			byChanges[key].zones++
		}
		t.Logf("%d zones of %s; with them %d different clocks from 2026 to 2100", len(zones), data.name, len(classes))
	}
	var all figures
	var mu sync.Mutex
	t.Run("classes", func(t *testing.T) {
		for _, c := range classes {
			t.Run(c.zone.String(), func(t *testing.T) {
				t.Parallel()
				g, err := f(c)
				if err != nil {
					t.Error(err)
				}
				g.zones = c.zones
				mu.Lock()
				defer mu.Unlock()
				all.add(g)
			})
		}
	})
	t.Log(all)
}

// Every tick of all shapes in every zone from 2026 to 2100.
func TestEveryZoneUntil2100(t *testing.T) {
	eachClass(t, func(c *class) (all figures, err error) {
		for year := 2026; year <= 2100; year++ {
			from := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
			f, err := window(c.zone, from, from.AddDate(1, 0, 0), 31*time.Hour)
			all.add(f)
			if err != nil {
				return all, err
			}
		}
		return all, nil
	})
}

// Random specs round every clock change from 2026 to 2100 in every zone, and in windows of 40 days without regard to
// changes.
func TestRandomSpecsUntil2100(t *testing.T) {
	const perChange, perMonth, months = 21, 20, 6
	eachClass(t, func(c *class) (all figures, err error) {
		r := rand.New(rand.NewPCG(1, uint64(crc32.ChecksumIEEE([]byte(c.zone.String())))))
		try := func(middle time.Time, half time.Duration, specs int) error {
			all.windows++
			begin, end := middle.Add(-half), middle.Add(half)
			d := keepDiary(c.zone, begin.Add(-3*24*time.Hour), end.Add(3*24*time.Hour), time.Minute)
			for range specs {
				const probes = 100
				ticks, err := differ(d, drawSchedule(r, false, begin, end), begin, end, probes)
				if err != nil {
					return err
				}
				all.specs, all.ticks, all.probes = all.specs+1, all.ticks+ticks, all.probes+probes
			}
			return nil
		}
		begin, end := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)
		for _, change := range c.changes[1:] {
			at := time.Unix(change.at, 0).UTC()
			if at.Before(begin) || !at.Before(end) {
				continue
			}
			if err := try(at.Truncate(24*time.Hour).Add(12*time.Hour), 48*time.Hour, perChange); err != nil {
				return all, err
			}
		}
		for range months {
			if err := try(begin.AddDate(0, 0, r.IntN(75*365)), 20*24*time.Hour, perMonth); err != nil {
				return all, err
			}
		}
		return all, nil
	})
}
