package asynqtick_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// queue takes one task per ID, as asynq does.
type queue struct {
	ids  map[string]int
	opts []asynq.Option // of the latest call
	err  error
}

func (q *queue) EnqueueContext(_ context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	q.opts = opts
	if q.err != nil {
		return nil, q.err
	}
	var id string
	for _, o := range opts {
		if o.Type() == asynq.TaskIDOpt {
			id = o.Value().(string)
		}
	}
	if q.ids[id]++; q.ids[id] > 1 {
		return nil, fmt.Errorf("queue: %w", asynq.ErrTaskIDConflict)
	}
	return new(asynq.TaskInfo), nil
}

func TestATickIsEnqueuedOnceUnderItsID(t *testing.T) {
	q := &queue{ids: make(map[string]int)}
	opts := append(make([]asynq.Option, 0, 8), asynq.TaskID("mine"), asynq.Queue("low"))
	enqueue := asynqtick.Enqueue(q, asynq.NewTask("digest", nil), opts...)
	other := asynqtick.Enqueue(q, asynq.NewTask("other", nil), opts...)
	at := time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)
	for i := range 3 {
		for _, tick := range []scheduler.Tick{
			{Name: "digest", At: at, Cause: scheduler.CauseTick},
			{Name: "digest", At: at.Add(time.Minute), Cause: scheduler.CauseTick},
			{Name: "digest", At: at, Cause: scheduler.CauseTrigger},
		} {
			if err := enqueue(t.Context(), tick); err != nil {
				t.Errorf("call %d for %s: %v, want nil", i+1, tick.ID(), err)
			}
			if n := q.ids[tick.ID()]; n != i+1 {
				t.Errorf("%d calls with the ID %s, want %d: %v", n, tick.ID(), i+1, q.ids)
			}
		}
	}
	tick := scheduler.Tick{Name: "other", At: at, Cause: scheduler.CauseTick}
	if err := other(t.Context(), tick); err != nil || q.ids[tick.ID()] != 1 {
		t.Errorf("a second job: %v, %v", err, q.ids)
	}
	if len(q.opts) != 3 || q.opts[1].Value() != "low" {
		t.Errorf("options %v, want those of the caller and the ID", q.opts)
	}
	q.err = errors.New("away")
	if err := enqueue(t.Context(), tick); !errors.Is(err, q.err) {
		t.Errorf("error %v, want that of the client", err)
	}
}

func TestOnce(t *testing.T) {
	away := errors.New("away")
	for _, tc := range []struct{ got, want error }{
		{nil, nil}, {away, away},
		{asynq.ErrTaskIDConflict, nil}, {fmt.Errorf("x: %w", asynq.ErrTaskIDConflict), nil},
		{asynq.ErrDuplicateTask, asynq.ErrDuplicateTask}, // a lock of asynq's, perhaps of another tick
	} {
		err := asynqtick.Once(func(_ context.Context, tick scheduler.Tick) error {
			if tick.Name != "digest" {
				t.Errorf("the tick is %+v", tick)
			}
			return tc.got
		})(t.Context(), scheduler.Tick{Name: "digest"})
		if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("%v became %v, want %v", tc.got, err, tc.want)
		}
	}
}

func TestNothingToEnqueueIsNil(t *testing.T) {
	for name, enqueue := range map[string]func(context.Context, scheduler.Tick) error{
		"no function": asynqtick.Once(nil),
		"no client":   asynqtick.Enqueue(nil, asynq.NewTask("digest", nil)),
		"no task":     asynqtick.Enqueue(new(queue), nil),
	} {
		if enqueue != nil {
			t.Errorf("%s: not nil", name)
		}
	}
}

var _ asynqtick.Client = (*asynq.Client)(nil)
