//go:build linux

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
)

// queues is a place with a queue of asynq, in the same Redis.
type queues struct {
	*place
	asynq  *asynq.Inspector
	sender *handoff.Client
}

func newQueues(t *testing.T, redis *redistest.Server) *queues {
	t.Helper()
	p := newPlace(t, redis)
	rdb := redis.Client(t)
	q := &queues{place: p, asynq: asynq.NewInspectorFromRedisClient(rdb)}
	var err error
	q.sender, err = handoff.NewClient(p.locks, asynq.NewClientFromRedisClient(rdb), q.asynq, &handoff.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.sender.Close(context.Background()) })
	return q
}

// export enqueues the task with the ID, in an hour, with the lock on key.
func (q *queues) export(key, id string) {
	q.Helper()
	lock, err := q.locks.TryAcquire(context.Background(), key)
	if err == nil {
		_, err = q.sender.Enqueue(context.Background(), handoff.Carry(lock), asynq.NewTask("export", nil), asynq.Queue("exports"), asynq.TaskID(id), asynq.ProcessIn(time.Hour))
	}
	if err != nil {
		q.Fatal(err)
	}
}

// sequence enqueues tasks in the sequence of key.
func (q *queues) sequence(key string, ids ...string) {
	q.Helper()
	for _, id := range ids {
		_, err := q.sender.Enqueue(context.Background(), handoff.Sequence{Key: key, HaltOnFailure: true},
			asynq.NewTask("webhook", nil), asynq.Queue("webhooks"), asynq.TaskID(id), asynq.MaxRetry(2))
		if err != nil {
			q.Fatal(err)
		}
	}
}

func (q *queues) status(key string) joblock.Status {
	q.Helper()
	st, err := q.locks.Status(context.Background(), key)
	if err != nil {
		q.Fatal(err)
	}
	return st[0]
}

// step returns the step of a task.
func (q *queues) step(job string) string {
	q.Helper()
	var r jobReport
	wantJSON(q.T, "job.json", q.do("jobs", "get", job, "-o", "json").out, &r)
	return r.Task.Step
}

func TestJobsAreSeenWithTheirTasks(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.do("jobs", "ls").wants(0, "no job has a lock or waits for one").lacks("exports/")
	q.do("jobs", "ls", "-o", "jsonl").wants(0).lacks("no job")
	q.export("exports:acct-7", "41")
	q.export("exports:acct-8", "42")
	q.sequence("webhooks:acme", "acme-1", "acme-2")
	q.do("jobs", "ls").wants(0, "exports/41", "export", "scheduled", "parked", "exports:acct-7", "in 59m", "webhooks/acme-2", "waits", "in line", "place 1").
		lacks("FENCE", "probably", "in 23h")
	q.do("jobs", "ls", "-o", "wide", "--queue", "exports").wants(0, "FENCE", "exports/41").lacks("webhooks/")
	q.do("jobs", "ls", "--key", "exports:acct-8").wants(0, "exports/42").lacks("exports/41")
	q.do("jobs", "ls", "-o", "json").wants(0).fits("jobs.json")
	q.do("jobs", "ls", "--suspects", "--check", "--no-headers").wants(0, "no suspect found").lacks("exports")
	for order, want := range map[string]string{
		"job": "exports/41 exports/42 webhooks/acme-1 webhooks/acme-2", "key": "exports/41 exports/42 webhooks/acme-1 webhooks/acme-2",
		"age": "exports/41 exports/42 webhooks/acme-1 webhooks/acme-2", "task": "webhooks/acme-1 exports/41 exports/42 webhooks/acme-2",
	} {
		if got := strings.Join(strings.Fields(q.do("jobs", "ls", "--sort", order, "-o", "name").wants(0).out), " "); got != want {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
	}
	q.do("jobs", "get", "exports/41", "--check").wants(0, "export, scheduled", "exports:acct-7: parked for")
	q.do("jobs", "get", "webhooks/acme-2").wants(0, "webhook, in line for webhooks:acme", "waits in line for webhooks:acme, place 1", "webhooks:acme: in line for", "scheduled-0").
		lacks("in 23h")
	q.do("jobs", "get", "webhooks/acme-2", "-o", "json").wants(0).fits("job.json")

	if err := q.asynq.DeleteTask("exports", "41"); err != nil {
		t.Fatal(err)
	}
	q.do("jobs", "ls", "--suspects", "--check").wants(exitNo, "exports/41", "absent", "no keeper works", "found 1 suspect").lacks("exports/42")
	q.do("jobs", "get", "exports/41", "--check").wants(exitNo, "is a suspect")
	q.do("jobs", "get", "\x1b[2J/x\xff").wants(exitNo)
	q.do("jobs", "get", "exports/43").wants(exitNo, "neither a task exports/43 nor a lock of it")
	for _, bad := range [][]string{{"get"}, {"get", "41"}, {"get", "/"}, {"ls", "x"}, {"ls", "--share", "0"}, {"ls", "--queue"}, {"ls", "--sort", "colour"}, {"nonsense"}, {"ls", "-o", "x"}} {
		q.do(append([]string{"jobs"}, bad...)...).wants(exitUsage)
	}
}

func TestJobsAreSteered(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.sequence("webhooks:acme", "acme-1", "acme-2", "acme-3")
	q.export("exports:acct-7", "41")

	q.do("jobs", "skip", "webhooks:acme", "--yes").wants(exitBusy, "the job has not failed: its task is pending")
	q.do("jobs", "cancel", "webhooks/acme-1", "--yes").wants(exitBusy, "the task is pending").lacks("This ends")
	q.do("jobs", "run", "webhooks/acme-1").wants(exitBusy, "the task is pending")
	if err := q.asynq.ArchiveTask("webhooks", "acme-1"); err != nil {
		t.Fatal(err)
	}
	q.do("jobs", "get", "webhooks/acme-1", "--check").wants(exitNo, "has failed for good")
	q.do("jobs", "skip", "webhooks:acme").wants(exitUsage, "moves the sequence of webhooks:acme on past the job webhooks/acme-1 (webhook, archived", "Next is job webhooks/acme-2; 2 in line.", "--yes")
	if st := q.status("webhooks:acme"); st.Job != "webhooks/acme-1" {
		t.Errorf("without --yes the key went to %+v", st)
	}
	q.do("jobs", "run", "webhooks/acme-2").wants(exitBusy, `the job waits in line for "webhooks:acme", place 1`)
	step := q.step("webhooks/acme-1")
	for _, command := range [][]string{{"run"}, {"drop", "--yes"}, {"cancel", "--yes"}} {
		q.do(append([]string{"jobs", command[0], "webhooks/acme-1", "--step", "pending-0"}, command[1:]...)...).
			wants(exitBusy, "the task has moved on: it is at step "+step+" by now, not at pending-0").lacks("This deletes", "This ends")
	}
	q.do("jobs", "skip", "webhooks:acme", "--yes", "--fence", "7").wants(exitNo, "nothing was changed, because the fence is", "and not 7")
	q.do("explain", "webhooks:acme").wants(0, "joblock jobs run --step "+step+" --reason TEXT -- webhooks/acme-1", fmt.Sprintf("joblock jobs skip --fence %d --reason TEXT -- webhooks:acme", q.status("webhooks:acme").Fence))
	q.do("jobs", "run", "webhooks/acme-1", "--step", step, "--reason", "mended").wants(0, "asynq runs the task webhooks/acme-1 now")
	if info, err := q.asynq.GetTaskInfo("webhooks", "acme-1"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("after run: %+v, %v", info, err)
	}
	if err := q.asynq.ArchiveTask("webhooks", "acme-1"); err != nil {
		t.Fatal(err)
	}
	q.do("jobs", "skip", "webhooks:acme", "--yes", "--fence", fmt.Sprint(q.status("webhooks:acme").Fence), "--reason", "void").wants(0, "has moved on past webhooks/acme-1")
	if st := q.status("webhooks:acme"); st.Job != "webhooks/acme-2" || st.Waiters != 1 {
		t.Errorf("after skip the key has %+v", st)
	}
	if info, err := q.asynq.GetTaskInfo("webhooks", "acme-2"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("after skip the next task is %+v, %v", info, err)
	}
	q.do("jobs", "skip", "webhooks:unknown", "--yes").wants(exitNo, "no job has the key")

	q.do("jobs", "archive", "exports/41").wants(exitUsage, "from its queue into asynq's archive", "export, scheduled", `gives "exports:acct-7" to the next`, "Its payload: (0 bytes)", "--yes")
	q.do("jobs", "archive", "exports/41", "--yes", "--step", "archived-1").wants(exitBusy, "moved on")
	q.do("jobs", "archive", "exports/41", "--yes", "--reason", "wait").wants(0, "archived the task exports/41", "joblock jobs run --reason TEXT -- exports/41")
	q.do("jobs", "hold", "exports/41", "--yes").wants(exitBusy, "the task is archived")
	q.do("jobs", "run", "exports/41").wants(0, "asynq runs the task exports/41 now")
	q.do("audit").wants(0, "archive task", "wait")
	q.do("jobs", "archive", "webhooks/acme-2").wants(exitUsage, `The sequence of "webhooks:acme" halts with it`).lacks("to the next one")
	q.do("jobs", "archive", "webhooks/acme-3").wants(exitUsage, `gives "webhooks:acme" to the next one`).lacks("halts with it")
	q.do("jobs", "drop", "exports/41").wants(exitUsage, "deletes the task exports/41 forever: export, pending", `"exports:acct-7"`, "Its payload: (0 bytes)", "--yes")
	q.do("jobs", "drop", "exports/41", "--yes").wants(0, "deleted the task exports/41")
	q.do("jobs", "drop", "exports/41", "--yes").wants(exitNo, "no such task")
	q.do("jobs", "run", "exports/41").wants(exitNo, "no such task")
	for _, bad := range [][]string{{"run"}, {"run", "x"}, {"drop", "x/"}, {"cancel", "/"}, {"skip"}, {"skip", ""}, {"skip", "\x1b"}, {"run", "a/b", "--reason", "\x00"}} {
		q.do(append([]string{"jobs"}, bad...)...).wants(exitUsage)
	}
}

// A payload is shown on request, and before its task is dropped; no secret is.
func TestPayloadsAreShown(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	lock, err := q.locks.TryAcquire(t.Context(), "exports:7")
	testkit.WantNil(t, "TryAcquire", err)
	text, err := lock.Token().MarshalText()
	testkit.WantNil(t, "MarshalText", err)
	payload := fmt.Sprintf(`{"account":7,"password":"x1y2","lock":%q,"name":"\u001b[2J"}`, text)
	_, err = q.sender.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", []byte(payload)), asynq.Queue("exports"), asynq.TaskID("7"), asynq.ProcessIn(time.Hour))
	testkit.WantNil(t, "Enqueue", err)
	q.do("jobs", "get", "exports/7").wants(0).lacks("account\":")
	for _, args := range [][]string{{"jobs", "get", "exports/7", "--payload"}, {"jobs", "drop", "exports/7"}, {"jobs", "archive", "exports/7"}} {
		code := exitUsage
		if args[1] == "get" {
			code = 0
		}
		q.do(args...).wants(code, `"account":7`, `"password":"(hidden)"`, "(2 hidden)", "owner #").lacks("x1y2", string(text[:24]), string(text[len(text)-24:]), "\x1b")
	}
	q.do("jobs", "get", "exports/7", "--payload", "-o", "json").wants(0, `"hidden": 2`).lacks("x1y2", string(text[:24])).fits("job.json")
	q.do("jobs", "get", "exports/7", "-o", "json").wants(0).lacks(`"payload"`)
	q.remote()
	q.do("jobs", "get", "exports/7", "--payload").wants(exitUsage, "the payload of a task is not available from a lock server")
	q.do("jobs", "drop", "exports/7").wants(exitUsage, "A lock server does not show its payload.").lacks("account\":")
}

// The sequence that has halted comes first, with its error and the command that gets it going. That command does so.
func TestSequencesAreListed(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.do("jobs", "sequences", "--check").wants(0, "no job is in a sequence, or waits in a line")
	q.do("jobs", "sequences", "--halted").wants(0, "no sequence has halted")
	q.export("exports:acct-7", "41")
	q.sequence("webhooks:acme", "acme-1", "acme-2", "acme-3")
	q.sequence("webhooks:aaa", "aaa-1", "aaa-2", "aaa-3", "aaa-4")
	q.do("jobs", "sequences").wants(0, "waiting", "webhooks/acme-1", "joblock explain -- webhooks:acme").lacks("exports:acct-7", "halted", "WHY")
	if err := q.asynq.ArchiveTask("webhooks", "acme-1"); err != nil {
		t.Fatal(err)
	}
	var all []ops.Sequence
	q.do("jobs", "seq", "-o", "json").wants(0).items("sequences.json", &all)
	if len(all) != 2 || all[0].Key != "webhooks:acme" || all[0].State != ops.SequenceHalted || all[0].Waiting != 2 || all[1].Waiting != 3 {
		t.Fatalf("sequences %+v", all)
	}
	q.do("jobs", "sequences", "-o", "wide", "--check").wants(exitNo, "WHY", "its sequence halts", "1 of 1", "found 1 sequence that halted")
	q.do("jobs", "sequences", "--halted", "--no-headers").wants(0, cmdline.Next(all[0])).lacks("webhooks:aaa")
	q.do("jobs", "sequences", "webhooks:aa", "-o", "name").wants(0, "webhooks:aaa").lacks("acme")
	q.do(strings.Fields(strings.Replace(cmdline.Next(all[0]), "TEXT", "mended", 1))[1:]...).wants(0, "asynq runs the task webhooks/acme-1 now")
	q.do("jobs", "sequences", "--check").wants(0, "waiting").lacks("halted")
	for _, bad := range [][]string{{"a", "b"}, {"--share", "2"}, {"-o", "x"}} {
		q.do(append([]string{"jobs", "sequences"}, bad...)...).wants(exitUsage)
	}
}

// Each order of jobs goes by what it names.
func TestOrdersOfJobs(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(in time.Duration) ops.Time { return ops.Time{Time: now.Add(in)} }
	lock := func(age time.Duration) ops.Lock { return ops.Lock{Age: ops.Millis(age), Now: at(0)} }
	jobs := []ops.Job{
		{Job: "q/1", Key: "c", Lock: lock(time.Minute), Task: ops.Task{State: "retry", NextAt: at(time.Hour)}},
		{Job: "q/2", Key: "b", Ran: ops.Millis(time.Hour), Lock: lock(0), Place: &ops.Waiter{Since: at(-time.Hour)}, Task: ops.Task{State: "scheduled"}},
		{Job: "q/3", Key: "a", Lock: lock(time.Second), Task: ops.Task{State: "active", NextAt: at(time.Minute)}},
		{Job: "q/3", Key: "d", Lock: lock(time.Second), Task: ops.Task{State: "active", NextAt: at(time.Minute)}},
	}
	for order, want := range map[string]string{"job": "cbad", "key": "abcd", "age": "bcad", "task": "adcb", "next": "adcb", "runs": "bcad"} {
		all := slices.Clone(jobs)
		slices.Reverse(all)
		sortJobs(all, order)
		got := ""
		for _, j := range all {
			got += j.Key
		}
		if got != want || !slices.Contains(jobOrders, order) {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
	}
	if len(jobOrders) != len(jobOrder) {
		t.Errorf("%q, and %d orders", jobOrders, len(jobOrder))
	}
}

// A probe that looks at several runs finds a failure before the latest run.
func TestBadRuns(t *testing.T) {
	t.Parallel()
	at := func(minute int) ops.Time { return ops.Time{Time: time.Date(2026, 3, 1, 12, minute, 0, 0, time.UTC)} }
	run := func(minute int, state scheduler.Kind, err string) ops.CronRun {
		return ops.CronRun{Tick: at(minute), Started: at(minute), State: state, Node: "n1", Error: err}
	}
	latest := run(5, scheduler.Running, "")
	j := ops.CronJob{Latest: &latest, Running: []ops.CronRun{latest}, History: []ops.CronRun{
		run(4, scheduler.Done, ""), run(3, scheduler.Failed, "no disk"), run(2, scheduler.Done, ""), run(1, scheduler.Lost, ""),
	}}
	for n, want := range map[int]string{
		1: "", 2: "1 of its latest 2 runs failed or were broken off; the last of these that of 2026-03-01T12:03:00Z, failed on n1: no disk",
		3: "1 of its latest 3 runs failed or were broken off; the last of these that of 2026-03-01T12:03:00Z, failed on n1: no disk",
		9: "2 of its latest 4 runs failed or were broken off; the last of these that of 2026-03-01T12:03:00Z, failed on n1: no disk",
	} {
		if got := badRuns(j, n); got != want {
			t.Errorf("%d runs: %q, want %q", n, got, want)
		}
	}
	if got := badRuns(ops.CronJob{}, 5); got != "" {
		t.Errorf("no runs: %q", got)
	}
}

// An attempt shows for how long it runs and how long it may, and what is over its time stands out.
func TestHowLongAnAttemptRuns(t *testing.T) {
	t.Parallel()
	for want, j := range map[string]ops.Job{
		"":                {},
		"1m00s":           {Ran: ops.Millis(time.Minute)},
		"1m00s of 30m00s": {Ran: ops.Millis(time.Minute), Task: ops.Task{Timeout: ops.Millis(30 * time.Minute)}},
		"14m00s of 30m00s, usually 3 s to 8 s": {
			Ran: ops.Millis(14 * time.Minute), Slow: "x", Task: ops.Task{Timeout: ops.Millis(30 * time.Minute)},
			Durations: &ops.Durations{Count: 20, Shortest: ops.Millis(3 * time.Second), Longest: ops.Millis(8 * time.Second)},
		},
		"2h00m of 1h00m, over its time": {Ran: ops.Millis(2 * time.Hour), Long: "x", Task: ops.Task{Timeout: ops.Millis(time.Hour)}},
	} {
		if got := runsText(j); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
