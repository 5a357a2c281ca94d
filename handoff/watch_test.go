package handoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

// outage has a lock parked for a task that may not exist.
func outage(t *testing.T, w *web, applied bool) *joblock.Lock {
	t.Helper()
	w.warm(t)
	w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
		if applied {
			if err := apply(); err != nil {
				t.Error(err)
			}
		}
		w.faults.setDown(errDown)
		return errDown
	})
	lock := acquire(t, w.locks, "k")
	info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("t-1"))))
	if !errors.Is(err, joblock.ErrUnavailable) || info != nil {
		t.Fatalf("Enqueue = %v, %v; want ErrUnavailable", info, err)
	}
	var e *joblock.Error
	if !errors.As(err, &e) || e.Job != "default/t-1" || e.Key != "k" {
		t.Errorf("the error does not say for which job: %+v", e)
	}
	w.wantParked(t, lock)
	return lock
}

func TestUnknownOutcomeStaysParkedUntilItIsKnown(t *testing.T) {
	t.Run("the task is there", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			lock := outage(t, w, true)
			time.Sleep(time.Minute)
			w.faults.setDown(nil)
			time.Sleep(time.Minute)
			w.wantWithJob(t, lock, w.task(t, "default", "t-1"))
		})
	})
	t.Run("it is not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			outage(t, w, false)
			time.Sleep(time.Minute)
			wantState(t, w.locks, "k", joblock.StateParked)
			w.faults.setDown(nil)
			time.Sleep(time.Minute)
			if st := wantState(t, w.locks, "k", joblock.StateFree); st.Reason == "" {
				t.Error("Status does not say why the lock was released")
			}
		})
	})
	t.Run("the outage lasts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			outage(t, w, false)
			time.Sleep(watchFor + time.Minute)
			w.faults.setDown(nil)
			time.Sleep(30 * time.Minute)
			wantState(t, w.locks, "k", joblock.StateParked) // the search has ended
			time.Sleep(30 * time.Minute)
			wantState(t, w.locks, "k", joblock.StateFree) // the reservation has ended
		})
	})
	t.Run("the Client is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			outage(t, w, false)
			if err := w.jobs.Close(t.Context()); err != nil {
				t.Error(err)
			}
			w.faults.setDown(nil)
			time.Sleep(time.Minute)
			wantState(t, w.locks, "k", joblock.StateParked)
		})
	})
	t.Run("the caller went on with the lock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			lock := outage(t, w, false)
			if err := lock.Reclaim(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.faults.setDown(nil)
			info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil)))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			w.wantWithJob(t, lock, info)
		})
	})
}

// The lock store goes away just when the locks are to be taken back.
func TestLocksThatCannotBeTakenBackAreFreedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(context.Context, func() error) error {
			w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Resume)
			return errDown
		})
		lock := acquire(t, w.locks, "k")
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("error is %v, want ErrUnavailable", err)
		}
		wantState(t, w.locks, "k", joblock.StateParked)
		w.store.Clear(faultstore.Resume)
		time.Sleep(time.Minute)
		wantState(t, w.locks, "k", joblock.StateFree)
	})
}

// A server that neither answers nor goes away does not keep the request forever,
// nor does it decide anything.
func TestServerThatHangsIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		silent := make(chan struct{})
		w.faults.onEnqueue(func(context.Context, func() error) error {
			w.faults.setHang(silent)
			return errDown
		})
		lock := acquire(t, w.locks, "k")
		start := time.Now()
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("error is %v, want ErrUnavailable", err)
		}
		if took := time.Since(start); took != settleFor {
			t.Errorf("took %s, want settleFor", took)
		}
		w.wantParked(t, lock)
		w.faults.setHang(nil)
		close(silent)
		time.Sleep(time.Minute)
		wantState(t, w.locks, "k", joblock.StateFree)
	})
}

// A server that thaws answers a question before it applies the command that it had
// received earlier: one reading is not enough in the background either.
func TestTaskThatAppearsAfterABackgroundLookIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
			frozen := make(chan struct{})
			w.faults.setHang(frozen)
			time.AfterFunc(time.Minute, func() {
				w.faults.setHang(nil)
				close(frozen) // the calls that hang are answered
				time.AfterFunc(100*time.Millisecond, func() { _ = apply() })
			})
			return errDown
		})
		lock := acquire(t, w.locks, "k")
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.TaskID("t-1"))); !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("error is %v, want ErrUnavailable", err)
		}
		time.Sleep(2 * time.Minute)
		w.wantWithJob(t, lock, w.task(t, "default", "t-1"))
	})
}

// Locks that were parked for nothing, since not all of them could be, are freed
// without asking for the task: another caller may have enqueued one with its ID.
func TestLocksOfATaskThatWasNeverSentAreFreedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		if _, err := w.client.Enqueue(asynq.NewTask("other", nil, asynq.TaskID("t-1"))); err != nil {
			t.Fatal(err)
		}
		locks := joblock.Locks{acquire(t, w.locks, "a"), acquire(t, w.locks, "b")}
		if err := w.locks.ForceRelease(t.Context(), "b", joblock.Reason("by hand")); err != nil {
			t.Fatal(err)
		}
		w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Resume)
		start := time.Now()
		_, err := w.jobs.Enqueue(t.Context(), handoff.Carry(locks...), asynq.NewTask("export", nil, asynq.TaskID("t-1")))
		if !errors.Is(err, joblock.ErrLost) || !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("error is %v, want ErrLost and ErrUnavailable", err)
		}
		if took := time.Since(start); took > settleFor {
			t.Errorf("took %s, want settleFor at the most", took)
		}
		wantState(t, w.locks, "a", joblock.StateParked)
		w.store.Clear(faultstore.Resume)
		time.Sleep(time.Minute)
		wantState(t, w.locks, "a", joblock.StateFree)
	})
}
