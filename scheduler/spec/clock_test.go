package spec_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// inZone parses a spec for a named zone.
func inZone(t testing.TB, text, zone string) spec.Spec {
	t.Helper()
	return parse(t, "CRON_TZ="+zone+" "+text)
}

// shown returns the ticks from one time of the zone's clock until just before another, as
// that clock shows them.
func shown(t *testing.T, s spec.Spec, layout, from, until string) string {
	t.Helper()
	var ticks []string
	for tick := range s.Ticks(wall(t, s, from).Add(-1), wall(t, s, until).Add(-1)) {
		ticks = append(ticks, tick.In(s.Zone()).Format(layout))
	}
	return strings.Join(ticks, ", ")
}

// wall returns the instant of a date and an hour in the spec's zone.
func wall(t *testing.T, s spec.Spec, text string) time.Time {
	t.Helper()
	at, err := time.ParseInLocation("2006-01-02 15h", text, s.Zone())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// The table in the package documentation, and more like it.
func TestDaysOnWhichClocksChange(t *testing.T) {
	for _, tc := range []struct{ spec, forward, back string }{
		{"0 * * * *", "01:00 CET, 03:00 CEST, 04:00 CEST", "01:00 CEST, 02:00 CEST, 02:00 CET, 03:00 CET, 04:00 CET"},
		{"*/30 * * * *", "01:00 CET, 01:30 CET, 03:00 CEST, 03:30 CEST, 04:00 CEST, 04:30 CEST", "01:00 CEST, 01:30 CEST, 02:00 CEST, 02:30 CEST, 02:00 CET, 02:30 CET, 03:00 CET, 03:30 CET, 04:00 CET, 04:30 CET"},
		{"30 * * * *", "01:30 CET, 03:30 CEST, 04:30 CEST", "01:30 CEST, 02:30 CEST, 02:30 CET, 03:30 CET, 04:30 CET"},
		{"30 2 * * *", "03:00 CEST", "02:30 CEST"},
		{"0 2 * * *", "03:00 CEST", "02:00 CEST"},
		{"0 3 * * *", "03:00 CEST", "03:00 CET"},
		{"0 2,3 * * *", "03:00 CEST", "02:00 CEST, 03:00 CET"},
		{"30 1,2 * * *", "01:30 CET, 03:00 CEST", "01:30 CEST, 02:30 CEST"},
		{"30 2,3 * * *", "03:00 CEST, 03:30 CEST", "02:30 CEST, 03:30 CET"},
		{"*/15 2 * * *", "03:00 CEST", "02:00 CEST, 02:15 CEST, 02:30 CEST, 02:45 CEST"},
		{"0,30 2 * * *", "03:00 CEST", "02:00 CEST, 02:30 CEST"},
		{"0 1-4 * * *", "01:00 CET, 03:00 CEST, 04:00 CEST", "01:00 CEST, 02:00 CEST, 03:00 CET, 04:00 CET"},
		{"0 1-23 * * *", "01:00 CET, 03:00 CEST, 04:00 CEST", "01:00 CEST, 02:00 CEST, 03:00 CET, 04:00 CET"},
		{"0 0-23 * * *", "01:00 CET, 03:00 CEST, 04:00 CEST", "01:00 CEST, 02:00 CEST, 02:00 CET, 03:00 CET, 04:00 CET"},
		{"0 */2 * * *", "03:00 CEST, 04:00 CEST", "02:00 CEST, 04:00 CET"},
		{"59 1,2 * * *", "01:59 CET, 03:00 CEST", "01:59 CEST, 02:59 CEST"},
		// Only on that day, named by the date on which the time is skipped.
		{"30 2 30 3 *", "03:00 CEST", ""},
		{"30 2 26 10 *", "", "02:30 CEST"},
		{"30 2 * 3,10 SUN", "03:00 CEST", "02:30 CEST"},
		{"30 2 * * MON", "", ""},
	} {
		s := inZone(t, tc.spec, "Europe/Berlin")
		if got := shown(t, s, "15:04 MST", "2025-03-30 01h", "2025-03-30 05h"); got != tc.forward {
			t.Errorf("%s forward: %s; want %s", tc.spec, got, tc.forward)
		}
		if got := shown(t, s, "15:04 MST", "2025-10-26 01h", "2025-10-26 05h"); got != tc.back {
			t.Errorf("%s back: %s; want %s", tc.spec, got, tc.back)
		}
	}
}

func TestZonesThatChangeInOtherWays(t *testing.T) {
	for _, tc := range []struct{ spec, zone, from, until, want string }{
		// Half an hour: 02:00 to 02:30, and 02:00 back to 01:30.
		{"15 2 * * *", "Australia/Lord_Howe", "2025-10-05 00h", "2025-10-06 00h", "05 02:30 +1100"},
		{"30 2 * * *", "Australia/Lord_Howe", "2025-10-05 00h", "2025-10-06 00h", "05 02:30 +1100"},
		{"45 1 * * *", "Australia/Lord_Howe", "2025-04-06 00h", "2025-04-07 00h", "06 01:45 +1100"},
		{"45 * * 4 0", "Australia/Lord_Howe", "2025-04-06 00h", "2025-04-06 03h", "06 00:45 +1100, 06 01:45 +1100, 06 01:45 +1030, 06 02:45 +1030"},
		{"0 * * 10 0", "Australia/Lord_Howe", "2025-10-05 00h", "2025-10-05 04h", "05 00:00 +1030, 05 01:00 +1030, 05 03:00 +1100"},
		// Two hours: 01:00 to 03:00, and 03:00 back to 01:00.
		{"0 1,2 * * *", "Antarctica/Troll", "2025-03-30 00h", "2025-03-31 00h", "30 03:00 +0200"},
		{"0 1,2 * * *", "Antarctica/Troll", "2025-10-26 00h", "2025-10-27 00h", "26 01:00 +0200, 26 02:00 +0200"},
		// No midnight: 00:00 to 01:00. And two hours before two midnights.
		{"@daily", "America/Sao_Paulo", "2018-11-04 00h", "2018-11-06 00h", "04 01:00 -0200, 05 00:00 -0200"},
		{"30 0 4 11 *", "America/Sao_Paulo", "2018-11-03 00h", "2018-11-06 00h", "04 01:00 -0200"},
		{"30 23 17 2 *", "America/Sao_Paulo", "2018-02-17 00h", "2018-02-19 00h", "17 23:30 -0200"},
		{"@daily", "America/Sao_Paulo", "2018-02-17 00h", "2018-02-19 00h", "17 00:00 -0200, 18 00:00 -0300"},
		{"@daily", "Asia/Beirut", "2022-03-27 00h", "2022-03-29 00h", "27 01:00 +0300, 28 00:00 +0300"},
		{"@weekly", "Asia/Beirut", "2022-03-27 00h", "2022-04-04 00h", "27 01:00 +0300, 03 00:00 +0300"},
		{"0 0 28 4 *", "Africa/Cairo", "2023-04-27 00h", "2023-04-30 00h", "28 01:00 +0300"},
		{"30 23 * 10 4", "Africa/Cairo", "2023-10-26 00h", "2023-10-28 00h", "26 23:30 +0300"},
		// Midnight twice: 01:00 back to 00:00.
		{"@daily", "America/Havana", "2025-11-02 00h", "2025-11-04 00h", "02 00:00 -0400, 03 00:00 -0500"},
		// A day that never was.
		{"0 9 * * *", "Pacific/Apia", "2011-12-29 00h", "2012-01-01 00h", "29 09:00 -1000, 31 00:00 +1400, 31 09:00 +1400"},
		{"@daily", "Pacific/Apia", "2011-12-29 00h", "2012-01-01 00h", "29 00:00 -1000, 31 00:00 +1400"},
		{"0 9 30 * *", "Pacific/Apia", "2011-11-30 00h", "2012-02-01 00h", "30 09:00 -1000, 31 00:00 +1400, 30 09:00 +1400"},
		{"0 9 * * FRI", "Pacific/Apia", "2011-12-23 00h", "2012-01-07 00h", "23 09:00 -1000, 31 00:00 +1400, 06 09:00 +1400"},
		{"0 */12 * * *", "Pacific/Apia", "2011-12-29 00h", "2012-01-01 00h", "29 00:00 -1000, 29 12:00 -1000, 31 00:00 +1400, 31 12:00 +1400"},
		{"0 * 30 12 *", "Pacific/Apia", "2011-12-01 00h", "2012-02-01 00h", ""},
		// A day that was twice.
		{"0 9 * * *", "Pacific/Kwajalein", "1969-09-29 00h", "1969-10-02 00h", "29 09:00 +1100, 30 09:00 +1100, 01 09:00 -1200"},
		// A new offset for good: 03:00 back to 02:30, 00:00 back to 23:30.
		{"0 3 * * *", "America/Caracas", "2007-12-09 00h", "2007-12-10 00h", "09 03:00 -0430"},
		{"45 2 * * *", "America/Caracas", "2007-12-09 00h", "2007-12-10 00h", "09 02:45 -0400"},
		{"45 23 * * *", "Asia/Pyongyang", "2015-08-14 00h", "2015-08-16 00h", "14 23:45 +0900, 15 23:45 +0830"},
		// Summer time is suspended for Ramadan: 03:00 back to 02:00, 02:00 to 03:00.
		{"30 2 * * *", "Africa/Casablanca", "2025-02-23 00h", "2025-02-24 00h", "23 02:30 +0100"},
		{"30 2 * * *", "Africa/Casablanca", "2025-04-06 00h", "2025-04-07 00h", "06 03:00 +0100"},
	} {
		s := inZone(t, tc.spec, tc.zone)
		if got := shown(t, s, "02 15:04 -0700", tc.from, tc.until); got != tc.want {
			t.Errorf("%s from %s: %s; want %s", s, tc.from, got, tc.want)
		}
	}
}

// Limits where clocks change: they count by the latest time that the clock has shown so far.
func TestLimitsOnDaysOnWhichClocksChange(t *testing.T) {
	for _, tc := range []struct{ spec, zone, from, until, want string }{
		// From 02:00 to 03:00: 02:30 is reached at 03:00.
		{"0,30 * * * *; from 2025-03-30T02:30", "Europe/Berlin", "2025-03-30 01h", "2025-03-30 05h", "30 03:00 +0200, 30 03:30 +0200, 30 04:00 +0200, 30 04:30 +0200"},
		{"0,30 * * * *; until 2025-03-30T02:30", "Europe/Berlin", "2025-03-30 01h", "2025-03-30 05h", "30 01:00 +0100, 30 01:30 +0100"},
		{"30 2 * * *; until 2025-03-30T02:30", "Europe/Berlin", "2025-03-29 00h", "2025-03-31 00h", "29 02:30 +0100"},
		{"30 2 * * *; until 2025-03-30T03:00", "Europe/Berlin", "2025-03-29 00h", "2025-03-31 00h", "29 02:30 +0100, 30 03:00 +0200"},
		{"30 2,4 * * *; except 2025-03-30T03:00", "Europe/Berlin", "2025-03-30 00h", "2025-03-31 00h", "30 04:30 +0200"},
		// From 03:00 back to 02:00: 02:30 is reached the first time.
		{"0,30 * * * *; from 2025-10-26T02:30", "Europe/Berlin", "2025-10-26 01h", "2025-10-26 04h", "26 02:30 +0200, 26 02:00 +0100, 26 02:30 +0100, 26 03:00 +0100, 26 03:30 +0100"},
		{"0,30 * * * *; until 2025-10-26T02:30", "Europe/Berlin", "2025-10-26 01h", "2025-10-26 04h", "26 01:00 +0200, 26 01:30 +0200, 26 02:00 +0200, 26 02:30 +0200"},
		{"0,30 * * * *; except 2025-10-26T02:00..2025-10-26T02:30", "Europe/Berlin", "2025-10-26 01h", "2025-10-26 04h", "26 01:00 +0200, 26 01:30 +0200, 26 02:00 +0100, 26 02:30 +0100, 26 03:00 +0100, 26 03:30 +0100"},
		{"0,30 * * * *; except 2025-10-26T02:00..2025-10-26T02:59:59", "Europe/Berlin", "2025-10-26 01h", "2025-10-26 04h", "26 01:00 +0200, 26 01:30 +0200, 26 03:00 +0100, 26 03:30 +0100"},
		// @every counts elapsed time, its limits are times of the zone.
		{"@every 30m; from 2025-10-26T02:30; until 2025-10-26", "Europe/Berlin", "2025-10-25 23h", "2025-10-26 03h", "26 02:30 +0200, 26 02:00 +0100, 26 02:30 +0100"},
		// No midnight: the day begins at 01:00.
		{"@daily; from 2018-11-04; until 2018-11-04", "America/Sao_Paulo", "2018-11-03 00h", "2018-11-06 00h", "04 01:00 -0200"},
		{"@daily; except 11-04", "America/Sao_Paulo", "2018-11-03 00h", "2018-11-06 00h", "03 00:00 -0300, 05 00:00 -0200"},
		// A day that never was ends as it begins: its ticks are those of the day after.
		{"0 9 * * *; except 2011-12-30", "Pacific/Apia", "2011-12-29 00h", "2012-01-01 00h", "29 09:00 -1000, 31 00:00 +1400, 31 09:00 +1400"},
		{"0 9 * * *; except 2011-12-31", "Pacific/Apia", "2011-12-29 00h", "2012-01-02 00h", "29 09:00 -1000, 01 09:00 +1400"},
		{"0 9 * * *; until 2011-12-30", "Pacific/Apia", "2011-12-29 00h", "2012-01-02 00h", "29 09:00 -1000"},
		// A day that was twice is left out twice.
		{"0 9,21 * * *; except 1969-09-30", "Pacific/Kwajalein", "1969-09-29 00h", "1969-10-02 00h", "29 09:00 +1100, 29 21:00 +1100, 01 09:00 -1200, 01 21:00 -1200"},
		{"0 */12,0-23 * * *; except 1969-09-30", "Pacific/Kwajalein", "1969-09-29 23h", "1969-10-01 02h", "29 23:00 +1100, 01 00:00 -1200, 01 01:00 -1200"},
	} {
		s := inZone(t, tc.spec, tc.zone)
		if got := shown(t, s, "02 15:04 -0700", tc.from, tc.until); got != tc.want {
			t.Errorf("%s from %s: %s; want %s", s, tc.from, got, tc.want)
		}
	}
}

func TestSpecsThatTickSeldomOrNever(t *testing.T) {
	date := func(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }
	for _, tc := range []struct {
		spec       string
		at         time.Time
		prev, next time.Time
	}{
		{"0 0 29 2 *", date(2025, 1, 1), date(2024, 2, 29), date(2028, 2, 29)},
		{"0 0 29 2 *", date(2096, 2, 29), date(2096, 2, 29), date(2104, 2, 29)},
		{"0 0 29 2 *", date(2104, 2, 29).Add(-1), date(2096, 2, 29), date(2104, 2, 29)},
		{"0 0 31 * *", date(2025, 2, 1), date(2025, 1, 31), date(2025, 3, 31)},
		{"0 0 30 2 *", date(2025, 1, 1), time.Time{}, time.Time{}},
		{"0 0 31 2,4,6,9,11 *", date(2025, 1, 1), time.Time{}, time.Time{}},
		{"0 0 30 2 1", date(2025, 1, 1), date(2024, 2, 26), date(2025, 2, 3)}, // a Monday is enough
		{"0 0 13 * 5", date(2025, 6, 10), date(2025, 6, 6), date(2025, 6, 13)},
		{"@every 24h", date(2025, 6, 10), date(2025, 6, 10), date(2025, 6, 11)},
		{"@every 7s", date(1970, 1, 1), date(1970, 1, 1), date(1970, 1, 1).Add(7 * time.Second)},
		{"@every 7s", date(1970, 1, 1).Add(-1), date(1970, 1, 1).Add(-7 * time.Second), date(1970, 1, 1)},
		{"@every 7s", date(1970, 1, 1).Add(-7 * time.Second), date(1970, 1, 1).Add(-7 * time.Second), date(1970, 1, 1)},
		{"@every 8784h", date(1970, 1, 1), date(1970, 1, 1), date(1971, 1, 2)},
		{"@every 24h offset 1h", date(2025, 6, 10), date(2025, 6, 9).Add(time.Hour), date(2025, 6, 10).Add(time.Hour)},
		{"@every 7s offset 3s", date(1970, 1, 1), date(1970, 1, 1).Add(-4 * time.Second), date(1970, 1, 1).Add(3 * time.Second)},
		{"@every 7s offset 3s", date(1970, 1, 1).Add(3 * time.Second), date(1970, 1, 1).Add(3 * time.Second), date(1970, 1, 1).Add(10 * time.Second)},
		{"0 0 * 2 5#5", date(2025, 1, 1), date(2008, 2, 29), date(2036, 2, 29)},
		{"0 0 * 2 1#5", date(2088, 1, 1), date(2072, 2, 29), date(2112, 2, 29)}, // 40 years
		{"0 0 * 2 1#5", date(2112, 2, 29).Add(-1), date(2072, 2, 29), date(2112, 2, 29)},
		{"0 0 * 2 1#5", date(2072, 2, 29), date(2072, 2, 29), date(2112, 2, 29)},
		{"0 0 L-28 2 *", date(2025, 6, 1), date(2024, 2, 1), date(2028, 2, 1)},
		{"0 0 L-29 2 *", date(2025, 6, 1), time.Time{}, time.Time{}},
		{"0 0 31W 2,4,6,9,11 *", date(2025, 6, 1), time.Time{}, time.Time{}},
		{"0 0 29W 2 *", date(2028, 3, 1), date(2028, 2, 29), date(2032, 2, 27)}, // a Sunday
		{"0 0 1W 8 *", date(2026, 7, 1), date(2025, 8, 1), date(2026, 8, 3)},    // a Saturday
		{"0 0 31W * *", date(2026, 5, 1), date(2026, 3, 31), date(2026, 5, 29)}, // a Sunday
		{"0 0 LW 5 *", date(2026, 5, 1), date(2025, 5, 30), date(2026, 5, 29)},
		{"0 0 LW 2 *", date(2026, 1, 1), date(2025, 2, 28), date(2026, 2, 27)}, // a Saturday
		{"0 0 13 * 5#3", date(2026, 2, 14), date(2026, 2, 13), date(2026, 2, 20)},
		{"0 0 29 2 *; except 2028-02-29..2095-12-31", date(2025, 1, 1), date(2024, 2, 29), date(2096, 2, 29)},
		{"0 0 1 1 *; except 1800-01-01..2300-01-01", date(2025, 1, 1), date(1799, 1, 1), date(2301, 1, 1)},
		{"0 0 1 1 *; from 2500-01-01", date(2025, 1, 1), time.Time{}, date(2500, 1, 1)},
		{"0 0 1 1 *; until 1500-01-01", date(2025, 1, 1), date(1500, 1, 1), time.Time{}},
		{"0 0 25 12 *; except 12-25", date(2025, 1, 1), time.Time{}, time.Time{}},
		{"0 0 25W 12 *; except 12-25", date(2025, 1, 1), date(2022, 12, 26), date(2027, 12, 24)},
		{"0 0 * * *; except 03-01..02-28", date(2025, 1, 1), date(2024, 2, 29), date(2028, 2, 29)},
		{"0 0 * * *; except 03-01..02-28,2028-01-01..2092-02-29", date(2025, 1, 1), date(2024, 2, 29), date(2096, 2, 29)},
		{"0 0 1 1 *; 0 0 1 7 *; 0 0 1 7 *", date(2025, 1, 1), date(2025, 1, 1), date(2025, 7, 1)},
		{"@daily", time.Time{}, time.Time{}, date(1, 1, 2)},
		{"0 0 2 1 *", date(1, 1, 3).Add(18 * time.Hour), date(1, 1, 2), date(2, 1, 2)},
		{"@daily", time.Time{}.Add(-1), time.Time{}, time.Time{}},
		{"@daily", date(9999, 12, 31), date(9999, 12, 31), date(10000, 1, 1)},
		{"@daily", date(10000, 1, 1), date(10000, 1, 1), time.Time{}},
		{"@daily", date(10000, 1, 2), date(10000, 1, 1), time.Time{}},
		{"@daily", time.Unix(1<<62, 0), time.Time{}, time.Time{}},
		{"@daily", time.Unix(-1<<63, 0), time.Time{}, time.Time{}},
	} {
		s := parse(t, tc.spec)
		if got := s.Next(tc.at); got != tc.next {
			t.Errorf("%s: after %s comes %s, want %s", tc.spec, tc.at, got, tc.next)
		}
		if got := s.Prev(tc.at); got != tc.prev {
			t.Errorf("%s: up to %s, the last is %s, want %s", tc.spec, tc.at, got, tc.prev)
		}
	}
}

// Next is right from any instant of such a day.
func TestNextAskedWhileTheClockShowsAnHourAgain(t *testing.T) {
	s := inZone(t, "30 2 * * *", "Europe/Berlin")
	first := time.Date(2025, 10, 26, 0, 30, 0, 0, time.UTC) // 02:30 CEST
	second := first.Add(24*time.Hour + time.Hour)
	for asked, want := range map[time.Time]time.Time{
		first.Add(-1):               first,
		first:                       second,
		first.Add(30 * time.Minute): second, // 02:00 CET
		first.Add(45 * time.Minute): second,
		first.Add(time.Hour - 1):    second, // before 02:30 CET
		first.Add(time.Hour):        second,
		first.Add(90 * time.Minute): second,
	} {
		if got := s.Next(asked); got != want {
			t.Errorf("after %s comes %s, want %s", asked.In(s.Zone()), got.In(s.Zone()), want.In(s.Zone()))
		}
	}
	// The same for the last second of the hour.
	s = inZone(t, "59 59 2 * * *", "Europe/Berlin")
	asked := first.Add(30 * time.Minute)
	if next := asked.Add(25*time.Hour - time.Second); s.Next(asked) != next {
		t.Errorf("after %s comes %s, want %s", asked.In(s.Zone()), s.Next(asked).In(s.Zone()), next.In(s.Zone()))
	}
	// 03:00 comes as soon as the hour has been shown again, not a second later.
	s = inZone(t, "0 3 * * *", "Europe/Berlin")
	if three := first.Add(90 * time.Minute); s.Next(three.Add(-1)) != three {
		t.Errorf("after 02:59:59 CET comes %s, want 03:00 CET", s.Next(three.Add(-1)).In(s.Zone()))
	}
}

func TestTicksOfASpan(t *testing.T) {
	s := parse(t, "*/20 * * * *")
	at := time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC)
	var got []time.Duration
	for tick := range s.Ticks(at, at.Add(time.Hour)) {
		if got = append(got, tick.Sub(at)); tick.Location() != time.UTC {
			t.Errorf("a tick in %s", tick.Location())
		}
	}
	if len(got) != 3 || got[0] != 20*time.Minute || got[2] != time.Hour {
		t.Errorf("got %s, want the three after 12:00 up to and with 13:00", got)
	}
	for range s.Ticks(at, at.Add(time.Hour)) {
		break // must not panic
	}
	for tick := range s.Ticks(at, at) {
		t.Errorf("a tick in no time: %s", tick)
	}
	for tick := range parse(t, "0 0 30 2 *").Ticks(at, at.AddDate(100, 0, 0)) {
		t.Errorf("a tick on 30 February: %s", tick)
	}
}

// withoutFirstOfMarch returns a zone whose clock never shows 1 March: it skips that day and
// goes back by a day on 27 October.
func withoutFirstOfMarch(t testing.TB) *time.Location {
	t.Helper()
	block := "TZif2" + strings.Repeat("\x00", 15) + strings.Repeat("\x00", 4*4) + "\x00\x00\x00\x01" + "\x00\x00\x00\x04" + // one type, no changes
		"\xff\xff\x57\x40\x00\x00" + "AAA\x00" // 12 hours west
	zone, err := time.LoadLocationFromTZData("Test/Gap", []byte(block+block+"\nAAA12BBB-12,J60/0,J300/0\n"))
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// The search for a time that no clock ever shows comes to an end.
func TestARhythmOfADayThatIsAlwaysSkippedHasNoTicks(t *testing.T) {
	zone := withoutFirstOfMarch(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct{ spec, want string }{
		{"30 * 1 3 *", "0001-01-01 00:00:00 +0000 UTC"},
		{"30 2 1 3 *", "2026-03-02 00:00:00 +1200 BBB"},    // named: due when the clock passes it
		{"30 * 1,3 3 *", "2026-03-03 00:30:00 +1200 BBB"},  // the next that is shown
		{"30 * 26 10 *", "2026-10-26 00:30:00 +1200 BBB"},  // shown twice
		{"30 2 26 10 *", "2026-10-26 02:30:00 +1200 BBB"},  // and once
		{"30 * 27 10 *", "2026-10-27 00:30:00 -1200 AAA"},  // right after
		{"* * 29 2 0", "2026-02-01 00:00:00 -1200 AAA"},    // a Sunday
		{"0 0 1 1 *", "2026-01-01 00:00:00 -1200 AAA"},     // soon
		{"59 23 29 2 *", "2028-02-29 23:59:00 -1200 AAA"},  // right before
		{"0 * 1 3,4 *", "2026-04-01 00:00:00 +1200 BBB"},   // a month later
		{"0 12 31 12 *", "2026-12-31 12:00:00 -1200 AAA"},  // at the end of the year
		{"0 0 29 2,3 *", "2026-03-29 00:00:00 +1200 BBB"},  // four weeks later
		{"0 0 1 3 6", "2026-03-02 00:00:00 +1200 BBB"},     // before the first Saturday
		{"*/30 * 1 3 1", "2026-03-02 00:00:00 +1200 BBB"},  // the first Monday
		{"0 0 30 2 *", "0001-01-01 00:00:00 +0000 UTC"},    // never
		{"15 * 1 3,12 *", "2026-12-01 00:15:00 -1200 AAA"}, // in the next winter
	} {
		s, err := spec.Parse(tc.spec, zone)
		if err != nil {
			t.Fatal(err)
		}
		next := s.Next(at)
		if !next.IsZero() {
			next = next.In(zone)
		}
		if got := next.String(); got != tc.want {
			t.Errorf("%s: after %s comes %s, want %s", tc.spec, at, got, tc.want)
		}
		if prev := s.Prev(at); prev.After(at) {
			t.Errorf("%s: up to %s, the last is %s", tc.spec, at, prev)
		}
	}
	// A day that is shown twice, by the hour.
	s, err := spec.Parse("0 */12,0-23 26 10 *", zone)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.Collect(s.Ticks(at, at.AddDate(1, 0, 0)))); n != 48 {
		t.Errorf("%d ticks on a day that is shown twice, want 48", n)
	}
}
