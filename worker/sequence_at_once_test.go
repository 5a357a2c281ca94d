package worker_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// together is virtual with the locks in asynq's Redis, where a job of a sequence ends with one command.
func together(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		testkit.Seed(t, 1)
		redistest.Ran(t, redistest.MiniBackend())
		mini := redistest.Mini(t)
		rdb := redistest.MiniClient(t, mini)
		r := newRig(t, rdb, nil, ttl)
		r.useStore(rdb)
		r.mini = mini
		r.patience, r.step = 6*time.Hour, 500*time.Millisecond
		f(r)
	})
}

// useStore has the rig lock in the Redis of rdb, with no faults between.
func (r *rig) useStore(rdb *redis.Client) {
	store := testkit.Must(redisstore.New(rdb, nil))
	r.t.Cleanup(func() { _ = store.Close() })
	r.locks = r.newLockerOn(store)
}

// bothWays runs f where the locks and the tasks are in different stores, and where they are in the same Redis.
func bothWays(t *testing.T, f func(r *rig)) {
	t.Helper()
	t.Run("apart", func(t *testing.T) { virtual(t, f) })
	t.Run("at once", func(t *testing.T) { together(t, f) })
}

// tally is a hook that counts calls of scripts.
type tally struct{ n atomic.Int64 }

func (*tally) DialHook(next redis.DialHook) redis.DialHook { return next }

func (y *tally) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		y.count(cmd)
		return next(ctx, cmd)
	}
}

func (y *tally) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			y.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (y *tally) count(cmd redis.Cmder) {
	if strings.HasPrefix(cmd.Name(), "eval") {
		y.n.Add(1)
	}
}

// In the same Redis a job of a sequence sends two commands in addition to asynq's own: one that resumes its lock, and one that
// ends the job and starts the next. Elsewhere it sends four.
func TestLocksAndTasksInTheSameRedis(t *testing.T) {
	const all, some = 20, 5 // some: the first calls of scripts, which the server does not know, and first lookups
	for _, c := range []struct {
		name   string
		dialer func(context.Context, string, string) (net.Conn, error) // the store cannot know where it leads
		asks   int64
	}{
		{"the same Redis", nil, 0},
		{"perhaps another Redis", new(net.Dialer).DialContext, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			redistest.Ran(t, server.Backend())
			client := func(hook *tally) *redis.Client {
				o := *server.Options()
				if hook != nil {
					o.Dialer = c.dialer
				}
				rdb := redis.NewClient(&o)
				t.Cleanup(func() { _ = rdb.Close() })
				if hook != nil {
					rdb.AddHook(hook)
				}
				return rdb
			}
			var locks, asks tally
			r := newRig(t, client(nil), nil, time.Minute)
			r.useStore(client(&locks))
			l := r.line()
			for i := range all {
				l.add(handoff.Sequence{}, fmt.Sprint("t-", i))
			}
			r.inspector = asynq.NewInspectorFromRedisClient(client(&asks))
			locks.n.Store(0)
			var p probe
			srv := r.serve(service{asynq: asynq.Config{Concurrency: 1, TaskCheckInterval: 5 * time.Millisecond}}, p.handler(succeed))
			r.until("all have run", func() bool { return len(p.all()) == all && p.running() == 0 })
			srv.Shutdown()
			r.closeWorker(srv.worker) // waits until the last job has ended
			if n := locks.n.Load(); n < 2*all || n > 2*all+some {
				t.Errorf("%d jobs have made %d calls about locks, want %d and at most %d more", all, n, 2*all, some)
			}
			if n := asks.n.Load(); n < c.asks*(all-1) || n > c.asks*all+some*min(1, c.asks)*all {
				t.Errorf("%d jobs have made %d calls about tasks, want %d for each", all, n, c.asks)
			}
			var want []string
			for i := range all {
				want = append(want, fmt.Sprint("t-", i))
			}
			l.wantOrder(&p, want...)
		})
	}
}
