//go:build linux

package cli

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// The type queues is a place with a queue of asynq, in the same Redis.
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

// The method export enqueues the task with the ID, in an hour, with the lock on key.
func (q *queues) export(key, id string) {
	q.Helper()
	lock, err := q.locks.TryAcquire(context.Background(), key)
	if err == nil {
		_, err = q.sender.Enqueue(context.Background(), lock, asynq.NewTask("export", nil), asynq.Queue("exports"), asynq.TaskID(id), asynq.ProcessIn(time.Hour))
	}
	if err != nil {
		q.Fatal(err)
	}
}

// The method sequence enqueues tasks in the sequence of key.
func (q *queues) sequence(key string, ids ...string) {
	q.Helper()
	for _, id := range ids {
		_, err := q.sender.EnqueueInSequence(context.Background(), handoff.Sequence{Key: key, OnFailure: handoff.Halt},
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

func TestJobsAreSeenWithTheirTasks(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.do("jobs", "ls").wants(0).lacks("exports/")
	q.export("exports:acct-7", "41")
	q.export("exports:acct-8", "42")
	q.sequence("webhooks:acme", "acme-1", "acme-2")
	q.do("jobs", "ls").wants(0, "exports/41", "export", "scheduled", "parked", "exports:acct-7", "in 59m", "webhooks/acme-2", "waits", "its turn").
		lacks("FENCE", "probably")
	q.do("jobs", "ls", "-o", "wide", "--queue", "exports").wants(0, "FENCE", "exports/41").lacks("webhooks/")
	q.do("jobs", "ls", "--key", "exports:acct-8").wants(0, "exports/42").lacks("exports/41")
	q.do("jobs", "ls", "-o", "json").wants(0).fits("jobs.json")
	q.do("jobs", "ls", "--suspects", "--check", "--no-headers").wants(0).lacks("exports")
	q.do("jobs", "get", "exports/41", "--check").wants(0, "export, scheduled", "exports:acct-7: parked for")
	q.do("jobs", "get", "webhooks/acme-2").wants(0, "webhooks:acme: waits for", "its turn")
	q.do("jobs", "get", "webhooks/acme-2", "-o", "json").wants(0).fits("job.json")

	if err := q.asynq.DeleteTask("exports", "41"); err != nil {
		t.Fatal(err)
	}
	q.do("jobs", "ls", "--suspects", "--check").wants(exitNo, "exports/41", "absent", "no keeper works", "found 1 suspect").lacks("exports/42")
	q.do("jobs", "get", "exports/41", "--check").wants(exitNo, "is a suspect")
	q.do("jobs", "get", "\x1b[2J/x\xff").wants(exitNo)
	q.do("jobs", "get", "exports/43").wants(exitNo, "neither a task exports/43 nor a lock of it")
	for _, bad := range [][]string{{"get"}, {"get", "41"}, {"get", "/"}, {"ls", "x"}, {"ls", "--share", "0"}, {"ls", "--queue"}, {"nonsense"}, {"ls", "-o", "x"}} {
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
	q.do("jobs", "run", "webhooks/acme-1", "--reason", "mended").wants(0, "asynq runs the task webhooks/acme-1 now")
	if info, err := q.asynq.GetTaskInfo("webhooks", "acme-1"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("after run: %+v, %v", info, err)
	}
	if err := q.asynq.ArchiveTask("webhooks", "acme-1"); err != nil {
		t.Fatal(err)
	}
	q.do("jobs", "skip", "webhooks:acme", "--yes", "--reason", "void").wants(0, "has moved on past webhooks/acme-1")
	if st := q.status("webhooks:acme"); st.Job != "webhooks/acme-2" || st.Waiters != 1 {
		t.Errorf("after skip the key has %+v", st)
	}
	if info, err := q.asynq.GetTaskInfo("webhooks", "acme-2"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("after skip the next task is %+v, %v", info, err)
	}
	q.do("jobs", "skip", "webhooks:nobody", "--yes").wants(exitNo, "no job has the key")

	q.do("jobs", "drop", "exports/41").wants(exitUsage, "deletes the task exports/41 for ever: export, scheduled", `"exports:acct-7"`, "--yes")
	q.do("jobs", "drop", "exports/41", "--yes").wants(0, "deleted the task exports/41")
	q.do("jobs", "drop", "exports/41", "--yes").wants(exitNo, "no such task")
	q.do("jobs", "run", "exports/41").wants(exitNo, "no such task")
	for _, bad := range [][]string{{"run"}, {"run", "x"}, {"drop", "x/"}, {"cancel", "/"}, {"skip"}, {"skip", ""}, {"skip", "\x1b"}, {"run", "a/b", "--reason", "\x00"}} {
		q.do(append([]string{"jobs"}, bad...)...).wants(exitUsage)
	}
}
