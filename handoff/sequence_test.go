package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// inLine enqueues a task with an ID into a sequence.
func (w *web) inLine(t *testing.T, s handoff.Sequence, id string, opts ...asynq.Option) (handoff.Result, error) {
	t.Helper()
	return w.jobs.Enqueue(t.Context(), s, asynq.NewTask("webhook", nil), append([]asynq.Option{asynq.TaskID(id)}, opts...)...)
}

// warmLine is warm for tasks that are scheduled.
func (w *web) warmLine(t *testing.T) {
	t.Helper()
	w.warm(t)
	if _, err := w.client.Enqueue(asynq.NewTask("warm", nil), asynq.TaskID("warm"), asynq.ProcessIn(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := w.inspector.DeleteTask("default", "warm"); err != nil {
		t.Fatal(err)
	}
}

// mustLine is inLine for an enqueue that must succeed.
func (w *web) mustLine(t *testing.T, s handoff.Sequence, id string, opts ...asynq.Option) handoff.Result {
	t.Helper()
	done, err := w.inLine(t, s, id, opts...)
	if err != nil {
		t.Fatalf("enqueue %s: %v", id, err)
	}
	return done
}

// wantLine checks which tasks wait for key, in this order, and which task has the key: "" if no job has it.
func (w *web) wantLine(t *testing.T, key, has string, want ...string) {
	t.Helper()
	var got []string
	for at, err := range jobs.Line(t.Context(), w.locks, key) {
		if err != nil {
			t.Fatal(err)
		}
		_, id, _ := envelope.ParseJob(at.Job)
		got = append(got, id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("for %s wait %q, want %q", key, got, want)
	}
	st := wantAny(t, w.locks, key)
	if _, id, _ := envelope.ParseJob(st.Job); id != has && (st.Locked() || has != "") {
		t.Errorf("%s is %s for %q, want %q", key, st.State, st.Job, has)
	}
}

func (w *web) wantNotThere(t *testing.T, id string) {
	t.Helper()
	if info, err := w.inspector.GetTaskInfo("default", id); !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
		t.Errorf("task %s: %+v, %v; want none", id, info, err)
	}
}

func TestPlacesOfASequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		s := handoff.Sequence{Key: "k", HaltOnFailure: true}
		due := time.Now().Add(time.Hour)
		for i, id := range []string{"a", "b", "c"} {
			got := w.mustLine(t, s, id, asynq.ProcessAt(due), asynq.MaxRetry(3))
			if got.Waits != (i > 0) || got.Ahead != max(0, i-1) || got.Task.ID != id || len(got.Task.Headers) != 0 {
				t.Errorf("%s: %+v", id, got)
			}
			env, ok, err := envelopekit.Read(w.task(t, "default", id).Headers)
			if !ok || err != nil || env.Sequence == nil {
				t.Fatalf("%s carries %+v, %v", id, env, err)
			}
			seq := *env.Sequence
			at, notBefore := due, time.Time{}
			if i > 0 {
				at, notBefore = time.Now().Add(envelope.Wait), due.Truncate(time.Millisecond)
			}
			if got.Task.NextProcessAt.Unix() != at.Unix() || !seq.NotBefore.Equal(notBefore) || seq.Waits != (i > 0) || !seq.Halt ||
				seq.Token.Key() != "k" || env.Retries != 3 {
				t.Errorf("%s is due at %s with %+v", id, got.Task.NextProcessAt, seq)
			}
		}
		w.wantLine(t, "k", "a", "b", "c")
	})
}

// Two round trips, whether the job waits or not.
func TestRoundTripsOfASequence(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	rdb := db.Client(t)
	var seen trips
	rdb.AddHook(&seen)
	w := &web{rdb: rdb, faults: &faults{}}
	w.locks = newLocker(t, testkit.Must(redisstore.New(rdb, nil)))
	w.connect(t, nil)
	for i := range 4 { // the first two make seal keys, scripts and the queue known
		seen.take()
		w.mustLine(t, handoff.Sequence{Key: fmt.Sprint("k-", i/3)}, fmt.Sprint("t-", i))
		if got, want := seen.take(), [][]string{{"evalsha"}, {"evalsha"}}; i > 1 && !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("enqueue %d: round trips %q, want %q", i, got, want)
		}
	}
	w.wantLine(t, "k-0", "t-0", "t-1", "t-2")
}

func TestBadSequenceIsRefused(t *testing.T) {
	w := newMiniWeb(t)
	lock := acquire(t, w.locks, "held")
	slot, err := w.locks.TryAcquire(t.Context(), driver.SlotKey("k", 2), core.OwnKey)
	if err != nil {
		t.Fatal(err)
	}
	for says, s := range map[string]handoff.Sequence{
		"Sequence.Limit is 257":        {Key: "k", Limit: 257},
		"Sequence.Limit is -1":         {Key: "k", Limit: -1},
		"Sequence.Limit is 2":          {Key: "k", Limit: 2, HaltOnFailure: true},
		"at most 507 are allowed":      {Key: strings.Repeat("k", 508), Limit: 2},
		"Sequence.MaxWaiting is -1":    {Key: "k", MaxWaiting: -1},
		"key":                          {},
		"Lock is on another key, \"he": {Key: "k", Lock: lock},

		`a further slot of the sequence "k"`:       {Lock: slot},
		`a further slot of the sequence "k": only`: {Key: "k", Lock: slot, Limit: 2},
	} {
		if _, err := w.inLine(t, s, "t"); !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want ErrInvalid that says %q", s, err, says)
		}
	}
	if _, err := w.inLine(t, handoff.Sequence{Key: "k"}, "t", asynq.Group("g")); !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), "Group") {
		t.Errorf("with a group: %v", err)
	}
	if _, err := w.inLine(t, handoff.Sequence{Lock: newLocked(t, "held")}, "t"); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("with another Locker's lock: %v", err)
	}
	w.wantNotThere(t, "t")
	wantState(t, w.locks, "k", joblock.StateFree)
	w.wantWithCaller(t, lock)
}

// newLocked returns a lock of another Locker.
func newLocked(t *testing.T, key string) *joblock.Lock {
	t.Helper()
	return acquire(t, newMemLocker(t), key)
}

// Each option of asynq goes together with a sequence as the package comment says, for a job that has the key and for
// one that waits.
func TestOptionsInASequence(t *testing.T) {
	for name, waits := range map[string]bool{"has the key": false, "waits": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				s := handoff.Sequence{Key: "k"}
				if waits {
					w.mustLine(t, s, "first")
				}
				late := time.Now().Add(48 * time.Hour)
				got := w.mustLine(t, s, "t", asynq.Deadline(late), asynq.Timeout(time.Minute), asynq.Retention(time.Hour), asynq.MaxRetry(7), asynq.Queue("low"))
				info := w.task(t, "low", "t")
				if info.Deadline.Unix() != late.Unix() || info.Timeout != time.Minute || info.Retention != time.Hour || info.MaxRetry != 8 || got.Waits != waits {
					t.Errorf("the task is %+v", info)
				}
				// asynq.Unique: one task, and a duplicate takes no place.
				w.mustLine(t, s, "u", asynq.Unique(time.Hour))
				_, err := w.inLine(t, s, "v", asynq.Unique(time.Hour))
				if !errors.Is(err, asynq.ErrDuplicateTask) {
					t.Errorf("a duplicate: %v", err)
				}
				if waits {
					w.wantLine(t, "k", "first", "t", "u")
				} else {
					w.wantLine(t, "k", "t", "u")
				}
			})
		})
	}
}

// A TaskID is taken once, in whatever state its task is, and a refused enqueue has no place.
func TestTaskIDConflictInASequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		s := handoff.Sequence{Key: "k"}
		w.mustLine(t, s, "a")
		w.mustLine(t, s, "b")
		if _, err := w.client.Enqueue(asynq.NewTask("webhook", nil), asynq.TaskID("x")); err != nil {
			t.Fatal(err)
		}
		for id, why := range map[string]string{"a": "has the key", "b": "waits", "x": "has no record"} {
			if _, err := w.inLine(t, s, id); !errors.Is(err, asynq.ErrTaskIDConflict) {
				t.Errorf("a task that %s: %v, want ErrTaskIDConflict", why, err)
			}
		}
		w.wantLine(t, "k", "a", "b")
		// The task of a place is gone: another call may be enqueuing it.
		if err := w.inspector.DeleteTask("default", "b"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.inLine(t, s, "b"); !errors.Is(err, joblock.ErrHeld) || errors.Is(err, asynq.ErrTaskIDConflict) {
			t.Errorf("a place without a task: %v, want ErrHeld", err)
		}
	})
}

func TestFullLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		s := handoff.Sequence{Key: "k", MaxWaiting: 2}
		for _, id := range []string{"a", "b", "c"} {
			w.mustLine(t, s, id)
		}
		if _, err := w.inLine(t, s, "d"); !errors.Is(err, handoff.ErrLineFull) || !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("a full line: %v", err)
		}
		w.wantNotThere(t, "d")
		w.wantLine(t, "k", "a", "b", "c")
	})
}

// asynq refuses a job: it has no place, and a key that it had goes to the next, whose task is started.
func TestRefusedEnqueueInASequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warmLine(t)
		s := handoff.Sequence{Key: "k"}
		w.faults.onEnqueue(func(context.Context, func() error) error { // of a, which has the key
			w.mustLine(t, s, "b")
			w.faults.onEnqueue(func(context.Context, func() error) error { return errDown })
			if _, err := w.inLine(t, s, "c"); err == nil {
				t.Error("c was enqueued")
			}
			w.wantLine(t, "k", "a", "b")
			return errDown
		})
		if _, err := w.inLine(t, s, "a"); err == nil {
			t.Error("a was enqueued")
		}
		time.Sleep(time.Second)
		w.wantLine(t, "k", "b")
		if state := w.task(t, "default", "b").State; state != asynq.TaskStatePending {
			t.Errorf("b is %s, want pending", state)
		}
	})
}

// While it is unknown whether the task exists, its place is kept.
func TestPlaceOfAnEnqueueOfUnknownOutcome(t *testing.T) {
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warmLine(t)
				s := handoff.Sequence{Key: "k"}
				w.mustLine(t, s, "a")
				w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
					if applied {
						_ = apply()
					}
					w.faults.setDown(errDown)
					return errDown
				})
				if _, err := w.inLine(t, s, "b"); !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error is %v, want ErrUnavailable", err)
				}
				w.wantLine(t, "k", "a", "b")
				w.faults.setDown(nil)
				time.Sleep(time.Minute)
				if applied {
					w.wantLine(t, "k", "a", "b")
				} else {
					w.wantLine(t, "k", "a")
				}
			})
		})
	}
}

// With no answer to the Take nothing is enqueued, and soon there is no place.
func TestPlaceWithoutAnAnswer(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refused": faultstore.Refuse, "reply dropped": faultstore.Drop} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				s := handoff.Sequence{Key: "k"}
				w.mustLine(t, s, "a")
				w.store.Set(faultstore.Fault{Mode: mode, Times: 1}, faultstore.Take)
				if _, err := w.inLine(t, s, "b"); !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error is %v, want ErrUnavailable", err)
				}
				time.Sleep(4 * time.Second)
				w.wantLine(t, "k", "a")
				w.wantNotThere(t, "b")
			})
		})
	}
}

// A job that takes over the request's lock comes before those that wait.
func TestLockInASequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		lock := acquire(t, w.locks, "k")
		w.mustLine(t, handoff.Sequence{Key: "k"}, "b")
		got := w.mustLine(t, handoff.Sequence{Lock: lock, HaltOnFailure: true}, "a")
		if got.Waits || got.Task.State != asynq.TaskStatePending {
			t.Errorf("a: %+v", got)
		}
		w.wantLine(t, "k", "a", "b")
		w.wantWithJob(t, lock, got.Task)
		env, _, err := envelopekit.Read(w.task(t, "default", "a").Headers)
		if err != nil || env.Sequence == nil || !env.Sequence.Halt || env.Sequence.Waits {
			t.Errorf("a carries %+v, %v", env.Sequence, err)
		}
	})
}

// The order of the items is the order of the line, for a thousand of them in three sequences.
func TestManyInSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		var items []handoff.Item
		want := map[string][]string{}
		for i := range 1000 {
			key, id := fmt.Sprint("k-", i%3), fmt.Sprint("t-", i)
			want[key] = append(want[key], id)
			items = append(items, handoff.Item{
				Task: asynq.NewTask("webhook", nil, asynq.TaskID(id)), How: handoff.Sequence{Key: key, MaxWaiting: 300},
			})
		}
		results, err := w.jobs.EnqueueMany(t.Context(), items)
		if err != nil {
			t.Fatal(err)
		}
		if n := w.store.Calls("take"); n > 2 {
			t.Errorf("%d calls of Take, want one for all items", n)
		}
		for i, r := range results {
			if full := i >= 3*301; full != errors.Is(r.Err, handoff.ErrLineFull) || !full && (r.Err != nil || r.Waits != (i > 2)) {
				t.Fatalf("item %d: %+v", i, r)
			}
		}
		for key, ids := range want {
			w.wantLine(t, key, ids[0], ids[1:301]...)
		}
		bad := handoff.Item{Task: asynq.NewTask("webhook", nil), Opts: []asynq.Option{asynq.Queue("low")}}
		results, err = w.jobs.EnqueueMany(t.Context(), []handoff.Item{bad})
		if err != nil || !errors.Is(results[0].Err, joblock.ErrInvalid) {
			t.Errorf("an item without a How: %+v, %v", results, err)
		}
	})
}
