package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// crash leaves the state of a worker that was killed while it ran the task: the task is
// active under a lease of asynq's that expired a minute ago, and its lock is held but not
// renewed.
func (r *rig) crash(id string, token joblock.Token) {
	r.t.Helper()
	ctx := context.Background()
	if !token.IsZero() { // else asynq alone
		lock, err := r.locks.Resume(ctx, token, joblock.ForJob(envelope.Job(queue, id)))
		if err != nil {
			r.t.Fatalf("resume: %v", err)
		}
		(*core.Lock)(lock).StopRenewing()
	}
	prefix := "asynq:{" + queue + "}:"
	_, err := r.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.RPopLPush(ctx, prefix+"pending", prefix+"active")
		p.HSet(ctx, prefix+"t:"+id, "state", "active")
		p.HDel(ctx, prefix+"t:"+id, "pending_since")
		p.ZAdd(ctx, prefix+"lease", redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id})
		return nil
	})
	if err != nil {
		r.t.Fatalf("crash: %v", err)
	}
}

func TestCrashedAttemptIsTakenUpByTheNext(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.enqueue("a", 1)
		r.crash("a", token)
		time.Sleep(2 * ttl)
		r.wantState("key-a", joblock.StateOrphaned, "a")
		r.wantHeld("key-a") // no other caller slips in
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		runs := p.all()
		if len(runs) != 1 || runs[0].retried != 1 || runs[0].budget != 1 || runs[0].fence <= core.Token(token).Fence() {
			t.Errorf("runs %+v, want one, retry 1 of 1, with a larger fence than %d", runs, core.Token(token).Fence())
		}
		if got := p.heard(); len(got) != 0 {
			t.Errorf("the ErrorHandler heard %v; asynq's recoverer tells it nothing", got)
		}
	})
}

// asynq's recoverer archives without calling anything. The spare retry brings the task
// back once, so that its lock is freed and the failure is reported.
func TestCrashOnTheLastAttempt(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.enqueue("a", 0)
		r.crash("a", token)
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a") // the lease of the dead runs on
		r.wantTask("a", "archived", 1)
		time.Sleep(2 * ttl)
		r.wantEnded("key-a", "job failed")
		r.wantRuns(&p, 0)
		told := p.heard()
		if len(told) != 1 || !errors.Is(told[0].err, asynq.ErrLeaseExpired) || told[0].budget != 0 {
			t.Errorf("the ErrorHandler heard %+v, want one asynq.ErrLeaseExpired with a budget of 0", told)
		}
	})
}

// The archived task is run again before the lease of the dead worker expires: the second
// check of that worker's lock leaves the lock to the task.
func TestRunTaskWhileTheLeaseOfTheDeadRunsOn(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.crash("a", r.enqueue("a", 0))
		r.serve(service{worker: worker.Config{OnLockLost: failing.decide}}, p.handler(succeed))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a")
		if err := r.inspector.RunTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 1)
	})
}

// The process lives, but asynq took its task away: the second delivery meets the
// lock of the first.
func TestDuplicateDeliveryWhileTheFirstRuns(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.enqueue("a", 0)
		// Another process runs the attempt, and renews.
		other := r.newLocker()
		lock, err := other.Resume(context.Background(), token, joblock.ForJob(envelope.Job(queue, "a")))
		if err != nil {
			t.Fatal(err)
		}
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		time.Sleep(5 * time.Minute)
		r.untilRetry("a", 0)
		r.wantRuns(&p, 0)

		if err := (*core.Lock)(lock).Release(context.Background(), core.Release{Reason: "job done", Job: envelope.Job(queue, "a"), Done: true}); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 0) // it was done already
		if told := p.heard(); len(told) != 0 {
			t.Errorf("the ErrorHandler heard of snoozes: %+v", told)
		}
	})
}

func TestDuplicateDeliveryAfterTheJobIsDone(t *testing.T) {
	for _, reason := range []string{"job done", "job revoked"} {
		t.Run(reason, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.enqueue("a", 3)
				r.settled("a", token, reason)
				r.serve(service{}, p.handler(succeed))
				r.untilTask("a", "gone")
				r.wantRuns(&p, 0)
			})
		})
	}
}

// settled releases a task's lock as an attempt of it would have.
func (r *rig) settled(id string, token joblock.Token, reason string) {
	r.t.Helper()
	lock, err := r.locks.Resume(context.Background(), token, joblock.ForJob(envelope.Job(queue, id)))
	if err != nil {
		r.t.Fatalf("resume: %v", err)
	}
	if err := (*core.Lock)(lock).Release(context.Background(), core.Release{Reason: reason, Job: envelope.Job(queue, id), Done: true}); err != nil {
		r.t.Fatalf("release: %v", err)
	}
}

// An archived task that was run again gets one more last attempt,
// however it came to be archived.
func TestRunTaskOfAnArchivedTask(t *testing.T) {
	for name, f := range map[string]func(context.Context, int) error{
		"after an error": fail, "after a timeout": obey, "after a panic": blow,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0, asynq.Timeout(time.Second))
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, n int) error {
					if n < 3 {
						if n == 2 {
							return errBoom
						}
						return f(ctx, n)
					}
					return nil
				}))
				for n := 1; n <= 2; n++ {
					r.untilTask("a", "archived")
					r.untilFree("key-a")
					r.wantEnded("key-a", "job failed")
					r.wantRuns(&p, n)
					if told := p.heard(); len(told) != n {
						t.Errorf("after %d runs the ErrorHandler heard %+v", n, told)
					}
					if err := r.inspector.RunTask(queue, "a"); err != nil {
						t.Fatal(err)
					}
				}
				r.untilTask("a", "gone")
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 3)
			})
		})
	}
}

// A completed task that was run again runs, each time, as it does with asynq alone. A
// duplicate delivery of it is something else: asynq has not completed it.
func TestRunTaskOfACompletedTask(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.Retention(time.Hour))
		r.serve(service{}, p.handler(succeed))
		for n := 1; n <= 3; n++ {
			r.untilTask("a", "completed")
			r.wantRuns(&p, n)
			r.wantEnded("key-a", "job done")
			if n == 3 {
				break
			}
			if err := r.inspector.RunTask(queue, "a"); err != nil {
				t.Fatal(err)
			}
			r.until("run again", func() bool { return p.count() > n })
		}
	})
}
