package spec_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// years are zones and years in which something special happens.
var years = []struct {
	zone  string
	year  int
	whole bool // compare the whole year, not only the days around its changes
}{
	{"Asia/Kolkata", 2023, testkit.Whole}, // nothing changes
	{"America/New_York", 2024, testkit.Whole},
	{"Europe/Berlin", 2025, testkit.Whole},
	{"Australia/Lord_Howe", 2024, testkit.Whole}, // by half an hour
	{"Africa/Casablanca", 2024, true},            // at the ends of Ramadan
	{"America/Sao_Paulo", 2018, testkit.Whole},   // no midnight
	{"Pacific/Apia", 2011, true},                 // a day that never was, and summer time
	{"Europe/Dublin", 2000, false},               // winter time is the exception
	{"Antarctica/Troll", 2024, false},            // by two hours
	{"Asia/Beirut", 2022, false},                 // no midnight
	{"Africa/Cairo", 2024, false},                // nor here
	{"America/Havana", 2025, false},              // two midnights
	{"Pacific/Kwajalein", 1969, false},           // a day that was twice
	{"America/Caracas", 2016, false},             // a new offset for good
	{"Asia/Pyongyang", 2015, false},              // and at midnight
	{"Europe/London", 1947, false},               // four changes
	{"America/Argentina/San_Luis", 2008, false},
}

// plansEach is how many schedules are drawn for each year, and for each change.
var plansEach = testkit.Size(2, 6)

// The ticks of random schedules over a year are those that the oracle has found, minute by
// minute, and no others.
func TestYearsMinuteByMinute(t *testing.T) {
	for _, y := range years {
		if !y.whole {
			continue
		}
		t.Run(y.zone, func(t *testing.T) {
			zone := load(t, y.zone)
			begin := time.Date(y.year, 1, 1, 0, 0, 0, 0, time.UTC)
			end := begin.AddDate(1, 0, 0)
			// The diary is longer at both ends, for times shown twice or skipped there.
			d := keepDiary(zone, begin.AddDate(0, 0, -3), end.AddDate(0, 0, 3), time.Minute)
			r := rand.New(rand.NewPCG(uint64(y.year), 1))
			total := 0
			for range plansEach {
				total += compare(t, d, drawSchedule(r, false, begin, end), begin, end)
			}
			if total < 1000 {
				t.Errorf("only %d ticks were compared", total)
			}
		})
	}
}

// The same second by second, on the days around each change.
func TestClockChangesSecondBySecond(t *testing.T) {
	for _, y := range years {
		t.Run(y.zone, func(t *testing.T) {
			zone := load(t, y.zone)
			r := rand.New(rand.NewPCG(uint64(y.year), 2))
			for _, change := range changes(zone, y.year) {
				d := keepDiary(zone, change.Add(-28*time.Hour), change.Add(28*time.Hour), time.Second)
				for range plansEach {
					compare(t, d, drawSchedule(r, true, change.Add(-24*time.Hour), change.Add(24*time.Hour)), change.Add(-2*time.Hour), change.Add(26*time.Hour))
				}
			}
		})
	}
}

func load(t testing.TB, zone string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// changes returns when a zone's offset changes in a year. It samples every hour, because
// time.Time.ZoneBounds fails on the last day of leap years (golang/go#81583).
func changes(zone *time.Location, year int) (list []time.Time) {
	offset := func(at time.Time) int {
		_, offset := at.In(zone).Zone()
		return offset
	}
	for at := time.Date(year, 1, 2, 0, 0, 0, 0, time.UTC); at.Year() == year; at = at.Add(time.Hour) {
		if before := offset(at); before != offset(at.Add(time.Hour)) {
			change := at
			for offset(change) == before {
				change = change.Add(time.Second)
			}
			list = append(list, change.In(zone))
		}
	}
	return list
}
