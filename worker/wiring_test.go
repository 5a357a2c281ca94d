package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker"
)

// A mistake in how a Worker is wired up is logged once, when the first task shows it.
func TestWrongWiringIsReported(t *testing.T) {
	key := func(*asynq.Task) string { return "k" }
	for _, tt := range []struct {
		name   string
		says   string // "" for nothing
		n      int    // how often that is in the log
		server func(r *rig, p *probe)
	}{
		{"as it should be", "", 0, func(r *rig, p *probe) { r.serve(service{use: overlap()}, p.handler(fail)) }},
		{"Configure, no Middleware, a failure", "needs Use(w.Middleware) first", 1, func(r *rig, p *probe) {
			r.serve(service{unguarded: true}, p.handler(fail))
		}},
		{"no Middleware, a success", "lacks Use(w.Middleware)", 1, func(r *rig, p *probe) {
			r.serve(service{unguarded: true}, p.handler(succeed))
			r.keep(r.locks, worker.Config{})
			time.Sleep(2 * time.Minute)
		}},
		{"no Middleware, a success with Retention", "was completed without the lock", 1, func(r *rig, p *probe) {
			r.enqueue("kept", 0, asynq.Retention(time.Hour))
			r.serve(service{unguarded: true}, p.handler(func(ctx context.Context, _ int) error {
				if id, _ := asynq.GetTaskID(ctx); id != "kept" {
					<-ctx.Done()
				}
				return ctx.Err()
			}))
			r.keep(r.locks, worker.Config{})
			time.Sleep(2 * time.Minute)
		}},
		{"tasks that an operator deletes", "", 0, func(r *rig, p *probe) {
			for _, id := range []string{"a", "b"} { // one more than another test has, and it is a mistake
				if err := r.inspector.DeleteTask(queue, id); err != nil {
					r.t.Fatal(err)
				}
			}
			r.keep(r.locks, worker.Config{})
			time.Sleep(2 * time.Minute)
			r.untilFree("key-a")
			r.untilFree("key-b")
		}},
		{"tasks that an operator deletes after an attempt", "", 0, func(r *rig, p *probe) {
			r.serve(service{asynq: asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}}, p.handler(fail))
			for i := range 5 {
				id := fmt.Sprint("retried-", i)
				r.enqueue(id, 3)
				r.untilTask(id, "retry")
				if err := r.inspector.DeleteTask(queue, id); err != nil {
					r.t.Fatal(err)
				}
			}
			r.keep(r.locks, worker.Config{})
			time.Sleep(2 * time.Minute)
			r.untilFree("key-retried-4")
		}},
		{"WithoutOverlapping first", "reached WithoutOverlapping before Middleware", 1, func(r *rig, p *probe) {
			r.serve(service{unguarded: true, use: []middleware{
				func(w *worker.Worker) asynq.MiddlewareFunc { return w.WithoutOverlapping(key, nil) },
				func(w *worker.Worker) asynq.MiddlewareFunc { return w.Middleware },
			}}, p.handler(succeed))
		}},
		{"no Configure", "Configure was not applied", 1, func(r *rig, p *probe) {
			r.occupy("k")
			r.serve(service{unconfigure: true, use: []middleware{
				func(w *worker.Worker) asynq.MiddlewareFunc { return w.WithoutOverlapping(key, nil) },
			}}, p.handler(succeed))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				for _, id := range []string{"a", "b", "c"} {
					r.enqueue(id, 0)
				}
				tt.server(r, &p)
				time.Sleep(2 * time.Minute)
				log := r.log.String()
				if tt.says == "" {
					for _, word := range []string{"Middleware", "level=ERROR"} {
						if strings.Contains(log, word) {
							t.Errorf("the log has %q:\n%s", word, log)
						}
					}
				} else if strings.Count(log, tt.says) != tt.n {
					t.Errorf("the log does not say %q %d times:\n%s", tt.says, tt.n, log)
				}
			})
		})
	}
}

// A Middleware inside of another one leaves the locks to that one.
func TestMiddlewareTwiceIsMiddlewareOnce(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0)
		r.serve(service{use: []middleware{
			func(w *worker.Worker) asynq.MiddlewareFunc { return w.Middleware },
		}}, p.handler(succeed))
		r.untilFree("key-a")
		if runs := p.all(); len(runs) != 1 || runs[0].fence == 0 || runs[0].budget != 0 {
			t.Errorf("runs %+v, want one with a fence", runs)
		}
	})
}
