package ops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// schedule runs a node of the scope "shop", whose job fails, until stop is called.
func (s *stage) schedule() (stop func()) {
	s.Helper()
	return s.scheduleOf("rollup", errors.New("no disk"))
}

// scheduleOf runs a node of the scope "shop" with one job.
func (s *stage) scheduleOf(job string, result error) (stop func()) {
	s.Helper()
	node, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: "node-1", Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(s, "scheduler.New", err)
	testkit.WantNil(s, "Func", node.Func(job, "0 3 * * *", func(context.Context) error { return result }))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := node.Run(ctx); err != nil {
			s.Errorf("Run: %v", err)
		}
	})
	time.Sleep(time.Minute)
	return func() { cancel(); group.Wait() }
}

func TestCronJobsAreShownAndSteered(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		stop := s.schedule()
		jobs, err := s.CronJobs(ctx, "shop")
		if err != nil || len(jobs) != 1 || jobs[0].Name != "rollup" || jobs[0].Scope != "shop" || len(jobs[0].Nodes) != 1 || jobs[0].Latest != nil || jobs[0].Next.IsZero() {
			t.Fatalf("%+v, %v", jobs, err)
		}
		nodes, err := s.CronNodes(ctx, "shop")
		if err != nil || len(nodes) != 1 || nodes[0].Name != "node-1" || nodes[0].Jobs != 1 {
			t.Errorf("%+v, %v", nodes, err)
		}
		ticks, err := s.CronNext(ctx, CronNextQuery{Scope: "shop", Name: "rollup", N: 3})
		if err != nil || len(ticks) != 3 || !ticks[0].At.Equal(jobs[0].Next.Time) {
			t.Errorf("%+v, %v", ticks, err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		acted, err := s.Act(ctx, TriggerCron{Scope: "shop", Name: "rollup", Wait: true, Reason: eva.Reason})
		if err != nil || acted.Run == nil || acted.Run.State != scheduler.Failed || acted.Run.Error != "no disk" || acted.Run.Node != "node-1" || acted.Audit == "" {
			t.Errorf("%+v, %v", acted, err)
		}
		_, err = s.Act(ctx, PauseCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
		testkit.WantNil(t, "CronPause", err)
		_, err = s.Act(ctx, PauseAllCron{Scope: "shop", Reason: eva.Reason})
		testkit.WantNil(t, "CronPause of all", err)
		job, err := s.CronJob(ctx, "shop", "rollup")
		if err != nil || !job.Paused || len(job.Pauses) != 2 || job.Pauses[0].By != eva.By || job.Pauses[0].Reason != eva.Reason || job.Latest.Error != "no disk" {
			t.Errorf("%+v, %v", job, err)
		}
		for _, resume := range []Action{ResumeCron{Scope: "shop", Name: "rollup", Reason: eva.Reason}, ResumeAllCron{Scope: "shop", Reason: eva.Reason}} {
			_, err = s.Act(ctx, resume)
			testkit.WantNil(t, "CronResume", err)
		}
		_, err = s.Act(ctx, ForgetCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
		testkit.WantErr(t, err, joblock.ErrHeld)
		if last := s.audit.entries[len(s.audit.entries)-1]; last.Outcome != OutcomeRefused || last.Action != "cron forget" || last.Scope != "shop" || last.Key != "rollup" {
			t.Errorf("%+v", last)
		}
		s.cfg.Scopes = []string{"shop"}
		if found, err := findings(s.Doctor(ctx)); err != nil || len(found) != 1 || found[0].Severity != Warning || !strings.Contains(found[0].Found, "failed on node-1: no disk") || !strings.HasSuffix(found[0].Fix, "joblock cron trigger --scope shop -- rollup runs the job again") || strings.Contains(found[0].Found, "on record") {
			t.Errorf("doctor after a failure: %+v, %v", found, err)
		}
		_, err = s.Act(ctx, TriggerCron{Scope: "shop", Name: "rollup", Wait: true, Reason: eva.Reason})
		testkit.WantNil(t, "CronTrigger", err)
		_, err = s.Act(ctx, PauseAllCron{Scope: "shop", Reason: eva.Reason})
		testkit.WantNil(t, "CronPause of all", err)
		if found, err := findings(s.Doctor(ctx)); err != nil || len(found) != 2 || !strings.Contains(found[0].Found, "the last 2 runs on record failed, the first of them that of "+moment(acted.Run.Tick.Time)) ||
			found[1].Severity != Note || found[1].Node != "shop" || !strings.Contains(found[1].Found, "all jobs are paused since") || found[1].Fix != "joblock cron resume --scope shop --all, if the pause was forgotten" {
			t.Errorf("doctor after two failures and in a pause: %+v, %v", found, err)
		}
		_, err = s.Act(ctx, ResumeAllCron{Scope: "shop", Reason: eva.Reason})
		testkit.WantNil(t, "CronResume of all", err)
		stop()
		found, err := findings(s.Doctor(ctx))
		if err != nil || len(found) == 0 || found[0].Severity != Fault || found[0].Subject != "cron" || !strings.Contains(found[0].Found, "no node is up") {
			t.Errorf("doctor without nodes: %+v, %v", found, err)
		}
		_, err = s.Act(ctx, ForgetCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
		testkit.WantNil(t, "CronForget", err)
		_, err = s.CronJob(ctx, "shop", "rollup")
		testkit.WantErr(t, err, joblock.ErrNotFound)
	})
}

func TestCronActionsThatCannotBeRecordedAreRefused(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		stop := s.schedule()
		_, err := s.As("eva", "").Act(t.Context(), PauseCron{Scope: "shop", Name: "rollup", Reason: "before"})
		testkit.WantNil(t, "CronPause", err)
		s.audit.err = errors.New("full")
		for name, act := range map[string]func() (ActionResult, error){
			"pause": func() (ActionResult, error) {
				return s.Act(t.Context(), PauseCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
			},
			"resume": func() (ActionResult, error) {
				return s.Act(t.Context(), ResumeCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
			},
			"trigger": func() (ActionResult, error) {
				return s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
			},
			"forget": func() (ActionResult, error) {
				return s.Act(t.Context(), ForgetCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
			},
		} {
			if _, err := act(); !errors.Is(err, ErrNotRecorded) {
				t.Errorf("%s: %v, want ErrNotRecorded", name, err)
			}
		}
		job, err := s.CronJob(t.Context(), "shop", "rollup")
		if err != nil || len(job.Pauses) != 1 || job.Pauses[0].Reason != "before" || job.Latest != nil {
			t.Errorf("%+v, %v", job, err)
		}
		_, err = s.As("eva", "").Act(t.Context(), PauseCron{Scope: "shop", Name: "rollup", Reason: ""})
		testkit.WantErr(t, err, joblock.ErrInvalid)
		_, err = s.CronJobs(t.Context(), "")
		testkit.WantErr(t, err, joblock.ErrInvalid)
		stop()
	})
}

// To pause what is paused, and to resume what is not, is nothing: no record says that it was done. A new reason replaces the
// reason of a pause, and is an action.
func TestPauseOfThePaused(t *testing.T) {
	for name, what := range map[string]string{"one job": "rollup", "all jobs": ""} {
		paused, resume := VerbOf(ActCronPause), VerbOf(ActCronResume)
		if what == "" {
			paused, resume = VerbOf(ActCronPauseAll), VerbOf(ActCronResumeAll)
		}
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				defer s.schedule()()
				pause := func() CronPause {
					t.Helper()
					j, err := s.CronJob(t.Context(), "shop", "rollup")
					testkit.WantNil(t, "CronJob", err)
					if len(j.Pauses) != 1 {
						t.Fatalf("%+v", j.Pauses)
					}
					return j.Pauses[0]
				}
				want := func(what string, got ActionResult, err error, unchanged bool, was string, records int) {
					t.Helper()
					if err != nil || got.Unchanged != unchanged || (got.Audit == "") != unchanged || (got.Was == nil) != (was == "") || got.Was != nil && got.Was.Reason != was {
						t.Errorf("%s: %+v, was %+v, %v", what, got, got.Was, err)
					}
					if n := len(s.audit.entries); n != 2*records {
						t.Errorf("%s: %d records, want %d", what, n, 2*records)
					}
				}
				done, err := s.As("eva", "").Act(t.Context(), resume.With(Args{Scope: "shop", Cron: what, Reason: "x"}))
				want("resume of the running", done, err, true, "", 0)
				done, err = s.As("eva", "").Act(t.Context(), paused.With(Args{Scope: "shop", Cron: what, Reason: "migration"}))
				want("pause", done, err, false, "", 1)
				began := pause()
				time.Sleep(time.Hour)
				for _, reason := range []string{"migration", NoReason} {
					done, err = s.As("bob", "").Act(t.Context(), paused.With(Args{Scope: "shop", Cron: what, Reason: reason}))
					want("the same pause", done, err, true, "migration", 1)
				}
				if now := pause(); now != began {
					t.Errorf("%+v, want %+v", now, began)
				}
				done, err = s.As("bob", "").Act(t.Context(), paused.With(Args{Scope: "shop", Cron: what, Reason: "it takes longer"}))
				want("a new reason", done, err, false, "migration", 2)
				if now := pause(); now.By != "bob" || now.Reason != "it takes longer" || now.Since != began.Since {
					t.Errorf("%+v, want the beginning of %+v", now, began)
				}
				done, err = s.As("eva", "").Act(t.Context(), resume.With(Args{Scope: "shop", Cron: what, Reason: "x"}))
				want("resume", done, err, false, "it takes longer", 3)
				_, err = s.As("eva", "").Act(t.Context(), paused.With(Args{Scope: "shop", Cron: what, Reason: ""}))
				testkit.WantErr(t, err, joblock.ErrInvalid)
			})
		})
	}
}

// The record of a trigger says that a run was requested or, if the caller waited for it, how the run ended.
func TestRecordOfATrigger(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		defer s.schedule()()
		last := func() AuditEntry { return s.audit.entries[len(s.audit.entries)-1] }
		_, err := s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "rollup", Reason: eva.Reason})
		testkit.WantNil(t, "CronTrigger", err)
		if e := last(); e.Outcome != OutcomeAsked || e.Error != "" {
			t.Errorf("without a wait: %+v", e)
		}
		_, err = s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "rollup", Wait: true, Reason: eva.Reason})
		testkit.WantNil(t, "CronTrigger", err)
		if e := last(); e.Outcome != OutcomeFailed || e.Error != "the run has ended as failed: no disk" {
			t.Errorf("with a wait: %+v", e)
		}
		_, err = s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "none", Reason: eva.Reason})
		testkit.WantErr(t, err, joblock.ErrNotFound)
		if e := last(); e.Outcome != OutcomeRefused {
			t.Errorf("no such job: %+v", e)
		}
	})
}

// When a caller follows the run that it requested, the record says how the run ended, even if Redis was away meanwhile. The
// record of a run that no caller followed to its end stays as it was.
func TestRecordOfATriggerThatIsFollowed(t *testing.T) {
	for name, c := range map[string]struct {
		result error                                   // of the run
		fault  func(s *stage, over context.CancelFunc) // after the trigger
		want   AuditEntry
	}{
		"failed": {errors.New("no disk"), nil, AuditEntry{Outcome: OutcomeFailed, Error: "the run has ended as failed: no disk"}},
		"done":   {nil, nil, AuditEntry{Outcome: OutcomeDone}},
		"the store is away": {nil, func(s *stage, _ context.CancelFunc) {
			s.store.SetAll(faultstore.Fault{Mode: faultstore.Refuse})
			time.AfterFunc(20*time.Second, func() { s.store.Clear() })
		}, AuditEntry{Outcome: OutcomeDone}},
		"the record is away": {nil, func(s *stage, _ context.CancelFunc) { s.audit.fails = 3 }, AuditEntry{Outcome: OutcomeDone}},
		"the wait ends":      {nil, func(_ *stage, over context.CancelFunc) { over() }, AuditEntry{Outcome: OutcomeAsked}},
		"it is lost": {nil, func(s *stage, over context.CancelFunc) {
			over()
			newCronAction(s.Desk, ActCronTrigger, "shop", "job", eva.Reason).follow(s.Context(), AuditEntry{Of: "1", Action: "cron trigger", Scope: "shop", Key: "job", By: eva.By, Reason: eva.Reason},
				func(context.Context) (x admin.Execution, err error) {
					return x, errors.New("no longer in the history")
				})
		}, AuditEntry{Outcome: OutcomeUnknown, Error: "no longer in the history"}},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				stop := s.scheduleOf("job", c.result)
				ctx, over := context.WithTimeout(t.Context(), time.Hour)
				defer over()
				var follow func(context.Context)
				s.cfg.Follow = func(wait func(context.Context)) error { follow = wait; return nil }
				done, err := s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "job", Reason: eva.Reason})
				testkit.WantNil(t, "CronTrigger", err)
				if is := s.audit.entries[1]; is.Outcome != OutcomeAsked || is.Of != done.Audit {
					t.Errorf("at first: %+v", is)
				}
				if c.fault != nil {
					c.fault(s, over)
				}
				follow(ctx)
				stop()
				var all []AuditEntry
				for e, err := range Actions(s.Audit(t.Context(), AuditQuery{})) {
					testkit.WantNil(t, "Actions", err)
					all = append(all, e)
				}
				if len(all) != 1 || all[0].ID != done.Audit || all[0].Outcome != c.want.Outcome || all[0].Error != c.want.Error || all[0].By != eva.By {
					t.Errorf("%+v, want %+v", all, c.want)
				}
				if c.want.Outcome == OutcomeAsked {
					return
				}
				if last := s.audit.entries[len(s.audit.entries)-1]; last.Action != "cron trigger" || last.Scope != "shop" || last.Key != "job" || last.By != eva.By || last.Reason != eva.Reason {
					t.Errorf("the last entry is %+v", last)
				}
			})
		})
	}
}

// The log says which record lacks the end of its run; the caller gets an error if that is known at once.
func TestLogOfATriggerThatIsNotFollowed(t *testing.T) {
	for name, c := range map[string]struct {
		refuses error // of Follow
		away    time.Duration
		want    []string // a part of each line of the log
	}{
		"no line":                        {errors.New("too many"), 0, []string{`stays as it is" scope=shop job=job audit=1 ended="" err="too many"`}},
		"the record is away for a while": {nil, time.Minute, []string{`tried again each second" scope=shop job=job audit=1 ended=done err=`}},
		"the wait ends":                  {nil, -time.Minute, []string{`stays as it is" scope=shop job=job audit=1 ended="" err="context canceled"`}},
		"the record stays away":          {nil, 2 * time.Hour, []string{"tried again each second", "was not recorded"}},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				stop := s.scheduleOf("job", nil)
				ctx, over := context.WithTimeout(t.Context(), time.Hour) // the end of the server
				defer over()
				var log bytes.Buffer
				s.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
				var follow func(context.Context)
				s.cfg.Follow = func(wait func(context.Context)) error { follow = wait; return c.refuses }
				done, err := s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "job", Reason: eva.Reason})
				testkit.WantNil(t, "CronTrigger", err)
				if c.refuses != nil {
					if want := []string{"How the run ends will not be recorded: too many."}; !slices.Equal(done.Problems, want) {
						t.Errorf("problems are %q, want %q", done.Problems, want)
					}
				} else {
					set := func(err error) {
						s.audit.mu.Lock()
						defer s.audit.mu.Unlock()
						s.audit.err = err
					}
					set(errors.New("away"))
					timer := time.AfterFunc(max(c.away, 0), func() { set(nil) })
					if c.away < 0 {
						over()
					}
					follow(ctx)
					timer.Stop()
				}
				stop()
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				if !slices.EqualFunc(lines, c.want, strings.Contains) {
					t.Errorf("the log has\n%swant %q", &log, c.want)
				}
			})
		})
	}
}

// Names come from the store. The sentences of the doctor show what in them would steer a terminal.
func TestDoctorShowsHostileNames(t *testing.T) {
	const evil = "x\x1b]0;evil\a\u202e\r"
	noon := Time{time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)}
	c := new(checkup)
	j := CronJob{
		Scope: evil, Name: evil, SpecBy: evil, Problem: evil, Overdue: noon, Contested: true, Behind: 1000,
		OtherSpecs: []CronOtherSpec{{evil, evil, noon}}, Pauses: []CronPause{{Since: noon, By: evil, Reason: evil}},
	}
	for _, code := range []string{troubleFailed, troubleContested, troubleDied} {
		j.Troubles = append(j.Troubles, CronTrouble{Code: code, Text: evil})
	}
	c.cronJob(noon.Time, j)
	c.cronPause(noon.Time, evil, []CronJob{{Pauses: []CronPause{{Since: noon, By: evil, Reason: evil, All: true}}}})
	shown := 0
	for _, f := range c.findings {
		for _, text := range []string{f.Found, f.Means, f.Fix} {
			if visible(text) != text {
				t.Errorf("%q: %q", f.Subject, text)
			}
			shown += strings.Count(text, `x\x1b]0;evil`)
		}
	}
	if len(c.findings) != 8 || shown < 8 || !slices.ContainsFunc(c.findings, func(f Finding) bool {
		return strings.Contains(f.Fix, `to the release of node x\x1b]0;evil\a\u202e\r, or stop it`)
	}) {
		t.Errorf("%d names in %+v", shown, c.findings)
	}
}

// The ticks of a paused job are marked.
func TestNextTicksInAPause(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		defer s.schedule()()
		for _, paused := range []bool{false, true} {
			if paused {
				_, err := s.Act(t.Context(), PauseAllCron{Scope: "shop", Reason: eva.Reason})
				testkit.WantNil(t, "CronPause", err)
			}
			ticks, err := s.CronNext(t.Context(), CronNextQuery{Scope: "shop", Name: "rollup", N: 2})
			if err != nil || len(ticks) != 2 || ticks[0].Paused != paused || ticks[1].Paused != paused {
				t.Errorf("paused %t: %+v, %v", paused, ticks, err)
			}
		}
		_, err := s.CronNext(t.Context(), CronNextQuery{Scope: "shop", Name: "none", N: 2})
		testkit.WantErr(t, err, joblock.ErrNotFound)
	})
}

func TestCronPreview(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := CronPreview("30 2 * * *", berlin, time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), 2)
	if err != nil || len(plan.Ticks) != 2 || plan.Zone != "Europe/Berlin" || plan.Words == "" || plan.Ticks[0].Note == "" || plan.Ticks[1].Note != "" {
		t.Errorf("%+v, %v", plan, err)
	}
	if plan.Warning != "" {
		t.Errorf("the warning is %q", plan.Warning)
	}
	if plan, err = CronPreview("0 0 12 ? * 6#3", berlin, time.Now(), 1); err != nil || !strings.Contains(plan.Warning, "Quartz") {
		t.Errorf("%+v, %v", plan, err)
	}
	if _, err := CronPreview("61 * * * *", berlin, time.Now(), 1); err == nil {
		t.Error("a bad spec is no error")
	}
	_, err = CronPreview("* * * * *", berlin, time.Now(), 0)
	testkit.WantErr(t, err, joblock.ErrInvalid)
}

// A run that was broken off is a trouble until another node executes its tick.
func TestTickThatWasTakenOverIsNoTrouble(t *testing.T) {
	tick := scheduler.Tick{Name: "rollup", At: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)}
	again, next := tick, tick
	again.Broken = 1
	next.At = tick.At.Add(time.Hour)
	broken := admin.Execution{Tick: tick, Node: "a", State: scheduler.Interrupted}
	running := func(t scheduler.Tick) admin.Execution {
		return admin.Execution{Tick: t, Node: "b", State: scheduler.Running}
	}
	for name, c := range map[string]struct {
		e    admin.Entry
		want int
	}{
		"not taken over":     {admin.Entry{Latest: broken}, 1},
		"taken over":         {admin.Entry{Latest: running(again), History: []admin.Execution{broken}}, 0},
		"taken over, lanes":  {admin.Entry{Latest: broken, Running: []admin.Execution{running(again)}}, 0},
		"another tick runs":  {admin.Entry{Latest: running(next), History: []admin.Execution{broken}}, 1},
		"over on both nodes": {admin.Entry{Latest: admin.Execution{Tick: again, Node: "b", State: scheduler.Died}, History: []admin.Execution{broken}}, 1},
	} {
		c.e.Nodes = []string{"b"}
		if got := troubles(c.e); len(got) != c.want {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}

// A job of which some runs fail is in trouble, also if the newest ended well.
func TestRunsThatFailNowAndThen(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	runs := func(states string) (e admin.Entry) { // the newest first
		e.Nodes = []string{"n"}
		for i, c := range states {
			x := admin.Execution{State: map[rune]scheduler.Kind{'d': scheduler.Done, 'f': scheduler.Failed, 'r': scheduler.Running}[c]}
			x.Tick.At, x.Error = at.Add(-time.Duration(i)*time.Minute), "503"
			if i == 0 {
				e.Latest = x
			} else {
				e.History = append(e.History, x)
			}
		}
		return e
	}
	for states, want := range map[string]string{
		"":               "",
		"dddddddddd":     "",
		"dfdddddddd":     "",
		"dfddfddfdd":     "flaky 3 of the last 10 runs failed, the latest of them that of 2026-03-01 11:59:00 UTC: 503",
		"rdffd":          "", // it was mended
		"ddddddddddfff":  "",
		"ddddddddfffff":  "",
		"rdfdf":          "flaky 2 of the last 4 runs failed",
		"ddddddddfdffff": "",
		"fdfd":           "failed the run of",
	} {
		got := ""
		for _, one := range troubles(runs(states)) {
			got += one.Code + " " + one.Text
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", states, got, want)
		}
	}
}

// The doctor names some jobs of a scope and counts the others, those with the least severe findings.
func TestDoctorOfManyCronJobs(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		c := &checkup{Desk: s.Desk}
		c.add(Note, "version", "", "before", "", "")
		var jobs []CronJob
		for i := range 5000 {
			j := CronJob{Scope: "shop", Name: fmt.Sprintf("job-%04d", i)}
			switch {
			case i%2 == 0: // one that is well
				j.Nodes = []string{"node-1"}
			case i > 4900:
				j.Overdue = Time{time.Now()}
			}
			jobs = append(jobs, j)
		}
		c.cronJobs(time.Now(), "shop", jobs[:2*mostCronJobs])
		if n := len(c.findings); n != 1+mostCronJobs {
			t.Fatalf("%d findings about %d jobs", n-1, mostCronJobs)
		}
		c.findings = c.findings[:1]
		c.cronJobs(time.Now(), "shop", jobs)
		if n := len(c.findings); n != 2+mostCronJobs || c.findings[0].Found != "before" {
			t.Fatalf("%d findings, the first is %+v", n, c.findings[0])
		}
		for i, f := range c.findings[1 : 1+mostCronJobs] {
			if want := fmt.Sprintf("shop: job-%d", 4901+2*i); f.Severity != Fault || f.Node != want {
				t.Errorf("finding %d is %+v, want a fault of %s", i, f, want)
			}
		}
		if last := c.findings[1+mostCronJobs]; last.Severity != Fault || last.Found != "there are findings about 2480 more jobs" {
			t.Errorf("the last is %+v", last)
		}
	})
}

// A function that ignores its context, and a task that does not end, are troubles and findings. A tick that has enqueued its
// task is not "done".
func TestJobsThatStandStill(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		node, err := scheduler.New(s.Desk.cfg.Locks, &scheduler.Config{Scope: "shop", Node: "node-1", Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "scheduler.New", err)
		release := make(chan struct{})
		testkit.WantNil(t, "Func", node.Func("deaf", "@every 3s", func(context.Context) error {
			<-release
			return nil
		}, scheduler.Timeout(2*time.Second)))
		enqueued := false
		testkit.WantNil(t, "Task", node.Task("report", "@every 20s", func(context.Context, scheduler.Tick) error {
			if enqueued {
				return &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: "report", Job: "default/report@1"}
			}
			enqueued = true
			return nil
		}))
		ctx, cancel := context.WithCancel(context.Background())
		var group sync.WaitGroup
		group.Go(func() {
			if err := node.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		defer group.Wait()
		defer cancel()
		defer close(release)
		look := func(job string) (codes string, all CronJob) {
			all, err := s.CronJob(t.Context(), "shop", job)
			testkit.WantNil(t, "CronJob", err)
			for _, trouble := range all.Troubles {
				codes += trouble.Code + ": " + trouble.Text + "\n"
			}
			return codes, all
		}
		time.Sleep(46 * time.Second) // between two ticks, now and below
		codes, deaf := look("deaf")
		if !strings.HasPrefix(codes, "overrun: the run of ") || !strings.Contains(codes, "on node-1 goes on") || !strings.Contains(codes, "running for longer than 2s") || deaf.Counts.Overlapped < 10 {
			t.Errorf("troubles %s, %+v", codes, deaf.Counts)
		}
		if codes, report := look("report"); codes != "" || report.Counts.Enqueued != 1 || report.Counts.Done != 0 || !report.Runs()[len(report.Runs())-1].Well() {
			t.Errorf("troubles %s, %+v", codes, report)
		}
		enqueued = false
		acted, err := s.Act(t.Context(), TriggerCron{Scope: "shop", Name: "report", Wait: true, Reason: eva.Reason})
		if last := s.audit.entries[len(s.audit.entries)-1]; err != nil || acted.Run == nil || acted.Run.State != scheduler.Enqueued || last.Outcome != OutcomeAsked {
			t.Errorf("%+v, %v, recorded as %+v", acted.Run, err, last)
		}
		time.Sleep(15 * time.Minute)
		codes, report := look("report")
		if !strings.HasPrefix(codes, "stuck: the last ") || !strings.Contains(codes, "default/report@1") || report.OverlapsSince.IsZero() || report.Overlaps < 40 {
			t.Errorf("troubles %s, %+v", codes, report)
		}
		if codes, _ := look("deaf"); !strings.HasPrefix(codes, "overrun") || !strings.Contains(codes, "stuck: the last ") {
			t.Errorf("troubles %s", codes)
		}
		s.cfg.Scopes = []string{"shop"}
		found, err := findings(s.Doctor(t.Context()))
		if err != nil || len(found) != 3 {
			t.Fatalf("%+v, %v", found, err)
		}
		for _, f := range found {
			if f.Severity != Warning || f.Subject != "cron" || !strings.HasPrefix(f.Node, "shop: ") {
				t.Errorf("%+v", f)
			}
		}
	})
}
