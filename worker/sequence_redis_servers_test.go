//go:build servers

package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// Jobs of many sequences on a real Redis, on two servers and with failures: each sequence runs in order, one job at a
// time, under growing fences, and a job that waits occupies no worker.
func TestSequencesOnRedis(t *testing.T) {
	t.Run("apart", func(t *testing.T) { sequencesOnRedis(t, onRedis(t, 5*time.Second)) })
	t.Run("at once", func(t *testing.T) {
		r := onRedis(t, 5*time.Second)
		r.useStore(r.rdb)
		sequencesOnRedis(t, r)
	})
}

func sequencesOnRedis(t *testing.T, r *rig) {
	const sequences, each = 5, 20
	l := r.line()
	var mu sync.Mutex
	var jumps []string
	ended, fences, failed, running := map[string][]string{}, map[string]int64{}, map[string]bool{}, map[string]bool{}
	var starts, ends []time.Time
	handler := func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		lock, _ := joblock.FromContext(ctx)
		key := lock.Key()
		mu.Lock()
		starts = append(starts, time.Now())
		if running[key] || lock.Fence() <= fences[key] {
			jumps = append(jumps, fmt.Sprintf("%s of %s: running %t, fence %d after %d", id, key, running[key], lock.Fence(), fences[key]))
		}
		running[key], fences[key] = true, lock.Fence()
		fails := !failed[id] && jitter.N(10) == 0
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			running[key] = false
			if fails {
				failed[id] = true
			} else {
				ended[key] = append(ended[key], id)
				ends = append(ends, time.Now())
			}
		}()
		if fails {
			return errors.New("try again")
		}
		return nil
	}
	var items []handoff.Item
	want := map[string][]string{}
	for i := range sequences * each {
		key, id := fmt.Sprint("seq-", i%sequences), fmt.Sprint("t-", i)
		want[key] = append(want[key], id)
		items = append(items, handoff.Item{
			Task: asynq.NewTask(taskType, nil, asynq.TaskID(id), asynq.MaxRetry(5)), How: handoff.Sequence{Key: key},
		})
	}
	results, err := l.jobs.EnqueueMany(context.Background(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i, res := range results {
		if res.Err != nil {
			t.Fatalf("item %d: %v", i, res.Err)
		}
	}
	info, err := r.inspector.GetQueueInfo(queue)
	if err != nil || info.Pending != sequences || info.Scheduled != sequences*(each-1) {
		t.Errorf("the queue is %+v, %v; want one pending task of each sequence", info, err)
	}
	for range 2 {
		r.serve(service{asynq: asynq.Config{
			Concurrency: 2, TaskCheckInterval: 5 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
		}, worker: worker.Config{}}, handler)
	}
	r.until("all are done", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ends) == sequences*each
	})
	mu.Lock()
	defer mu.Unlock()
	for key, ids := range want {
		if !slices.Equal(ended[key], ids) {
			t.Errorf("%s ended %q, want %q", key, ended[key], ids)
		}
	}
	if len(jumps) > 0 {
		t.Errorf("not in order: %q", jumps)
	}
	t.Logf("%d runs in %s", len(starts), ends[len(ends)-1].Sub(starts[0]))
}
