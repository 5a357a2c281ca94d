package spec_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/joblock/toolkit/scheduler/spec"
)

// Next and Prev agree on where the ticks are, from wherever they are asked.
func TestTicksCutTimeIntoPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		y := years[r.IntN(len(years))]
		begin := time.Date(y.year, 1, 1, 0, 0, 0, 0, time.UTC)
		text := "CRON_TZ=" + y.zone + " " + drawSchedule(r, r.IntN(2) == 0, begin, begin.AddDate(1, 0, 0)).text
		if r.IntN(10) == 0 {
			text = "@every " + (time.Duration(1+r.IntN(1e6)) * time.Second).String()
		}
		s, err := spec.Parse(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(y.year, 1, 1, 0, 0, 0, r.IntN(2), time.UTC).Add(time.Duration(r.IntN(360*24*3600)) * time.Second)
		if _, change := at.In(s.Zone()).ZoneBounds(); !change.IsZero() && r.IntN(3) > 0 {
			at = change.Add(time.Duration(r.IntN(8*3600)-4*3600) * time.Second)
		}
		next, prev := s.Next(at), s.Prev(at)
		limited := strings.Contains(text, "from") || strings.Contains(text, "until") || strings.Contains(text, "except")
		if (next.IsZero() || prev.IsZero()) && limited {
			// There are no ticks after at, or none up to at.
			if next.IsZero() && !prev.IsZero() && (prev.After(at) || !s.Next(prev).IsZero() || s.Prev(prev) != prev) ||
				prev.IsZero() && s.Next(time.Time{}) != next {
				t.Fatalf("%s has a tick at %s, and one at %s after %s", s, prev, next, at)
			}
			return
		}
		if next.IsZero() {
			if !prev.IsZero() {
				t.Fatalf("%s has a tick at %s and none after %s", s, prev, at)
			}
			return
		}
		if !next.After(at) || prev.After(at) || prev.IsZero() {
			t.Fatalf("%s: %s is not between %s and %s", s, at, prev, next)
		}
		if next.Location() != time.UTC || prev.Location() != time.UTC || next.Nanosecond() != 0 {
			t.Fatalf("%s: ticks %v and %v, want whole seconds in UTC", s, prev, next)
		}
		within := time.Duration(r.Int64N(int64(next.Sub(prev))))
		for _, x := range []time.Time{prev, prev.Add(1), prev.Add(within), next.Add(-1)} {
			if got := s.Next(x); got != next {
				t.Fatalf("%s: after %s comes %s, not %s", s, x, got, next)
			}
			if got := s.Prev(x); got != prev {
				t.Fatalf("%s: up to %s, the last is %s, not %s", s, x, got, prev)
			}
		}
		if s.Prev(next) != next || !s.Next(next).After(next) {
			t.Fatalf("%s: %s is not the last tick up to itself", s, next)
		}
		again, err := spec.Parse(s.String(), time.FixedZone("elsewhere", 4000))
		if err != nil || again.String() != s.String() || again.Next(at) != next {
			t.Fatalf("%s: read back as %s, with %s after %s; error %v", s, again, again.Next(at), at, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"* * * * *", "*/10 30 2-4/2 1,15 jan-DEC sun,7", "@every 1m30s", "@daily", "TZ=UTC", "TZ= @daily",
		"CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=Australia/Lord_Howe ? */3 * * 1/2", "0 0 30 2 *", ", - / *-1 */0", "@every 9999999999h",
		"0 3 L,L-3,15W,LW * 5L,fri#3", "0 22-2/2 * nov-feb sat-mon", "@every 6h offset 10m; @every 25m",
		"TZ=Europe/Berlin 0 3 * * 1-5; 0 12 * * 6; from 2026-12-01; until 2099-01-31T18:00; except 12-24..01-02, 2026-05-01..2026-05-03T12:00:01",
		"0 0 25 12 *; except 12-25", "* * * * *; except 01-01..12-31", "* * * * *; except 03-01..02-28",
	} {
		f.Add(text, int64(1743292800))
	}
	f.Fuzz(func(t *testing.T, text string, unix int64) {
		s, err := spec.Parse(text, nil)
		if err != nil {
			if s.String() != "" || !strings.HasPrefix(err.Error(), "spec ") {
				t.Fatalf("%q: %v together with the error %v", text, s, err)
			}
			return
		}
		at := time.Unix(unix, 0)
		begin := time.Now()
		next, prev := s.Next(at), s.Prev(at)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%q: took %s", text, took)
		}
		for _, f := range s.Forecast(at, 2) {
			if f.At.Unix() <= at.Unix() {
				t.Errorf("%q: the forecast after %s has %s", text, at, f.At)
			}
		}
		if s.Words() == "" {
			t.Errorf("%q: no words", text)
		}
		if !next.IsZero() && (!next.After(at) || s.Prev(next) != next) {
			t.Errorf("%q: after %s comes %s", text, at, next)
		}
		if prev.After(at) {
			t.Errorf("%q: up to %s, the last is %s", text, at, prev)
		}
		again, err := spec.Parse(s.String(), nil)
		if err != nil || again.String() != s.String() || again.Next(at) != next {
			t.Errorf("%q: written as %q, read back as %q; error %v", text, s, again, err)
		}
	})
}
