package worker_test

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// Headers are untrusted input: a task whose headers cannot be right fails by
// asynq's rules, without its handler and without a lock being touched.
func TestHostileHeaders(t *testing.T) {
	const victim = "key-victim"
	tests := map[string]func(r *rig, headers map[string]string){
		"corrupted": func(_ *rig, h map[string]string) { h[envelope.TokensHeader] = "!" + h[envelope.TokensHeader][1:] },
		"truncated": func(_ *rig, h map[string]string) { h[envelope.TokensHeader] = h[envelope.TokensHeader][:9] },
		"empty":     func(_ *rig, h map[string]string) { h[envelope.TokensHeader] = "" },
		"oversized": func(_ *rig, h map[string]string) { h[envelope.TokensHeader] = strings.Repeat("A", 1<<20) },
		"newer version": func(r *rig, h map[string]string) {
			bin, err := base64.RawURLEncoding.DecodeString(h[envelope.TokensHeader])
			if err != nil {
				r.t.Fatal(err)
			}
			bin[1]++ // after the head of the array
			h[envelope.TokensHeader] = base64.RawURLEncoding.EncodeToString(bin)
		},
		"too many tokens": func(_ *rig, h map[string]string) {
			h[envelope.TokensHeader] = strings.Repeat(h[envelope.TokensHeader]+" ", envelope.MaxCarried) + h[envelope.TokensHeader]
		},
		"the same token twice": func(_ *rig, h map[string]string) {
			h[envelope.TokensHeader] += " " + h[envelope.TokensHeader]
		},
		"negative retries":  func(_ *rig, h map[string]string) { h[envelope.RetriesHeader] = "-3" },
		"retries no number": func(_ *rig, h map[string]string) { h[envelope.RetriesHeader] = "many" },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.park("victim", victim)[0]
				headers := maps.Clone(r.seal(0, token).Headers())
				spoil(r, headers)
				r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, headers), 1)
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "archived", 1)
				r.wantRuns(&p, 0)
				r.wantState(victim, joblock.StateParked, "victim")
				told := p.heard()
				if len(told) == 0 {
					t.Error("the ErrorHandler heard nothing")
				}
				for _, tell := range told {
					if !errors.Is(tell.err, joblock.ErrInvalid) {
						t.Errorf("the ErrorHandler was given %v, want ErrInvalid", tell.err)
					}
					if strings.Contains(tell.err.Error(), token.Owner()) {
						t.Errorf("the error shows the owner token: %v", tell.err)
					}
				}
			})
		})
	}
}

// A token copied from another task opens nothing: that task's lock is bound to
// it, and stays so however the copy ends.
func TestTokenOfAnotherTask(t *testing.T) {
	for _, policy := range []worker.Gone{worker.Reacquire, worker.Skip, worker.Fail} {
		t.Run(policy.String(), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.enqueue("victim", 0, asynq.ProcessIn(5*time.Minute))
				r.submit("thief", r.seal(0, token), 1)
				r.serve(service{worker: worker.Config{Gone: policy}}, p.handler(succeed))
				time.Sleep(2 * time.Minute)
				r.wantRuns(&p, 0)
				r.wantState("key-victim", joblock.StateParked, "victim")
				r.untilTask("victim", "gone")
				r.wantEnded("key-victim", "job done")
				if runs := p.all(); len(runs) == 0 || runs[0].id != "victim" {
					t.Errorf("runs %+v, want the victim's first", runs)
				}
			})
		})
	}
}

// A foreign number of retries in the header cannot raise asynq's own.
func TestHeaderCannotRaiseTheRetries(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.park("a", "key-a")[0]
		r.submit("a", r.seal(50, token), 1)
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(fail))
		r.untilTask("a", "archived")
		r.wantTask("a", "archived", 1)
		r.wantEnded("key-a", "job failed")
		r.wantRuns(&p, 2)
		if told := p.heard(); len(told) != 2 {
			t.Errorf("the ErrorHandler heard %+v, want 2 calls", told)
		}
	})
}

// A task without a spare retry, as somebody else may have enqueued it, ends as
// any other, and the ErrorHandler hears of its last failure.
func TestTaskWithoutASpareRetry(t *testing.T) {
	for name, f := range map[string]func(context.Context, int) error{"error": fail, "panic": blow, "timeout": obey} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.park("a", "key-a")[0]
				task := r.seal(0, token)
				headers := map[string]string{envelope.TokensHeader: task.Headers()[envelope.TokensHeader]}
				r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, headers), 1, asynq.Timeout(time.Second))
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(f))
				r.untilTask("a", "archived")
				r.wantTask("a", "archived", 1)
				r.untilFree("key-a")
				r.wantEnded("key-a", "job failed")
				r.wantRuns(&p, 2)
				if told := p.heard(); len(told) != 2 {
					t.Errorf("the ErrorHandler heard %+v, want 2 calls", told)
				}
			})
		})
	}
}

// Outside an asynq server nothing says which job asks for the lock.
func TestHandlerCalledOutsideAsynq(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.park("a", "key-a")[0]
		h := r.newWorker(r.locks, worker.Config{}).Middleware(p.handler(succeed))
		if err := h.ProcessTask(context.Background(), r.seal(0, token)); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("a task with a lock gave %v, want ErrInvalid", err)
		}
		r.wantRuns(&p, 0)
		r.wantState("key-a", joblock.StateParked, "a")
		if err := h.ProcessTask(context.Background(), asynq.NewTask(taskType, nil)); err != nil {
			t.Errorf("a task without locks gave %v", err)
		}
		r.wantRuns(&p, 1)
	})
}

// The configured ErrorHandler may be called with a context that is not asynq's,
// by other middleware or by tests.
func TestErrorHandlerCalledOutsideAsynq(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.park("a", "key-a")[0]
		cfg := r.newWorker(r.locks, worker.Config{}).Configure(asynq.Config{ErrorHandler: p.ear()})
		cfg.ErrorHandler.HandleError(context.Background(), r.seal(0, token), errBoom)
		if told := p.heard(); len(told) != 1 || told[0].err != errBoom {
			t.Errorf("the ErrorHandler heard %+v", told)
		}
		r.wantState("key-a", joblock.StateParked, "a")
	})
}
