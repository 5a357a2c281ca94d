package scheduler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

var (
	_ asynqtick.Runner = (*asynq.Scheduler)(nil)
	_ asynqtick.Runner = (*asynq.PeriodicTaskManager)(nil)
)

// asynqRig is an asynq installation in a bubble whose tasks take 10 ms.
type asynqRig struct {
	*cluster
	rdb  *redis.Client
	runs atomic.Int32
}

func newAsynqRig(c *cluster) *asynqRig {
	redistest.Ran(c, redistest.MiniBackend())
	r := &asynqRig{cluster: c, rdb: redistest.MiniClient(c, redistest.Mini(c))}
	server := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		time.Sleep(10 * time.Millisecond)
		r.runs.Add(1)
		return nil
	})); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(server.Shutdown)
	return r
}

// scheduler makes an asynq.Scheduler on a node whose clock is ahead by skew: its time zone
// is ahead by skew, which has the same effect.
func (r *asynqRig) scheduler(skew time.Duration, opts ...asynq.Option) *asynq.Scheduler {
	s := asynq.NewSchedulerFromRedisClient(r.rdb, &asynq.SchedulerOpts{
		Location: time.FixedZone("", int(skew/time.Second)), LogLevel: asynq.FatalLevel, HeartbeatInterval: time.Hour,
	})
	if _, err := s.Register("* * * * *", asynq.NewTask("digest", nil), opts...); err != nil {
		r.Fatal(err)
	}
	return s
}

// mortal is an asynq client that dies with its node.
type mortal struct {
	*asynq.Client
	n *node
}

func (m mortal) EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if m.n.dead() {
		return nil, fmt.Errorf("%s is dead", m.n.name)
	}
	return m.Client.EnqueueContext(ctx, task, opts...)
}

var skews = []time.Duration{0, 2 * sec, -2 * sec}

// asynq's own scheduler and Task on the same cluster: three nodes, and ten ticks, one a
// minute. The first node dies halfway, two seconds before a tick.
func TestAsynqsOwnSchedulerForContrast(t *testing.T) {
	const ticks = 10
	for name, tc := range map[string]struct {
		begin       func(r *asynqRig, skew time.Duration) (die func())
		least, most int32
	}{
		"plain": {least: 2*ticks + ticks/2 - 2, most: 2*ticks + ticks/2 + 2, begin: func(r *asynqRig, skew time.Duration) func() {
			s := r.scheduler(skew)
			wantNil(r, "Start", s.Start())
			r.Cleanup(s.Shutdown)
			return s.Shutdown
		}},
		// The task is done, and its lock is free, before the nodes with slower clocks come.
		"with Unique": {least: ticks + ticks/2, most: 3 * ticks, begin: func(r *asynqRig, skew time.Duration) func() {
			s := r.scheduler(skew, asynq.Unique(30*time.Second))
			wantNil(r, "Start", s.Start())
			r.Cleanup(s.Shutdown)
			return s.Shutdown
		}},
		// The tick between two terms is lost.
		"as a singleton": {least: ticks - 1, most: ticks - 1, begin: func(r *asynqRig, skew time.Duration) func() {
			n := r.admin()
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := asynqtick.RunSingleton(ctx, n.locks, "asynq", func() (asynqtick.Runner, error) { return r.scheduler(skew), nil }); err != nil {
					r.Error(err)
				}
			}()
			r.Cleanup(func() { cancel(); <-done })
			return func() { n.cut(); cancel() }
		}},
		"Task": {least: ticks, most: ticks, begin: func(r *asynqRig, skew time.Duration) func() {
			n := r.node(skew)
			client := mortal{asynq.NewClientFromRedisClient(r.rdb), n}
			n.addTask("digest", "* * * * *", asynqtick.Enqueue(client, asynq.NewTask("digest", nil), asynq.Retention(time.Minute)))
			n.start()
			return n.cut
		}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				r := newAsynqRig(c)
				time.Sleep(30 * sec)
				start := time.Now()
				var die func()
				for i, skew := range skews {
					d := tc.begin(r, skew)
					if i == 0 {
						die = d
					}
					synctest.Wait()
				}
				until(start, ticks/2*min+28*sec)
				die()
				until(start, ticks*min)
				time.Sleep(2 * sec) // until the queue is empty
				got := r.runs.Load()
				t.Logf("%d ticks, %d tasks", ticks, got)
				if got < tc.least || got > tc.most {
					t.Errorf("%d tasks for %d ticks, want %d to %d", got, ticks, tc.least, tc.most)
				}
			})
		})
	}
}
