package asynqtick

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
)

type unique struct {
	Key    string
	Policy int
	Lock   *joblock.Lock
	hidden int
}

type enqueued struct {
	Task      *asynq.TaskInfo
	Duplicate bool
}

// With calls the function with the same lock at each tick, and hooks get the task of its result.
func TestWith(t *testing.T) {
	info := &asynq.TaskInfo{ID: "1"}
	away := errors.New("away")
	var hows []unique
	opt := With(func(_ context.Context, how unique, task *asynq.Task, opts ...asynq.Option) (enqueued, error) {
		hows = append(hows, how)
		if task.Type() != "digest" || len(opts) != 1 || opts[0].Type() != asynq.QueueOpt {
			t.Errorf("task %q with %v", task.Type(), opts)
		}
		return enqueued{Task: info}, away
	}, unique{Key: "k"})
	own, w, err := split([]asynq.Option{nil, With(failing, 1), asynq.Queue("low"), opt})
	if err != nil || len(own) != 1 || w != opt.(*with) {
		t.Fatalf("%v, %v, %v; want asynq's option, and the last one of With", own, w, err)
	}
	got, err := w.enqueue(t.Context(), asynq.NewTask("digest", nil), own...)
	if got != info || !errors.Is(err, away) || len(hows) != 1 || hows[0].Key != "k" {
		t.Errorf("%v, %v, with %+v", got, err, hows)
	}
}

func failing(context.Context, int, *asynq.Task, ...asynq.Option) (int, error) { return 0, nil }

// The task in a result of any type; there may be none.
func TestInfoOf(t *testing.T) {
	info := &asynq.TaskInfo{ID: "1"}
	for name, tc := range map[string]struct {
		done any
		want *asynq.TaskInfo
	}{
		"a field":           {enqueued{Task: info}, info},
		"itself":            {info, info},
		"none":              {enqueued{}, nil},
		"another type":      {struct{ Task string }{"1"}, nil},
		"no field":          {unique{}, nil},
		"no struct":         {7, nil},
		"nothing":           {nil, nil},
		"pointer to struct": {&enqueued{Task: info}, nil},
	} {
		if got := infoOf(tc.done); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// The text of the option identifies a job: on all nodes, and with the next release of what makes the lock.
func TestTextOfWith(t *testing.T) {
	for want, how := range map[string]any{
		"asynqtick.unique, Key: k":            unique{Key: "k", Lock: new(joblock.Lock), hidden: 1},
		"asynqtick.unique, Key: k, Policy: 3": unique{Key: "k", Policy: 3},
		"asynqtick.unique":                    unique{},
		"int: 7":                              7,
		"<nil>: <nil>":                        nil,
	} {
		if got := describe(how); got != want {
			t.Errorf("%+v: %q, want %q", how, got, want)
		}
	}
	opt := With(failing, 7)
	if opt.String() != "With(int: 7)" || opt.Value() != "With(int: 7)" || opt.Type() >= 0 {
		t.Errorf("%s, %v, %d", opt, opt.Value(), opt.Type())
	}
	job := func(opts ...asynq.Option) string {
		name, _ := identify(&asynq.PeriodicTaskConfig{Task: asynq.NewTask("a", nil), Opts: opts})
		return name
	}
	if job(opt) == job() || job(opt) == job(With(failing, 8)) || job(opt) != job(nil, With(failing, 7)) || job(asynq.TaskID("id"), opt) != "id" {
		t.Error("the option does not identify the job")
	}
}

// Options that do not go together are refused at once, and not at the first tick.
func TestWithThatIsRefused(t *testing.T) {
	locks, err := joblock.New(memstore.New(&memstore.Config{Notice: memstore.NoticeSilent}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(t.Context())
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	s := NewScheduler(locks, &scheduler.Config{Scope: "shop"}, rdb, nil)
	var none func(context.Context, int, *asynq.Task, ...asynq.Option) (int, error)
	for says, opts := range map[string][]asynq.Option{
		"enqueue of With is nil":                            {With(none, 7)},
		"asynq.Unique and With(int: 7) are two kinds of un": {With(failing, 7), asynq.Unique(1e9)},
	} {
		id, err := s.Register("@daily", asynq.NewTask("a", nil), opts...)
		if id != "" || !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q, %v; want joblock.ErrInvalid that says %q", id, err, says)
		}
	}
	if _, err := s.Register("@daily", asynq.NewTask("a", nil), With(failing, 7)); err != nil {
		t.Error(err)
	}
	if _, err := s.Register("@hourly", asynq.NewTask("b", nil), asynq.Unique(1e9)); err != nil {
		t.Error(err)
	}
}
