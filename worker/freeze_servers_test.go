//go:build servers

package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// One Redis for asynq and for the locks stands still as many handlers return: as with
// asynq alone, none of their tasks is charged or archived.
func TestSharedRedisStandsStillAsHandlersReturn(t *testing.T) {
	for name, bare := range map[string]bool{"asynq alone": true, "with locks": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tasks, timeout, frozen = 100, 8 * time.Second, 9 * time.Second
			server := redistest.Start(t)
			redistest.Ran(t, server.Backend())
			// Enough connections: what asynq does when its pool is empty is not at issue.
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 3 * tasks})
			t.Cleanup(func() { _ = rdb.Close() })
			r := newRig(t, rdb, testkit.Must(redisstore.New(rdb, nil)), 30*time.Second)
			// A server that waited for a release would wait for longer than the task has.
			locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: r.ttl, CallTimeout: 2 * timeout, Logger: r.log.Text()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := locks.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			r.locks = locks
			for i := range tasks {
				id := fmt.Sprintf("task-%03d", i)
				task, limit := asynq.NewTask(taskType, nil), 0
				if !bare {
					task, limit = r.seal(0, r.park(id, id+"-key")...), 1
				}
				r.submit(id, task, limit, asynq.Timeout(timeout), asynq.Retention(time.Hour))
			}
			var mu sync.Mutex
			entered, inTime := 0, make(map[string]bool)
			all, stopped := make(chan struct{}), make(chan struct{})
			r.serve(service{bare: bare, asynq: asynq.Config{Concurrency: tasks}},
				func(ctx context.Context, _ *asynq.Task) error {
					mu.Lock()
					if entered++; entered == tasks {
						close(all)
					}
					mu.Unlock()
					<-stopped
					id, _ := asynq.GetTaskID(ctx)
					deadline, _ := ctx.Deadline()
					mu.Lock()
					defer mu.Unlock()
					inTime[id] = time.Until(deadline) > timeout/2 // with what a busy machine needs to get on
					return nil
				})
			select {
			case <-all:
			case <-time.After(timeout / 4): // then some are not there
			}
			server.Stop()
			close(stopped)
			time.Sleep(frozen)
			server.Cont()
			mu.Lock()
			defer mu.Unlock()
			ended := make(map[string]int)
			deadline := time.Now().Add(3 * time.Second)
			for id, in := range inTime {
				state := "late"
				if in {
					// What asynq could not write is active until its recoverer comes by, with
					// locks or without.
					for {
						if state, _ = r.task(id); state != "active" || time.Now().After(deadline) {
							break
						}
						time.Sleep(20 * time.Millisecond)
					}
				}
				ended[state]++
				if state == "archived" || state == "retry" {
					_, info := r.task(id)
					t.Errorf("task %s is %s, although its handler was in time: %s", id, state, info.LastErr)
				}
			}
			t.Logf("%s: %v", name, ended)
		})
	}
}
