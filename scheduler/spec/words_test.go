package spec_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"* * * * *":                    "every minute, UTC",
		"* * * * * *":                  "every second, UTC",
		"*/10 * * * * *":               "every 10 seconds, UTC",
		"10 * * * * *":                 "at second 10 of every minute, UTC",
		"*/10 * 9 * * *":               "every 10 seconds from 09:00 to 09:59, UTC",
		"*/10 0 * * * *":               "every 10 seconds of minute 0 of every hour, UTC",
		"@hourly":                      "every hour, UTC",
		"30 * * * *":                   "at minute 30 of every hour, UTC",
		"*/5 * * * *":                  "every 5 minutes, UTC",
		"5/15 * * * *":                 "at minutes 5, 20, 35 and 50 of every hour, UTC",
		"*/7 * * * *":                  "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour, UTC",
		"*/5 9-17 * * *":               "every 5 minutes from 09:00 to 17:59, UTC",
		"*/5 9,11 * * *":               "every 5 minutes of hours 9 and 11, UTC",
		"30 9-17 * * *":                "every hour from 09:30 to 17:30, UTC",
		"0 */2 * * *":                  "every 2 hours from 00:00 to 22:00, UTC",
		"0 3 * * *":                    "at 03:00 every day, UTC",
		"10 0 3 * * *":                 "at 03:00:10 every day, UTC",
		"0,30 9,17 * * *":              "at 09:00, 09:30, 17:00 and 17:30 every day, UTC",
		"59 59 23 * * *":               "at 23:59:59 every day, UTC",
		"0 3 * * 1-5":                  "at 03:00 from Monday to Friday, UTC",
		"0 3 * * sun":                  "at 03:00 on Sunday, UTC",
		"0 3 * * sat-sun":              "at 03:00 on Saturday and Sunday, UTC",
		"0 3 * * fri-mon":              "at 03:00 on Monday and Friday to Sunday, UTC",
		"0 3 * 1 mon":                  "at 03:00 on Monday in January, UTC",
		"0 3 * jan,jul *":              "at 03:00 in January and July, UTC",
		"0 3 1 * *":                    "at 03:00 on the 1st of each month, UTC",
		"0 3 1,2,3,11,12,13,21,22 * *": "at 03:00 on the 1st to 3rd, the 11th to 13th, the 21st and the 22nd of each month, UTC",
		"0 3 L * *":                    "at 03:00 on the last day of each month, UTC",
		"0 3 L-3 2 *":                  "at 03:00 on the day 3 days before the last day of February, UTC",
		"0 3 1,15W,LW,L * *":           "at 03:00 on the 1st, the weekday nearest to the 15th, the last weekday and the last day of each month, UTC",
		"0 3 * * 5L":                   "at 03:00 on the last Friday of each month, UTC",
		"0 3 * 1-3 5#3":                "at 03:00 on the third Friday of January to March, UTC",
		"0 3 * * 1,5#3":                "at 03:00 on Monday and also on the third Friday of each month, UTC",
		"0 3 13 * 5":                   "at 03:00 on the 13th of each month and also on Friday, UTC",
		"@every 1h":                    "every hour, from 00:00 UTC",
		"@every 90s":                   "every 1 minute 30 seconds, from 00:00 UTC",
		"@every 24h offset 1s":         "every day, from 00:00:01 UTC",
		"@every 7h offset 1h":          "every 7 hours, counted from 1970-01-01 01:00:00 UTC",
		"@every 48h offset 25h":        "every 2 days, counted from 1970-01-02 01:00:00 UTC",
		"TZ=Asia/Tokyo 0 3 * * *":      "at 03:00 every day, Asia/Tokyo",
		"0 3 * * 1-5; 0 12 * * 6":      "at 12:00 on Saturday; and at 03:00 from Monday to Friday, UTC",
		"0 3 * * *; from 2026-12-01":   "at 03:00 every day, UTC, from 2026-12-01",
		"0 3 * * *; from 2026-12-01T06:00; until 2027-01-31T18:00:30":                    "at 03:00 every day, UTC, from 2026-12-01 06:00, until 2027-01-31 18:00:30",
		"0 3 * * *; except 05-01":                                                        "at 03:00 every day, UTC, except 1 May",
		"0 3 * * *; except 2026-05-14, 12-24..01-02, 2026-12-01T18:00..2026-12-02T06:00": "at 03:00 every day, UTC, except 24 December to 2 January, 2026-05-14 and 2026-12-01 18:00 to 2026-12-02 06:00",
	} {
		if got := parse(t, text).Words(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// Words leave nothing out: what has the same words has the same string.
func TestDifferentSpecsHaveDifferentWords(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	words := make(map[string]string)
	specs := testkit.Size(5000, 20_000)
	for i := range specs {
		var text string
		if i%2 == 0 {
			text = drawSchedule(r, i%4 == 0, begin, begin.AddDate(1, 0, 0)).text
		} else { // few values, so that specs come near to each other
			pick := func(texts string) string { f := strings.Fields(texts); return f[r.IntN(len(f))] }
			text = strings.Join([]string{
				pick("0 0 0 * 5 */5 */30 1,2,3"), pick("0 0 * 5 30 */5 */30 0-58 1,2,3"), pick("* * 0 3 */2 0-22 1,2,3 9-17"),
				pick("* * 1 2,3 1-3 L L-1 1W LW 1,L */2"), pick("* * * 1 1-3 1,2,3 2"), pick("* * * 1 0 5 1-5 5L 5#1 5#5 1,5L 0-5"),
			}, " ")
			if r.IntN(4) == 0 {
				text = "@every " + pick("1m 5m 1h 24h 48h 90s 7h") + pick("; ;_offset_1s; ;_offset_30s;") + "from 2026-01-01"
				text = strings.ReplaceAll(text, "_", " ")
				text = strings.Replace(text, "; offset", " offset", 1)
			}
		}
		s := parse(t, text)
		if other, known := words[s.Words()]; known && other != s.String() {
			t.Fatalf("%s and %s: both %q", s, other, s.Words())
		}
		words[s.Words()] = s.String()
	}
	if len(words) < specs*3/5 {
		t.Errorf("only %d different specs", len(words))
	}
}
