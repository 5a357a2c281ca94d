package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

var errBoom = errors.New("boom")

func succeed(context.Context, int) error { return nil }
func fail(context.Context, int) error    { return errBoom }
func blow(context.Context, int) error    { panic("kaboom") }

// obey works until its context ends.
func obey(ctx context.Context, _ int) error {
	<-ctx.Done()
	return ctx.Err()
}

// first does as f at the first call and succeeds afterwards.
func first(f func(context.Context, int) error) func(context.Context, int) error {
	return func(ctx context.Context, n int) error {
		if n > 1 {
			return nil
		}
		return f(ctx, n)
	}
}

func returning(err error) func(context.Context, int) error {
	return func(context.Context, int) error { return err }
}

// Every end that an attempt can have, down to what is left of the task and of
// its lock.
func TestEndsOfAttempts(t *testing.T) {
	tests := []struct {
		name    string
		retries int
		opts    []asynq.Option
		handler func(context.Context, int) error

		task    string // its state in the end
		retried int    // retries charged
		lastErr string // a part of what asynq keeps
		reason  string // why the lock ended
		runs    int
		told    int // calls of the ErrorHandler
	}{
		{name: "success", retries: 3, handler: succeed,
			task: "gone", reason: "job done", runs: 1},
		{name: "success with retention", retries: 3, opts: []asynq.Option{asynq.Retention(time.Hour)}, handler: succeed,
			task: "completed", reason: "job done", runs: 1},
		{name: "error, then success", retries: 3, handler: first(fail),
			task: "gone", reason: "job done", runs: 2, told: 1},
		{name: "error on the last attempt", retries: 2, handler: fail,
			task: "archived", retried: 2, lastErr: "boom", reason: "job failed", runs: 3, told: 3},
		{name: "SkipRetry", retries: 3, handler: returning(fmt.Errorf("bad input: %w", asynq.SkipRetry)),
			task: "archived", lastErr: "bad input", reason: "job failed", runs: 1, told: 1},
		{name: "RevokeTask", retries: 3, handler: returning(asynq.RevokeTask),
			task: "gone", reason: "job revoked", runs: 1, told: 1},
		{name: "no retries, success", handler: succeed,
			task: "gone", reason: "job done", runs: 1},
		{name: "no retries, error", handler: fail,
			task: "archived", lastErr: "boom", reason: "job failed", runs: 1, told: 1},
		{name: "panic, then success", retries: 1, handler: first(blow),
			task: "gone", reason: "job done", runs: 2, told: 1},
		{name: "panic on the last attempt", retries: 1, handler: blow,
			task: "archived", retried: 2, lastErr: "panic", reason: "job failed", runs: 2, told: 2},
		{name: "no retries, panic", handler: blow,
			task: "archived", retried: 1, lastErr: "kaboom", reason: "job failed", runs: 1, told: 1},
		{name: "timeout, then success", retries: 1, opts: []asynq.Option{asynq.Timeout(time.Second)}, handler: first(obey),
			task: "gone", reason: "job done", runs: 2, told: 1},
		{name: "timeout on the last attempt", retries: 1, opts: []asynq.Option{asynq.Timeout(time.Second)}, handler: obey,
			task: "archived", retried: 2, lastErr: "deadline exceeded", reason: "job failed", runs: 2, told: 2},
		{name: "success after the timeout does not count", opts: []asynq.Option{asynq.Timeout(time.Second)},
			handler: func(ctx context.Context, n int) error { _ = obey(ctx, n); return nil },
			task:    "archived", retried: 1, lastErr: "deadline exceeded", reason: "job failed", runs: 1, told: 1},
		{name: "SkipRetry after the timeout does not count", retries: 1, opts: []asynq.Option{asynq.Timeout(time.Second)},
			handler: first(func(ctx context.Context, n int) error { _ = obey(ctx, n); return asynq.SkipRetry }),
			task:    "gone", reason: "job done", runs: 2, told: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.enqueue("a", tt.retries, tt.opts...)
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(tt.handler))
				r.untilTask("a", "gone", "archived", "completed")
				time.Sleep(time.Minute) // and it stays so

				r.wantTask("a", tt.task, tt.retried)
				r.wantEnded("key-a", tt.reason)
				r.wantRuns(&p, tt.runs)
				if _, info := r.task("a"); !strings.Contains(info.LastErr, tt.lastErr) {
					t.Errorf("last error is %q, want %q in it", info.LastErr, tt.lastErr)
				}
				if got := p.heard(); len(got) != tt.told {
					t.Errorf("the ErrorHandler heard %v, want %d calls", got, tt.told)
				}
				fence := core.Token(token).Fence()
				for i, run := range p.all() {
					if run.fence <= fence {
						t.Errorf("run %d has fence %d, want more than %d", i, run.fence, fence)
					}
					fence = run.fence
					if run.retried != i || run.budget != tt.retries {
						t.Errorf("run %d saw retry %d of %d, want %d of %d", i, run.retried, run.budget, i, tt.retries)
					}
				}
				for _, tell := range p.heard() {
					if tell.budget != tt.retries || tell.retried > tt.retries {
						t.Errorf("the ErrorHandler saw retry %d of %d, want at most %d", tell.retried, tell.budget, tt.retries)
					}
				}
				log := r.log.String()
				if strings.Contains(log, core.Token(token).Owner()) {
					t.Errorf("the log shows the owner token:\n%s", log)
				}
				if strings.Contains(log, "without the locks") {
					t.Errorf("the log says that the task was run outside of Middleware:\n%s", log)
				}
			})
		})
	}
}

// While a job waits for its retry its lock is parked for it, for the delay and
// Config.Reserve from then on.
func TestLockIsReservedBetweenAttempts(t *testing.T) {
	for name, f := range map[string]func(context.Context, int) error{
		"error": fail, "panic": blow,
		"timeout": func(ctx context.Context, n int) error { return obey(ctx, n) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				const delay = 8 * time.Minute
				var p probe
				r.enqueue("a", 1, asynq.Timeout(5*time.Second))
				r.serve(service{
					worker: worker.Config{Reserve: time.Minute},
					asynq:  asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return delay }},
				}, p.handler(first(f)))
				r.untilTask("a", "retry")
				time.Sleep(delay / 2) // the hold alone would be over
				r.wantState("key-a", joblock.StateParked, "a")
				r.wantHeld("key-a")
				if got := r.status("key-a").Reserved.Round(time.Second); got > delay/2+time.Minute {
					t.Errorf("reserved for another %s, want %s at the most", got, delay/2+time.Minute)
				}
				r.untilTask("a", "gone")
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 2)
			})
		})
	}
}

// While a handler runs for longer than any reservation its lock is held.
func TestLockIsRenewedWhileTheHandlerRuns(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.Timeout(time.Hour))
		r.serve(service{}, p.handler(func(context.Context, int) error {
			time.Sleep(25 * time.Minute)
			return nil
		}))
		r.until("running", func() bool { return p.running() == 1 })
		time.Sleep(20 * time.Minute)
		r.wantState("key-a", joblock.StateHeld, "a")
		r.wantHeld("key-a")
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 1)
	})
}
