//go:build servers

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/worker"
)

// The load of BenchmarkFairness.
const (
	smallTenants = 20
	smallJobs    = 5 // of each
	fairWork     = 10 * time.Millisecond
)

// BenchmarkFairness measures how long twenty tenants with five jobs each wait for the last of their jobs, with and without
// a large tenant whose jobs were enqueued first. Each job takes 10 ms, and ten run at a time. The environment variable
// JOBLOCK_BIG is the number of jobs of the large tenant, by default 10,000.
func BenchmarkFairness(b *testing.B) {
	if testing.Short() {
		b.Skip("takes minutes")
	}
	server := redistest.Start(b)
	admin := server.Client(b)
	many := 10_000
	if text := os.Getenv("JOBLOCK_BIG"); text != "" {
		many, _ = strconv.Atoi(text)
	}
	tenant := func(task *asynq.Task) string { return string(task.Payload()) }
	for _, way := range []struct {
		name string
		how  func(key string) handoff.How // nil: asynq's own enqueue
		use  func(w *worker.Worker) asynq.MiddlewareFunc
	}{
		{name: "asynq"},
		{name: "sequence", how: func(key string) handoff.How { return handoff.Sequence{Key: key} }},
		{name: "sequence of 4", how: func(key string) handoff.How { return handoff.Sequence{Key: key, Limit: 4} }},
		{name: "overlap", use: func(w *worker.Worker) asynq.MiddlewareFunc { return w.WithoutOverlapping(tenant, nil) }},
		{name: "overlap of 4", use: func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(tenant, &worker.OverlapConfig{MaxConcurrent: 4})
		}},
		{name: "overlap in line", use: func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(tenant, &worker.OverlapConfig{InLine: true})
		}},
	} {
		for _, big := range []int{0, many} {
			b.Run(fmt.Sprintf("way=%s/big=%d", way.name, big), func(b *testing.B) {
				for range b.N {
					flush(b, admin)
					k := newJobKit(b, server)
					ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
					defer cancel()
					enqueue := func(keys []string) error {
						var items []handoff.Item
						for _, key := range keys {
							task := asynq.NewTask(jobType, []byte(key), asynq.MaxRetry(3))
							if way.how == nil {
								if _, err := k.client.EnqueueContext(ctx, task); err != nil {
									return err
								}
								continue
							}
							items = append(items, handoff.Item{Task: task, How: way.how(key)})
						}
						return k.enqueueMany(ctx, items)
					}
					var all []string
					for range big {
						all = append(all, "tenant:big")
					}
					err := enqueue(all)
					all = nil
					for range smallJobs {
						for i := range smallTenants {
							all = append(all, fmt.Sprintf("tenant:%d", i))
						}
					}
					begin := time.Now()
					if err = errors.Join(err, enqueue(all)); err != nil {
						b.Fatal(err)
					}
					var left sync.WaitGroup
					left.Add(len(all))
					k.serveFair(b, way.use, func(ctx context.Context, task *asynq.Task) error {
						time.Sleep(fairWork)
						if tenant(task) != "tenant:big" {
							left.Done()
						}
						return nil
					})
					done := make(chan struct{})
					go func() { left.Wait(); close(done) }()
					select {
					case <-done:
					case <-ctx.Done():
						b.Logf("the small tenants were not done after 5 minutes")
					}
					b.ReportMetric(time.Since(begin).Seconds(), "s/small-tenants")
				}
			})
		}
	}
}

// serveFair runs tasks with do, and with the middleware use unless it is nil, until the end of the benchmark. The settings
// of asynq are its defaults but for Concurrency.
func (k *jobKit) serveFair(b *testing.B, use func(w *worker.Worker) asynq.MiddlewareFunc, do asynq.HandlerFunc) {
	b.Helper()
	mux := asynq.NewServeMux()
	mux.HandleFunc(jobType, do)
	mux.Use(k.worker.Middleware)
	if use != nil {
		mux.Use(use(k.worker))
	}
	server := asynq.NewServerFromRedisClient(k.rdb, k.worker.Configure(asynq.Config{Logger: silence{}, Concurrency: 10}))
	if err := server.Start(mux); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Shutdown)
}
