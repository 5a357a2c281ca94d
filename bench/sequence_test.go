//go:build servers

package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
)

// BenchmarkSequence runs jobs in sequences in which so many wait. Each job lines up another one. No worker is ever free.
// The latency is the time from the end of a job until the next of its key starts. Of asynq alone each
// job enqueues the next: that is the least, and keeps no order when a job is retried.
func BenchmarkSequence(b *testing.B) {
	server := redistest.Start(b)
	admin := server.Client(b)
	lines := []int{0, 1, 10, 10_000} // 0 for asynq alone
	if testing.Short() {
		lines = []int{0, 1, 10}
	}
	for _, line := range inAnyOrder(lines...) {
		way := fmt.Sprint(line)
		if line == 0 {
			way = "asynq"
		}
		b.Run("waiting="+way, func(b *testing.B) {
			flush(b, admin)
			k := newJobKit(b, server)
			ctx := bounded(b)
			keys := keysOf("line", 4)
			var err error
			if line == 0 {
				for _, key := range keys {
					_, err = k.client.EnqueueContext(ctx, asynq.NewTask(jobType, []byte(key)))
				}
			} else {
				err = k.enqueueLines(ctx, keys, line+1)
			}
			if err != nil {
				b.Fatal(err)
			}
			ran := make(chan struct{})
			var pauses pauses
			k.serve(b, way, asynq.Config{Concurrency: len(keys) / 2}, func(ctx context.Context, task *asynq.Task) (err error) {
				key := string(task.Payload())
				pauses.end(key)
				select {
				case ran <- struct{}{}:
				case <-b.Context().Done(): // the benchmark is over
					return nil
				}
				next := asynq.NewTask(jobType, task.Payload())
				if line == 0 {
					pauses.begin(key)
					_, err = k.client.EnqueueContext(ctx, next)
					return err
				}
				_, err = k.jobs.Enqueue(ctx, handoff.Sequence{Key: key}, next)
				pauses.begin(key)
				return err
			})
			for range 20 {
				<-ran
			}
			m := newMeter(b, &k.wire, admin)
			m.start()
			for b.Loop() {
				<-ran
			}
			m.stop(b.N)
			reportQuantiles(b, pauses.all())
		})
	}
}

// pauses are the times between jobs of one key.
type pauses struct {
	mu    sync.Mutex
	since map[string]time.Time
	times []time.Duration
}

func (p *pauses) begin(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since == nil {
		p.since = make(map[string]time.Time)
	}
	p.since[key] = time.Now()
}

func (p *pauses) end(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since, ok := p.since[key]; ok {
		p.times = append(p.times, time.Since(since))
	}
}

func (p *pauses) all() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Duration(nil), p.times...)
}
