package handoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

// A reply is lost on a real connection to a real Redis, go-redis sends the command
// again, and asynq reports an error about a task that is there.
func TestLostReplyIsASuccess(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	for name, opts := range map[string][]asynq.Option{
		"answered as an ID conflict": nil,
		"answered as a duplicate":    {asynq.Unique(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := redistest.NewProxy(t, db.Addr())
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
			t.Cleanup(func() { _ = rdb.Close() })
			w := newWeb(t, rdb, nil)
			w.warm(t)
			id := "t-" + name
			fault := proxy.Once(redistest.All(redistest.Named("EVALSHA"), redistest.Mentioning(":t:"+id)), redistest.DropReply())

			lock := acquire(t, w.locks, "k")
			info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID(id)), opts...))
			if err != nil {
				t.Fatalf("Enqueue: %v", err)
			}
			if fault.Hits() != 1 || fault.Seen() < 2 {
				t.Errorf("%d replies lost of %d commands; this test shows nothing", fault.Hits(), fault.Seen())
			}
			w.wantWithJob(t, lock, info)
			if err := w.inspector.DeleteTask("default", id); err != nil {
				t.Error(err)
			}
			if n := w.tasks(t); n != 0 {
				t.Errorf("%d more tasks were enqueued", n)
			}
		})
	}
}

func TestRefusedEnqueueLeavesTheLockWithTheCaller(t *testing.T) {
	for _, tc := range []struct {
		name  string
		other []asynq.Option // of a task that is there already
		opts  []asynq.Option
		want  error
	}{
		{"task ID conflict", []asynq.Option{asynq.TaskID("t-1")}, []asynq.Option{asynq.TaskID("t-1")}, asynq.ErrTaskIDConflict},
		{"duplicate", []asynq.Option{asynq.Unique(time.Hour)}, []asynq.Option{asynq.Unique(time.Hour)}, asynq.ErrDuplicateTask},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newMiniWeb(t)
			other, err := w.client.Enqueue(asynq.NewTask("export", nil), tc.other...)
			if err != nil {
				t.Fatal(err)
			}
			locks := joblock.Locks{acquire(t, w.locks, "a"), acquire(t, w.locks, "b")}
			if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(locks...), asynq.NewTask("export", nil), tc.opts...); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
			for _, lock := range locks {
				w.wantWithCaller(t, lock)
			}
			if stored := w.task(t, "default", other.ID); len(stored.Headers) != 0 {
				t.Errorf("the other task was touched: %+v", stored)
			}
		})
	}
}

// The task of an earlier hand-over by the same caller is not the one of this.
func TestOwnEarlierTaskIsAConflictToo(t *testing.T) {
	w := newMiniWeb(t)
	task := asynq.NewTask("export", nil, asynq.TaskID("t-1"))
	first := acquire(t, w.locks, "k", joblock.Owner("same"))
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(first), task); err != nil {
		t.Fatal(err)
	}
	if err := w.locks.ForceRelease(t.Context(), "k", joblock.Reason("by hand")); err != nil {
		t.Fatal(err)
	}
	second := acquire(t, w.locks, "k", joblock.Owner("same"))
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(second), task); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Errorf("error is %v, want ErrTaskIDConflict", err)
	}
	w.wantWithCaller(t, second)
}

func TestErrorsOfRedisInTheMiddleOfAnEnqueue(t *testing.T) {
	errReset := errors.New("connection reset by peer")
	for _, tc := range []struct {
		name    string
		enqueue func(ctx context.Context, apply func() error) error
		withJob bool
	}{
		{"never sent", func(context.Context, func() error) error { return errReset }, false},
		{"applied, reply lost", func(_ context.Context, apply func() error) error {
			return errors.Join(apply(), errReset)
		}, true},
		{"applied after the first reading", func(_ context.Context, apply func() error) error {
			time.AfterFunc(100*time.Millisecond, func() { _ = apply() })
			return errReset
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				w.faults.onEnqueue(tc.enqueue)
				lock := acquire(t, w.locks, "k")
				info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil)))
				if tc.withJob {
					if err != nil {
						t.Fatal(err)
					}
					w.wantWithJob(t, lock, info)
					return
				}
				if err == nil || errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error is %v, want a plain one: the outcome is known", err)
				}
				w.wantWithCaller(t, lock)
				if n := w.tasks(t); n != 0 {
					t.Errorf("%d tasks exist", n)
				}
			})
		})
	}
}

// A command so late that the lock was taken back before: the task that appears
// gets it neither while the caller holds it nor after, and there are never two.
func TestTaskThatAppearsAfterAllFindsItsTokenTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
			time.AfterFunc(time.Minute, func() { _ = apply() })
			return errDown
		})
		lock := acquire(t, w.locks, "k")
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("late"))); err == nil {
			t.Fatal("Enqueue succeeded")
		}
		time.Sleep(2 * time.Minute)
		env, _, err := envelopekit.Read(w.task(t, "default", "late").Headers)
		if err != nil {
			t.Fatal(err)
		}
		resume := func() error {
			_, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob("default/late"))
			return err
		}
		if err := resume(); !errors.Is(err, joblock.ErrBusy) {
			t.Errorf("while the caller holds the lock: %v, want ErrBusy", err)
		}
		w.wantWithCaller(t, lock)
		if err := resume(); !errors.Is(err, joblock.ErrAlreadyReleased) {
			t.Errorf("when the caller has released it: %v, want ErrAlreadyReleased", err)
		}
	})
}

func TestCancelledContext(t *testing.T) {
	t.Run("before", func(t *testing.T) {
		w := newMiniWeb(t)
		lock := acquire(t, w.locks, "k")
		fence := lock.Fence()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask("export", nil)); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want context.Canceled", err)
		}
		if lock.Fence() != fence {
			t.Error("the lock was parked")
		}
		w.wantWithCaller(t, lock)
	})
	for name, applied := range map[string]bool{"not sent": false, "applied": true} {
		t.Run("between park and enqueue, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				ctx, cancel := context.WithCancel(t.Context())
				w.faults.onEnqueue(func(ctx context.Context, apply func() error) error {
					cancel()
					if applied {
						return errors.Join(apply(), ctx.Err())
					}
					return ctx.Err()
				})
				lock := acquire(t, w.locks, "k")
				info, err := taskOf(w.jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask("export", nil)))
				if applied {
					if err != nil {
						t.Fatal(err)
					}
					w.wantWithJob(t, lock, info)
					return
				}
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error is %v, want context.Canceled", err)
				}
				w.wantWithCaller(t, lock)
			})
		})
	}
}

// As long as asynq is at it, Redis saying that there is no task means nothing: the
// task may be written the moment after.
func TestEnqueueThatHangsIsCutShortAndDecidedLater(t *testing.T) {
	for _, tc := range []struct {
		name    string
		applied bool
	}{{"applied at last", true}, {"failed at last", false}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				const after = 4 * time.Minute
				w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
					time.Sleep(after) // and ignores its context, as go-redis does not
					if !tc.applied {
						return errDown
					}
					return apply()
				})
				lock := acquire(t, w.locks, "k")
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				start := time.Now()
				info, err := taskOf(w.jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("t-1"))))
				if took := time.Since(start); took != 2*time.Second+settleFor {
					t.Errorf("took %s, want the context's 2s and settleFor", took)
				}
				if !errors.Is(err, joblock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || info != nil {
					t.Errorf("Enqueue = %v, %v; want ErrUnavailable and the context's error", info, err)
				}
				w.wantParked(t, lock)
				time.Sleep(after - 30*time.Second)
				w.wantParked(t, lock)
				time.Sleep(time.Minute)
				if tc.applied {
					w.wantWithJob(t, lock, w.task(t, "default", "t-1"))
				} else {
					wantState(t, w.locks, "k", joblock.StateFree)
				}
			})
		})
	}
}

// The context ends, but asynq succeeds before the time to find out is over.
func TestEnqueueThatSucceedsAfterItsContextIsASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
			time.Sleep(3 * time.Second)
			return apply()
		})
		lock := acquire(t, w.locks, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		info, err := taskOf(w.jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask("export", nil)))
		if err != nil {
			t.Fatal(err)
		}
		w.wantWithJob(t, lock, info)
	})
}

func TestLockThatCannotBeParkedGivesTheOthersBack(t *testing.T) {
	w := newMiniWeb(t)
	locks := joblock.Locks{acquire(t, w.locks, "a"), acquire(t, w.locks, "b"), acquire(t, w.locks, "c")}
	if err := w.locks.ForceRelease(t.Context(), "b", joblock.Reason("by hand")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(locks...), asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrLost) {
		t.Errorf("error is %v, want ErrLost", err)
	}
	w.wantWithCaller(t, locks[0])
	w.wantWithCaller(t, locks[2])
	if n := w.tasks(t); n != 0 {
		t.Errorf("%d tasks were enqueued", n)
	}
}

// A worker that is faster than the answer: the locks cannot be taken back, and
// the caller does not learn that it has them.
func TestJobThatHasTheLockKeepsIt(t *testing.T) {
	for _, tc := range []struct {
		name string
		done bool
		want error
	}{
		{"running", false, joblock.ErrBusy},
		{"done", true, joblock.ErrAlreadyReleased},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				var running *joblock.Lock
				w.faults.onEnqueue(func(ctx context.Context, apply func() error) error {
					if err := apply(); err != nil {
						return err
					}
					env, _, err := envelopekit.Read(w.task(t, "default", "t-1").Headers)
					if err != nil {
						return err
					}
					if running, err = w.locks.Resume(ctx, env.Tokens[0], joblock.ForJob("default/t-1")); err != nil {
						return err
					}
					if tc.done {
						if err := running.Release(ctx); err != nil {
							return err
						}
					}
					return errors.Join(w.inspector.DeleteTask("default", "t-1"), errDown)
				})
				lock := acquire(t, w.locks, "k")
				_, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("t-1")))
				if !errors.Is(err, tc.want) {
					t.Errorf("error is %v, want %v", err, tc.want)
				}
				if err := lock.Release(t.Context()); !errors.Is(err, joblock.ErrNotOwner) {
					t.Errorf("Release of the handle: %v, want ErrNotOwner", err)
				}
				if !tc.done && running.Renew(t.Context()) != nil {
					t.Error("the job has lost its lock")
				}
			})
		})
	}
}
