package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler"
)

// Two applications that share a job by mistake, because they use one scope, are reported.
func TestTwoDefinitionsOfOneJob(t *testing.T) {
	for name, tc := range map[string]struct {
		spec, program string
		opts          []scheduler.Option
	}{
		"other spec":    {"*/2 * * * *", "shop", nil},
		"other options": {"* * * * *", "shop", []scheduler.Option{scheduler.OverlapNewest()}},
		"other program": {"* * * * *", "bank", nil},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				a, b := c.node(0), c.node(0)
				a.Of("shop")
				b.Of(tc.program)
				a.add("job", "* * * * *", r.fn(a, sec))
				b.add("job", tc.spec, r.fn(b, sec), tc.opts...)
				a.start()
				b.start()
				until(start, 5*hour)
				told := c.events.of(scheduler.Contested)
				if len(told) < 2 || len(told) > 5 {
					t.Errorf("reported %d times in five hours, want about once an hour", len(told))
				}
				if n := len(c.events.of(scheduler.Redefined)); n != 1 {
					t.Errorf("reported %d times that the job has changed, want once", n)
				}
				for _, text := range []string{`level=WARN msg="scheduler: contested" scope=cron job=job`, "conflicting definitions of this job in one scope"} {
					if !strings.Contains(c.logs.String(), text) {
						t.Errorf("not in the log: %s", text)
					}
				}
				e, err := c.admin().Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if !e.Contested {
					t.Errorf("entry %+v, want it contested", e)
				}
				b.end()
				until(start, 7*hour)
				e, err = a.Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if e.Contested {
					t.Errorf("contested two hours after the other one went")
				}
			})
		})
	}
}

// Deploys, during which nodes with either definition take turns, are reported once each and
// are no warnings; nor is a deploy that is rolled back.
func TestDeploysOfAChangedJob(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		begin := func(spec string) *node {
			n := c.node(0)
			n.add("job", spec, r.fn(n, sec))
			return n.start()
		}
		const first, second, third = "* * * * *", "0-58 * * * *", "1-59 * * * *"
		up := begin(first)
		for i, spec := range []string{second, third, second, first, second} {
			until(start, time.Duration(i+1)*2*hour)
			next := begin(spec)
			until(start, time.Duration(i+1)*2*hour+10*min)
			up.end()
			up = next
		}
		until(start, 12*hour)
		if told := c.events.of(scheduler.Contested); len(told) > 0 {
			t.Errorf("%d times: %v", len(told), told[0].Err)
		}
		told := c.events.of(scheduler.Redefined)
		if len(told) != 2 {
			t.Fatalf("reported %d times that the job has changed, want once for each new definition", len(told))
		}
		if text := told[0].Err.Error(); !strings.Contains(text, `the spec was "CRON_TZ=UTC * * * * *", of program`) || !strings.Contains(text, `and is now "CRON_TZ=UTC 0-58 * * * *", of program`) {
			t.Errorf("reported as %s", text)
		}
		if strings.Contains(c.logs.String(), `level=WARN msg="scheduler: redefined"`) {
			t.Error("a deploy is a warning")
		}
	})
}
