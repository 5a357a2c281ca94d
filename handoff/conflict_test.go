package handoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

// asynq's Redis is away: that the key is held is known all the same.
func TestConflictWhenTheTaskCannotBeRead(t *testing.T) {
	w := newMiniWeb(t)
	first := w.first(t, replaceK)
	w.faults.setDown(errDown)
	for policy, told := range map[handoff.OnConflict]bool{handoff.Reject: false, handoff.Skip: true, handoff.Replace: true} {
		got, err := w.second(t.Context(), handoff.Unique{Key: "k", OnConflict: policy})
		if !errors.Is(err, joblock.ErrHeld) || got.Task != nil {
			t.Errorf("policy %d: %+v, %v; want ErrHeld", policy, got, err)
		}
		if errors.Is(err, errDown) != told {
			t.Errorf("policy %d: %v; tells of the outage: %v, want %v", policy, err, !told, told)
		}
		if _, id, _ := handoff.JobOf(err); id != first.ID {
			t.Errorf("policy %d: the error names job %q", policy, id)
		}
	}
}

// A server that says nothing is waited for as long as with Enqueue.
func TestConflictWithASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.first(t, replaceK)
		heal := make(chan struct{})
		w.faults.setHang(heal)
		start := time.Now()
		if _, err := w.second(t.Context(), replaceK); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("error is %v, want ErrHeld", err)
		}
		if took := time.Since(start); took != settleFor {
			t.Errorf("it took %s, want %s", took, settleFor)
		}
		close(heal)
		synctest.Wait()
	})
}

// An enqueue under way is over in a moment, and then there is a task to return.
func TestSkipWaitsForAnEnqueueUnderWay(t *testing.T) {
	for name, parked := range map[string]bool{"not parked yet": false, "parked": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				lock := acquire(t, w.locks, "k")
				enqueue := func() {
					if _, err := w.jobs.Enqueue(context.Background(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("first"))); err != nil {
						t.Error(err)
					}
				}
				if parked {
					w.warm(t)
					w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
						time.Sleep(50 * time.Millisecond)
						return apply()
					})
					go enqueue()
				} else {
					time.AfterFunc(50*time.Millisecond, enqueue)
				}
				synctest.Wait()
				got, err := w.second(t.Context(), handoff.Unique{Key: "k", OnConflict: handoff.Skip})
				if err != nil || !got.Duplicate || got.Task.ID != "first" {
					t.Errorf("%+v, %v; want the first task as a duplicate", got, err)
				}
			})
		})
	}
}

// If it fails the key is free, and the second call enqueues its own.
func TestSkipAfterAnEnqueueThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		lock := acquire(t, w.locks, "k")
		time.AfterFunc(50*time.Millisecond, func() { _ = lock.Release(context.Background()) })
		got, err := w.second(t.Context(), handoff.Unique{Key: "k", OnConflict: handoff.Skip})
		if err != nil || got.Duplicate || got.Task.ID != "second" {
			t.Errorf("%+v, %v; want the second task", got, err)
		}
	})
}

// Reject returns at once.
func TestRejectDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		acquire(t, w.locks, "k")
		start := time.Now()
		if _, err := w.second(t.Context(), handoff.Unique{Key: "k"}); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("error is %v, want ErrHeld", err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %s", took)
		}
	})
}

func TestContextEndsWhileLookingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		lock := acquire(t, w.locks, "k")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := w.second(ctx, handoff.Unique{Key: "k", OnConflict: handoff.Skip}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v, want DeadlineExceeded", err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A job archived by hand, whose handler does not know yet, has the key until that
// ends.
func TestKeyOfAnArchivedJobThatStillRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		first := w.first(t, replaceK)
		env, _, err := envelopekit.Read(w.task(t, first.Queue, first.ID).Headers)
		if err != nil {
			t.Fatal(err)
		}
		running, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob("default/first"))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.inspector.ArchiveTask("default", "first"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.second(t.Context(), replaceK); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("error is %v, want ErrHeld", err)
		}
		if err := running.Renew(t.Context()); err != nil {
			t.Errorf("the handler has lost its lock: %v", err)
		}
	})
}

// Whether the key could be freed is unknown.
func TestStoreFailsWhileFreeingAKey(t *testing.T) {
	w := newMiniWeb(t)
	w.first(t, replaceK)
	if err := w.inspector.ArchiveTask("default", "first"); err != nil {
		t.Fatal(err)
	}
	w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Release)
	got, err := w.second(t.Context(), handoff.Unique{Key: "k"})
	if !errors.Is(err, joblock.ErrUnavailable) || got.Task != nil {
		t.Errorf("%+v, %v; want ErrUnavailable", got, err)
	}
	w.store.Clear(faultstore.Release)
	if _, err := w.second(t.Context(), handoff.Unique{Key: "k"}); err != nil {
		t.Errorf("when it works again: %v", err)
	}
}

// A request's enqueue is refused because the task of another caller has the TaskID, and the
// request has its lock back. That task is not taken for the job that has the key: it
// does not carry it, and a dispatch that it stood for would be lost.
func TestTaskThatDoesNotCarryTheKeyIsNoDuplicate(t *testing.T) {
	for name, end := range map[string]func(w *web) error{
		"waits":       func(*web) error { return nil },
		"is archived": func(w *web) error { return w.inspector.ArchiveTask("default", "first") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				foreign := asynq.NewTask("report", nil, asynq.TaskID("first"), asynq.ProcessIn(48*time.Hour))
				if _, err := w.client.Enqueue(foreign); err != nil {
					t.Fatal(err)
				}
				if err := end(w); err != nil {
					t.Fatal(err)
				}
				lock := acquire(t, w.locks, "k")
				_, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("first")))
				if !errors.Is(err, asynq.ErrTaskIDConflict) || lock.Err() != nil {
					t.Fatalf("the enqueue gave %v, the lock %v; want a conflict, and the lock back", err, lock.Err())
				}
				for policy := handoff.Reject; policy <= handoff.Replace; policy++ {
					got, err := w.second(t.Context(), handoff.Unique{Key: "k", OnConflict: policy})
					if !errors.Is(err, joblock.ErrHeld) || got.Task != nil || got.Duplicate {
						t.Errorf("policy %d: %+v, %v; want ErrHeld: a request has the key", policy, got, err)
					}
				}
				if lock.Err() != nil {
					t.Errorf("the request has lost its lock: %v", lock.Err())
				}
				w.task(t, "default", "first")

				// When the request dies the key is free one lease later: it was taken back as
				// a lock without an owner, of which the keeper knows nothing.
				(*core.Lock)(lock).StopRenewing()
				time.Sleep(30*time.Second + time.Millisecond)
				got, err := w.second(t.Context(), handoff.Unique{Key: "k", OnConflict: handoff.Skip})
				if err != nil || got.Duplicate || got.Task.ID != "second" {
					t.Errorf("after the request's death: %+v, %v; want the second task enqueued", got, err)
				}
			})
		})
	}
}

// The same in the moment between the park and the enqueue that is going to be
// refused: what an archived task of that name has left behind is not the request's.
func TestKeyParkedForATaskIDThatIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		if _, err := w.client.Enqueue(asynq.NewTask("report", nil, asynq.TaskID("first"))); err != nil {
			t.Fatal(err)
		}
		if err := w.inspector.ArchiveTask("default", "first"); err != nil {
			t.Fatal(err)
		}
		lock := acquire(t, w.locks, "k")
		if _, err := lock.Park(t.Context(), joblock.ForJob("default/first")); err != nil {
			t.Fatal(err)
		}
		for policy := handoff.Reject; policy <= handoff.Replace; policy++ {
			if _, err := w.second(t.Context(), handoff.Unique{Key: "k", OnConflict: policy}); !errors.Is(err, joblock.ErrHeld) {
				t.Errorf("policy %d: %v, want ErrHeld", policy, err)
			}
		}
		if err := lock.Reclaim(t.Context()); err != nil {
			t.Errorf("the request cannot have its lock back: %v", err)
		}
	})
}

// A second enqueue under the TaskID of the job that has the key fails because the task exists, unless a policy allows to
// return the task, or to replace it.
func TestConflictWithATaskOfTheSameID(t *testing.T) {
	for name, policy := range map[string]handoff.OnConflict{
		"Reject": handoff.Reject, "Skip": handoff.Skip, "Replace": handoff.Replace, "KeepLast": handoff.KeepLast,
	} {
		for _, archived := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					u := handoff.Unique{Key: "k", OnConflict: policy}
					enqueue := func() (handoff.Result, error) {
						return w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil), asynq.TaskID("t-1"))
					}
					if _, err := enqueue(); err != nil {
						t.Fatal(err)
					}
					if archived {
						if err := w.inspector.ArchiveTask("default", "t-1"); err != nil {
							t.Fatal(err)
						}
					}
					got, err := enqueue()
					if policy == handoff.Skip && !archived {
						if err != nil || !got.Duplicate || got.Task.ID != "t-1" {
							t.Errorf("archived %t: %+v, %v; want the task that exists", archived, got, err)
						}
						return
					}
					if (policy == handoff.Replace || policy == handoff.KeepLast) && !archived {
						if err != nil || got.Task.ID != "t-1" || got.Replaced == nil || got.Replaced.ID != "t-1" {
							t.Errorf("archived %t: %+v, %v; want the task replaced", archived, got, err)
						}
						return
					}
					if _, id, _ := handoff.JobOf(err); !errors.Is(err, asynq.ErrTaskIDConflict) || !errors.Is(err, joblock.ErrHeld) || id != "t-1" {
						t.Errorf("archived %t: %+v, %v; want ErrTaskIDConflict and ErrHeld", archived, got, err)
					}
				})
			})
		}
	}
}
