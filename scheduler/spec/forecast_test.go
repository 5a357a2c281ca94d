package spec_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

func TestForecastSaysWhatAClockChangeDoes(t *testing.T) {
	for _, tc := range []struct {
		spec, zone, from, until string
		want                    []string // the ticks that have a note, with the note
	}{
		{"30 2 * * *", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 03:00 CEST the clock goes from 02:00 to 03:00: the tick of 02:30 comes at 03:00"}},
		{"*/15 2,3 * * *", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 03:00 CEST the clock goes from 02:00 to 03:00: the ticks of 02:00, 02:15, 02:30 and 02:45 come at 03:00, as one"}},
		{"*/10 2 * * *", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 03:00 CEST the clock goes from 02:00 to 03:00: the ticks of 02:00 to 02:50 (6 times) come at 03:00, as one"}},
		{"30 * * * *", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 03:30 CEST the clock jumped from 02:00 to 03:00: no tick at 02:30"}},
		{"10 30 * * * *", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 03:30:10 CEST the clock jumped from 02:00 to 03:00: no tick at 02:30:10"}},
		{"30 * 1,29 * *", "Europe/Berlin", "2026-03-28 00h", "2026-04-02 00h", []string{
			"29 03:30 CEST the clock jumped from 02:00 to 03:00: no tick at 02:30"}},
		{"30 * 1,28 * *", "Europe/Berlin", "2026-03-28 00h", "2026-04-02 00h", nil},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", []string{
			"25 02:30 CEST the clock goes from 03:00 back to 02:00 and shows 02:30 twice: no second tick"}},
		{"30 * * * *", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", []string{
			"25 02:30 CEST the clock goes from 03:00 back to 02:00 and shows 02:30 twice: this is the first of two ticks",
			"25 02:30 CET the clock goes from 03:00 back to 02:00 and shows 02:30 twice: this is the second of two ticks"}},
		{"30 3 * * *", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", nil},
		{"@every 30m", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", nil},
		// Several rules: the notes are about the whole spec.
		{"0 2 * * *; 0 * * * *", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 03:00 CEST the clock goes from 02:00 to 03:00: the tick of 02:00 comes at 03:00"}},
		{"30 2 * * *; @every 1h offset 30m", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", []string{
			"25 02:30 CEST the clock goes from 03:00 back to 02:00 and shows 02:30 twice: this is the first of two ticks",
			"25 02:30 CET the clock goes from 03:00 back to 02:00 and shows 02:30 twice: this is the second of two ticks"}},
		// Limits.
		{"30 * * * *; until 2026-10-25T02:30", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", []string{
			"25 02:30 CEST the clock goes from 03:00 back to 02:00 and shows 02:30 twice: no second tick"}},
		{"0,30 * * * *; from 2026-10-25T02:30", "Europe/Berlin", "2026-10-24 00h", "2026-10-27 00h", []string{
			"25 02:30 CEST the clock goes from 03:00 back to 02:00 and shows 02:30 twice: this is the first of two ticks",
			"25 02:00 CET the clock goes from 03:00 back to 02:00 and shows 02:00 twice: no first tick",
			"25 02:30 CET the clock goes from 03:00 back to 02:00 and shows 02:30 twice: this is the second of two ticks"}},
		{"0,30 * * * *; except 2026-03-29T02:30..2026-03-29T08:00", "Europe/Berlin", "2026-03-28 00h", "2026-03-31 00h", []string{
			"29 08:30 CEST the clock jumped from 02:00 to 03:00: no tick at 02:00"}},
		{"30 2,5 * * *; except 2026-03-29T03:00", "Europe/Berlin", "2026-03-29 00h", "2026-03-31 00h", nil},
		// A day that never was.
		{"0 */12 * * *", "Pacific/Apia", "2011-12-29 00h", "2012-01-02 00h", []string{
			"31 00:00 +14 the clock goes from 2011-12-30 00:00 to 2011-12-31 00:00: the ticks of 2011-12-30 00:00 and 2011-12-30 12:00 come at 2011-12-31 00:00, as one"}},
	} {
		s := inZone(t, tc.spec, tc.zone)
		var got []string
		ticks := 0
		for _, f := range s.Forecast(wall(t, s, tc.from), 4000) {
			if !f.At.Before(wall(t, s, tc.until)) {
				break
			}
			if ticks++; f.Note != "" {
				layout := "02 15:04 MST"
				if f.At.Second() != 0 {
					layout = "02 15:04:05 MST"
				}
				got = append(got, f.At.Format(layout)+" "+f.Note)
			}
		}
		if ticks == 0 || strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
			t.Errorf("%s, %d ticks:\n%s\nwant\n%s", s, ticks, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}
}

func TestForecastEndsWithTheSpec(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]int{"@daily": 5, "@daily; until 2026-01-03": 2, "0 0 30 2 *": 0} {
		if got := parse(t, text).Forecast(at, 5); len(got) != want {
			t.Errorf("%s: %v, want %d", text, got, want)
		}
	}
	if got := parse(t, "@daily").Forecast(at, 0); got != nil {
		t.Errorf("%v, want none", got)
	}
	if got := (spec.Spec{}).Forecast(at, 5); got != nil {
		t.Errorf("zero spec: %v, want none", got)
	}
}

// Each tick of a random plan has a note if and only if the oracle's clock skipped or repeated
// a time of the plan.
func TestForecastsAreThoseOfTheOracle(t *testing.T) {
	notes := make(map[string]int)
	for _, y := range years {
		zone := load(t, y.zone)
		r := rand.New(rand.NewPCG(uint64(y.year), 7))
		for _, change := range changes(zone, y.year) {
			from, until := change.Add(-30*time.Hour), change.Add(30*time.Hour)
			d := keepDiary(zone, from, until, time.Minute)
			for range 3 * plansEach {
				p := drawPlan(r, false)
				s, err := spec.Parse(p.text, zone)
				if err != nil {
					t.Fatal(err)
				}
				previous := change.Add(-2 * time.Hour)
				for _, f := range s.Forecast(previous, 50) {
					if f.At.After(change.Add(26 * time.Hour)) {
						break
					}
					want := d.note(p, previous.Unix(), f.At.Unix())
					if want == "" && f.Note != "" || !strings.Contains(f.Note, want) || strings.Contains(f.Note, ";") {
						t.Fatalf("%s: %s has the note %q, the oracle has %q", s, f.At, f.Note, want)
					}
					notes[want]++
					previous = f.At
				}
			}
		}
	}
	t.Log(notes)
	for _, want := range []string{"", "no tick at", "come", "no second tick", "first of two", "second of two"} {
		if notes[want] < 5 {
			t.Errorf("only %d ticks with a note %q", notes[want], want)
		}
	}
}

// note returns part of the note that a tick of a plan must have.
func (d *diary) note(p plan, previous, tick int64) string {
	rhythm := p.hour == values(0, 23, 1)
	shown := func(i int) time.Time { return d.begin.Add(time.Duration(i) * d.step) }
	for _, s := range d.again {
		if rhythm && s.at == tick {
			return "second of two"
		}
	}
	for i := range d.matching(p) {
		if d.first[i] == tick {
			for _, s := range d.again {
				if s.clock.Equal(shown(i)) {
					if rhythm {
						return "first of two"
					}
					return "no second tick"
				}
			}
		}
	}
	for i := range d.matching(p) {
		if d.first[i] != skipped {
			continue
		}
		later := i
		for later < len(d.first) && d.first[later] == skipped {
			later++
		}
		switch {
		case later == len(d.first):
		case rhythm && previous < d.first[later] && d.first[later] <= tick:
			return "no tick at"
		case !rhythm && d.first[later] == tick:
			return "come"
		}
	}
	return ""
}
