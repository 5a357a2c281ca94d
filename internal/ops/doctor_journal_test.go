package ops

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/keyspace"
)

// An event that came three times within an hour is reported once, with the count, the latest time, and how to see all of them.
func TestDoctorReportsWhatRepeats(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		told := func() (lines []string) {
			t.Helper()
			all, err := c.desk.Doctor(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all.Findings {
				if f.Subject == "journal" {
					lines = append(lines, fmt.Sprint(f.Severity, " ", f.Node, ": ", f.Found, " | ", f.Means, " | ", f.Fix))
				}
			}
			for _, w := range all.Checks {
				if w.Subject == "journal" && w.Status == Well {
					lines = append(lines, "well")
				}
			}
			return lines
		}
		want := func(when string, begin ...string) {
			t.Helper()
			got := told()
			if len(got) != len(begin) {
				t.Errorf("%s:\n%s\nwant %d", when, strings.Join(got, "\n"), len(begin))
				return
			}
			for i := range got {
				if !strings.HasPrefix(got[i], begin[i]) {
					t.Errorf("%s:\n%s\nwant\n%s", when, got[i], begin[i])
				}
			}
		}
		gaveUp := eventlog.Entry{Kind: "gave up", Key: "export", Source: "web:1", Holder: "exports:7", Waited: 5000}
		want("an empty journal")
		c.write(gaveUp)
		time.Sleep(61 * time.Minute)
		for range 2 {
			c.write(gaveUp)
			c.write(eventlog.Entry{Kind: "acquired", Key: "export", Waited: 5000, Prior: "released"})
			time.Sleep(time.Minute)
		}
		want("twice within an hour", "well")
		gaveUp.Source = "web:2"
		c.write(gaveUp)
		for range 5 {
			c.write(eventlog.Entry{Kind: "acquired", Key: "report", Holder: "batch:2", Prior: "lapsed"})
			c.write(eventlog.Entry{Kind: "acquired", Key: "deploy", Holder: "ci:1", Prior: "released"})
		}
		for i := range 4 { // any permit
			c.write(eventlog.Entry{Kind: "lost", Key: keyspace.Permit("geo", i+1), Holder: "geo:1"})
			c.write(eventlog.Entry{Kind: eventlog.CronKind("failed"), Key: "shop:rollup", Scope: "shop", Name: "rollup", Error: "no disk"})
		}
		time.Sleep(time.Minute)
		want("three times and more",
			`note report: 5 times "lapsed" in the last hour, the last at 2000-01-01 01:03:00 UTC (1 min ago): batch:2 got the lock; the lock of the previous holder had lapsed: its lease was not renewed in time | holders die, hang or are cut off while they have the lock`,
			`note shop: rollup: 4 times "cron failed" in the last hour, the last at 2000-01-01 01:03:00 UTC (1 min ago): the job has failed`,
			`note geo: 4 times "lost" in the last hour, the last at `,
			`note export: 3 times "gave up" in the last hour, the last at 2000-01-01 01:03:00 UTC (1 min ago): web:2 gave up after a wait of 5 s: exports:7 has the key | callers give up on a key that is held for longer than they wait | joblock events --since 1h -- export lists them`)
		for i := range 2 * repeatedShown {
			for range 5 {
				c.write(eventlog.Entry{Kind: "overran", Key: fmt.Sprint("k", i), Source: "web:1"})
			}
		}
		if got := told(); len(got) != repeatedShown+1 || !strings.Contains(got[repeatedShown], fmt.Sprint(2*repeatedShown+4-repeatedShown, " more kinds of events")) {
			t.Errorf("of many:\n%s", strings.Join(got, "\n"))
		}
		time.Sleep(2 * time.Hour)
		want("long after", "well")
	})
}
