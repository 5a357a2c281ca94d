package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker"
)

// A handler that takes the lock of its own job would wait for itself until its time is up. It is refused at once, however
// the job has got its lock.
func TestHandlerThatTakesItsOwnLock(t *testing.T) {
	overlap := func(cfg ...worker.OverlapConfig) service {
		return service{use: []func(*worker.Worker) asynq.MiddlewareFunc{func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(*asynq.Task) string { return "k" }, given(cfg))
		}}}
	}
	unique := func(u handoff.Unique) func(l *line) error {
		return func(l *line) error {
			_, err := l.jobs.Enqueue(context.Background(), u, asynq.NewTask(taskType, nil))
			return err
		}
	}
	plain := func(l *line) error { l.submit("a", asynq.NewTask(taskType, nil), 1); return nil }
	lock := func(ctx context.Context, r *rig) error {
		return r.locks.Do(ctx, "k", func(context.Context) error { return nil })
	}
	permit := func(ctx context.Context, r *rig) error {
		return limit.New(r.locks, 2).Do(ctx, "k", func(context.Context) error { return nil })
	}
	for name, c := range map[string]struct {
		s       service
		enqueue func(l *line) error
		take    func(ctx context.Context, r *rig) error
	}{
		"unique":                        {service{}, unique(handoff.Unique{Key: "k"}), lock},
		"KeepLast":                      {service{}, unique(handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}), lock},
		"CancelInProgress":              {service{}, unique(handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress}), lock},
		"one of two":                    {service{}, unique(handoff.Unique{Key: "k", Limit: 2}), permit},
		"WithoutOverlapping":            {overlap(), plain, lock},
		"WithoutOverlapping in a limit": {overlap(worker.OverlapConfig{MaxConcurrent: 2}), plain, permit},
		"sequence": {service{}, func(l *line) error {
			_, err := l.jobs.Enqueue(context.Background(), handoff.Sequence{Key: "k", Limit: 2}, asynq.NewTask(taskType, nil))
			return err
		}, lock},
		"unique, enqueued again": {service{}, unique(handoff.Unique{Key: "k"}), func(ctx context.Context, r *rig) error {
			_, err := r.line().jobs.Enqueue(ctx, handoff.Unique{Key: "k"}, asynq.NewTask(taskType, nil))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				if err := c.enqueue(r.line()); err != nil {
					t.Fatal(err)
				}
				got := make(chan error, 1)
				r.serve(c.s, func(ctx context.Context, _ *asynq.Task) error {
					got <- c.take(ctx, r)
					return nil
				})
				if err := <-got; !errors.Is(err, joblock.ErrInvalid) {
					t.Errorf("%v, want ErrInvalid", err)
				}
			})
		})
	}
}
