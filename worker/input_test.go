package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// Headers are untrusted input: a task whose header cannot be right runs as the task that
// it is without, and no lock is touched.
func TestHostileHeaders(t *testing.T) {
	const victim = "key-victim"
	for name, spoil := range map[string]func(good string) string{
		"corrupted":     func(good string) string { return strings.Replace(good, " - - - ", " - - 0 ", 1) },
		"truncated":     func(good string) string { return good[:9] },
		"empty":         func(string) string { return "" },
		"oversized":     func(string) string { return strings.Repeat("A", 1<<20) },
		"no version":    func(good string) string { return "v" + good[1:] },
		"another store": func(good string) string { return good[:19] + "0123456789abcdef" + good[35:] },
		"no seal":       func(good string) string { return good[strings.LastIndex(good, ".1 0 - ")+1:] },
		"more retries":  func(good string) string { return strings.Replace(good, ".1 0 - ", ".1 9 - ", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				tokens := r.park("a", victim)
				good := r.header("a", envelope.Envelope{Tokens: tokens})
				header := spoil(good)
				if header == good {
					t.Fatal("the header is not spoiled")
				}
				r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: header}), 1)
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, _ int) error {
					if locks := joblock.LocksFromContext(ctx); len(locks) > 0 {
						t.Errorf("the handler has %v", locks)
					}
					return errBoom
				}))
				r.untilTask("a", "archived")
				r.wantTask("a", "archived", 1) // as asynq alone has it
				r.wantRuns(&p, 2)
				r.wantState(victim, joblock.StateParked, "a")
				if told := p.heard(); len(told) != 2 {
					t.Errorf("the ErrorHandler heard %+v, want the two failures", told)
				}
				r.wantLoggedOnce("locks in a task's header are ignored")
				if strings.Contains(r.log.String(), core.Token(tokens[0]).Owner()) {
					t.Error("the log shows the owner token")
				}
			})
		})
	}
}

// wantLoggedOnce checks that the log has one line of level ERROR with text.
func (r *rig) wantLoggedOnce(text string) {
	r.t.Helper()
	n := 0
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "level=ERROR") && strings.Contains(line, text) {
			n++
		}
	}
	if n != 1 {
		r.t.Errorf("the log says %d times that %s:\n%s", n, text, r.log)
	}
}

// A token copied from another task opens nothing: that task's lock is bound to
// it, and stays so however the copy ends.
func TestTokenOfAnotherTask(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.enqueue("victim", 0, asynq.ProcessIn(5*time.Minute))
				r.submit("thief", r.seal(0, token), 1)
				r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, p.handler(succeed))
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

// A task without a spare retry, as another program may have enqueued it, ends as any other,
// and the ErrorHandler gets its last failure.
func TestTaskWithoutASpareRetry(t *testing.T) {
	for name, f := range map[string]func(context.Context, int) error{"error": fail, "panic": blow, "timeout": obey} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.park("a", "key-a")[0]
				task := r.sealed(nil, envelope.Envelope{Tokens: []joblock.Token{token}, Retries: -1})
				r.submit("a", task, 1, asynq.Timeout(time.Second))
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
