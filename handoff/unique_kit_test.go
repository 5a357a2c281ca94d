package handoff_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

// situation is what a key is in when the second job for it comes.
type situation string

const (
	free        situation = "free"
	pending     situation = "pending"
	scheduled   situation = "scheduled"
	aggregating situation = "aggregating"
	retrying    situation = "between two attempts"
	running     situation = "running"
	started     situation = "has started"
	overrunning situation = "timed out, its handler still running"
	archived    situation = "archived"
	completed   situation = "completed"
	enqueuing   situation = "being enqueued"
	deleted     situation = "deleted"
	requested   situation = "held by a request"
)

// bring enqueues a first job under u and brings it about. The job is nil where
// there is none.
func (w *web) bring(t *testing.T, s situation, u handoff.Unique) *asynq.TaskInfo {
	t.Helper()
	var opts []asynq.Option
	switch s {
	case free:
		return nil
	case requested, enqueuing:
		lock := acquire(t, w.locks, u.Key)
		if s == enqueuing { // parked, and the task is not there yet
			if _, err := lock.Park(t.Context(), joblock.ForJob("default/soon")); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	case scheduled:
		opts = append(opts, asynq.ProcessIn(time.Hour))
	case aggregating:
		opts = append(opts, asynq.Group("g"))
	case overrunning:
		opts = append(opts, asynq.Timeout(time.Second))
	case completed:
		opts = append(opts, asynq.Retention(time.Hour))
	}
	first, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", []byte("first")), opts...)
	if err != nil {
		t.Fatal(err)
	}
	switch s {
	case archived:
		err = w.inspector.ArchiveTask(first.Task.Queue, first.Task.ID)
	case deleted:
		err = w.inspector.DeleteTask(first.Task.Queue, first.Task.ID)
	case retrying, running, started, overrunning, completed:
		w.work(t, s)
		time.Sleep(10 * time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s == deleted {
		return first.Task
	}
	return w.task(t, first.Task.Queue, first.Task.ID)
}

// work runs a server whose handler treats the locks of one task as package worker
// does, and brings the situation about.
func (w *web) work(t *testing.T, s situation) {
	t.Helper()
	over := make(chan struct{})
	srv := asynq.NewServerFromRedisClient(w.rdb, asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	handler := func(ctx context.Context, task *asynq.Task) error {
		if s == completed { // and its lock was left behind
			return nil
		}
		env, _, err := envelopekit.Read(task.Headers())
		if err != nil {
			return err
		}
		id, _ := asynq.GetTaskID(ctx)
		job := envelope.Job("default", id)
		for _, token := range env.UntilStart {
			if err := (*core.Locker)(w.locks).Release(ctx, []core.Token{core.Token(token)}, core.Release{IfIdle: true, Job: job, Reason: "job started"})[0]; err != nil {
				return err
			}
		}
		if s != started {
			lock, err := w.resume(ctx, env.Envelope, job)
			if err != nil {
				return err
			}
			if s == retrying {
				_, err := lock.Park(ctx, joblock.ForJob(job))
				return errors.Join(err, errors.New("try again"))
			}
			defer func() { _ = lock.Release(ctx) }()
		}
		<-over
		return nil
	}
	if err := srv.Start(asynq.HandlerFunc(handler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(over)
		srv.Shutdown()
	})
}

// resume takes the lock that the job of env is to run under.
func (w *web) resume(ctx context.Context, env envelope.Envelope, job string) (*joblock.Lock, error) {
	token := env.Tokens[0]
	if len(env.FromStart) == 0 {
		return w.locks.Resume(ctx, token, joblock.ForJob(job))
	}
	run := env.FromStart[0]
	return w.locks.TryAcquire(ctx, run.Key(), joblock.Owner(core.Token(run).Owner()), joblock.TTL(core.Token(run).TTL()))
}

// slotOf returns the key that a job under u has from its enqueue on.
func slotOf(u handoff.Unique) string {
	if u.OnConflict == handoff.KeepLast || u.OnConflict == handoff.CancelInProgress {
		return u.Key + "%next"
	}
	return u.Key
}

// wantHeld checks that the second job was refused because of the first and that
// nothing has changed.
func (w *web) wantHeld(t *testing.T, u handoff.Unique, first *asynq.TaskInfo, fence int64, err error) {
	t.Helper()
	if !errors.Is(err, joblock.ErrHeld) {
		t.Fatalf("error is %v, want ErrHeld", err)
	}
	if queue, id, _ := handoff.JobOf(err); first != nil && (queue != first.Queue || id != first.ID) {
		t.Errorf("the error names %s in %s, want %s in %s", id, queue, first.ID, first.Queue)
	}
	if st := wantAny(t, w.locks, slotOf(u)); st.Fence != fence {
		t.Errorf("the lock was touched: %+v, the fence was %d", st, fence)
	}
	queues, err := w.inspector.Queues()
	if err != nil {
		t.Fatal(err)
	}
	for _, queue := range queues {
		info, err := w.inspector.GetQueueInfo(queue)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil && info.Size != 0 || info.Size > 1 {
			t.Errorf("%d tasks in %s", info.Size, queue)
		}
	}
}

// wantOnly checks that the job of info alone has the key: that its token resumes.
func (w *web) wantOnly(t *testing.T, u handoff.Unique, info handoff.Result) {
	t.Helper()
	job := envelope.Job(info.Task.Queue, info.Task.ID)
	if st := wantState(t, w.locks, slotOf(u), joblock.StateParked); st.Job != job {
		t.Errorf("%s is parked for %q, want %q", st.Key, st.Job, job)
	}
	env, _, err := envelopekit.Read(w.task(t, info.Task.Queue, info.Task.ID).Headers)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob(job))
	if err != nil {
		t.Fatalf("the job cannot resume its lock: %v", err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantNoTask checks that a task was deleted.
func (w *web) wantNoTask(t *testing.T, info *asynq.TaskInfo) {
	t.Helper()
	if got, err := w.inspector.GetTaskInfo(info.Queue, info.ID); !errors.Is(err, asynq.ErrTaskNotFound) {
		t.Errorf("the replaced task is there: %+v, %v", got, err)
	}
}

// wantAny returns the status of a key in whatever state.
func wantAny(t *testing.T, locks *joblock.Locker, key string) joblock.Status {
	t.Helper()
	st, err := testkit.One(locks.Status(context.Background(), key))
	if err != nil {
		t.Fatal(err)
	}
	return st
}
