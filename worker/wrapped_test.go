package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/worker"
)

// wrapping is another package's middleware that adds its own words to errors.
func wrapping(*worker.Worker) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if err := next.ProcessTask(ctx, task); err != nil {
				return fmt.Errorf("export of %q: %w", task.Payload(), err)
			}
			return nil
		})
	}
}

// veiling is one that shows nothing of the error it wraps.
func veiling(*worker.Worker) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if err := next.ProcessTask(ctx, task); err != nil {
				return veiled{err}
			}
			return nil
		})
	}
}

type veiled struct{ error }

func (veiled) Error() string   { return "internal error" }
func (v veiled) Unwrap() error { return v.error }

// A middleware that has its own words for an error costs no task that is snoozed by way
// of the archive its run.
func TestTaskSnoozedByWayOfTheArchiveUnderAnotherText(t *testing.T) {
	for name, other := range map[string]middleware{"more": wrapping, "nothing of it": veiling} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				use := append([]middleware{other}, overlap(worker.OverlapConfig{MaxWait: -1})...)
				r.serve(service{use: use, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				lock := r.byArchive()
				time.Sleep(time.Minute)
				r.release(lock)
				time.Sleep(time.Minute)
				r.wantRuns(&p, 1)
				r.wantTask("k-0", "gone", 0)
				if told := p.heard(); len(told) != 0 {
					t.Errorf("the ErrorHandler heard %+v", told)
				}
			})
		})
	}
}

// Nor does it cost one that carries locks its run, that it could not start while the store
// was away.
func TestTaskThatCannotStartUnderAnotherText(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		use := []middleware{wrapping, started}
		r.serve(service{use: use, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		back := r.refuse(faultstore.Release)
		r.untilStartOf("a", "", -1) // without a spare retry
		time.Sleep(30 * time.Second)
		r.wantRuns(&p, 0)
		back()
		time.Sleep(time.Minute)
		r.wantRuns(&p, 1)
		r.wantTask("a", "gone", 0)
	})
}
