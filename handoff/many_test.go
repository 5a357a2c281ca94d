package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// manyItems returns n items with keys and task IDs of their own.
func manyItems(n int) []handoff.Item {
	items := make([]handoff.Item, n)
	for i := range items {
		items[i] = handoff.Item{
			Task: asynq.NewTask("export", nil, asynq.TaskID(fmt.Sprint("t-", i))),
			How:  handoff.Unique{Key: fmt.Sprint("key-", i)},
		}
	}
	return items
}

// wantEach checks that each item of manyItems either has its task and its key, or neither. It returns how many have.
func (w *web) wantEach(t *testing.T, results []handoff.Result) (enqueued int) {
	t.Helper()
	keys := make([]string, len(results))
	for i := range results {
		keys[i] = fmt.Sprint("key-", i)
	}
	sts, err := w.locks.Status(context.Background(), keys...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		id := fmt.Sprint("t-", i)
		info, err := w.inspector.GetTaskInfo("default", id)
		if err != nil {
			if sts[i].Locked() || r.Err == nil {
				t.Errorf("item %d: error %v, no task, and the key is %s", i, r.Err, sts[i].State)
			}
			continue
		}
		enqueued++
		if r.Err == nil && (r.Task == nil || r.Task.ID != id) {
			t.Errorf("item %d: result %+v", i, r)
		}
		env, _, err := envelopekit.Read(info.Headers)
		if err != nil {
			t.Fatal(err)
		}
		if st := sts[i]; st.State != joblock.StateParked || st.Job != envelope.Job("default", id) || st.Owner != env.Tokens[0].Digest() {
			t.Errorf("item %d: error %v, a task, and the key is %s for job %q", i, r.Err, st.State, st.Job)
		}
	}
	return enqueued
}

// many is EnqueueMany, which must not fail as a whole.
func (w *web) many(ctx context.Context, t *testing.T, items []handoff.Item) []handoff.Result {
	t.Helper()
	results, err := w.jobs.EnqueueMany(ctx, items)
	if err != nil || len(results) != len(items) {
		t.Fatalf("%d results, error %v; want %d", len(results), err, len(items))
	}
	return results
}

// A thousand keys are taken in one round trip, on a real server.
func TestManyTasks(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	rdb := db.Client(t)
	var seen trips
	rdb.AddHook(&seen)
	w := &web{rdb: rdb, faults: &faults{}}
	w.locks = newLocker(t, testkit.Must(redisstore.New(rdb, nil)))
	w.connect(t, nil)
	w.warm(t)
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "warm"}, asynq.NewTask("warm", nil)); err != nil {
		t.Fatal(err)
	}
	seen.take()
	results := w.many(t.Context(), t, manyItems(1000))
	var pipelines []int
	single := 0
	for _, names := range seen.take() {
		switch {
		case names[0] != "evalsha": // of a new connection
		case len(names) > 1:
			pipelines = append(pipelines, len(names))
		default:
			single++
		}
	}
	if !slices.Equal(pipelines, []int{1000}) || single != 1000 {
		t.Errorf("pipelines of %d scripts and %d other scripts, want one of %d and as many others", pipelines, single, 1000)
	}
	for i, r := range results {
		if r.Err != nil || r.Duplicate || len(r.Task.Headers) > 0 {
			t.Errorf("item %d: %+v", i, r)
		}
	}
	if n := w.wantEach(t, results); n != 1000 {
		t.Errorf("%d tasks, want %d", n, 1000)
	}
}

// The locks of all items are parked in one call.
func TestManyTasksWithLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		items := manyItems(5)
		var locks []joblock.Locks
		for i := range items {
			carried := joblock.Locks{acquire(t, w.locks, fmt.Sprint("a-", i)), acquire(t, w.locks, fmt.Sprint("b-", i))}
			items[i].How = handoff.Carry(carried...)
			locks = append(locks, carried)
		}
		gone := locks[3][1]
		if err := gone.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		results := w.many(t.Context(), t, items)
		if calls, parked := w.store.Calls(faultstore.Park), w.store.Items(faultstore.Park); calls != 1 || parked != 8 {
			t.Errorf("%d calls of the store for %d locks, want 1 for 8", calls, parked)
		}
		for i, r := range results {
			if i == 3 {
				if !errors.Is(r.Err, joblock.ErrAlreadyReleased) {
					t.Errorf("item %d: error %v, want ErrAlreadyReleased", i, r.Err)
				}
				w.wantWithCaller(t, locks[i][0])
				continue
			}
			if r.Err != nil {
				t.Fatalf("item %d: %v", i, r.Err)
			}
			for _, lock := range locks[i] {
				w.wantWithJob(t, lock, r.Task)
			}
		}
	})
}

// The second of two items on one key fares as in a call of its own after the first.
func TestManyTasksOfOneKey(t *testing.T) {
	for name, policy := range map[string]handoff.OnConflict{
		"Reject": handoff.Reject, "Skip": handoff.Skip, "Replace": handoff.Replace, "KeepLast": handoff.KeepLast,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.faults.onEach(func(_ int32, apply func() error) error {
					time.Sleep(time.Second)
					return apply()
				})
				items := manyItems(20)
				for i := range items {
					items[i].How = handoff.Unique{Key: fmt.Sprint("key-", i/2), OnConflict: policy}
				}
				results := w.many(t.Context(), t, items)
				for i := 0; i < len(items); i += 2 {
					first, second := results[i], results[i+1]
					if first.Err != nil || first.Duplicate || first.Replaced != nil {
						t.Errorf("item %d: %+v", i, first)
						continue
					}
					switch policy {
					case handoff.Reject:
						if _, id, _ := handoff.JobOf(second.Err); !errors.Is(second.Err, joblock.ErrHeld) || id != first.Task.ID {
							t.Errorf("item %d: error %v, want ErrHeld because of %s", i+1, second.Err, first.Task.ID)
						}
					case handoff.Skip:
						if second.Err != nil || !second.Duplicate || second.Task.ID != first.Task.ID {
							t.Errorf("item %d: %+v, want the task of the item before", i+1, second)
						}
					default:
						if second.Err != nil || second.Replaced == nil || second.Replaced.ID != first.Task.ID {
							t.Errorf("item %d: %+v, want the task of the item before replaced", i+1, second)
						}
						w.wantNoTask(t, first.Task)
						first = second
					}
					w.wantOnly(t, items[i].How.(handoff.Unique), first)
				}
			})
		})
	}
}

// A lock, or a task ID, can be handed over once.
func TestManyTasksOfOneLockOrID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		lock := acquire(t, w.locks, "key-0")
		items := manyItems(6)
		items[0] = handoff.Item{Task: items[0].Task, How: handoff.Carry(lock)}
		items[1] = handoff.Item{Task: items[1].Task, How: handoff.Carry(lock)}
		items[2].How = handoff.Unique{Key: "key-0"}
		items[4].Task = asynq.NewTask("export", nil, asynq.TaskID("t-3"))
		results := w.many(t.Context(), t, items)
		for i, want := range []error{nil, joblock.ErrNotOwner, joblock.ErrHeld, nil, asynq.ErrTaskIDConflict, nil} {
			if !errors.Is(results[i].Err, want) {
				t.Errorf("item %d: error %v, want %v", i, results[i].Err, want)
			}
		}
		if _, id, _ := handoff.JobOf(results[2].Err); id != "t-0" {
			t.Errorf("item 2: the key is said to be that of job %s, want t-0", id)
		}
		wantState(t, w.locks, "key-4", joblock.StateFree)
		w.wantWithJob(t, lock, results[0].Task)
	})
}

// Of two items with one task ID the first is enqueued.
func TestManyTasksOfOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.faults.onEach(func(n int32, apply func() error) error {
			time.Sleep(time.Duration(n%2) * time.Second)
			return apply()
		})
		items := manyItems(40)
		for i := range items {
			items[i].Opts = []asynq.Option{asynq.TaskID(fmt.Sprint("t-", i/2))}
		}
		for i, r := range w.many(t.Context(), t, items) {
			want, state := error(nil), joblock.StateParked
			if i%2 > 0 {
				want, state = asynq.ErrTaskIDConflict, joblock.StateFree
			}
			if !errors.Is(r.Err, want) {
				t.Errorf("item %d: error %v, want %v", i, r.Err, want)
			}
			wantState(t, w.locks, fmt.Sprint("key-", i), state)
		}
	})
}

// An item may have its key in common with one item and its task ID with another. All three are then handled in order.
func TestManyTasksInAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.faults.onEach(func(_ int32, apply func() error) error {
			time.Sleep(time.Second)
			return apply()
		})
		items := manyItems(6)
		items[2].Opts = []asynq.Option{asynq.TaskID("t-0")}
		items[3].How, items[3].Opts = handoff.Unique{Key: "key-2"}, []asynq.Option{asynq.TaskID("t-1")}
		items[5].How, items[5].Opts = handoff.Unique{Key: "key-4"}, []asynq.Option{asynq.TaskID("t-3")}
		results := w.many(t.Context(), t, items)
		for i, want := range []error{nil, nil, asynq.ErrTaskIDConflict, asynq.ErrTaskIDConflict, nil, joblock.ErrHeld} {
			if !errors.Is(results[i].Err, want) {
				t.Errorf("item %d: error %v, want %v", i, results[i].Err, want)
			}
		}
		wantState(t, w.locks, "key-2", joblock.StateFree)
	})
}

// However the items of a call hang together by keys and task IDs, and however long each enqueue takes, each item fares as
// in a call of its own after the items before it.
func TestManyTasksThatHangTogether(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				alone, w := newMiniWeb(t), newMiniWeb(t)
				items := manyItems(12)
				for i := range items {
					items[i].How = handoff.Unique{Key: fmt.Sprint("key-", random.IntN(8))}
					items[i].Opts = []asynq.Option{asynq.TaskID(fmt.Sprint("t-", random.IntN(8)))}
				}
				var takes [100]time.Duration // of each enqueue; a call that is repeated has another one
				for i := range takes {
					takes[i] = time.Duration(random.IntN(10)) * time.Second
				}
				w.faults.onEach(func(n int32, apply func() error) error {
					time.Sleep(takes[n])
					return apply()
				})
				for i, got := range w.many(t.Context(), t, items) {
					want, err := alone.jobs.Enqueue(t.Context(), items[i].How, items[i].Task, items[i].Opts...)
					if joblock.CodeOf(got.Err) != joblock.CodeOf(err) || errors.Is(got.Err, asynq.ErrTaskIDConflict) != errors.Is(err, asynq.ErrTaskIDConflict) {
						t.Errorf("item %d, %s of %s: error %v, alone %v", i, items[i].How.(handoff.Unique).Key, items[i].Opts, got.Err, err)
						continue
					}
					if err != nil {
						_, id, _ := handoff.JobOf(got.Err)
						if _, want, _ := handoff.JobOf(err); id != want {
							t.Errorf("item %d: the key is that of job %q, alone of %q", i, id, want)
						}
					} else if got.Task.ID != want.Task.ID {
						t.Errorf("item %d: task %s, alone %s", i, got.Task.ID, want.Task.ID)
					}
				}
			})
		})
	}
}

// Two jobs of a sequence keep their order also if further items put both into one line, the later one first.
func TestManyTasksOfASequenceThatHangTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		x, y := acquire(t, w.locks, "x"), acquire(t, w.locks, "y")
		items := manyItems(5)
		for i := range 2 {
			items[i].How = handoff.Sequence{Key: "line"}
		}
		items[2].How, items[2].Opts = handoff.Unique{Key: "x"}, []asynq.Option{asynq.TaskID("t-1")}
		items[3].How, items[3].Opts = handoff.Unique{Key: "y"}, []asynq.Option{asynq.TaskID("t-0")}
		items[4].How = handoff.Carry(y, x)
		results := w.many(t.Context(), t, items)
		for i, waits := range []bool{false, true} {
			if results[i].Err != nil || results[i].Waits != waits {
				t.Errorf("item %d: %+v, want that it waits: %t", i, results[i], waits)
			}
		}
	})
}

// Bad items are refused, and the others enqueued.
func TestManyWithBadItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		stranger := acquire(t, newMemLocker(t), "stranger")
		items := manyItems(10)
		items[1].Task = nil
		items[2].How = handoff.Unique{Key: ""}
		items[3].How = handoff.Unique{Key: "no\nkey"}
		items[4].How = nil
		items[5].Opts = []asynq.Option{asynq.Unique(time.Minute)}
		items[6].Opts = []asynq.Option{asynq.Queue(" ")}
		items[7].How = handoff.Carry(stranger)
		items[8].How = handoff.Carry()
		for i, r := range w.many(t.Context(), t, items) {
			if bad := i > 0 && i < 9; bad != errors.Is(r.Err, joblock.ErrInvalid) || bad != (r.Task == nil) {
				t.Errorf("item %d: %+v", i, r)
			}
		}
		if n := w.tasks(t); n != 2 {
			t.Errorf("%d tasks, want 2", n)
		}
	})
}

// An error about all items comes before anything is done.
func TestManyThatCannotBegin(t *testing.T) {
	w := newMiniWeb(t)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errDown)
	if results, err := w.jobs.EnqueueMany(ended, manyItems(2)); results != nil || !errors.Is(err, errDown) {
		t.Errorf("with an ended context: %v, %v", results, err)
	}
	if results, err := w.jobs.EnqueueMany(t.Context(), manyItems(1000+1)); results != nil || !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("with too many items: %v, %v", results, err)
	}
	if results, err := (*handoff.Client)(nil).EnqueueMany(t.Context(), nil); results != nil || !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("of a nil Client: %v, %v", results, err)
	}
	if n := w.store.Calls(""); n != 0 {
		t.Errorf("%d calls of the store, want none", n)
	}
	w.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.SealKeys)
	if results, err := w.jobs.EnqueueMany(t.Context(), manyItems(2)); results != nil || !errors.Is(err, joblock.ErrUnavailable) {
		t.Errorf("without seal keys: %v, %v", results, err)
	}
	if n := w.store.Calls(faultstore.Take); n != 0 {
		t.Errorf("%d keys taken, want none", n)
	}
	w.store.Clear()
	if results := w.many(t.Context(), t, nil); len(results) != 0 {
		t.Errorf("no items: %v", results)
	}
}

// What was not sent when ctx ends is not sent, and its keys are free.
func TestManyWhoseContextEnds(t *testing.T) {
	for name, hangs := range map[string]bool{"asynq answers": false, "asynq hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				ctx, cancel := context.WithCancel(t.Context())
				answer := make(chan struct{})
				w.faults.onEach(func(n int32, apply func() error) error {
					if n == 5 {
						cancel()
					}
					err := apply()
					if n >= 5 && hangs {
						<-answer
					}
					return err
				})
				time.AfterFunc(settleFor/2, func() { wantState(t, w.locks, "key-199", joblock.StateFree) })
				time.AfterFunc(2*settleFor, func() { close(answer) })
				start := time.Now()
				results := w.many(ctx, t, manyItems(200))
				if took := time.Since(start); took > settleFor+time.Second {
					t.Errorf("it took %s", took)
				}
				unknown, unsent := 0, 0
				for i, r := range results {
					switch {
					case r.Err == nil:
					case errors.Is(r.Err, handoff.ErrNotSent) && errors.Is(r.Err, context.Canceled) && !errors.Is(r.Err, joblock.ErrUnavailable):
						unsent++
						wantState(t, w.locks, fmt.Sprint("key-", i), joblock.StateFree) // already
					case errors.Is(r.Err, joblock.ErrUnavailable) && hangs:
						unknown++
					default:
						t.Errorf("item %d: %v", i, r.Err)
					}
				}
				if unsent < 150 || hangs && unknown == 0 {
					t.Errorf("%d items were not sent and %d are unknown", unsent, unknown)
				}
				time.Sleep(time.Minute)
				if n := w.wantEach(t, results); n != len(results)-unsent {
					t.Errorf("%d tasks, want %d", n, len(results)-unsent)
				}
			})
		})
	}
}

// After an answer that does not come no more tasks are sent. Once asynq's Redis is back, each task has its key, and
// each key its task.
func TestManyInAnOutage(t *testing.T) {
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				var sent atomic.Int32
				w.faults.onEach(func(n int32, apply func() error) error {
					sent.Store(n)
					if n < 20 || applied {
						_ = apply()
					}
					if n < 20 {
						return nil
					}
					w.faults.setDown(errDown)
					return errDown
				})
				results := w.many(t.Context(), t, manyItems(200))
				unknown, unsent := 0, 0
				for i, r := range results {
					switch {
					case errors.Is(r.Err, handoff.ErrNotSent):
						unsent++
						if _, _, ok := handoff.JobOf(r.Err); ok || errors.Is(r.Err, joblock.ErrUnavailable) {
							t.Errorf("item %d: %v", i, r.Err)
						}
					case errors.Is(r.Err, joblock.ErrUnavailable):
						unknown++
					case r.Err != nil:
						t.Errorf("item %d: %v", i, r.Err)
					}
				}
				if unknown == 0 || unsent < 100 {
					t.Errorf("%d items are unknown and %d not sent", unknown, unsent)
				}
				w.faults.setDown(nil)
				time.Sleep(time.Minute)
				w.wantEach(t, results)
			})
		})
	}
}

// A task that asynq refuses gives its key back, and the others are enqueued.
func TestManyOfWhichSomeAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		w.faults.onEach(func(n int32, apply func() error) error {
			if n%10 == 0 {
				return errDown
			}
			return apply()
		})
		results := w.many(t.Context(), t, manyItems(100))
		if n := w.wantEach(t, results); n != 90 {
			t.Errorf("%d tasks, want 90", n)
		}
	})
}

// Without an answer to the call that takes the keys nothing is sent, and the keys are free soon.
func TestManyTakesWithoutAnAnswer(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refused": faultstore.Refuse, "reply dropped": faultstore.Drop, "hangs": faultstore.HangApplied} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.store.Set(faultstore.Fault{Mode: mode, Times: 1}, faultstore.Take)
				results := w.many(t.Context(), t, manyItems(300))
				for i, r := range results {
					if !errors.Is(r.Err, joblock.ErrUnavailable) {
						t.Errorf("item %d: %v, want ErrUnavailable", i, r.Err)
					}
				}
				time.Sleep(4 * time.Second)
				if n := w.wantEach(t, results); n != 0 {
					t.Errorf("%d tasks, want none", n)
				}
			})
		})
	}
}

// Replies of a real server are lost, of asynq's commands and of those of the locks.
func TestManyWithLostReplies(t *testing.T) {
	for name, lost := range map[string]struct {
		match redistest.Match
		times int
		want  int // tasks; -1: some
	}{
		"of enqueues":  {redistest.Mentioning("t-7"), 3, 100},
		"of the takes": {redistest.Mentioning("key-50"), 1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			db := redistest.Shared(t)
			redistest.Ran(t, db.Backend())
			proxy := redistest.NewProxy(t, db.Addr())
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
			t.Cleanup(func() { _ = rdb.Close() })
			w := &web{rdb: rdb, faults: &faults{}}
			w.locks = newLocker(t, testkit.Must(redisstore.New(rdb, nil)))
			w.connect(t, nil)
			w.warm(t)
			if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "warm"}, asynq.NewTask("warm", nil)); err != nil {
				t.Fatal(err)
			}
			fault := proxy.Times(lost.times, redistest.All(redistest.Named("evalsha"), lost.match), redistest.DropReply())
			results := w.many(t.Context(), t, manyItems(100))
			if fault.Hits() != lost.times {
				t.Errorf("%d replies were lost, want %d", fault.Hits(), lost.times)
			}
			for ; ; time.Sleep(20 * time.Millisecond) {
				sts, err := w.locks.Status(t.Context(), "key-50", "key-99")
				if err != nil {
					t.Fatal(err)
				}
				if (results[50].Err == nil) == sts[0].Locked() && (results[99].Err == nil) == sts[1].Locked() {
					break
				}
			}
			if n := w.wantEach(t, results); lost.want >= 0 && n != lost.want {
				t.Errorf("%d tasks, want %d", n, lost.want)
			}
		})
	}
}
