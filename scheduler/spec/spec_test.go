package spec_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// parse parses a spec that must be valid, in UTC if it does not name a zone.
func parse(t testing.TB, text string) spec.Spec {
	t.Helper()
	s, err := spec.Parse(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSpellingsOfOneScheduleHaveOneString(t *testing.T) {
	for want, spellings := range map[string][]string{
		"CRON_TZ=UTC * * * * *":         {"* * * * *", "? ? ? ? ?", "\t*  * * *\n*", "*/1 0-23 ?/1 1-12 0-6", "0 * * * * *", "0-29,30-59 * * * *", "* * 1-31 * mon", "* * 15 * 0-6", "* * */2 * 0-6"},
		"CRON_TZ=UTC * * * * * *":       {"* * * * * *", "0-59 * * * * ?"},
		"CRON_TZ=UTC */15 * * * *":      {"*/15 * * * *", "0/15 * * * *", "45,30,15,0 * * * *", "0-59/15 * * * *", "TZ=UTC */15 * * * *"},
		"CRON_TZ=UTC 5-59/15 * * * *":   {"5/15 * * * *", "5,20,35,50 * * * *"},
		"CRON_TZ=UTC 5,20,35 * * * *":   {"5-49/15 * * * *"},
		"CRON_TZ=UTC 0,30 2,14 * * *":   {"*/30 2/12 * * *"},
		"CRON_TZ=UTC 0-2,5,7-8 * * * *": {"0,1,2,5,7,8 * * * *", "7-8,0-2,5 * * * *"},
		"CRON_TZ=UTC 30 59 23 31 12 6":  {"30 59 23 31 DEC Sat", "30 59 23 31 12/1 6/1"},
		"CRON_TZ=UTC 0 0 * 1-3 1-5":     {"0 0 * jan-mar mon-fri", "0 0 ? Jan,FEB,3 1-Fri"},
		"CRON_TZ=UTC 0 0 * * 0":         {"0 0 * * sun", "0 0 * * 7", "0 0 * * 0,7", "0 0 * * */7", "0 0 * * 7/2", "@weekly"},
		"CRON_TZ=UTC 0 0 * * 0,5-6":     {"0 0 * * 5-7", "0 0 * * fri-7", "0 0 * * fri-sun", "0 0 * * 5-SUN"},
		"CRON_TZ=UTC 0 0 * * 0,6":       {"0 0 * * 6-7", "0 0 * * sat-sun", "0 0 * * SAT-Sun", "0 0 * * sun,sat"},
		"CRON_TZ=UTC 0 0 * * 0,3,5":     {"0 0 * * wed-sun/2,sun", "0 0 * * 3-7/2"},
		"CRON_TZ=UTC 0 12 * * *":        {"0 12 * * mon-sun", "0 12 * * sun-sat"},
		"CRON_TZ=UTC 0 0 * * 1,3,5":     {"0 0 * * 1/2"},
		"CRON_TZ=UTC 0 0 */2 * 1":       {"0 0 */2 * 1", "0 0 1-31/2 * 1"},
		"CRON_TZ=UTC 0 0 1 1 *":         {"@yearly", "@annually", "0 0 */31 */12 *"},
		"CRON_TZ=UTC 0 0 1 * *":         {"@monthly"},
		"CRON_TZ=UTC 0 0 * * *":         {"@daily", "@midnight", " @daily ", "0 */24 * * *"},
		"CRON_TZ=UTC 0 18-23 * * *":     {"0 18,19,20-23 * * *", "0 18/1 * * *"},
		"CRON_TZ=UTC 0 * * * *":         {"@hourly", "*/60 * * * *"},
		"CRON_TZ=Asia/Tokyo 0 0 * * *":  {"CRON_TZ=Asia/Tokyo @daily", "TZ=Asia/Tokyo\t0 0 * * *"},
		"@every 1m30s":                  {"@every 90s", "@every 1.5m", "CRON_TZ=Asia/Tokyo @every 1m30s"},
		"@every 1s":                     {"@every 1s", "@every 1000ms"},
		"@every 8784h0m0s":              {"@every 8784h"},
	} {
		for _, text := range append(spellings, want) {
			if got := parse(t, text).String(); got != want {
				t.Errorf("Parse(%q) = %q, want %q", text, got, want)
			}
		}
	}
}

func TestTheSpecsOwnZoneComesFirst(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ spec, zone string }{
		{"0 9 * * *", "Asia/Tokyo"},
		{"CRON_TZ=Europe/Berlin 0 9 * * *", "Europe/Berlin"},
		{"TZ=UTC 0 9 * * *", "UTC"},
		{"@every 1m", "UTC"},
	} {
		s, err := spec.Parse(tc.spec, tokyo)
		if err != nil || s.Zone().String() != tc.zone {
			t.Errorf("%q in Tokyo: zone %s, error %v; want %s", tc.spec, s.Zone(), err, tc.zone)
		}
	}
}

func TestBadSpecsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "has 0 fields, must have 5, or 6 with seconds",
		"* * * *":                       "has 4 fields, must have 5",
		"* * * * * * *":                 "has 7 fields",
		"TZ=UTC":                        "has 0 fields",
		"60 * * * *":                    `minute is "60", must be 0 to 59`,
		"* 24 * * *":                    `hour is "24", must be 0 to 23`,
		"* * 0 * *":                     `day of month is "0", must be 1 to 31`,
		"* * 32 * *":                    `day of month is "32", must be 1 to 31`,
		"* * * 13 *":                    `month is "13", must be 1 to 12 or jan to dec`,
		"* * * mon *":                   `month is "mon", must be 1 to 12 or jan to dec`,
		"* * * * 8":                     `day of week is "8", must be 0 to 7 or sun to sat`,
		"0 12 * * ? 2025":               `day of week is "2025", must be`,
		"60 * * * * *":                  `second is "60", must be 0 to 59`,
		"-1 * * * *":                    `minute is "-1", must be 0 to 59`,
		"- * * * *":                     `minute is "-", must be`,
		"* * * * sun-7,sat-mon":         `day of week is "sat-mon", must not end before it begins`,
		"* * * * 6-0":                   `day of week is "6-0", must not end before it begins`,
		"+1 * * * *":                    `minute is "+1", must be`,
		"1.5 * * * *":                   `minute is "1.5", must be`,
		"99999999999999999999 * * * *":  `minute is "99999999999999999999", must be`,
		"1-2-3 * * * *":                 `minute is "2-3", must be`,
		"5-1 * * * *":                   `minute is "5-1", must not end before it begins`,
		"*-5 * * * *":                   `minute is "*", must be`,
		", * * * *":                     `minute is "", must be`,
		"1,,2 * * * *":                  `minute is "", must be`,
		"*/0 * * * *":                   `minute has the step "0", must be 1 to 60`,
		"*/61 * * * *":                  `minute has the step "61", must be 1 to 60`,
		"* */25 * * *":                  `hour has the step "25", must be 1 to 24`,
		"*/ * * * *":                    `minute has the step "", must be`,
		"*/5/5 * * * *":                 `minute has the step "5/5", must be`,
		"*/-5 * * * *":                  `minute has the step "-5", must be`,
		"@reboot":                       `is "@reboot", must be @every with a period, or one of @annually @daily `,
		"@daily 5":                      `is "@daily 5", must be`,
		"@Daily":                        `is "@Daily", must be`,
		"@every":                        "@every has 0 words after it, must have one",
		"@every 1m 30s":                 "@every has 2 words after it",
		"@every fast":                   `@every is "fast", must be like 1m30s`,
		"@every 99999999999h":           `@every is "99999999999h", must be like 1m30s`,
		"@every 0s":                     "@every is 0s, must be 1s to 8784h0m0s",
		"@every -1m":                    "@every is -1m0s, must be 1s to",
		"@every 999ms":                  "@every is 999ms, must be 1s to",
		"@every 8784h1s":                "@every is 8784h0m1s, must be 1s to 8784h0m0s",
		"@every 1.5s":                   "@every is 1.5s, must be whole seconds",
		"TZ= * * * * *":                 `zone is "", must be a zone that is the same on each node`,
		"TZ=Europe/Nowhere * * * * *":   `zone is "Europe/Nowhere", must be in the time zone database`,
		"TZ=../../etc/passwd * * * * *": `zone is "../../etc/passwd", must be in`,
		"TZ=Local * * * * *":            `zone is "Local", must be a zone that is the same on each node`,
		"TZ=UTC TZ=UTC * * * *":         `minute is "TZ=UTC", must be`,
		strings.Repeat("*", 1025):       "is 1025 bytes long, must be at most 1024",
	} {
		s, err := spec.Parse(text, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.40q): %v, want an error and %s", text, err, want)
		} else if len(err.Error()) > 350 {
			t.Errorf("Parse(%.40q): an error of %d bytes", text, len(err.Error()))
		}
		if s != (spec.Spec{}) {
			t.Errorf("Parse(%.40q) = %v beside an error", text, s)
		}
	}
}

func TestZonesThatMeanNothingToOthersAreRefused(t *testing.T) {
	for _, zone := range []*time.Location{time.FixedZone("Local", 0), time.FixedZone("", 3600)} {
		if _, err := spec.Parse("@daily", zone); err == nil {
			t.Errorf("zone %q: %v, want an error", zone, err)
		}
	}
	for _, hours := range []int{-27, 27} {
		_, err := spec.Parse("@daily", time.FixedZone("far", hours*3600))
		if want := fmt.Sprintf(`zone "far" is %dh0m0s from UTC, must be at most 26h0m0s`, hours); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d hours from UTC: %v, want an error and %s", hours, err, want)
		}
	}
	s, err := spec.Parse("0 9 * * *", time.FixedZone("UTC+3", 3*3600))
	if want := time.Date(2025, 1, 1, 6, 0, 0, 0, time.UTC); err != nil || s.Next(want.Add(-1)) != want {
		t.Errorf("a fixed zone: next is %v, error %v; want %v", s.Next(want.Add(-1)), err, want)
	}
}

func TestUTCIsAZoneWhereItIsTheLocalOneToo(t *testing.T) {
	local := time.Local
	defer func() { time.Local = local }()
	time.Local = time.UTC
	if _, err := spec.Parse("TZ=UTC @daily", nil); err != nil {
		t.Error(err)
	}
	if _, err := spec.Parse("@daily", time.Local); err != nil {
		t.Error(err)
	}
}

func TestTheZeroSpecHasNoTicks(t *testing.T) {
	var s spec.Spec
	now := time.Now()
	if next, prev := s.Next(now), s.Prev(now); !next.IsZero() || !prev.IsZero() {
		t.Errorf("next %v, previous %v", next, prev)
	}
	if s.String() != "" || s.Zone() != time.UTC {
		t.Errorf("String %q, Zone %v", s, s.Zone())
	}
}
