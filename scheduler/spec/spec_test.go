package spec_test

import (
	"errors"
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
		"@every 6h0m0s offset 10m0s":    {"@every 6h offset 10m", "TZ=Asia/Tokyo @every 360m offset 600s"},

		// Ranges that wrap.
		"CRON_TZ=UTC 0 0-2,22-23 * * *":     {"0 22-2 * * *", "0 22-23,0-2 * * *"},
		"CRON_TZ=UTC 0 0,2,22 * * *":        {"0 22-2/2 * * *"},
		"CRON_TZ=UTC 0 0 * * 0-1,5-6":       {"0 0 * * fri-mon", "0 0 * * 5-1"},
		"CRON_TZ=UTC 0 0 * * 0-1,6":         {"0 0 * * SAT-1"},
		"CRON_TZ=UTC 0 0 * * 0-2":           {"0 0 * * 7-2"},
		"CRON_TZ=UTC 0 0 * 1-2,11-12 *":     {"0 0 * nov-feb *"},
		"CRON_TZ=UTC 0 0 1-5,25-31 * *":     {"0 0 25-5 * *"},
		"CRON_TZ=UTC 0 0 3,25,28,31 * *":    {"0 0 25-5/3 * *"},
		"CRON_TZ=UTC 0-10,50-59 * * * *":    {"50-10 * * * *"},
		"CRON_TZ=UTC 0-10,50-59 0 * * * *":  {"50-10 0 * * * *"},
		"CRON_TZ=UTC 1 * * * *":             {"1 5-4 * * *"},
		"CRON_TZ=Asia/Tokyo 0-1,59 0 * * *": {"CRON_TZ=Asia/Tokyo 59-1 0 * * *"},

		// Days that depend on the month.
		"CRON_TZ=UTC 0 3 L * *":               {"0 3 l * *", "0 3 L,L * ?"},
		"CRON_TZ=UTC 0 3 1,15W,LW,L-3,L * *":  {"0 3 L,1,L-3,lw,15w * *"},
		"CRON_TZ=UTC 0 3 * * 5L":              {"0 3 * * friL", "0 3 ? * FRIL"},
		"CRON_TZ=UTC 0 3 * * 0L,0#1,5#3":      {"0 3 * * fri#3,7L,sun#1", "0 3 * * 5#3,SUNL,7#1"},
		"CRON_TZ=UTC 0 3 * * 5":               {"0 3 * * 5,5#3,friL"},
		"CRON_TZ=UTC 0 3 L * 1-5":             {"0 3 L * mon-fri"},
		"CRON_TZ=UTC 0 4 * * *":               {"0 4 *,L * *", "0 4 1-31,15W * *", "0 4 L * 0-6,5L"},
		"CRON_TZ=UTC 0 5 */2 * 5#1":           {"0 5 */2 * 5#1"},
		"CRON_TZ=UTC 0 0 15 * 5#2; 0 0 L * *": {"0 0 15 * 5#2; 0 0 L * *; 0 0 l * *"},

		// Several rules, and limits.
		"CRON_TZ=UTC 0 12 * * 6; 0 3 * * 1-5":                                   {"0 3 * * mon-fri;0 12 * * sat", "0 12 * * 6 ; 0 3 * * 1-5 ; 0 12 * * sat"},
		"CRON_TZ=UTC 0 0 * * *; @every 6h0m0s":                                  {"@daily; @every 6h; @midnight"},
		"@every 1h0m0s; @every 25m0s":                                           {"CRON_TZ=Asia/Tokyo @every 25m; @every 1h"},
		"CRON_TZ=UTC @every 1h0m0s; from 2026-12-01":                            {"@every 1h; from 2026-12-01", "from 2026-12-01T00:00; @every 1h"},
		"CRON_TZ=UTC 1 2 * * *; until 2026-12-31":                               {"1 2 * * *; until 2026-12-31T23:59:59"},
		"CRON_TZ=UTC 1 3 * * *; until 2026-12-31T18:00":                         {"1 3 * * *; until 2026-12-31T18:00:00"},
		"CRON_TZ=Asia/Tokyo 0 0 * * *; from 2026-12-01T18:00; until 2027-01-31": {"TZ=Asia/Tokyo until 2027-01-31; @daily; from 2026-12-01T18:00"},
		"CRON_TZ=UTC 2 2 * * *; except 12-25":                                   {"2 2 * * *; except 12-25", "2 2 * * *; except 12-25; except 12-25..12-25"},
		"CRON_TZ=UTC 3 2 * * *; except 05-01,12-24..01-02,2026-05-14":           {"3 2 * * *; except 2026-05-14, 05-01,12-24..12-31 , 01-01..01-02"},
		"CRON_TZ=UTC 4 2 * * *; except 03-01..02-28":                            {"4 2 * * *; except 01-01..02-28,03-01..12-31"},
		"CRON_TZ=UTC 5 2 * * *; except 2026-05-14..2026-05-18":                  {"5 2 * * *; except 2026-05-14..2026-05-16, 2026-05-17, 2026-05-15..2026-05-18", "5 2 * * *; except 2026-05-14T00:00..2026-05-18T23:59:59"},
		"CRON_TZ=UTC 6 2 * * *; except 2026-05-14T18:00..2026-05-18T06:00":      {"6 2 * * *; except 2026-05-14T18:00..2026-05-15T12:00,2026-05-15T12:00:01..2026-05-18T06:00:00"},
		"CRON_TZ=UTC 7 2 * * *; except 2026-05-14..2026-05-14T00:00":            {"7 2 * * *; except 2026-05-14T00:00"},
		"CRON_TZ=UTC 8 2 * * *; except 2026-05-14T18:00..2026-05-14":            {"8 2 * * *; except 2026-05-14T18:00..2026-05-14"},
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
		"* * * * * * *":                 "has 7 fields, must have 5, or 6 with seconds; instead of a field for the year, use from and until",
		"* * * * * * * *":               "has 8 fields, must have 5",
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
		"* * * * 6-8":                   `day of week is "8", must be 0 to 7 or sun to sat, or like 5L, 5#3`,
		"+1 * * * *":                    `minute is "+1", must be`,
		"1.5 * * * *":                   `minute is "1.5", must be`,
		"99999999999999999999 * * * *":  `minute is "99999999999999999999", must be`,
		"1-2-3 * * * *":                 `minute is "2-3", must be`,
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
		"@every":                        `@every has "" after it, must have a period like 1m30s, or a period and an offset like 1h offset 10m`,
		"@every 1m 30s":                 `@every has "1m 30s" after it`,
		"@every 1h offset":              `@every has "1h offset" after it`,
		"@every 1h+10m":                 `@every is "1h+10m", must be like 1m30s`,
		"@every 1h plus 10m":            `@every has "1h plus 10m" after it`,
		"@every 1h offset 1h":           "the offset of @every is 1h0m0s, must be 0s to 59m59s",
		"@every 1h offset -1m":          "the offset of @every is -1m0s, must be 0s to 59m59s",
		"@every 1h offset soon":         `the offset of @every is "soon", must be like 1m30s`,
		"@every 1h offset 1.5s":         "the offset of @every is 1.5s, must be whole seconds",
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
		"TZ=UTC TZ=UTC * * * *":         `has the zone "UTC" in the middle, must have one zone, at the beginning`,
		"@daily; TZ=Asia/Tokyo @hourly": `has the zone "Asia/Tokyo" in the middle, must have one zone`,

		"* * L-0 * *":                         `day of month is "L-0", must be L-1 to L-30`,
		"* * L-31 * *":                        `day of month is "L-31", must be L-1 to L-30`,
		"* * l-x * *":                         `day of month is "l-x", must be L-1 to L-30`,
		"* * 0W * *":                          `day of month is "0W", must be 1W to 31W or LW`,
		"* * 32w * *":                         `day of month is "32w", must be 1W to 31W or LW`,
		"* * W * *":                           `day of month is "W", must be 1W to 31W or LW`,
		"* * 1-15W * *":                       `day of month is "1-15W", must be 1W to 31W or LW`,
		"* * 5L * *":                          `day of month is "5L", must be 1 to 31, or like L, L-3, 15W, LW`,
		"* * L/2 * *":                         `day of month is "L", must be 1 to 31`,
		"* * * * L":                           `day of week is "L", must be sat for each Saturday, which is the L of Quartz, or like satL`,
		"0 0 12 ? * l":                        `day of week is "l", must be sat for each Saturday`,
		"* * 25-L * *":                        `day of month is "25-L", must be a range of numbers: 25-31 goes on to the last day of each month`,
		"* * L-L * *":                         `day of month is "L-L", must be L-1 to L-30`,
		"* * * * 8L":                          `day of week is "8", must be 0 to 7`,
		"* * * * 1-5L":                        `day of week is "1-5", must be 0 to 7`,
		"* * * * 5#0":                         `day of week is "5#0", must have 1 to 5 after the #`,
		"* * * * fri#6":                       `day of week is "fri#6", must have 1 to 5 after the #`,
		"* * * * #3":                          `day of week is "", must be 0 to 7`,
		"* * * * 5#L":                         `day of week is "5#L", must have 1 to 5 after the #`,
		"L * * * *":                           `minute is "L", must be 0 to 59`,
		"* * * 1#2 *":                         `month is "1#2", must be 1 to 12`,
		"22--2 * * * *":                       `minute is "-2", must be 0 to 59`,
		"0 3 * * *;":                          "has 0 fields, must have 5",
		";":                                   "has 0 fields, must have 5",
		"0 3 * * *; 0 25 * * *":               `hour is "25", must be 0 to 23`,
		"from 2026-12-01":                     "has no rule, must have one, like 0 3 * * *",
		"@daily; from":                        `from is "", must be like 2026-12-01 or 2026-12-01T18:00`,
		"@daily; from 2026-02-29":             `from is "2026-02-29", must be like`,
		"@daily; from 0000-01-01":             `from is "0000-01-01", must be like`,
		"@daily; from 12-01":                  `from is "12-01", must be like`,
		"@daily; from 2026-12-01T7:00":        `from is "2026-12-01T7:00", must be like`,
		"@daily; from 2026-12-01T24:00":       `from is "2026-12-01T24:00", must be like`,
		"@daily; from 2026-12-01 18:00":       `from is "2026-12-01 18:00", must be like`,
		"@daily; until 2026-12-01T07:00Z":     `until is "2026-12-01T07:00Z", must be like`,
		"@daily; until 2026-12-01T07:00:01.5": `until is "2026-12-01T07:00:01.5", must be like`,
		"@daily; from 2026-12-01; from 2026-12-02":   `has "from" twice, must have one`,
		"@daily; until 2026-12-01; until 2026-12-01": `has "until" twice, must have one`,
		"@daily; from 2026-12-02; until 2026-12-01":  "is from 2026-12-02 until 2026-12-01, must not end before it begins",
		"@daily; From 2026-12-02":                    "has 2 fields, must have 5",
		"@daily from 2026-12-02":                     `is "@daily from 2026-12-02", must be @every`,
		"@daily; except":                             `except is "", must be like 2026-12-24, 2026-12-24T18:00, 12-24 for each year, or a range`,
		"@daily; except 12-25,":                      `except is "", must be like`,
		"@daily; except 12-25 01-01":                 `except is "12-25 01-01", must be like`,
		"@daily; except 02-30":                       `except is "02-30", must be like`,
		"@daily; except 2026-12-24..01-02":           `except is "2026-12-24..01-02", must be like`,
		"@daily; except 2026-12-24..2026-12-23":      `except is "2026-12-24..2026-12-23", must not end before it begins`,
		"@daily; except 01-01..12-31":                "except leaves out every day of the year, must leave at least one",
		"@daily; except 03-01..02-28,02-29":          "except leaves out every day of the year",
		strings.Repeat("@daily;", 33) + "@daily":     "has more than 32 rules, must have at most 32",
		strings.Repeat("*", 1025):                    "is 1025 bytes long, must be at most 1024",
	} {
		s, err := spec.Parse(text, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.40q): %v, want an error and %s", text, err, want)
		} else if len(err.Error()) > 350 {
			t.Errorf("Parse(%.40q): an error of %d bytes", text, len(err.Error()))
		}
		if s.String() != "" {
			t.Errorf("Parse(%.40q) = %v together with an error", text, s)
		}
	}
}

// A spec that another scheduler reads otherwise is accepted with a warning.
func TestWarning(t *testing.T) {
	const numbers, fields = "in Quartz 1 is Sunday and 7 is Saturday, here 1 is Monday and 7 is Sunday; names, like fri", "end with the year"
	for text, want := range map[string]string{
		"0 0 12 ? * 6#3":         numbers,
		"0 0 12 ? * 2":           numbers,
		"0 0 12 ? * 7L":          numbers,
		"0 15 10 ? * 2-6":        numbers,
		"0 12 ? * 1,fri":         numbers,
		"0 12 ? * 2/3":           numbers,
		"@daily; 0 12 ? * 1":     numbers,
		"TZ=UTC 0 12 ? * 1":      numbers,
		"0 10 * * ? *":           fields,
		"0 18 ? * 6 *":           fields,
		"0 12 ? * 1; 0 13 ? * 2": numbers,

		"0 0 12 ? * fri#3":     "",
		"0 0 12 ? * friL":      "",
		"0 0 12 ? * MON-FRI":   "",
		"0 0 12 ? * 1-7":       "",
		"0 0 12 ? * */2":       "",
		"0 0 12 ? * *":         "",
		"0 0 12 L * ?":         "",
		"0 0 12 15 * ?":        "",
		"0 0 12 * * 5":         "",
		"0 12 * * 1":           "",
		"0 ? * * 1":            "",
		"@every 1m; @weekly":   "",
		"0 12 * * 5#3; @daily": "",
	} {
		s, err := spec.Parse(text, nil)
		if err != nil || (s.Warning() == "") != (want == "") || !strings.Contains(s.Warning(), want) {
			t.Errorf("%q: warning %q, error %v; want %q", text, s.Warning(), err, want)
		}
		if again, err := spec.Parse(s.String(), nil); err != nil || again.Warning() != "" {
			t.Errorf("%q: the canonical form %q has the warning %q, error %v", text, s, again.Warning(), err)
		}
	}
}

func TestASpecThatIsTooLongInItsCanonicalFormIsRefused(t *testing.T) {
	text := "@daily"
	for i := range 20 {
		text += fmt.Sprintf("; %d-50/2 * * * *", i)
	}
	_, err := spec.Parse(text, nil)
	if want := "bytes long in canonical form, must be at most 1024"; len(text) > 1024 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%d bytes: %v, want an error and %q", len(text), err, want)
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

// In an image without the database the error says how a program gets one; with a database it says what is wrong with the name.
func TestZoneThatCannotBeLoaded(t *testing.T) {
	none := func(string) (*time.Location, error) { return nil, errors.New("unknown time zone") }
	if _, err := spec.LoadZone("Europe/Berlin", none); err == nil || !strings.Contains(err.Error(), `zone is "Europe/Berlin", but this process finds no time zone database: add import _ "time/tzdata" to the program`) {
		t.Errorf("without a database: %v", err)
	}
	if _, err := spec.LoadZone("Europe/Nowhere", time.LoadLocation); err == nil || strings.Contains(err.Error(), "tzdata") {
		t.Errorf("with a database: %v", err)
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
