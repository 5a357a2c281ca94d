package pages

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// A server without scopes says which there are, and how to see them.
func TestScopesThatAreNotShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    *fake
		says []string
	}{
		"one": {&fake{scopes: []string{"demo"}}, []string{"A scheduler has this scope: <b>demo</b>.", "<code>--scope demo</code>"}},
		"two": {&fake{scopes: []string{"demo", "shop"}}, []string{"2 scopes: <b>demo</b>, <b>shop</b>.", "<code>--scope demo</code> <code>--scope shop</code>"}},
		"odd": {&fake{scopes: []string{"a b'; <i>", "x\x1b[2J"}}, []string{
			"<b>a b&#39;; &lt;i&gt;</b>, <b>x\\x1b[2J</b>.",
			"<code>--scope &#39;a b&#39;\\&#39;&#39;; &lt;i&gt;&#39;</code> <code>--scope $&#39;x\\x1b[2J&#39;</code>",
		}},
		"none": {&fake{}, []string{"No scheduler has run in the last year"}},
		"away": {&fake{err: errors.Join(errors.New("gone"), joblock.ErrUnavailable)}, []string{"The scopes of cron jobs could not be read: gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, err := New(Config{Desk: c.f, Recorded: true})
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				wantPage(t, h.get("cron", someone).Body.String(), true, c.says...)
				if c.f.err == nil { // else there is no overview
					wantPage(t, h.get("", someone).Body.String(), true, c.says...)
				}
				wantPage(t, h.get("cronjob?scope=demo&name=x", someone).Body.String(), true, "This server shows no scopes of cron jobs.")
			})
		})
	}
}

// triggered is a Desk with a cron job that was triggered.
type triggered struct {
	*fake
	job   ops.CronJob
	act   ops.AuditEntry
	ticks []ops.CronTick
}

func (f *triggered) CronJob(context.Context, string, string) (ops.CronJob, error) { return f.job, nil }

func (f *triggered) CronNext(context.Context, ops.CronNextQuery) ([]ops.CronTick, error) {
	return f.ticks, nil
}

func (f *triggered) Audit(context.Context, ops.AuditQuery) iter.Seq2[ops.AuditEntry, error] {
	return recorded([]ops.AuditEntry{f.act})
}

// After a trigger the page says which run has followed, and how that has ended, as it happens.
func TestTheRunThatFollowsATrigger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		at := func(sec int) ops.Time { return ops.Time{Time: now.Add(time.Duration(sec) * time.Second)} }
		run := func(cause scheduler.Cause, began int, state scheduler.Kind) ops.CronRun {
			return ops.CronRun{ID: string(cause), Tick: at(began), Cause: cause, Started: at(began), State: state, Node: "node-" + string(cause)}
		}
		f := &triggered{
			fake: &fake{},
			act:  ops.AuditEntry{ID: "7-0", At: at(0), Action: "cron trigger", Scope: "shop", Key: "rates", By: "x", Reason: "now", Outcome: ops.OutcomeAsked},
			job: ops.CronJob{Scope: "shop", Name: "rates", State: ops.CronIdle, Nodes: []string{"n1"}, Now: at(0), History: []ops.CronRun{
				run(scheduler.CauseTrigger, -60, scheduler.Done), run(scheduler.CauseTick, 1, scheduler.Done),
			}},
		}
		h, err := New(Config{Desk: f, Scopes: []string{"shop"}, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		page := func() string {
			t.Helper()
			time.Sleep(3 * time.Second)
			return h.get("cronjob?scope=shop&name=rates&done=7-0", someone).Body.String()
		}
		wantPage(t, page(), true, "asked, ", "No run has followed yet.", "done=7-0&amp;name=rates&amp;page=cronjob")
		ran := run(scheduler.CauseTrigger, 2, scheduler.Running)
		f.job.History = append(f.job.History, ran, run(scheduler.CauseTrigger, 9, scheduler.Done))
		wantPage(t, page(), true, "followed:", "node-trigger, for", "so far")
		ran.State, ran.Ended, ran.Took, ran.Error = scheduler.Failed, at(4), ops.Millis(2*time.Second), "no rates"
		f.job.History[2] = ran
		f.act.Outcome, f.act.Error = ops.OutcomeFailed, "the run has ended as failed: no rates"
		last := page()
		wantPage(t, last, true, "banner warn", "node-trigger, after 2.0 s", `<span class="warnword">no rates</span>`)
		wantPage(t, last, false, "No run has followed yet.", "banner good")
	})
}

// Old successes are forgotten before old failures. The list says from where on it has failures alone, and how many there were.
func TestWhereTheRunsOnRecordGetThin(t *testing.T) {
	t.Parallel()
	const gone = "runs before"
	for name, c := range map[string]struct {
		runs   string // the newest first: . for one that is done, x for one that has failed
		counts admin.Counts
		says   string
		lines  int // how many rows are above
	}{
		"all are there":               {"..x.x", admin.Counts{Done: 3, Failed: 2}, "", 0},
		"successes are forgotten":     {".x.xxx", admin.Counts{Done: 9, Failed: 4}, "Successful runs before", 3},
		"failures are forgotten":      {".x...", admin.Counts{Done: 4, Failed: 2}, "Failed runs before", 2},
		"all are forgotten at an end": {"x.x.", admin.Counts{Done: 9, Failed: 2}, "", 0},
		"none was well":               {"xx", admin.Counts{Failed: 2}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				now := time.Now().UTC()
				f := &triggered{fake: &fake{}, job: ops.CronJob{Scope: "shop", Name: "rates", Now: ops.Time{Time: now}, Counts: c.counts}}
				for i, r := range c.runs {
					at := ops.Time{Time: now.Add(-time.Duration(i+1) * time.Hour)}
					run := ops.CronRun{Tick: at, Started: at, State: scheduler.Done, Cause: scheduler.CauseTick}
					if r == 'x' {
						run.State = scheduler.Failed
						f.job.Failures++
						f.job.LastFailure = &run
					}
					f.job.History = append(f.job.History, run)
				}
				h, err := New(Config{Desk: f, Scopes: []string{"shop"}, Recorded: true})
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				page := h.get("cronjob?scope=shop&name=rates", someone).Body.String()
				_, runs, _ := strings.Cut(page, `id="cj-runs"`)
				above, _, found := strings.Cut(runs, gone)
				if found != (c.says != "") || found && (strings.Count(above, `data-l="started"`) != c.lines || !strings.Contains(runs, c.says)) {
					t.Errorf("%t, after %d rows: %s", found, strings.Count(above, `data-l="started"`), runs)
				}
			})
		})
	}
}

// The number of failed runs is shown together with how many of them are on record.
func TestHowManyRunsHaveFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		f := &triggered{fake: &fake{}, job: ops.CronJob{Scope: "shop", Name: "rates", Now: ops.Time{Time: now}, Counts: admin.Counts{Failed: 12}, Failures: 2}}
		for hour := range 2 {
			at := ops.Time{Time: now.Add(-time.Duration(hour+1) * time.Hour)}
			f.job.History = append(f.job.History, ops.CronRun{ID: at.String(), Tick: at, Started: at, State: scheduler.Failed})
		}
		f.job.LastFailure = &f.job.History[0]
		h, err := New(Config{Desk: f, Scopes: []string{"shop"}, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		page := tags.ReplaceAllString(h.get("cronjob?scope=shop&name=rates", someone).Body.String(), "")
		wantPage(t, page, true, "2 failed runs of 12 are on record, the first of these that of 1999-12-31 22:00:00 UTC.")
		time.Sleep(3 * time.Second)
		f.job.Counts.Failed = 2
		page = tags.ReplaceAllString(h.get("cronjob?scope=shop&name=rates", someone).Body.String(), "")
		wantPage(t, page, true, "2 failed runs are on record, the first of these")
	})
}
