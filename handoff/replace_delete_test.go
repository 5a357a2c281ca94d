package handoff_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// takeFirst has the first job taken from its queue by a worker that finds its lock
// busy and snoozes it after d. It returns when the worker has it.
func (w *web) takeFirst(t *testing.T, d time.Duration) {
	t.Helper()
	if err := w.inspector.RunTask("default", "first"); err != nil {
		t.Error(err)
		return
	}
	srv := asynq.NewServerFromRedisClient(w.rdb, asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	taken := make(chan struct{})
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(taken)
		time.Sleep(d)
		return errors.New("snoozed")
	})); err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(srv.Shutdown)
	<-taken
	srv.Stop()
}

// serveFirst is takeFirst at the moment at which the second job is being enqueued.
func (w *web) serveFirst(t *testing.T, d time.Duration) {
	t.Helper()
	w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
		w.takeFirst(t, d)
		return apply()
	})
}

// A task may only be active because it has come to find its lock busy.
func TestActiveJobIsLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		first := w.first(t, replaceK)
		w.takeFirst(t, 100*time.Millisecond)
		got, err := w.second(t.Context(), replaceK)
		if err != nil || got.Replaced == nil {
			t.Fatalf("%+v, %v; want the first job replaced", got, err)
		}
		w.wantNoTask(t, first)
	})
}

// A task on its way through a worker cannot be deleted: until it is snoozed.
func TestJobInAWorkersHandsIsReplacedWhenSnoozed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		first := w.first(t, replaceK)
		w.serveFirst(t, time.Second)
		got, err := w.second(t.Context(), replaceK)
		if err != nil || got.Replaced == nil {
			t.Fatalf("%+v, %v; want the first job replaced", got, err)
		}
		w.wantNoTask(t, first)
		w.wantOnly(t, replaceK, got)
	})
}

// One that waits for its lock in place is not snoozed: the lock goes back to it,
// and the new task is taken out again.
func TestJobThatCannotBeDeletedIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		first := w.first(t, replaceK)
		w.serveFirst(t, time.Minute)
		start := time.Now()
		got, err := w.second(t.Context(), replaceK)
		if err == nil || !strings.Contains(err.Error(), "default/first could not be deleted") || got.Task != nil {
			t.Errorf("%+v, %v; want an error that says so", got, err)
		}
		if took := time.Since(start); took > 2*settleFor {
			t.Errorf("it took %s", took)
		}
		time.Sleep(2 * time.Minute) // the first one is in retry by now
		if st := wantAny(t, w.locks, "k"); st.Reserved < 50*time.Minute {
			t.Errorf("the key is reserved for %s", st.Reserved)
		}
		if got, err := w.inspector.GetTaskInfo("default", "second"); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("the second job is there: %+v, %v", got, err)
		}
		w.wantOnly(t, replaceK, handoff.Result{Task: first})
	})
}

// Redis is away from the deletion of the first task on, and back when that was given
// up: that task is gone, or will be, so the new one must not be taken out too.
func TestReplacementWhenTheDeletionIsUnknown(t *testing.T) {
	for name, tc := range map[string]struct{ applied, refused bool }{
		"applied":                           {applied: true},
		"applied later":                     {},
		"applied later, refused in between": {refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				w.keeper(t, 1) // or the Client would see to the lock by itself
				first := w.first(t, replaceK)
				w.faults.onDelete(func(_ context.Context, apply func() error) error {
					w.faults.onDelete(nil)
					if !tc.applied {
						time.AfterFunc(2*time.Minute, func() { _ = apply() })
					}
					if tc.refused {
						w.takeFirst(t, time.Minute)
						return errDown
					}
					w.faults.setDown(errDown)
					time.AfterFunc(settleFor/2+10*time.Millisecond, func() { w.faults.setDown(nil) })
					if !tc.applied {
						return errDown
					}
					return errors.Join(apply(), errDown)
				})
				if _, err := w.second(t.Context(), replaceK, asynq.ProcessIn(time.Hour)); !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error is %v, want ErrUnavailable", err)
				}
				time.Sleep(3 * time.Minute)
				w.wantNoTask(t, first)
				w.task(t, "default", "second")
				if st := wantState(t, w.locks, "k", joblock.StateParked); st.Job != "default/first" {
					t.Errorf("the key is reserved for %q until the keeper checks", st.Job)
				}
			})
		})
	}
}
