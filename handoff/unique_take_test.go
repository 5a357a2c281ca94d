package handoff_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// trips notes the commands of each round trip of a client.
type trips struct {
	mu   sync.Mutex
	seen [][]string
}

func (h *trips) note(cmds ...redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, cmd := range cmds {
		if !inBackground(cmd) {
			names = append(names, cmd.Name())
		}
	}
	if len(names) > 0 {
		h.seen = append(h.seen, names)
	}
}

// inBackground reports whether cmd is one of those that a process sends by the clock: on a slow machine there are more. They
// read the seal keys every ten seconds, and every thirty whether a keeper works, and else the locks of the jobs before, whose
// keys are called warm.
func inBackground(cmd redis.Cmder) bool {
	if cmd.Name() != "evalsha" || len(cmd.Args()) < 4 {
		return false
	}
	key, _ := cmd.Args()[3].(*string) // after the script and the number of keys; asynq's are strings
	return key != nil && slices.ContainsFunc([]string{"%seal", "%keeper", ":warm"}, func(s string) bool { return strings.Contains(*key, s) })
}

func (h *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(cmd)
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(cmds...)
		return next(ctx, cmds)
	}
}

func (h *trips) take() [][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = nil
	return seen
}

// The key is taken for the job in one round trip, and the job enqueued in another.
func TestRoundTripsOfAUniqueEnqueue(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	rdb := db.Client(t)
	var seen trips
	rdb.AddHook(&seen)
	w := &web{rdb: rdb, faults: &faults{}}
	w.locks = newLocker(t, testkit.Must(redisstore.New(rdb, nil)))
	w.connect(t, nil)
	for _, key := range []string{"first", "second"} { // the first makes seal keys, scripts and the queue known
		seen.take()
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: key}, asynq.NewTask("export", nil)); err != nil {
			t.Fatal(err)
		}
	}
	got := seen.take()
	if want := [][]string{{"evalsha"}, {"evalsha"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("round trips %q, want %q", got, want)
	}
}

// With no answer to the take nothing is enqueued, and the key is free soon.
func TestUniqueTakeWithoutAnAnswer(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refused": faultstore.Refuse, "reply dropped": faultstore.Drop, "hangs": faultstore.HangApplied} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				tasks := w.tasks(t)
				w.store.Set(faultstore.Fault{Mode: mode, Times: 1}, faultstore.Take)
				got, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("export", nil))
				if !errors.Is(err, joblock.ErrUnavailable) || got.Task != nil {
					t.Errorf("%+v, %v; want ErrUnavailable", got, err)
				}
				time.Sleep(4 * time.Second)
				wantState(t, w.locks, "k", joblock.StateFree)
				if n := w.tasks(t); n != tasks {
					t.Errorf("%d tasks, want %d", n, tasks)
				}
			})
		})
	}
}

// The lock store goes away just when the key of a refused task is to be freed.
func TestUniqueKeyThatCannotBeFreedIsFreedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(context.Context, func() error) error {
			w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Release)
			return errDown
		})
		_, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("export", nil))
		if !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("error is %v, want ErrUnavailable", err)
		}
		wantState(t, w.locks, "k", joblock.StateParked)
		w.store.Clear(faultstore.Release)
		time.Sleep(time.Minute)
		wantState(t, w.locks, "k", joblock.StateFree)
	})
}

// While it is unknown whether the task exists its key is not freed, and the task that turns
// out to exist keeps it.
func TestUniqueEnqueueOfUnknownOutcome(t *testing.T) {
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
					if applied {
						_ = apply()
					}
					w.faults.setDown(errDown)
					return errDown
				})
				_, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("export", nil), asynq.TaskID("t-1"))
				if !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error is %v, want ErrUnavailable", err)
				}
				wantState(t, w.locks, "k", joblock.StateParked)
				w.faults.setDown(nil)
				time.Sleep(time.Minute)
				if !applied {
					wantState(t, w.locks, "k", joblock.StateFree)
					return
				}
				w.wantOnly(t, handoff.Unique{Key: "k"}, handoff.Result{Task: w.task(t, "default", "t-1")})
			})
		})
	}
}

// A key that was forced while its task was refused is not ours to free, nor an error.
func TestUniqueKeyThatWasForcedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(context.Context, func() error) error {
			if err := w.locks.ForceRelease(t.Context(), "k", joblock.Reason("by hand")); err != nil {
				t.Error(err)
			}
			acquire(t, w.locks, "k")
			return errDown
		})
		_, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("export", nil))
		if err == nil || joblock.CodeOf(err) != "" {
			t.Errorf("error is %v, want asynq's alone", err)
		}
		wantState(t, w.locks, "k", joblock.StateHeld)
	})
}

// A caller that takes the key while its job is on its way finds the job.
func TestUniqueKeyNamesItsJobBeforeTheEnqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
			st := wantState(t, w.locks, "k", joblock.StateParked)
			if want := envelope.Job("default", "t-1"); st.Job != want {
				t.Errorf("the key is bound to %q, want %q", st.Job, want)
			}
			return apply()
		})
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("export", nil), asynq.TaskID("t-1")); err != nil {
			t.Error(err)
		}
	})
}

// The locks of a job are parked in one call.
func TestLocksOfAJobAreParkedInOneCall(t *testing.T) {
	w := newMiniWeb(t)
	locks := joblock.Locks{acquire(t, w.locks, "a"), acquire(t, w.locks, "b"), acquire(t, w.locks, "c")}
	before := w.store.Calls(faultstore.Park)
	info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(locks...), asynq.NewTask("export", nil)))
	if err != nil {
		t.Fatal(err)
	}
	if n := w.store.Calls(faultstore.Park) - before; n != 1 {
		t.Errorf("%d calls of the store, want 1", n)
	}
	for _, lock := range locks {
		w.wantWithJob(t, lock, info)
	}
}

// An enqueue that may be repeated fails after it has taken its key. The key stays with the call: a copy that was under way
// may be about to enqueue the task. A later copy finds the key, and enqueues.
func TestCopyOfAnEnqueueFinishesIt(t *testing.T) {
	for name, how := range map[string]enqueue.How{"unique": enqueue.Unique{Key: "k"}, "sequence": enqueue.Sequence{Key: "k"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				call := enqueue.Call{Owner: "call-of-one-caller", Nonce: "0123456789abc"}
				send := func(call enqueue.Call, id string) (enqueue.Result, error) {
					return (*enqueue.Client)(w.jobs).Enqueue(t.Context(), enqueue.Request{
						How: how, Task: asynq.NewTask("export", nil), Opts: []asynq.Option{asynq.TaskID(id)}, Call: call,
					})
				}
				w.faults.onEnqueue(func(context.Context, func() error) error { return errDown })
				if got, err := send(call, "1"); err == nil || got.Task != nil {
					t.Fatalf("%+v, %v", got, err)
				}
				time.Sleep(time.Hour - time.Minute) // whatever is done in the background
				before := wantState(t, w.locks, "k", joblock.StateParked)
				w.faults.onEnqueue(nil)
				if _, err := send(enqueue.Call{}, "2"); name == "unique" && !errors.Is(err, joblock.ErrHeld) {
					t.Errorf("another call: %v", err)
				}
				got, err := send(call, "1")
				if err != nil || got.Task.ID != "1" || got.Waits {
					t.Fatalf("the copy: %+v, %v", got, err)
				}
				if after := wantState(t, w.locks, "k", joblock.StateParked); after.Fence != before.Fence || after.Job != before.Job {
					t.Errorf("%+v, want what the first copy has taken: %+v", after, before)
				}
				if _, err := send(call, "1"); !errors.Is(err, enqueue.ErrRepeated) {
					t.Errorf("one more copy: %v", err)
				}
			})
		})
	}
}
