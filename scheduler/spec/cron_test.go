package spec_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/joblock/toolkit/scheduler/spec"
)

var cronParser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Where clocks do not change, a spec means here what it means to robfig/cron, and so to
// asynq's Scheduler.
func TestSpecsMeanWhatTheyMeanToCron(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	specs := []string{"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually",
		"0 0 */2 * 1", "0 0 1-31 * 1", "0 0 */1 * 1", "0 0 *,5 * 1", "0 0 ? * 1", "0 0 13 * FRI", "0 0 15 * 0-6", "0 0 */2 * 0-6"}
	always := len(specs)
	for range 900 {
		specs = append(specs, drawPlan(r, r.IntN(2) == 0).text)
	}
	compared := 0
	for i, text := range specs {
		theirs, err := cronParser.Parse("TZ=UTC " + text)
		if err != nil && i < always {
			t.Fatalf("%s: %v", text, err)
		}
		if err != nil { // L, W, #, or a range that wraps
			continue
		}
		compared++
		ours := parse(t, text)
		at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 50 {
			want := theirs.Next(at)
			if got := ours.Next(at); !got.Equal(want) {
				t.Fatalf("%s: after %s comes %s, to cron %s", text, at, got, want)
			}
			if at = want; at.IsZero() {
				break
			}
			at = at.Add(time.Duration(r.Int64N(int64(40 * 24 * time.Hour))))
		}
	}
	if compared < 250 {
		t.Errorf("only %d specs were compared", compared)
	}
}

// What cron does on days on which clocks change. This is why Next is our own.
func TestCronOnDaysOnWhichClocksChange(t *testing.T) {
	for _, tc := range []struct{ spec, zone, from, until, theirs, ours string }{
		{"30 2 * * *", "America/New_York", "2024-03-10 00h", "2024-03-11 00h",
			"",
			"10 03:00 EDT"},
		{"30 1 * * *", "America/New_York", "2024-11-03 00h", "2024-11-04 00h",
			"03 01:30 EDT, 03 01:30 EST",
			"03 01:30 EDT"},
		{"0 */2 * * *", "Europe/Berlin", "2025-03-30 00h", "2025-03-30 05h",
			"30 00:00 CET, 30 04:00 CEST", // four hours on the clock, three of elapsed time
			"30 00:00 CET, 30 03:00 CEST, 30 04:00 CEST"},
		{"@daily", "Asia/Beirut", "2022-03-26 00h", "2022-03-28 02h",
			"26 00:00 EET, 28 00:00 EEST",
			"26 00:00 EET, 27 01:00 EEST, 28 00:00 EEST"},
		{"15 2 * * *", "Australia/Lord_Howe", "2025-10-05 00h", "2025-10-06 00h",
			"",
			"05 02:30 +11"},
		{"45 1 * * *", "Australia/Lord_Howe", "2025-04-06 00h", "2025-04-07 00h",
			"06 01:45 +11, 06 01:45 +1030",
			"06 01:45 +11"},
	} {
		ours := inZone(t, tc.spec, tc.zone)
		theirs, err := cronParser.Parse("TZ=" + tc.zone + " " + tc.spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := shown(t, ours, "02 15:04 MST", tc.from, tc.until); got != tc.ours {
			t.Errorf("%s in %s: %s; want %s", tc.spec, tc.zone, got, tc.ours)
		}
		var ticks []string
		for tick := theirs.Next(wall(t, ours, tc.from).Add(-1)); tick.Before(wall(t, ours, tc.until)); tick = theirs.Next(tick) {
			ticks = append(ticks, tick.In(ours.Zone()).Format("02 15:04 MST"))
		}
		if got := strings.Join(ticks, ", "); got != tc.theirs {
			t.Errorf("%s in %s: cron now says %s; was %s", tc.spec, tc.zone, got, tc.theirs)
		}
	}
}

// Input that cron's parser accepts and Parse refuses.
func TestCronTakesWhatIsRefusedHere(t *testing.T) {
	for _, text := range []string{", * * * *", "1,,2 * * * *", "*-5 * * * *", "*/90 * * * *", "+5 * * * *", "@every 1ns", "@every -1h", "TZ= * * * * *"} {
		if _, err := cronParser.Parse(text); err != nil {
			t.Errorf("cron refuses %q too: %v", text, err)
		}
		if _, err := spec.Parse(text, nil); err == nil {
			t.Errorf("%q is not refused", text)
		}
	}
	if leap, err := cronParser.Parse("0 0 29 2 *"); err != nil || !leap.Next(time.Date(2096, 3, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		t.Error("cron now knows the 29 February after 2096")
	}
	defer func() {
		if recover() == nil {
			t.Error("cron no longer panics at TZ=UTC")
		}
	}()
	_, _ = cronParser.Parse("TZ=UTC")
}

// A range of each year that wraps may end on a day that most years do not have.
func TestExceptUntilTheLeapDay(t *testing.T) {
	for text, want := range map[string]string{
		"@daily; except 12-24..02-29":               "2025-12-23, 2026-03-01",
		"@daily; except 12-01..12-31, 01-01..02-29": "2025-11-30, 2026-03-01",
	} {
		s, err := spec.Parse(text, time.UTC)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if _, err := spec.Parse(s.String(), time.UTC); err != nil {
			t.Errorf("the text of %s: %v", text, err)
		}
		mid := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
		if got := s.Prev(mid).Format(time.DateOnly) + ", " + s.Next(mid).Format(time.DateOnly); got != want {
			t.Errorf("%s: the ticks around %s are %s, want %s", text, mid, got, want)
		}
	}
}
