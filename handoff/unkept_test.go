package handoff_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

const (
	unkeptEvery = 30 * time.Second      // that of the package
	grace       = envelope.EnqueueGrace // a lock is left alone for so long after each change
)

// submit enqueues the task t-1 with the lock on k.
func (w *web) submit(t *testing.T, opts ...asynq.Option) *asynq.TaskInfo {
	t.Helper()
	task := asynq.NewTask("export", nil, append(opts, asynq.TaskID("t-1"))...)
	info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(acquire(t, w.locks, "k")), task))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// end deletes the task t-1, as asynq does when a handler has succeeded.
func (w *web) end(t *testing.T) {
	t.Helper()
	if err := w.inspector.DeleteTask("default", "t-1"); err != nil {
		t.Fatal(err)
	}
}

// take resumes the lock of the task t-1, as its worker does.
func (w *web) take(t *testing.T) *joblock.Lock {
	t.Helper()
	env, _, err := envelopekit.Read(w.task(t, "default", "t-1").Headers)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob("default/t-1"), joblock.Reserve(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// keeper is a keeper at work, as far as others see it.
func (w *web) keeper(t *testing.T, number int) *joblock.Lock {
	t.Helper()
	return acquire(t, w.locks, keyspace.Permit(keyspace.Keepers, number), core.OwnKey)
}

// Only the worker releases the lock of a job, and a worker that looks for its locks in another place runs the job
// without them. No keeper sees these locks either. The key is not left to its reservation, an hour.
func TestLockOfAJobThatRanWithoutItIsFreed(t *testing.T) {
	for name, over := range map[string]func(t *testing.T, w *web){
		"done":     func(t *testing.T, w *web) { w.end(t) },
		"archived": func(t *testing.T, w *web) { _ = w.inspector.ArchiveTask("default", "t-1") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.submit(t)
				time.Sleep(5*unkeptEvery + time.Second)
				wantState(t, w.locks, "k", joblock.StateParked) // the task waits
				over(t, w)
				time.Sleep(unkeptEvery)
				if st := wantState(t, w.locks, "k", joblock.StateFree); !strings.Contains(st.Reason, "no keeper") {
					t.Errorf("freed because %q", st.Reason)
				}
				text := w.log.String()
				for _, want := range []string{`"level":"WARN","msg":"handoff: jobs have locks, but no keeper works`, `"level":"ERROR","msg":"handoff: a job has ended without taking its lock`} {
					if strings.Count(text, want) != 1 {
						t.Errorf("log is %s, want once %s", text, want)
					}
				}
				if !strings.Contains(text, `"locks_here":"`) {
					t.Errorf("log is %s, without the place of the locks", text)
				}
			})
		})
	}
}

// Where a keeper works, whichever permit it has, a Client leaves all to the keeper.
func TestClientLeavesLocksToAKeeper(t *testing.T) {
	for _, number := range []int{1, 7, 256} {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			keeper := w.keeper(t, number)
			w.submit(t)
			w.end(t)
			time.Sleep(10 * unkeptEvery)
			wantState(t, w.locks, "k", joblock.StateParked)
			if text := w.log.String(); text != "" {
				t.Errorf("with keeper %d the log is %s", number, text)
			}
			if err := keeper.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The keeper is gone when the next job is enqueued.
func TestClientNoticesThatTheKeeperIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		keeper := w.keeper(t, 1)
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(acquire(t, w.locks, "first")), asynq.NewTask("export", nil)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*unkeptEvery + time.Second)
		if err := keeper.Release(t.Context()); err != nil {
			t.Error(err)
		}
		w.submit(t)
		w.end(t)
		time.Sleep(grace + unkeptEvery + time.Second)
		wantState(t, w.locks, "k", joblock.StateFree)
	})
}

// The workers are rolled back to a release without locks: the last keeper ends while jobs wait that it was to look after.
func TestClientLooksAfterTheJobsOfAKeeperThatIsGone(t *testing.T) {
	for _, c := range []struct {
		kept  time.Duration // from the enqueue to the keeper's end
		freed bool
	}{{time.Second, true}, {4 * time.Minute, true}, {6 * time.Minute, false}} { // the last is left to its reservation
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			keeper := w.keeper(t, 1)
			w.submit(t)
			time.Sleep(c.kept)
			if err := keeper.Release(t.Context()); err != nil {
				t.Error(err)
			}
			w.end(t)
			time.Sleep(grace + 2*unkeptEvery)
			want := joblock.StateParked
			if c.freed {
				want = joblock.StateFree
			}
			wantState(t, w.locks, "k", want)
			if text := w.log.String(); strings.Contains(text, "no keeper works") != c.freed {
				t.Errorf("after %s the log is %s", c.kept, text)
			}
		})
	}
}

// A job whose lock is in use is not over, whatever asynq says. When the lock was used and left behind, a warning is enough.
func TestClientFreesNoLockThatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.submit(t)
		lock := w.take(t)
		w.end(t)
		time.Sleep(5*unkeptEvery + time.Second)
		wantState(t, w.locks, "k", joblock.StateHeld)
		if _, err := lock.Park(t.Context(), joblock.ForJob("default/t-1"), joblock.Reserve(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(grace - time.Second)
		wantState(t, w.locks, "k", joblock.StateParked) // it may be on its way to another job
		time.Sleep(unkeptEvery + time.Second)
		wantState(t, w.locks, "k", joblock.StateFree)
		if text := w.log.String(); strings.Contains(text, "ERROR") || !strings.Contains(text, "an ended job had left behind") {
			t.Errorf("log is %s", text)
		}
	})
}

// The lock is with another job by now.
func TestClientFreesNoLockOfAnotherJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.submit(t)
		if _, err := w.take(t).Park(t.Context(), joblock.ForJob("default/t-2"), joblock.Reserve(time.Hour)); err != nil {
			t.Fatal(err)
		}
		w.end(t)
		time.Sleep(5 * unkeptEvery)
		wantState(t, w.locks, "k", joblock.StateParked)
	})
}

// One job per key: the first, a replacement, and one that waits for another one.
func TestUniqueKeysAreNotLeftBehindEither(t *testing.T) {
	for name, policy := range map[string]handoff.OnConflict{"first": handoff.Reject, "replacement": handoff.Replace, "waits": handoff.KeepLast} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				u := handoff.Unique{Key: "k", OnConflict: policy}
				if policy != handoff.Reject {
					if _, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil, asynq.TaskID("t-0"))); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil, asynq.TaskID("t-1"))); err != nil {
					t.Fatal(err)
				}
				w.end(t)
				time.Sleep(grace + unkeptEvery + time.Second)
				wantState(t, w.locks, "k", joblock.StateFree)
				wantState(t, w.locks, keyspace.Next("k"), joblock.StateFree)
			})
		})
	}
}

// While asynq or the store does not answer, nothing is freed. Afterwards all is.
func TestOutagesFreeNoLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.submit(t)
		w.end(t)
		w.faults.setDown(errDown)
		time.Sleep(3 * unkeptEvery)
		wantState(t, w.locks, "k", joblock.StateParked)
		w.faults.setDown(nil)
		time.Sleep(unkeptEvery + time.Second)
		wantState(t, w.locks, "k", joblock.StateFree)
	})
}

// Jobs whose sequence halts keep their key when they have failed, and so does a job that waits in line.
func TestClientLeavesSequencesThatHaltAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		s := handoff.Sequence{Key: "k", HaltOnFailure: true}
		if _, err := w.jobs.Enqueue(t.Context(), s, asynq.NewTask("export", nil, asynq.TaskID("t-1"))); err != nil {
			t.Fatal(err)
		}
		if err := w.inspector.ArchiveTask("default", "t-1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * unkeptEvery)
		if st := wantState(t, w.locks, "k", joblock.StateParked); st.Job != envelope.Job("default", "t-1") {
			t.Errorf("the key is with %s", st.Job)
		}
	})
}

// Close ends the look, and does not wait for the next one.
func TestCloseEndsTheLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.submit(t)
		w.end(t)
		began := time.Now()
		if err := w.jobs.Close(context.Background()); err != nil || time.Since(began) > 0 {
			t.Errorf("Close: %v, after %s", err, time.Since(began))
		}
		time.Sleep(3 * unkeptEvery)
		wantState(t, w.locks, "k", joblock.StateParked)
	})
}
