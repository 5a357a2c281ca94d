package handoff_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

func next(opts ...asynq.Option) []*asynq.Task {
	return []*asynq.Task{asynq.NewTask("notify", []byte("x"), opts...)}
}

// What cannot be a chain is refused before anything is done, with the value and the cure; the rest is enqueued.
func TestChainCombinations(t *testing.T) {
	key := handoff.Unique{Key: "k"}
	for name, tt := range map[string]struct {
		how  handoff.Chain
		opts []asynq.Option // of the first task
		want string         // part of the error; "" for none
	}{
		"Unique":                 {handoff.Chain{Under: key, Then: next()}, nil, ""},
		"Replace":                {handoff.Chain{Under: handoff.Unique{Key: "k", OnConflict: handoff.Replace}, Then: next()}, nil, ""},
		"KeepLast":               {handoff.Chain{Under: handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}, Then: next()}, nil, ""},
		"Limit":                  {handoff.Chain{Under: handoff.Unique{Key: "k", Limit: 3}, Then: next()}, nil, ""},
		"Sequence":               {handoff.Chain{Under: handoff.Sequence{Key: "k", Limit: 3}, Then: next()}, nil, ""},
		"a sequence that halts":  {handoff.Chain{Under: handoff.Sequence{Key: "k", HaltOnFailure: true}, Then: next()}, nil, ""},
		"options":                {handoff.Chain{Under: key, Then: next(asynq.Queue("q"), asynq.MaxRetry(1), asynq.Timeout(time.Hour), asynq.Deadline(time.Now().Add(time.Hour)), asynq.ProcessIn(time.Minute), asynq.Retention(time.Hour))}, nil, ""},
		"delay and deadline":     {handoff.Chain{Under: key, Then: next()}, []asynq.Option{asynq.ProcessIn(time.Hour), asynq.Deadline(time.Now().Add(2 * time.Hour)), asynq.Retention(time.Hour)}, ""},
		"no steps":               {handoff.Chain{Under: key}, nil, ""},
		"no steps, in a group":   {handoff.Chain{Under: key}, []asynq.Option{asynq.Group("g")}, ""},
		"100 steps":              {handoff.Chain{Under: key, Then: many(100)}, nil, ""},
		"nothing":                {handoff.Chain{Then: next()}, nil, "Chain.Under is nil, must be a Carry, a Unique, a Debounce or a Sequence"},
		"a chain in a chain":     {handoff.Chain{Under: handoff.Chain{Under: key}}, nil, "Chain.Under is a Chain"},
		"UntilStarted":           {handoff.Chain{Under: handoff.Unique{Key: "k", UntilStarted: true}, Then: next()}, nil, "Unique.UntilStarted is set, which a Chain does not support"},
		"a bad Unique":           {handoff.Chain{Under: handoff.Unique{Key: "k", Limit: -1}, Then: next()}, nil, "Unique.Limit is -1"},
		"a bad key":              {handoff.Chain{Under: handoff.Unique{}, Then: next()}, nil, "key"},
		"a bad Sequence":         {handoff.Chain{Under: handoff.Sequence{Key: "k", MaxWaiting: -1}, Then: next()}, nil, "MaxWaiting"},
		"no lock":                {handoff.Chain{Under: handoff.Carry(), Then: next()}, nil, "0 locks"},
		"the first in a group":   {handoff.Chain{Under: key, Then: next()}, []asynq.Option{asynq.Group("g")}, "asynq.Group and a Chain exclude each other"},
		"a group":                {handoff.Chain{Under: key, Then: next(asynq.Group("g"))}, nil, "Chain.Then[0]: the option asynq.Group"},
		"a task ID":              {handoff.Chain{Under: key, Then: next(asynq.TaskID("x"))}, nil, "Chain.Then[0]: the option asynq.TaskID"},
		"asynq.Unique":           {handoff.Chain{Under: key, Then: next(asynq.Unique(time.Hour))}, nil, "Chain.Then[0]: the option asynq.Unique"},
		"nil":                    {handoff.Chain{Under: key, Then: []*asynq.Task{nil}}, nil, "Chain.Then[0]: the task is nil"},
		"no type":                {handoff.Chain{Under: key, Then: []*asynq.Task{asynq.NewTask("", nil)}}, nil, "Chain.Then[0]: the task has no type name"},
		"a blank queue":          {handoff.Chain{Under: key, Then: next(asynq.Queue(" "))}, nil, "the queue name is blank"},
		"101 steps":              {handoff.Chain{Under: key, Then: many(101)}, nil, "101 tasks follow, at most 100 are allowed"},
		"large":                  {handoff.Chain{Under: key, Then: []*asynq.Task{asynq.NewTask("x", make([]byte, chain.MaxBytes+1))}}, nil, "at most 1048576 are allowed"},
		"a long ID of the first": {handoff.Chain{Under: key, Then: next()}, []asynq.Option{asynq.TaskID(strings.Repeat("i", 240))}, "choose a shorter asynq.TaskID"},
		"many retries":           {handoff.Chain{Under: key, Then: next(asynq.MaxRetry(1<<30 + 1))}, nil, "MaxRetry"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				for i, opt := range tt.opts { // the bubble's clock is another
					if opt.Type() == asynq.DeadlineOpt && tt.want == "" {
						tt.opts[i] = asynq.Deadline(time.Now().Add(2 * time.Hour))
					}
				}
				done, err := w.jobs.Enqueue(t.Context(), tt.how, asynq.NewTask("upload", nil), tt.opts...)
				if tt.want != "" {
					if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("the error is %v, want ErrInvalid with %q", err, tt.want)
					}
					for st := range w.locks.List(t.Context(), joblock.ListOptions{}) {
						t.Errorf("left is the lock %+v", st)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				env, _, err := envelopekit.Read(w.task(t, done.Task.Queue, done.Task.ID).Headers)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case len(tt.how.Then) == 0 && env.Chain != nil:
					t.Errorf("the task carries %+v", env.Chain)
				case len(tt.how.Then) > 0 && (env.Chain == nil || env.Chain.Step != 1 || len(env.Chain.Next) != len(tt.how.Then)):
					t.Errorf("the task carries %+v", env.Chain)
				}
			})
		})
	}
}

func many(n int) (tasks []*asynq.Task) {
	for range n {
		tasks = append(tasks, asynq.NewTask("notify", nil))
	}
	return tasks
}

// The items of EnqueueMany may be chains.
func TestManyChains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		how := handoff.Chain{Under: handoff.Unique{Key: "k"}, Then: next()}
		got, err := w.jobs.EnqueueMany(t.Context(), []handoff.Item{
			{How: how, Task: asynq.NewTask("upload", nil)}, {How: how, Task: asynq.NewTask("upload", nil)},
		})
		if err != nil || got[0].Err != nil || !errors.Is(got[1].Err, joblock.ErrHeld) {
			t.Errorf("%+v, %v; want the second to be ErrHeld", got, err)
		}
	})
}
