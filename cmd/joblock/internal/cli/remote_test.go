//go:build linux

package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
)

// remote makes the commands of the place ask a lock server.
func (p *place) remote(flags ...string) *serverProcess {
	p.Helper()
	s := &stage{T: p.T, redis: p.redis, res: newResource(p.T)}
	cmd := s.joblockAt("redis://"+p.redis.Addr(), append([]string{"serve", "--listen", "127.0.0.1:0", "--prefix", p.prefix, "--pages=false"}, flags...)...)
	server := &serverProcess{process: s.launch("serve", cmd)}
	s.until("serve listens", func() bool { return strings.HasSuffix(server.stdout.String(), "\n") })
	server.url = strings.TrimPrefix(strings.TrimSpace(server.stdout.String()), "export "+envServer+"=")
	p.api = server.url
	return server
}

// A lock server lists and follows events, and shows the history of a key, as with Redis.
func TestRemoteEvents(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	first := p.remote()
	happens := func(events ...event.Event) {
		t.Helper()
		j, err := journal.New(p.redis.Client(t), &journal.Config{Prefix: p.prefix, Source: "web:1"})
		testkit.WantNil(t, "New", err)
		for _, e := range events {
			j.Observe(e)
		}
		testkit.WantNil(t, "Close", j.Close(t.Context()))
	}
	p.do("events").wants(0, "the journal has no such events")
	happens(event.Event{Kind: event.Lost, Key: "exports:1", Held: time.Minute}, event.Event{Kind: event.Forced, Key: "other", Reason: "stuck"})
	p.do("events", "exports:1").wants(0, "lost").lacks("other")
	p.do("events", "--under", "exports:", "--since", "1h").wants(0, "lost").lacks("other")
	p.do("events", "--kind", "forced,lost", "--limit", "1").wants(0, "other").lacks("exports")
	p.do("events", "--kind", "burnt").wants(exitUsage, `burnt`)
	p.do("events", "--scope", "shop").wants(0).lacks("exports")
	p.do("events", "--cron", "rollup").wants(0).lacks("exports")
	p.do("events", "--since", "2099-01-01").wants(0, "no such events")
	p.do("events", "-o", "json").wants(0).fits("events.json")
	p.do("history", "exports:1").wants(0, "lost")
	p.do("history", "exports:1", "--since", "2099-01-01").wants(0, "nothing is on record; the journal begins at")
	p.do("history", "exports:1", "-o", "json").wants(0).fits("history.json")
	p.do("history", "exports:1", "--limit", "1001").wants(exitUsage, "1001")

	// A follower outlives its server. It misses nothing, and nothing comes twice.
	second := p.remote()
	p.api = first.url + "," + second.url
	told := make(chan string, 10)
	var group sync.WaitGroup
	var seen []string
	group.Go(func() {
		defer close(told)
		s := &server{apiURL: p.api, timeout: 3 * time.Second}
		d, err := s.desk()
		testkit.WantNil(t, "desk", err)
		defer d.close()
		rows, err := followed(t.Context(), d, ops.EventsQuery{Since: time.Now().Add(-time.Hour)}, func(format string, args ...any) { t.Logf(format, args...) })
		testkit.WantNil(t, "followed", err)
		for e, err := range rows {
			testkit.WantNil(t, "an event", err)
			seen = append(seen, e.Key)
			told <- e.Key
			if len(seen) == 4 {
				break
			}
		}
	})
	wait := func(key string) {
		t.Helper()
		if got := <-told; got != key {
			t.Errorf("%q, want %q", got, key)
		}
	}
	wait("exports:1")
	wait("other")
	first.signal(syscall.SIGKILL) // it has the stream
	first.exits(-9)
	happens(event.Event{Kind: event.Forced, Key: "third"})
	wait("third")
	happens(event.Event{Kind: event.Forced, Key: "fourth"})
	wait("fourth")
	group.Wait()
}

// What steers cron jobs does the same by way of a lock server.
func TestRemoteCron(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	p.node("shop", "n1", func(s *scheduler.Scheduler) {
		for name, fn := range map[string]func(context.Context) error{
			"rollup": ok, "broken": func(context.Context) error { return fmt.Errorf("no such table") },
		} {
			testkit.WantNil(t, "Func", s.Func(name, "CRON_TZ=Europe/Berlin 30 2 * * *", fn))
		}
	})
	p.remote("--scope", "shop")
	p.until("the jobs are seen", func() bool { return strings.Count(p.do("cron", "ls", "-o", "name").out, "\n") == 2 })
	p.do("cron", "trigger", "rollup", "--wait").wants(0, "trigger", "done")
	p.do("cron", "trigger", "rollup", "--wait", "-o", "json").wants(0, `"cause": "trigger"`).fits("cron-run.json")
	first, second := p.do("cron", "trigger", "rollup", "--wait", "-o", "name").wants(0), p.do("cron", "trigger", "rollup", "--wait", "-o", "name").wants(0)
	if first.out == second.out {
		t.Errorf("two triggers have the run %s", first.out)
	}
	p.do("cron", "trigger", "broken", "--wait").wants(exitNo, "has ended as failed: no such table")
	p.until("the audit has the end", func() bool { return strings.Contains(p.do("audit", "broken", "--limit", "1").out, "failed") })
	p.do("cron", "trigger", "nothing", "--wait").wants(exitNo)
	two := []string{"cron", "backfill", "rollup", "--from", "2026-01-04", "--to", "2026-01-05"}
	p.do(two...).wants(exitUsage, "2 ticks", "--yes")
	p.do(append(two, "--yes", "--wait")...).wants(0, "TICKS   2\n", "DONE    2\n").lacks("FAILED")
	p.do("cron", "backfill", "rollup", "--wait", "-o", "json").wants(0, `"done": 2`).fits("cron-backfill.json")
	p.do("cron", "backfill", "rollup", "--from", "1990-01-01", "--to", "2026-01-03", "--yes", "--timeout", "30s").wants(exitUsage, "more than 10000 ticks")
	p.do("cron", "backfill", "rollup", "--stop").wants(0)
	p.do("cron", "backfill", "nothing", "--stop").wants(exitNo)
	p.do("audit").wants(0, "cron backfill", "cron trigger", "anyone")
}

// No node has the job: a trigger waits, and a second backfill is refused.
func TestRemoteCronWithoutANode(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	stop := p.node("shop", "n1", func(s *scheduler.Scheduler) {
		testkit.WantNil(t, "Func", s.Func("rollup", "30 2 * * *", ok))
	})
	p.remote("--scope", "shop")
	p.until("the job is seen", func() bool { return strings.Contains(p.do("cron", "ls", "-o", "name").out, "rollup") })
	stop()
	p.do("cron", "trigger", "rollup", "--wait", "--within", "100ms").wants(exitBusy, "has not ended within 100ms; the trigger stays")
	two := []string{"cron", "backfill", "rollup", "--from", "2026-01-04", "--to", "2026-01-05", "--yes"}
	p.do(two...).wants(0, "2 ticks")
	p.do(two...).wants(exitBusy, "has a backfill that has not ended")
}

// The locks of jobs are listed, and the reservation of one is prolonged, by way of a lock server.
func TestRemoteLocksOfJobs(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.export("exports:acct-7", "41")
	q.sequence("webhooks:acme", "acme-1", "acme-2")
	if _, err := q.locks.TryAcquire(t.Context(), "plain"); err != nil {
		t.Fatal(err)
	}
	q.remote()
	for args, want := range map[string]string{
		"--job": "exports:acct-7\nwebhooks:acme\n", "--queue exports": "exports:acct-7\n", "--job web": "webhooks:acme\n", "--queue none": "",
		"--contains ai": "plain\n", "--contains acme --job": "webhooks:acme\n", "--job --state held": "", "": "exports:acct-7\nplain\nwebhooks:acme\n",
	} {
		if got := q.do(append([]string{"ls", "--sort", "key", "-o", "name"}, strings.Fields(args)...)...).wants(0).out; got != want {
			t.Errorf("ls %s: %q, want %q", args, got, want)
		}
	}
	lock, err := q.locks.TryAcquire(t.Context(), "resumed")
	testkit.WantNil(t, "TryAcquire", err)
	token, err := lock.Park(t.Context(), joblock.ForJob("exports/41"), joblock.Reserve(time.Minute))
	testkit.WantNil(t, "Park", err)
	lock, err = q.locks.Resume(t.Context(), token, joblock.ForJob("exports/41"), joblock.NoRenew())
	testkit.WantNil(t, "Resume", err)
	text, err := lock.Token().MarshalText()
	testkit.WantNil(t, "MarshalText", err)
	s := newStage(t, q.redis)
	s.api = q.api
	s.launchWith(string(text), "renew", "--reserve", "3h").exits(0)
	if st := q.status("resumed"); st.Reserved < 2*time.Hour {
		t.Errorf("%+v", st)
	}
}

// Tasks are steered by way of a lock server, with the same exit codes.
func TestRemoteTasks(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.sequence("webhooks:acme", "acme-1", "acme-2")
	q.export("exports:acct-7", "41")
	q.remote()
	q.do("jobs", "skip", "webhooks:acme", "--yes").wants(exitBusy, "the job has not failed: its task is pending")
	q.do("jobs", "cancel", "webhooks/acme-1", "--yes").wants(exitBusy, "the task is pending")
	q.do("jobs", "cancel", "webhooks/acme-1", "--then", "drop", "--yes").wants(exitBusy, "the task is pending")
	q.do("jobs", "run", "exports/41", "--step", "archived-1-1").wants(exitBusy, "moved on")
	testkit.WantNil(t, "ArchiveTask", q.asynq.ArchiveTask("webhooks", "acme-1"))
	q.do("jobs", "run", "webhooks/acme-1", "--reason", "mended").wants(0, "asynq runs the task webhooks/acme-1 now")
	testkit.WantNil(t, "ArchiveTask", q.asynq.ArchiveTask("webhooks", "acme-1"))
	q.sequence("webhooks:aaa", "aaa-1", "aaa-2", "aaa-3")
	q.do("jobs", "sequences", "-o", "name").wants(0, "webhooks:acme\nwebhooks:aaa\n")
	q.do("jobs", "sequences", "--halted", "--check").wants(exitNo, "webhooks/acme-1", "found 1 sequence that halted").lacks("webhooks:aaa")
	q.do("jobs", "sequences", "webhooks:aa", "-o", "json").wants(0, `"waiting":2`).fits("sequences.json")
	q.do("jobs", "sequences", "exports:").wants(0, "no job is in a sequence")
	q.do("jobs", "ls", "--slow", "--check").wants(0, "no attempt runs for too long")
	q.do("jobs", "skip", "webhooks:acme", "--yes").wants(0, "has moved on past webhooks/acme-1")
	if st := q.status("webhooks:acme"); st.Job != "webhooks/acme-2" {
		t.Errorf("%+v", st)
	}
	q.do("jobs", "archive", "exports/41", "--yes", "--step", "pending-9").wants(exitBusy, "moved on")
	q.do("jobs", "archive", "exports/41", "--yes").wants(0, "archived the task exports/41")
	q.do("jobs", "archive", "exports/41", "--yes").wants(exitBusy, "the task is archived")
	q.do("jobs", "drop", "exports/41", "--yes").wants(0, "deleted the task exports/41")
	q.do("jobs", "run", "exports/41").wants(exitNo, "no such task")
	q.do("jobs", "skip", "webhooks:unknown", "--yes").wants(exitNo, "no job has the key")
}

// No flag is passed over in silence: what a lock server does not do is refused.
func TestFlagsOfALockServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "none")
	for _, row := range []struct {
		says string
		args []string
	}{
		{"--prefix applies to Redis", []string{"get", key, "--prefix", "x:"}},
		{"--prefix applies to Redis", []string{"run", "--prefix", "x:", key, "true"}},
		{"--prefix applies to Redis", []string{"acquire", key, "--ttl", "1m", "--prefix", "x:"}},
		{"--asynq applies to Redis", []string{"jobs", "ls", "--asynq", "redis://localhost"}},
		{"--redis-password-file applies to Redis", []string{"ls", "--redis-password-file", file}},
		{"--sentinel-user applies to Redis", []string{"ls", "--sentinel-user", "x"}},
		{"--sentinel-password-file applies to Redis", []string{"ls", "--sentinel-password-file", file}},
		{"--tls-ca needs a URL", []string{"ls", "--tls-ca", file}},
		{"--tls-cert needs a URL", []string{"ls", "--tls-cert", file, "--tls-key", file}},
		{"--share other than 0.25", []string{"ls", "--share", "0.5"}},
		{"--share other than 0.25", []string{"jobs", "ls", "--share", "0.5"}},
		{"--share other than 0.25", []string{"jobs", "sequences", "--share", "0.5"}},
		{"exclude each other", []string{"ls", "--redis", "redis://localhost"}},
	} {
		ask(t, append(row.args[:1:1], append([]string{"--server", "http://127.0.0.1:1"}, row.args[1:]...)...)...).wants(exitUsage, row.says)
	}
	for says, args := range map[string][]string{
		"makes no sense with --redis": {"ls", "--redis", "redis://127.0.0.1:1", "--server-token-file", file},
		"needs --server":              {"ls", "--server-token-file", file},
	} {
		ask(t, args...).wants(exitUsage, says)
	}
}
