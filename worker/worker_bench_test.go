package worker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// What the middleware costs: tasks per second through one server on a real Redis,
// with a handler that does nothing. Tasks with locks are resumed and released.
func BenchmarkThroughput(b *testing.B) {
	for _, bb := range []struct {
		name         string
		bare, locked bool
	}{
		{"asynq alone", true, false},
		{"middleware, tasks without locks", false, false},
		{"middleware, tasks with a lock", false, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			r := onRedis(b, time.Minute)
			for i := range b.N {
				id := fmt.Sprintf("task-%d", i)
				if bb.locked {
					r.enqueue(id, 1)
				} else {
					r.submit(id, asynq.NewTask(taskType, nil), 1)
				}
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan struct{})
			b.ResetTimer()
			start := time.Now()
			r.serve(service{bare: bb.bare, asynq: asynq.Config{Concurrency: 20}}, func(context.Context, *asynq.Task) error {
				if left.Add(-1) == 0 {
					close(done)
				}
				return nil
			})
			<-done
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "tasks/s")
		})
	}
}
