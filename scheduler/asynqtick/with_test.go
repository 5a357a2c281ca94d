package asynqtick

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
)

// The last With counts, and gets the options that asynq knows.
func TestWith(t *testing.T) {
	info := &asynq.TaskInfo{ID: "1"}
	away := errors.New("away")
	opt := &with{func(_ context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
		if task.Type() != "digest" || len(opts) != 1 || opts[0].Type() != asynq.QueueOpt {
			t.Errorf("task %q with %v", task.Type(), opts)
		}
		return info, away
	}, false, "With(k)"}
	own, w, err := split([]asynq.Option{nil, With(jobs, line), asynq.Queue("low"), opt})
	if err != nil || len(own) != 1 || w != opt {
		t.Fatalf("%v, %v, %v; want asynq's option, and the last one of With", own, w, err)
	}
	if got, err := w.enqueue(t.Context(), asynq.NewTask("digest", nil), own...); got != info || !errors.Is(err, away) {
		t.Errorf("%v, %v", got, err)
	}
}

// For options that are only compared.
var (
	jobs = new(handoff.Client)
	line = handoff.Sequence{Key: "k"}
)

// The text of the option identifies a job: on all nodes, and with the next release of what makes the lock.
func TestTextOfWith(t *testing.T) {
	for want, how := range map[string]handoff.How{
		"handoff.Sequence, Key: k":              handoff.Sequence{Key: "k", Lock: new(joblock.Lock)},
		"handoff.Unique, Key: k, OnConflict: 3": handoff.Unique{Key: "k", OnConflict: handoff.KeepLast},
		"handoff.Unique":                        handoff.Unique{},
		"<nil>: <nil>":                          nil,
		"handoff.Chain, handoff.Unique, Key: k, then mail": handoff.Chain{
			Under: handoff.Unique{Key: "k"}, Then: []*asynq.Task{asynq.NewTask("mail", nil)},
		},
	} {
		if got := describe(how); got != want {
			t.Errorf("%+v: %q, want %q", how, got, want)
		}
	}
	opt := With(jobs, line)
	if opt.String() != "With(handoff.Sequence, Key: k)" || opt.Value() != "With(handoff.Sequence, Key: k)" || opt.Type() >= 0 {
		t.Errorf("%s, %v, %d", opt, opt.Value(), opt.Type())
	}
	job := func(opts ...asynq.Option) string {
		name, _ := identify(&asynq.PeriodicTaskConfig{Task: asynq.NewTask("a", nil), Opts: opts})
		return name
	}
	if job(opt) == job() || job(opt) == job(With(jobs, handoff.Sequence{Key: "l"})) || job(opt) != job(nil, With(jobs, line)) || job(asynq.TaskID("id"), opt) != "id" {
		t.Error("the option does not identify the job")
	}
}

// Options that do not go together are refused at once, and not at the first tick.
func TestWithThatIsRefused(t *testing.T) {
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(t.Context())
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	s := NewScheduler(locks, &scheduler.Config{Scope: "shop"}, rdb, nil)
	for says, opts := range map[string][]asynq.Option{
		"an argument of With is nil": {With(nil, line)},
		"argument of With is nil":    {With(jobs, nil)},
		"asynq.Unique and With(handoff.Sequence, Key: k) are two kinds of un": {With(jobs, line), asynq.Unique(1e9)},
		"Debounce, Key: k, Wait: 1s) cannot debounce":                         {With(jobs, handoff.Debounce{Key: "k", Wait: time.Second})},
		"then b) cannot debounce":                                             {With(jobs, handoff.Chain{Under: handoff.Debounce{Key: "k"}, Then: []*asynq.Task{asynq.NewTask("b", nil)}})},
	} {
		id, err := s.Register("@daily", asynq.NewTask("a", nil), opts...)
		if id != "" || !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q, %v; want joblock.ErrInvalid that says %q", id, err, says)
		}
	}
	if _, err := s.Register("@daily", asynq.NewTask("a", nil), With(jobs, line)); err != nil {
		t.Error(err)
	}
	if _, err := s.Register("@hourly", asynq.NewTask("b", nil), asynq.Unique(1e9)); err != nil {
		t.Error(err)
	}
}
