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
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

var replaceK = handoff.Unique{Key: "k", OnConflict: handoff.Replace}

// first enqueues the job that is to be replaced, in 48 hours.
func (w *web) first(t *testing.T, u handoff.Unique, opts ...asynq.Option) *asynq.TaskInfo {
	t.Helper()
	opts = append([]asynq.Option{asynq.TaskID("first"), asynq.ProcessIn(48 * time.Hour)}, opts...)
	got, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", []byte("first")), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return got.Task
}

// second enqueues the job that is to replace it, at once.
func (w *web) second(ctx context.Context, u handoff.Unique, opts ...asynq.Option) (handoff.Result, error) {
	return w.jobs.Enqueue(ctx, u, asynq.NewTask("export", []byte("second"), asynq.TaskID("second")), opts...)
}

// wantFirstOnly checks that nothing has changed for the first job, and that there
// is no second one.
func (w *web) wantFirstOnly(t *testing.T, first *asynq.TaskInfo) {
	t.Helper()
	if got, err := w.inspector.GetTaskInfo("default", "second"); !errors.Is(err, asynq.ErrTaskNotFound) {
		t.Errorf("the second job is there: %+v, %v", got, err)
	}
	if st := wantAny(t, w.locks, "k"); st.Reserved < 47*time.Hour {
		t.Errorf("the key is reserved for %s, want beyond the job's delay", st.Reserved)
	}
	w.wantOnly(t, replaceK, handoff.Result{Task: first})
}

// A worker that is faster than the call has the job: it is not replaced.
func TestJobThatStartsJustThenIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		first := w.first(t, replaceK)
		var running *joblock.Lock
		w.store.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: func() {
			env, _, err := envelopekit.Read(w.task(t, first.Queue, first.ID).Headers)
			if err == nil {
				running, err = w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob("default/first"))
			}
			if err != nil {
				t.Error(err)
			}
		}}, faultstore.Resume)
		if got, err := w.second(t.Context(), replaceK); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("%+v, %v; want ErrHeld", got, err)
		}
		if err := running.Renew(t.Context()); err != nil {
			t.Errorf("the worker has lost its lock: %v", err)
		}
		if got, err := w.inspector.GetTaskInfo("default", "second"); err == nil {
			t.Errorf("the second job is there: %+v", got)
		}
		w.task(t, "default", "first")
	})
}

// With UntilStarted it has given the key up by then.
func TestJobThatStartsJustThenLeavesTheKey(t *testing.T) {
	w := newMiniWeb(t)
	u := replaceK
	u.UntilStarted = true
	first := w.first(t, u)
	w.store.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: func() {
		env, _, err := envelopekit.Read(w.task(t, first.Queue, first.ID).Headers)
		if err == nil {
			err = (*core.Locker)(w.locks).Release(t.Context(), []core.Token{core.Token(env.UntilStart[0])}, core.Release{IfIdle: true, Job: "default/first", Reason: "job started"})[0]
		}
		if err != nil {
			t.Error(err)
		}
	}}, faultstore.Resume)
	got, err := w.second(t.Context(), u)
	if err != nil || got.Replaced != nil {
		t.Fatalf("%+v, %v; want it enqueued, and nothing replaced", got, err)
	}
	w.task(t, "default", "first")
	w.wantOnly(t, u, got)
}

func TestFailedReplacementLeavesTheFirstJob(t *testing.T) {
	for name, enqueue := range map[string]func(w *web) func(context.Context, func() error) error{
		"not sent": func(*web) func(context.Context, func() error) error {
			return func(context.Context, func() error) error { return errDown }
		},
		"refused": func(w *web) func(context.Context, func() error) error {
			return func(_ context.Context, apply func() error) error {
				_, err := w.client.Enqueue(asynq.NewTask("other", nil), asynq.TaskID("second"))
				return errors.Join(err, apply())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				first := w.first(t, replaceK)
				w.faults.onEnqueue(enqueue(w))
				got, err := w.second(t.Context(), replaceK)
				if err == nil || got.Task != nil {
					t.Fatalf("%+v, %v; want an error", got, err)
				}
				if name == "refused" {
					if err := w.inspector.DeleteTask("default", "second"); err != nil {
						t.Fatal(err)
					}
				}
				w.wantFirstOnly(t, first)
			})
		})
	}
}

// It is unknown whether the second job exists: the lock is the first one's. If it
// does, it waits for that.
func TestReplacementOfUnknownOutcome(t *testing.T) {
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				first := w.first(t, replaceK)
				w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
					w.faults.setDown(errDown)
					if applied {
						return errors.Join(apply(), errDown)
					}
					return errDown
				})
				if _, err := w.second(t.Context(), replaceK); !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error is %v, want ErrUnavailable", err)
				}
				w.faults.setDown(nil)
				time.Sleep(watchFor)
				if !applied {
					w.wantFirstOnly(t, first)
					return
				}
				env, _, err := envelopekit.Read(w.task(t, "default", "second").Headers)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob("default/second")); !errors.Is(err, joblock.ErrNotOwner) {
					t.Errorf("the second job's Resume: %v, want ErrNotOwner", err)
				}
				w.wantOnly(t, replaceK, handoff.Result{Task: first})
			})
		})
	}
}

func TestCancelledReplacement(t *testing.T) {
	for name, applied := range map[string]bool{"not sent": false, "applied": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				first := w.first(t, replaceK)
				ctx, cancel := context.WithCancel(t.Context())
				w.faults.onEnqueue(func(ctx context.Context, apply func() error) error {
					cancel()
					if applied {
						return errors.Join(apply(), context.Canceled)
					}
					return context.Canceled
				})
				got, err := w.second(ctx, replaceK)
				if applied {
					if err != nil || got.Replaced == nil {
						t.Fatalf("%+v, %v; want the first job replaced", got, err)
					}
					w.wantNoTask(t, first)
					w.wantOnly(t, replaceK, got)
					return
				}
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error is %v, want context.Canceled", err)
				}
				w.wantFirstOnly(t, first)
			})
		})
	}
}

// Everything is done but that the lock could be parked for the new job. The caller
// learns of it; the lease runs out, and the keeper finds the reservation stale.
func TestReplacementThatCannotBeParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.keeper(t, 1) // or the Client would see to the lock by itself
		first := w.first(t, replaceK)
		w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Park)
		if _, err := w.second(t.Context(), replaceK); !errors.Is(err, joblock.ErrUnavailable) || !strings.Contains(err.Error(), "in place of") {
			t.Errorf("error is %v, want ErrUnavailable", err)
		}
		w.store.Clear(faultstore.Park)
		w.wantNoTask(t, first)
		w.task(t, "default", "second")
		time.Sleep(time.Minute)
		if st := wantState(t, w.locks, "k", joblock.StateOrphaned); st.Job != "default/first" {
			t.Errorf("reserved for %q", st.Job)
		}
		if err := jobs.Free(t.Context(), w.locks, jobs.Release{Key: "k", Job: "default/first", Reason: "job gone"})[0]; err != nil {
			t.Errorf("the keeper: %v", err)
		}
	})
}

// A lock that is gone cannot keep the first job from running: it is not deleted.
func TestLockLostWhileReplacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.first(t, replaceK)
		w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
			if err := w.locks.ForceRelease(t.Context(), "k", joblock.Reason("by hand")); err != nil {
				return err
			}
			time.Sleep(time.Minute) // until a renewal tells
			return apply()
		})
		if _, err := w.second(t.Context(), replaceK); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("error is %v, want ErrLost", err)
		}
		w.task(t, "default", "first")
		if got, err := w.inspector.GetTaskInfo("default", "second"); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("the second job is there: %+v, %v", got, err)
		}
	})
}

// A job with other locks stands for their keys too: a call about one of its keys must not end it.
func TestJobWithOtherLocksIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		locks := joblock.Locks{acquire(t, w.locks, "a"), acquire(t, w.locks, "k"), acquire(t, w.locks, "z")}
		first, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(locks...), asynq.NewTask("export", nil)))
		if err != nil {
			t.Fatal(err)
		}
		many := func(ctx context.Context, u handoff.Unique, opts ...asynq.Option) (handoff.Result, error) {
			got, err := w.jobs.EnqueueMany(ctx, []handoff.Item{{Task: asynq.NewTask("export", nil, asynq.TaskID("second")), How: u, Opts: opts}})
			if err != nil {
				t.Fatal(err)
			}
			return got[0], got[0].Err
		}
		for name, second := range map[string]func(context.Context, handoff.Unique, ...asynq.Option) (handoff.Result, error){"Enqueue": w.second, "EnqueueMany": many} {
			for _, opts := range [][]asynq.Option{nil, {asynq.TaskID(first.ID)}} {
				got, err := second(t.Context(), replaceK, opts...)
				if _, id, _ := handoff.JobOf(err); !errors.Is(err, joblock.ErrHeld) || got.Task != nil || id != first.ID || !strings.Contains(err.Error(), `lock on "a"`) {
					t.Errorf("%s: %+v, %v; want an ErrHeld that names the other key", name, got, err)
				}
			}
		}
		w.task(t, "default", first.ID)
		for _, key := range []string{"a", "k", "z"} {
			wantState(t, w.locks, key, joblock.StateParked)
		}
	})
}

// A job of a sequence is one of many that all have to run, even if other calls use the key of the sequence.
func TestJobOfASequenceIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		first, err := w.jobs.Enqueue(t.Context(), handoff.Sequence{Key: "k"}, asynq.NewTask("export", nil))
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.second(t.Context(), replaceK)
		if !errors.Is(err, joblock.ErrHeld) || got.Task != nil || !strings.Contains(err.Error(), "a job of a sequence") {
			t.Errorf("%+v, %v; want an ErrHeld that says why", got, err)
		}
		w.task(t, "default", first.Task.ID)
	})
}

// The new job may have the TaskID of the job that it replaces: to reschedule a job under its name.
func TestReplacementWithTheSameTaskID(t *testing.T) {
	for policy, onConflict := range map[string]handoff.OnConflict{"Replace": handoff.Replace, "KeepLast": handoff.KeepLast} {
		for _, s := range []situation{pending, scheduled, aggregating, retrying} {
			if s == retrying && onConflict == handoff.KeepLast {
				continue // the job has left the key to the next by then
			}
			t.Run(policy+", "+string(s), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					u := handoff.Unique{Key: "k", OnConflict: onConflict}
					first := w.bring(t, s, u)
					for _, delay := range []time.Duration{2 * time.Hour, 0} { // later, and earlier again
						got, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", []byte("second")), asynq.TaskID(first.ID), asynq.ProcessIn(delay))
						if err != nil || got.Replaced == nil || got.Replaced.ID != first.ID || got.Task.ID != first.ID {
							t.Fatalf("%+v, %v; want the task replaced, under its ID", got, err)
						}
						now := w.task(t, "default", first.ID)
						if string(now.Payload) != "second" || time.Until(now.NextProcessAt) < delay-2*time.Second || now.Retried != 0 {
							t.Errorf("the task is %+v, want the new one in %s", now, delay)
						}
						info, err := w.inspector.GetQueueInfo("default")
						if err != nil || info.Size != 1 {
							t.Errorf("%+v, %v; want one task", info, err)
						}
						if st := wantState(t, w.locks, slotOf(u), joblock.StateParked); st.Job != "default/"+first.ID || st.Reserved < delay+time.Hour-time.Minute {
							t.Errorf("the key is %+v", st)
						}
						first = now
					}
					w.wantOnly(t, u, handoff.Result{Task: first})
				})
			})
		}
	}
}

// While a job is replaced under its own ID, another caller takes the ID. The job that is to be replaced is deleted by
// then, so a stand-in has the key, and the caller learns its name.
func TestTaskIDIsTakenWhileItsJobIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.first(t, replaceK)
		w.faults.onEach(func(n int32, apply func() error) error {
			if n == 2 {
				if _, err := w.client.Enqueue(asynq.NewTask("other", nil), asynq.TaskID("first")); err != nil {
					t.Error(err)
				}
			}
			return apply()
		})
		got, err := w.second(t.Context(), replaceK, asynq.TaskID("first"))
		st := wantState(t, w.locks, "k", joblock.StateParked)
		if !errors.Is(err, joblock.ErrUnavailable) || got.Task != nil || !strings.Contains(err.Error(), st.Job) {
			t.Errorf("%+v, %v; want ErrUnavailable that names %s", got, err, st.Job)
		}
		queue, id, _ := strings.Cut(st.Job, "/")
		if info := w.task(t, queue, id); string(info.Payload) != "second" {
			t.Errorf("the stand-in is %+v", info)
		} else {
			w.wantOnly(t, replaceK, handoff.Result{Task: info})
		}
	})
}

// The new job's delay counts, not that of the job it replaces.
func TestReplacementIsReservedForItsOwnDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.first(t, replaceK)
		if _, err := w.second(t.Context(), replaceK, asynq.ProcessIn(72*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if st := wantAny(t, w.locks, "k"); st.Reserved < 72*time.Hour+time.Hour-time.Minute {
			t.Errorf("the key is reserved for %s", st.Reserved)
		}
	})
}

// A lock that was parked for a task by hand, whose token is elsewhere.
func TestTaskWithoutTheTokenIsNotReplaced(t *testing.T) {
	w := newMiniWeb(t)
	if _, err := w.client.Enqueue(asynq.NewTask("export", nil), asynq.TaskID("first")); err != nil {
		t.Fatal(err)
	}
	if _, err := acquire(t, w.locks, "k").Park(t.Context(), joblock.ForJob("default/first")); err != nil {
		t.Fatal(err)
	}
	_, err := w.second(t.Context(), replaceK)
	if !errors.Is(err, joblock.ErrHeld) || !strings.Contains(err.Error(), "does not carry the lock") {
		t.Errorf("error is %v, want an ErrHeld that says why", err)
	}
	w.task(t, "default", "first")
	wantState(t, w.locks, "k", joblock.StateParked)
}
