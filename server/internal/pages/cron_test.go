package pages

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
)

// A server without scopes says which there are, and how to see them.
func TestScopesThatAreNotShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    *fake
		says []string
	}{
		"one":  {&fake{scopes: []string{"demo"}}, []string{"A scheduler has this scope: <b>demo</b>.", "<code>--scope demo</code>"}},
		"two":  {&fake{scopes: []string{"demo", "shop"}}, []string{"2 scopes: <b>demo</b>, <b>shop</b>.", "<code>--scope demo</code> <code>--scope shop</code>"}},
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

// triggered is a Desk with a cron job that somebody has triggered.
type triggered struct {
	*fake
	job ops.CronJob
	act ops.AuditEntry
	ticks []ops.CronTick
}

func (f *triggered) CronJob(context.Context, string, string) (ops.CronJob, error) { return f.job, nil }

func (f *triggered) CronNext(context.Context, string, string, int) ([]ops.CronTick, error) {
	return f.ticks, nil
}

func (f *triggered) Actions(context.Context, ops.AuditQuery) iter.Seq2[ops.AuditEntry, error] {
	return func(yield func(ops.AuditEntry, error) bool) { yield(f.act, nil) }
}

// After a trigger the page says which run has followed, and how that has ended, as it happens.
func TestTheRunThatFollowsATrigger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		at := func(sec int) ops.Time { return ops.Time{Time: now.Add(time.Duration(sec) * time.Second)} }
		run := func(cause scheduler.Cause, began int, state scheduler.State) ops.CronRun {
			return ops.CronRun{ID: string(cause), Tick: at(began), Cause: cause, Started: at(began), State: state, Node: "node-" + string(cause)}
		}
		f := &triggered{
			fake: &fake{},
			act:  ops.AuditEntry{ID: "7-0", At: at(0), Action: "cron trigger", Scope: "shop", Key: "rates", By: "x", Reason: "now", Outcome: ops.OutcomeAsked},
			job: ops.CronJob{Scope: "shop", Name: "rates", State: ops.CronIdle, Nodes: []string{"n1"}, Now: at(0), History: []ops.CronRun{
				run(scheduler.CauseTrigger, -60, scheduler.StateDone), run(scheduler.CauseTick, 1, scheduler.StateDone),
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
		ran := run(scheduler.CauseTrigger, 2, scheduler.StateRunning)
		f.job.History = append(f.job.History, ran, run(scheduler.CauseTrigger, 9, scheduler.StateDone))
		wantPage(t, page(), true, "followed:", "node-trigger, for", "so far")
		ran.State, ran.Ended, ran.Took, ran.Error = scheduler.StateFailed, at(4), ops.Millis(2*time.Second), "no rates"
		f.job.History[2] = ran
		f.act.Outcome, f.act.Error = ops.OutcomeFailed, "the run has ended as failed: no rates"
		last := page()
		wantPage(t, last, true, "banner warn", "node-trigger, after 2.0 s", `<span class="warnword">no rates</span>`)
		wantPage(t, last, false, "No run has followed yet.", "banner good")
	})
}
