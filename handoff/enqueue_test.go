package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestEnqueueHandsTheLockOver(t *testing.T) {
	w := newMiniWeb(t)
	lock := acquire(t, w.locks, "export: acct-7 ü")
	info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", []byte{0xff, 0x00})))
	if err != nil {
		t.Fatal(err)
	}
	stored := w.task(t, "default", info.ID)
	if stored.Type != "export" || string(stored.Payload) != "\xff\x00" || stored.State != asynq.TaskStatePending {
		t.Errorf("task is %+v", stored)
	}
	w.wantWithJob(t, lock, info)
}

func TestTokensAreNotInTheLog(t *testing.T) {
	w := newMiniWeb(t)
	w.faults.onEnqueue(func(context.Context, func() error) error { return errDown })
	lock := acquire(t, w.locks, "k", joblock.Owner("the-secret"))
	_, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil))
	if err == nil || strings.Contains(err.Error()+w.log.String(), "the-secret") {
		t.Errorf("error %v, log %s", err, w.log.String())
	}
}

func TestOneJobCarriesSeveralLocks(t *testing.T) {
	for _, n := range []int{1, 2, envelope.MaxTokens} {
		w := newMiniWeb(t)
		var locks joblock.Locks
		for i := range n {
			locks = append(locks, acquire(t, w.locks, fmt.Sprint("k", i)))
		}
		info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(locks...), asynq.NewTask("export", nil)))
		if err != nil {
			t.Fatal(err)
		}
		for _, lock := range locks {
			w.wantWithJob(t, lock, info)
		}
	}
}

func TestOptionsAreKeptAndOverridden(t *testing.T) {
	at := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	for _, tc := range []struct {
		name      string
		own, opts []asynq.Option
		want      func(*asynq.TaskInfo) bool
	}{
		{"none", nil, nil, func(i *asynq.TaskInfo) bool {
			return i.Queue == "default" && i.MaxRetry == 26 && i.Timeout == 30*time.Minute && i.State == asynq.TaskStatePending
		}},
		{"queue", []asynq.Option{asynq.Queue("low")}, nil, func(i *asynq.TaskInfo) bool { return i.Queue == "low" }},
		{"queue with a slash", []asynq.Option{asynq.Queue("a/b")}, nil, func(i *asynq.TaskInfo) bool { return i.Queue == "a/b" }},
		{"queue overridden", []asynq.Option{asynq.Queue("low")}, []asynq.Option{asynq.Queue("high")},
			func(i *asynq.TaskInfo) bool { return i.Queue == "high" }},
		{"the last one counts", nil, []asynq.Option{asynq.MaxRetry(1), asynq.MaxRetry(5)},
			func(i *asynq.TaskInfo) bool { return i.MaxRetry == 6 }},
		{"task ID", []asynq.Option{asynq.TaskID("t-1")}, nil, func(i *asynq.TaskInfo) bool { return i.ID == "t-1" }},
		{"no retries", []asynq.Option{asynq.MaxRetry(0)}, nil, func(i *asynq.TaskInfo) bool { return i.MaxRetry == 1 }},
		{"negative retries", []asynq.Option{asynq.MaxRetry(-5)}, nil, func(i *asynq.TaskInfo) bool { return i.MaxRetry == 1 }},
		{"timeout", []asynq.Option{asynq.Timeout(time.Minute)}, nil, func(i *asynq.TaskInfo) bool { return i.Timeout == time.Minute }},
		{"deadline", []asynq.Option{asynq.Deadline(at)}, nil, func(i *asynq.TaskInfo) bool { return i.Deadline.Equal(at) }},
		{"retention", []asynq.Option{asynq.Retention(time.Hour)}, nil, func(i *asynq.TaskInfo) bool { return i.Retention == time.Hour }},
		{"group", []asynq.Option{asynq.Group("g")}, nil,
			func(i *asynq.TaskInfo) bool { return i.Group == "g" && i.State == asynq.TaskStateAggregating }},
		{"no deadline", []asynq.Option{asynq.Deadline(time.Now().Add(-time.Second))}, []asynq.Option{asynq.Deadline(time.Time{})},
			func(i *asynq.TaskInfo) bool { return i.Deadline.IsZero() }},
		{"process at", []asynq.Option{asynq.ProcessAt(at)}, nil,
			func(i *asynq.TaskInfo) bool { return i.State == asynq.TaskStateScheduled && i.NextProcessAt.Equal(at) }},
		{"process in", []asynq.Option{asynq.ProcessIn(time.Hour)}, nil,
			func(i *asynq.TaskInfo) bool { return i.State == asynq.TaskStateScheduled }},
		{"at once after all", []asynq.Option{asynq.ProcessAt(at)}, []asynq.Option{asynq.ProcessIn(0)},
			func(i *asynq.TaskInfo) bool { return i.State == asynq.TaskStatePending }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newMiniWeb(t)
			lock := acquire(t, w.locks, "k")
			info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, tc.own...), tc.opts...))
			if err != nil {
				t.Fatal(err)
			}
			stored := w.task(t, info.Queue, info.ID)
			if !tc.want(stored) {
				t.Errorf("task is %+v", stored)
			}
			if env, _, err := envelopekit.Read(stored.Headers); err != nil || env.Retries != stored.MaxRetry-1 {
				t.Errorf("the envelope says %d retries, asynq %d (%v)", env.Retries, stored.MaxRetry, err)
			}
			w.wantWithJob(t, lock, info)
		})
	}
}

func TestCallersTaskIsNotChanged(t *testing.T) {
	w := newMiniWeb(t)
	headers := map[string]string{"trace": "t-9", envelope.Header: "of an earlier envelope"}
	task := asynq.NewTaskWithHeaders("export", []byte("p"), headers, asynq.Queue("low"))
	for range 2 { // and can be used again
		lock := acquire(t, w.locks, "k")
		info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), task))
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(task.Headers(), headers) {
			t.Errorf("the task's headers are %v now", task.Headers())
		}
		if got := w.task(t, "low", info.ID).Headers["trace"]; got != "t-9" {
			t.Errorf("header trace is %q", got)
		}
		w.wantWithJob(t, lock, info)
	}
}

// An option that asynq would pass over in silence.
type strangeOption struct{ asynq.Option }

func TestBadInputIsRefusedBeforeAnythingIsParked(t *testing.T) {
	task := func(opts ...asynq.Option) *asynq.Task { return asynq.NewTask("export", nil, opts...) }
	long := strings.Repeat("x", driver.MaxLabelBytes)
	for name, tc := range map[string]struct {
		task *asynq.Task
		opts []asynq.Option
	}{
		"nil task":              {nil, nil},
		"no type":               {asynq.NewTask(" ", nil), nil},
		"type not UTF-8":        {asynq.NewTask("\xff", nil), nil},
		"header not UTF-8":      {asynq.NewTaskWithHeaders("export", nil, map[string]string{"h": "\xff"}), nil},
		"header name":           {asynq.NewTaskWithHeaders("export", nil, map[string]string{"\xff": "h"}), nil},
		"blank queue":           {task(asynq.Queue(" ")), nil},
		"blank queue in opts":   {task(), []asynq.Option{asynq.Queue("")}},
		"blank queue overruled": {task(asynq.Queue("")), []asynq.Option{asynq.Queue("low")}}, // asynq refuses it too
		"blank task ID":         {task(), []asynq.Option{asynq.TaskID("\t")}},
		"task ID not UTF-8":     {task(), []asynq.Option{asynq.TaskID("\xff")}},
		"task ID with control":  {task(), []asynq.Option{asynq.TaskID("a\nb")}},
		"task ID too long":      {task(), []asynq.Option{asynq.TaskID(long)}},
		"queue too long":        {task(), []asynq.Option{asynq.Queue(long)}},
		"blank group":           {task(asynq.Group("")), nil},
		"short unique":          {task(asynq.Unique(time.Second - 1)), nil},
		"too many retries":      {task(asynq.MaxRetry(math.MaxInt32)), nil},
		"too late":              {task(asynq.ProcessIn(driver.MaxPeriod)), nil},
		"forever":               {task(asynq.ProcessIn(math.MaxInt64)), nil},
		"past its deadline":     {task(asynq.Deadline(time.Now().Add(-time.Second))), nil},
		"before any deadline":   {task(asynq.Deadline(time.Unix(-1, 0))), nil},
		"due after its deadline": {task(asynq.Deadline(time.Now().Add(time.Hour))),
			[]asynq.Option{asynq.ProcessIn(2 * time.Hour)}},
		"at the end of time": {task(asynq.ProcessAt(time.Unix(1<<60, 0))), nil},
		"nil option":         {task(), []asynq.Option{nil}},
		"strange option":     {task(), []asynq.Option{strangeOption{asynq.Queue("low")}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMiniWeb(t)
			w.faults.setDown(errors.New("asked Redis before checking"))
			lock := acquire(t, w.locks, "k")
			fence := lock.Fence()
			info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), tc.task, tc.opts...))
			if !errors.Is(err, joblock.ErrInvalid) || info != nil {
				t.Errorf("Enqueue = %v, %v; want ErrInvalid", info, err)
			}
			if text := fmt.Sprint(err); !strings.HasPrefix(text, "handoff: enqueue: invalid: ") {
				t.Errorf("the error does not say whose it is: %s", text)
			}
			if lock.Fence() != fence {
				t.Error("the lock was parked and taken back")
			}
			w.wantWithCaller(t, lock)
			if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "other"}, tc.task, tc.opts...); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("Unique: %v, want ErrInvalid", err)
			}
			wantState(t, w.locks, "other", joblock.StateFree)
		})
	}
}

func TestBadLocksAreRefused(t *testing.T) {
	w := newMiniWeb(t)
	good := acquire(t, w.locks, "good")
	released, parked, lost := acquire(t, w.locks, "released"), acquire(t, w.locks, "parked"), acquire(t, w.locks, "lost")
	if err := w.locks.ForceRelease(t.Context(), "lost", joblock.Reason("by hand")); err != nil {
		t.Fatal(err)
	}
	if err := lost.Renew(t.Context()); !errors.Is(err, joblock.ErrLost) {
		t.Fatal(err)
	}
	if err := released.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := parked.Park(t.Context()); err != nil {
		t.Fatal(err)
	}
	elsewhere := acquire(t, newLocker(t, newStore()), "elsewhere")
	many := make(joblock.Locks, envelope.MaxTokens+1)
	for i := range many {
		many[i] = acquire(t, w.locks, fmt.Sprint("many", i))
	}
	for name, tc := range map[string]struct {
		locks joblock.Locks
		want  error
	}{
		"none":     {nil, joblock.ErrInvalid},
		"nil":      {joblock.Locks{good, nil}, joblock.ErrInvalid},
		"twice":    {joblock.Locks{good, good}, joblock.ErrInvalid},
		"too many": {many, joblock.ErrInvalid},
		"foreign":  {joblock.Locks{good, elsewhere}, joblock.ErrInvalid},
		"released": {joblock.Locks{good, released}, joblock.ErrAlreadyReleased},
		"parked":   {joblock.Locks{good, parked}, joblock.ErrNotOwner},
		"lost":     {joblock.Locks{good, lost}, joblock.ErrLost},
	} {
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(tc.locks...), asynq.NewTask("export", nil)); !errors.Is(err, tc.want) {
			t.Errorf("%s: error is %v, want %v", name, err, tc.want)
		}
	}
	if n := w.tasks(t); n != 0 {
		t.Errorf("%d tasks were enqueued", n)
	}
	wantState(t, w.locks, "parked", joblock.StateParked)
	w.wantWithCaller(t, good)
	if err := elsewhere.Err(); err != nil {
		t.Errorf("the lock of another Locker: %v", err)
	}
}

func TestReservationCoversTheDelayAndHold(t *testing.T) {
	for _, tc := range []struct {
		name string
		opt  asynq.Option
		want time.Duration
	}{
		{"at once", asynq.ProcessIn(0), 10 * time.Minute},
		{"in an hour", asynq.ProcessIn(time.Hour), 70 * time.Minute},
		{"at a time", asynq.ProcessAt(time.Now().Add(2 * time.Hour)), 130 * time.Minute},
		{"in the past", asynq.ProcessAt(time.Now().Add(-2 * time.Hour)), 10 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newMiniWeb(t)
			jobs, err := handoff.NewClient(w.locks, w.client, w.inspector, &handoff.Config{Reserve: 10 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = jobs.Close(context.Background()) })
			lock := acquire(t, w.locks, "k")
			if _, err := jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, tc.opt)); err != nil {
				t.Fatal(err)
			}
			st := wantState(t, w.locks, "k", joblock.StateParked)
			if st.Reserved > tc.want+time.Second || st.Reserved < tc.want-5*time.Minute {
				t.Errorf("reserved for %s, want %s", st.Reserved, tc.want)
			}
		})
	}
}

func TestClientNotMadeByNewClient(t *testing.T) {
	locks := newMemLocker(t)
	lock := acquire(t, locks, "k")
	task := asynq.NewTask("export", nil)
	for name, c := range map[string]*handoff.Client{"nil": nil, "zero": {}} {
		for call, do := range map[string]func() error{
			"Enqueue": func() error { _, err := c.Enqueue(t.Context(), handoff.Carry(lock), task); return err },
			"Unique":  func() error { _, err := c.Enqueue(t.Context(), handoff.Unique{Key: "other"}, task); return err },
			"Close":   func() error { return c.Close(t.Context()) },
		} {
			if err := do(); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s of a %s Client: %v, want ErrInvalid", call, name, err)
			}
		}
	}
	if err := lock.Err(); err != nil {
		t.Errorf("the caller has lost its lock: %v", err)
	}
}

func TestNewClientWithoutItsParts(t *testing.T) {
	w := newMiniWeb(t)
	for name, make := range map[string]func() (*handoff.Client, error){
		"locks":     func() (*handoff.Client, error) { return handoff.NewClient(nil, w.client, w.inspector, nil) },
		"client":    func() (*handoff.Client, error) { return handoff.NewClient(w.locks, nil, w.inspector, nil) },
		"inspector": func() (*handoff.Client, error) { return handoff.NewClient(w.locks, w.client, nil, nil) },
		"negative hold": func() (*handoff.Client, error) {
			return handoff.NewClient(w.locks, w.client, w.inspector, &handoff.Config{Reserve: -1})
		},
		"short hold": func() (*handoff.Client, error) {
			return handoff.NewClient(w.locks, w.client, w.inspector, &handoff.Config{Reserve: 10*time.Second - 1})
		},
		"endless hold": func() (*handoff.Client, error) {
			return handoff.NewClient(w.locks, w.client, w.inspector, &handoff.Config{Reserve: driver.MaxPeriod + 1})
		},
	} {
		if c, err := make(); !errors.Is(err, joblock.ErrInvalid) || c != nil {
			t.Errorf("%s: NewClient = %v, %v; want ErrInvalid", name, c, err)
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

// After Close of the Locker each call says what it was, and about which key.
func TestEnqueueAfterClose(t *testing.T) {
	for name, warm := range map[string]bool{"before the first enqueue": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				ctx, task := t.Context(), asynq.NewTask("export", nil)
				lock := acquire(t, w.locks, "of a request")
				if warm {
					if _, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: "warm"}, task); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.locks.Close(ctx); err != nil {
					t.Fatal(err)
				}
				many, err := w.jobs.EnqueueMany(ctx, []handoff.Item{{Task: task, How: handoff.Unique{Key: "key"}}})
				if err == nil {
					err = many[0].Err
				}
				for call, err := range map[string]error{
					"Enqueue":      errorOf(w.jobs.Enqueue(ctx, handoff.Carry(lock), task)),
					"Unique":       errorOf(w.jobs.Enqueue(ctx, handoff.Unique{Key: "key"}, task)),
					"with a Limit": errorOf(w.jobs.Enqueue(ctx, handoff.Unique{Key: "key", Limit: 2}, task)),
					"Sequence":     errorOf(w.jobs.Enqueue(ctx, handoff.Sequence{Key: "key"}, task)),
					"EnqueueMany":  err,
				} {
					if call == "Enqueue" {
						if errors.Is(err, joblock.ErrLost) { // the lock says so itself
							continue
						}
					}
					if !errors.Is(err, joblock.ErrClosed) || !strings.Contains(err.Error(), "enqueue") || strings.Contains(err.Error(), "seal keys") {
						t.Errorf("%s: %v", call, err)
					}
				}
			})
		})
	}
}
