package handoff_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// wantSlots checks which task each slot of key is parked for, "" for none, and that each of these tasks is pending and
// carries a token of the key's line.
func (w *web) wantSlots(t *testing.T, key string, ids ...string) {
	t.Helper()
	var got []string
	for n := range ids {
		slot := driver.SlotKey(key, n+1)
		st := wantAny(t, w.locks, slot)
		_, id, _ := envelope.ParseJob(st.Job)
		if !st.Locked() {
			id = ""
		}
		if got = append(got, id); id == "" {
			continue
		}
		info := w.task(t, "default", id)
		env, ok, err := envelopekit.Read(info.Headers)
		if !ok || err != nil || env.Sequence == nil {
			t.Fatalf("%s carries %+v, %v", id, env, err)
		}
		token := env.Sequence.Token
		if line, _ := driver.LineOf(token.Key()); line != key || token.Digest() != st.Owner || !env.Sequence.Waits && token.Key() != slot {
			t.Errorf("%s has slot %s of %s, and carries a token for %s of %s", id, slot, st.Owner, token.Key(), token.Digest())
		}
		if info.State != asynq.TaskStatePending {
			t.Errorf("%s has slot %s and is %s, want pending", id, slot, info.State)
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("the slots of %s are parked for %q, want %q", key, got, ids)
	}
}

// free ends the job that has a slot, as its worker does.
func (w *web) free(t *testing.T, slot, id string) {
	t.Helper()
	release := jobs.Release{Key: slot, Job: envelope.Job("default", id)}
	if err := jobs.Free(context.Background(), w.locks, release)[0]; err != nil {
		t.Fatalf("free %s of %s: %v", slot, id, err)
	}
	if err := w.inspector.DeleteTask("default", id); err != nil {
		t.Fatal(err)
	}
}

// As many jobs as the Limit says have a slot, in the order of their enqueues, and the others wait in one line.
func TestSlotsOfASequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		s := handoff.Sequence{Key: "k", Limit: 3}
		for i, id := range []string{"a", "b", "c", "d", "e"} {
			if got := w.mustLine(t, s, id); got.Waits != (i > 2) || got.Ahead != max(0, i-3) {
				t.Errorf("%s: %+v", id, got)
			}
		}
		w.wantSlots(t, "k", "a", "b", "c", "")
		w.wantLine(t, "k", "a", "d", "e")
		w.free(t, "k%+2", "b") // no process here listens for jobs whose turn comes
		if st := wantAny(t, w.locks, "k%+2"); st.Job != envelope.Job("default", "d") {
			t.Errorf("slot 2 is parked for %q, want d", st.Job)
		}
		w.wantLine(t, "k", "a", "e")
	})
}

// Jobs that wait when the Limit is raised get the new slots before the job that comes with it, and are started. With a
// smaller Limit, new jobs get no slot beyond it.
func TestLimitThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warmLine(t)
		for _, id := range []string{"a", "b", "c"} {
			w.mustLine(t, handoff.Sequence{Key: "k"}, id)
		}
		if got := w.mustLine(t, handoff.Sequence{Key: "k", Limit: 3}, "d"); !got.Waits {
			t.Errorf("d: %+v, want it to wait behind b and c", got)
		}
		time.Sleep(time.Second)
		w.wantSlots(t, "k", "a", "b", "c")
		w.wantLine(t, "k", "a", "d")
		w.free(t, "k%+3", "c")
		w.free(t, "k%+3", "d")
		if got := w.mustLine(t, handoff.Sequence{Key: "k", Limit: 2}, "e"); !got.Waits {
			t.Errorf("e: %+v, want it to wait: two jobs have slots", got)
		}
		w.wantSlots(t, "k", "a", "b", "")
	})
}

// In a long line, too, some of the enqueues look for free slots: here after Limit was raised.
func TestLimitThatIsRaisedOnALongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warmLine(t)
		for i := range 20 {
			w.mustLine(t, handoff.Sequence{Key: "k"}, fmt.Sprint("t-", i))
		}
		for i := range 16 {
			w.mustLine(t, handoff.Sequence{Key: "k", Limit: 2}, fmt.Sprint("u-", i))
		}
		time.Sleep(time.Second) // until t-1 is started
		w.wantSlots(t, "k", "t-0", "t-1")
	})
}

func TestManyJobsOfASequenceWithSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		var items []handoff.Item
		ids := []string{"a", "b", "c", "d", "e", "f"}
		for _, id := range ids {
			items = append(items, handoff.Item{
				Task: asynq.NewTask("webhook", nil, asynq.TaskID(id)), How: handoff.Sequence{Key: "k", Limit: 4},
			})
		}
		results, err := w.jobs.EnqueueMany(t.Context(), items)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Err != nil || r.Waits != (i > 3) {
				t.Errorf("item %d: %+v, %v", i, r, r.Err)
			}
		}
		w.wantLine(t, "k", "a", "e", "f")
		got := []string{"a"}
		for n := 2; n <= 4; n++ {
			_, id, _ := envelope.ParseJob(wantAny(t, w.locks, driver.SlotKey("k", n)).Job)
			got = append(got, id)
		}
		if !slices.Equal(got, ids[:4]) {
			t.Errorf("the slots have %q, want %q", got, ids[:4])
		}
	})
}

// asynq refuses a job that has got a slot: the slot goes to the next, or is free.
func TestRefusedEnqueueWithASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warmLine(t)
		s := handoff.Sequence{Key: "k", Limit: 2}
		w.mustLine(t, s, "a")
		w.faults.onEnqueue(func(context.Context, func() error) error { // of b, which has the slot
			w.mustLine(t, s, "c")
			w.wantLine(t, "k", "a", "c")
			return errDown
		})
		if _, err := w.inLine(t, s, "b"); err == nil {
			t.Error("b was enqueued")
		}
		time.Sleep(time.Second)
		w.wantSlots(t, "k", "a", "c")
		w.wantLine(t, "k", "a")
		// A job that waits, and gets a slot before asynq refuses its task.
		w.faults.onEnqueue(func(context.Context, func() error) error {
			w.free(t, "k%+2", "c")
			return errDown
		})
		if _, err := w.inLine(t, s, "d"); err == nil {
			t.Error("d was enqueued")
		}
		time.Sleep(time.Second)
		w.wantSlots(t, "k", "a", "")
		w.wantLine(t, "k", "a")
		// A second task with the ID of one that has a slot takes nothing from it.
		w.mustLine(t, s, "e")
		if _, err := w.inLine(t, s, "e"); err == nil {
			t.Error("e was enqueued twice")
		}
		w.wantSlots(t, "k", "a", "e")
		w.wantLine(t, "k", "a")
	})
}

// A slot is free although jobs wait, and the enqueue that looks for it finds its place in line already taken: before, the
// same enqueue has dropped as many dead places as one call may, and has asked again. The slot goes to the job all the same.
func TestFreeSlotBehindManyDeadPlaces(t *testing.T) {
	const steps = 100 // dead places that a call drops
	for _, dead := range []int{steps / 2, steps - 1, steps, steps + 20} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb := redistest.MiniClient(t, redistest.Mini(t))
				rdb.AddHook(millisecond{})
				store := testkit.Must(redisstore.New(rdb, nil))
				w := &web{rdb: rdb, faults: &faults{}, locks: newLocker(t, store)}
				w.connect(t, nil)
				take := func(name string, patience time.Duration) {
					t.Helper()
					_, err := store.Take(t.Context(), []driver.TakeRequest{{
						Key: "k", Owner: "owner-of-" + name, Nonce: "place-" + name, Job: "other/" + name,
						Reserve: time.Minute, Retain: time.Hour, Grace: time.Second, Patience: patience,
					}})
					if err != nil {
						t.Fatal(err)
					}
				}
				take("first", 0)
				for n := range dead {
					take(fmt.Sprint("dead", n), 10*time.Second)
				}
				take("live", time.Hour)
				time.Sleep(2 * time.Minute) // the key lapses, and the dead places with it
				got := w.mustLine(t, handoff.Sequence{Key: "k", Limit: 2}, "new")
				if got.Waits {
					t.Errorf("%d dead places: %+v, want the job to have the free slot", dead, got)
				}
			})
		})
	}
}

// millisecond is a hook that makes each command take a millisecond, so that the server's clock shows which of two commands
// came first.
type millisecond struct{}

func (millisecond) DialHook(next redis.DialHook) redis.DialHook { return next }

func (millisecond) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Millisecond)
		return next(ctx, cmd)
	}
}

func (millisecond) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Millisecond)
		return next(ctx, cmds)
	}
}
