//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/scheduler"
)

func ok(context.Context) error { return nil }

// shop starts a node with two jobs of the scope "shop", which have run once: "rollup" is well, and "broken" has
// failed with an error that a terminal would obey.
func (p *place) shop() (stop func()) {
	p.Helper()
	stop = p.node("shop", "n1", func(s *scheduler.Scheduler) {
		for name, fn := range map[string]func(context.Context) error{
			"rollup": ok,
			"broken": func(context.Context) error { return errors.New("no such table \x1b[31m") },
		} {
			if err := s.Func(name, "CRON_TZ=Europe/Berlin 30 2 * * *", fn, scheduler.RunAtStart("1")); err != nil {
				p.Error(err)
			}
		}
	})
	p.until("both jobs have run, and are seen on their node", func() bool {
		jobs := p.jobs()
		return len(jobs) == 2 && jobs["rollup"].Counts.Done == 1 && jobs["broken"].Counts.Failed == 1 && len(jobs["rollup"].Nodes) == 1 && len(jobs["broken"].Nodes) == 1
	})
	return stop
}

func (p *place) jobs() map[string]ops.CronJob {
	p.Helper()
	var list []ops.CronJob
	p.do("cron", "ls", "-o", "json").wants(0).items("cron-jobs.json", &list)
	jobs := make(map[string]ops.CronJob)
	for _, j := range list {
		jobs[j.Name] = j
	}
	return jobs
}

func TestCronIsSeen(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	p.do("cron", "ls").wants(0, "no cron job is on record").lacks("rollup")
	p.do("cron", "ls", "-o", "json").wants(0).lacks("on record")
	p.do("cron", "scopes").wants(0, "no scheduler has run")
	p.do("cron", "nodes").wants(0, "no node is up")
	p.do("cron", "get", "rollup").wants(exitNo, "no scheduler has run")
	stop := p.shop()

	list := p.do("cron", "ls").wants(0, "NAME", "TROUBLE", "broken", "failed", "rollup", "idle", "done in", "Europe/Berlin")
	list.lacks("SCOPE", "RUNS")
	p.do("cron", "ls", "-o", "wide").wants(0, "shop", "at 02:30 every day, Europe/Berlin")
	if names := p.do("cron", "ls", "-o", "name").wants(0); names.out != "broken\nrollup\n" {
		t.Errorf("names %q", names.out)
	}
	if lines := p.do("cron", "ls", "-o", "jsonl").wants(0); strings.Count(lines.out, "\n") != 2 {
		t.Errorf("lines %q", lines.out)
	}
	if ill := p.do("cron", "ls", "--troubled", "--no-headers").wants(0); strings.Count(ill.out, "\n") != 1 || !strings.HasPrefix(ill.out, "broken ") {
		t.Errorf("troubled: %q", ill.out)
	}
	p.do("cron", "ls", "--check").wants(exitNo, "1 job with trouble")
	p.do("cron", "get", "broken").wants(0, "no such table \\x1b[31m", "NODES", "n1")
	p.do("cron", "get", "broken", "--check", "-o", "name").wants(exitNo, "broken\n", "failed on n1")
	p.do("cron", "get", "rollup", "--check").wants(0, "at 02:30 every day, Europe/Berlin", "POLICIES", "ticks that come during a run are skipped; of missed", "1 done").lacks("TROUBLE")
	p.do("cron", "get", "rollup", "-o", "json").wants(0, `"v": 1`, `"state": "idle"`).fits("cron-job.json")
	p.do("cron", "get", "\x1b]0;x\a").wants(exitNo)
	p.do("cron", "get", "nothing").wants(exitNo, "no node has seen a job of this name")
	p.do("cron", "nodes").wants(0, "n1", "shop", "ago")
	p.do("cron", "nodes", "-o", "json").wants(0).fits("cron-nodes.json")
	p.do("cron", "scopes", "-o", "json").wants(0).fits("cron-scopes.json")
	p.do("cron", "history", "broken", "--failed").wants(0, "start", "failed", "no such table")
	p.do("cron", "history", "rollup", "--failed", "--no-headers").wants(0, `no failed run of "rollup" is on record`).lacks("start")
	var runs []ops.CronRun
	p.do("cron", "history", "rollup", "-n", "1", "-o", "json").wants(0).items("cron-runs.json", &runs)
	if len(runs) != 1 || runs[0].State != scheduler.Done || runs[0].Node != "n1" {
		t.Errorf("runs %+v", runs)
	}
	var ticks []ops.CronTick
	p.do("cron", "next", "rollup", "-n", "3", "-o", "json").wants(0, "at 02:30 every day, Europe/Berlin").items("cron-ticks.json", &ticks)
	if len(ticks) != 3 || !ticks[0].At.After(time.Now()) {
		t.Errorf("ticks %+v", ticks)
	}

	stop()
	p.do("cron", "nodes", "--no-headers").wants(0).lacks("n1")
	p.do("cron", "ls").wants(0, "deserted")
	p.do("cron", "get", "rollup", "--check").wants(exitNo, "no node that is up has the job")
	p.do("cron", "scopes").wants(0, "shop")

	p.node("bar", "n2", func(s *scheduler.Scheduler) { _ = s.Func("rollup", "@daily", ok, scheduler.RunAtStart("1")) })
	p.until("both scopes are seen", func() bool { return strings.Contains(p.do("cron", "ls").out, "bar") })
	p.do("cron", "ls").wants(0, "SCOPE", "shop")
	p.do("cron", "ls", "--scope", "bar").wants(0).lacks("broken")
	p.do("cron", "get", "rollup").wants(exitUsage, `--scope is missing; the scopes are "bar", "shop"`)
	p.do("cron", "get", "rollup", "-s", "bar").wants(0)
}

// What a clock change does to a spec is seen before the spec is deployed, without a Redis.
func TestNextTicksOfASpecThatIsNotDeployed(t *testing.T) {
	t.Parallel()
	nowhere := []string{"--redis", "redis://127.0.0.1:1"}
	a := ask(t, append(nowhere, "cron", "next", "30 2 * * *", "--zone", "Europe/Berlin", "--after", "2027-03-27", "-n", "3", "--time", "unix")...)
	const want = `TICK                          UTC                   WHEN            NOTE
Sat 2027-03-27 02:30:00 CET   2027-03-27T01:30:00Z  1806111000.000  -
Sun 2027-03-28 03:00:00 CEST  2027-03-28T01:00:00Z  1806195600.000  the clock goes from 02:00 to 03:00: the tick of 02:30 comes at 03:00
Mon 2027-03-29 02:30:00 CEST  2027-03-29T00:30:00Z  1806280200.000  -
`
	if a.wants(0); a.out != want || a.talk != "at 02:30 every day, Europe/Berlin\n" {
		t.Errorf("printed\n%s%s", a.out, a.talk)
	}
	ask(t, append(nowhere, "cron", "next", "CRON_TZ=America/New_York 30 1 * * *", "--after", "2026-11-01", "-n", "1")...).
		wants(0, "EDT", "the clock goes from 02:00 back to 01:00 and shows 01:30 twice")
	ask(t, append(nowhere, "cron", "next", "@every 6h offset 10m", "-n", "1000", "-o", "json")...).wants(0).fits("cron-ticks.json")
	ask(t, append(nowhere, "cron", "next", "0 0 12 ? * 6#3", "-n", "1")...).wants(0, "warning: day of week is \"6#3\"", "Quartz", "third Saturday", "TICK")
	ask(t, append(nowhere, "cron", "next", "0 0 30 2 *")...).wants(0, "no more ticks")
	for _, bad := range [][]string{
		{"61 * * * *"}, {"@fortnightly"}, {"@daily", "-n", "0"}, {"@daily", "-n", "1001"}, {"@daily", "--zone", "Mars/Olympus"},
		{"@daily", "--zone", "Mars/Olympus", "--after", "2027-01-01"}, {"@daily", "--after", "tomorrow"}, {"rollup", "--zone", "UTC"},
		{"@daily", "--name", "--after", "2027-01-01"}, {}, {"@daily", "x"}, {strings.Repeat("@", 5000)}, {"@\x1b[31m \xff"},
	} {
		ask(t, append(append(nowhere, "cron", "next"), bad...)...).wants(exitUsage)
	}
}

func TestCronIsSteered(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	stop := p.shop()

	p.do("cron", "pause", "rollup", "--reason", "ledger moves, until 14:00").wants(0, `paused "rollup" of scope "shop"`)
	p.do("cron", "get", "rollup", "--check").wants(exitNo, "by "+operator(), "ledger moves, until 14:00", "paused")
	p.do("cron", "next", "rollup", "-n", "1").wants(0, "by "+operator()+": ledger moves, until 14:00", "skipped while the job is paused")
	p.do("cron", "next", "rollup", "-o", "json").wants(0, `"paused":true`).fits("cron-ticks.json")
	p.do("cron", "next", "broken").wants(0).lacks("skipped", "paused")
	p.do("cron", "pause", "rollup", "nothing", "broken").wants(exitNo, `nothing was changed: "rollup"`, "ledger moves, until 14:00", "no node has seen", `paused "broken"`)
	p.do("cron", "pause", "rollup", "--reason", "until 15:00").wants(0, `"rollup" of scope "shop": the pause goes on, and its reason is new; it was: paused since`, "ledger moves, until 14:00")
	p.do("cron", "get", "rollup").wants(0, "until 15:00").lacks("until 14:00")
	p.do("cron", "resume", "broken", "rollup", "--reason", "moved").wants(0, `resumed "rollup"`)
	p.do("cron", "get", "rollup").wants(0, "RESUMED", "by "+operator()+": moved")
	p.do("cron", "get", "rollup", "--check").wants(0)

	p.do("cron", "pause", "--all", "--reason", "x").wants(exitUsage, `skips the ticks of all jobs of scope "shop"`, "2 jobs", "--yes")
	p.do("cron", "get", "rollup", "--check").wants(0)
	p.do("cron", "pause", "--all", "--yes").wants(0, `paused all jobs of scope "shop"`)
	p.do("cron", "pause", "--all", "--yes").wants(0, `In scope "shop" all jobs are paused since`, "nothing was changed")
	p.do("cron", "get", "rollup").wants(0, "all jobs are paused since", "no reason given")
	p.do("cron", "resume", "rollup").wants(0, `nothing to resume: "rollup" is paused only with all jobs of scope "shop": all jobs are paused since`, "cron resume --all")
	p.do("cron", "pause", "broken").wants(0)
	p.do("cron", "resume", "broken").wants(0, `"broken" is still paused, with all jobs`)
	p.do("cron", "resume", "--all").wants(0, "resumed all jobs")
	p.do("cron", "resume", "--all").wants(0, `nothing to resume: scope "shop" is not paused as a whole`).lacks("one by one")
	p.do("cron", "resume", "rollup").wants(0, `nothing to resume: "rollup" of scope "shop" is not paused`)
	p.do("cron", "resume", "nothing").wants(exitNo, "no node has seen")
	p.do("cron", "pause", "broken").wants(0)
	p.do("cron", "resume", "--all").wants(0, `1 job is paused one by one: "broken"`)
	p.do("cron", "resume", "broken").wants(0, `resumed "broken"`)
	p.do("cron", "get", "rollup", "--check").wants(0)

	p.do("cron", "trigger", "rollup", "--wait").wants(0, "trigger", "done")
	p.do("cron", "trigger", "rollup", "--wait", "-o", "json").wants(0, `"cause": "trigger"`).fits("cron-run.json")
	p.do("cron", "trigger", "broken", "--wait").wants(exitNo, "has ended as failed: no such table")
	p.do("audit", "broken", "--limit", "1").wants(0, "cron trigger", "failed").lacks("done")
	p.do("cron", "trigger", "rollup").wants(0, `asked for a run of "rollup" of scope "shop"; it has not begun yet: it begins within`).lacks("done", "triggered")
	p.do("audit", "rollup", "--limit", "1").wants(0, "cron trigger", "asked").lacks("done")
	p.do("cron", "pause", "--help").wants(0, "--yes").lacks("nothing is done without --yes")
	p.do("cron", "trigger", "nothing").wants(exitNo)

	next := time.Now().Add(24 * time.Hour).UTC().Format("2006-01-02") // a day that has not ended, in Berlin either
	p.do("cron", "backfill", "rollup", "--from", "2026-01-01", "--to", "2026-01-03").wants(exitUsage, "3 ticks", "--yes")
	p.do("cron", "backfill", "rollup", "--from", "2026-01-01", "--to", "2026-01-03", "--yes").wants(0, "3 ticks")
	p.until("the backfill has ended", func() bool {
		return strings.Contains(p.do("cron", "get", "rollup").out, "3 of 3 ticks done, 0 failed, 0 lost, ended")
	})
	p.do("cron", "backfill", "rollup", "--stop").wants(0)
	p.do("cron", "backfill", "rollup", "--wait", "-o", "json").wants(0, `"done": 3`).fits("cron-backfill.json") // the one that has ended
	p.do("cron", "backfill", "rollup", "--from", "2026-01-04", "--to", "2026-01-05", "--yes", "--wait").wants(0, "TICKS   2\n", "DONE    2\n").lacks("FAILED")
	p.do("cron", "backfill", "broken", "--wait").wants(exitNo, "has no backfill")
	p.do("cron", "backfill", "broken", "--from", "2026-01-04", "--to", "2026-01-05", "--yes", "-w").
		wants(exitNo, "FAILED  2", `the backfill of "broken" has ended with 0 of 2 ticks done`)
	p.do("cron", "trigger", "rollup", "--wait").wants(0)
	p.do("cron", "backfill", "rollup", "--from", next, "--to", next, "--yes").wants(exitUsage, "must not end in the future")
	p.do("cron", "backfill", "rollup", "--from", "1990-01-01", "--to", "2026-01-03", "--yes").wants(exitUsage, "more than 10000 ticks")

	p.do("cron", "forget", "rollup", "--yes").wants(exitBusy, `is on "n1"`)
	stop()
	p.do("cron", "backfill", "rollup", "--from", "2026-01-04", "--to", "2026-01-05", "--yes", "--wait", "--within", "100ms").
		wants(exitBusy, "has not ended within 100ms, and goes on", "not begun")
	p.do("cron", "backfill", "rollup", "--stop").wants(0)
	p.do("cron", "trigger", "rollup", "--wait", "--within", "100ms").wants(exitBusy, "no node that is up has the job", "has not ended within 100ms; the trigger stays")
	p.do("cron", "forget", "rollup").wants(exitUsage, `removes the job "rollup" of scope "shop"`, "--yes")
	p.do("cron", "forget", "rollup", "--yes").wants(0, `forgot "rollup"`)
	p.do("cron", "forget", "rollup", "--yes").wants(exitNo)
	p.do("cron", "ls").wants(0).lacks("rollup")
	for _, bad := range [][]string{
		{"pause"}, {"pause", "--all", "x"}, {"pause", "broken", "--reason", strings.Repeat("x", 257)}, {"pause", "broken", "--reason", "\x1b"},
		{"resume"}, {"resume", "--all", "x"}, {"trigger"}, {"trigger", "a", "b"}, {"trigger", "broken", "--within", "0s"}, {"forget"},
		{"backfill", "broken"}, {"backfill", "broken", "--from", "2026-01-01"}, {"backfill", "broken", "--stop", "--to", "2026-01-01"},
		{"backfill", "broken", "--stop", "--wait"}, {"backfill", "broken", "--wait", "--within", "0s"}, {"get", "broken", "--check", "--runs", "0"},
		{"get", "broken", "--runs", "2"}, {"backfill", "broken", "--wait", "-o", "yaml"},
		{"backfill", "broken", "--from", "2026-01-02", "--to", "2026-01-01", "--yes"}, {"backfill", "broken", "--from", "x", "--to", "y"},
		{"history", "broken", "-n", "-1"}, {"ls", "x"}, {"ls", "-o", "yaml"}, {"get"}, {"nonsense"},
		{"ls", "--scope", strings.Repeat("x", 33)}, {"get", strings.Repeat("x", 1000)}, {"get", "\xff"}, {"get", "--bogus"},
	} {
		p.do(append([]string{"cron"}, bad...)...).wants(exitUsage)
	}
}

// On a terminal, what cannot be undone wants a typed name.
func TestForgetAtATerminal(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	p.shop()()
	for _, row := range []struct {
		typed string
		code  int
	}{{"rolldown\n", exitNo}, {"\x04", exitNo}, {"rollup\n", 0}} {
		typed, code := row.typed, row.code
		keyboard, tty := terminal(t)
		cmd := (&stage{T: t}).joblockAt("redis://"+p.redis.Addr(), "--prefix", p.prefix, "cron", "forget", "rollup")
		var out safeBuffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.until("joblock asks", func() bool { return strings.Contains(out.String(), "Type rollup to go on: ") })
		if _, err := keyboard.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("after %q: exit code %d, want %d:\n%s", typed, got, code, out.String())
		}
		if _, left := p.jobs()["rollup"]; left == (code == 0) {
			t.Errorf("after %q: rollup is on record: %t", typed, left)
		}
	}
}

// A job that fails now and then shows its last failure also after a run that went well.
func TestLastFailureOfACronJob(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	n := 0
	p.node("shop", "n1", func(s *scheduler.Scheduler) {
		_ = s.Func("rates", "@daily", func(context.Context) error {
			if n++; n < 3 {
				return fmt.Errorf("the exchange answers %d", 502+n)
			}
			return nil
		}, scheduler.RunAtStart("1"))
	})
	p.until("the job has run", func() bool { return p.jobs()["rates"].Counts.Failed == 1 })
	p.do("cron", "get", "rates").wants(0, "FAILING SINCE", "the exchange answers 503").lacks("LAST FAILURE")
	p.do("cron", "trigger", "rates", "--wait").wants(exitNo)
	first := p.jobs()["rates"].FailingSince
	p.do("cron", "get", "rates").wants(0, "FAILING SINCE", "the last 2 runs on record failed, the first of them that of "+first.UTC().Format("2006-01-02 15:04:05 UTC")).lacks("LAST FAILURE", "failing since", "in all")
	p.do("cron", "trigger", "rates", "--wait").wants(0)
	p.do("cron", "get", "rates").wants(0, "LAST FAILURE", "failed on n1, begun", "the exchange answers 504; 2 are on record", "RUNS").lacks("FAILING SINCE", "TROUBLE")
	p.do("cron", "ls").wants(0, "LAST FAILURE")
	j := p.jobs()["rates"]
	if j.LastFailure == nil || j.LastFailure.Error != "the exchange answers 504" || j.Failures != 2 || !j.FailingSince.IsZero() {
		t.Errorf("%+v", j)
	}
}
