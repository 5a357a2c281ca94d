package worker_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// mortal is the web side of a process that dies after a number of commands and calls.
type mortal struct {
	left  atomic.Int32
	store *faultstore.Store
}

// step is called before each command and each call of the store.
func (m *mortal) step() error {
	if m.left.Add(-1) >= 0 {
		return nil
	}
	m.store.SetAll(faultstore.Fault{Mode: faultstore.Refuse})
	return faultstore.Err
}

func (m *mortal) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (m *mortal) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := m.step(); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (m *mortal) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := m.step(); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// mortalClient returns a client of a process that dies after the number of steps.
func (r *rig) mortalClient(steps int) (*handoff.Client, *mortal) {
	r.t.Helper()
	m := &mortal{store: faultstore.New(r.faults)}
	m.left.Store(1 << 30)
	rdb := redistest.MiniClient(r.t, r.mini)
	rdb.AddHook(m)
	locks, err := joblock.New(m.store, &joblock.Config{TTL: r.ttl, Logger: r.log.Text()})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := handoff.NewClient(locks, asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb),
		&handoff.Config{Logger: r.log.Text(), Reserve: reserve})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = c.Close(context.Background()) // a dead process closes nothing
		_ = locks.Close(context.Background())
	})
	// The keys of the seals are read once, in the life of a process.
	if _, err := c.Enqueue(context.Background(), handoff.Unique{Key: "warm"}, asynq.NewTask("warm", nil), asynq.Queue("warm")); err != nil {
		r.t.Fatal(err)
	}
	m.left.Store(int32(steps))
	m.store.SetAll(faultstore.Fault{Mode: faultstore.Pass, Before: func() { _ = m.step() }})
	return c, m
}

// An enqueue that is to replace a job dies after any one of its steps, and a newer job comes. No job runs after a newer one
// has started, and the newest runs.
func TestReplacementThatDiesAtAnyStepKeepsTheOrder(t *testing.T) {
	redistest.Mini(t) // skips the test where those on miniredis are left out
	replace := handoff.Unique{Key: "k", OnConflict: handoff.Replace}
	cools := replace
	cools.Cooldown = 20 * time.Second
	for name, how := range map[string]handoff.How{
		"Replace":          replace,
		"Replace Cooldown": cools,
		"Replace Chain":    handoff.Chain{Under: replace},
		"KeepLast":         newestFirst["KeepLast"],
		"CancelInProgress": newestFirst["CancelInProgress"],
	} {
		t.Run(name, func(t *testing.T) {
			const most = 40 // more than there are steps
			var deaths atomic.Int32
			t.Cleanup(func() {
				if deaths.Load() < 8 {
					t.Errorf("only %d deaths; this test shows nothing", deaths.Load())
				}
			})
			for n := 1; n <= most; n++ {
				t.Run(fmt.Sprint("step ", n), func(t *testing.T) {
					kept(t, func(r *rig) {
						l := r.line()
						var d diary
						enqueue := func(c *handoff.Client, payload string) error {
							_, err := c.Enqueue(context.Background(), how, asynq.NewTask(taskType, []byte(payload)))
							return err
						}
						if err := enqueue(l.jobs, "1"); err != nil {
							t.Fatal(err)
						}
						dying, m := r.mortalClient(n)
						_ = enqueue(dying, "2")
						if m.left.Load() < 0 {
							deaths.Add(1)
						}
						time.Sleep(2 * ttl)               // the lease of the dead process is over
						for enqueue(l.jobs, "3") != nil { // until the keeper has freed the key
							time.Sleep(time.Second)
						}
						r.serve(service{}, d.handler(func(context.Context, string) error {
							time.Sleep(time.Second)
							return nil
						}))
						r.until("all have ended", func() bool {
							info, err := r.inspector.GetQueueInfo(queue)
							return err == nil && info.Size == 0
						})
						var started []string
						for _, entry := range d.all() {
							if n, ok := strings.CutPrefix(entry, "start "); ok {
								started = append(started, n)
							}
						}
						if !slices.IsSorted(started) || len(started) == 0 || started[len(started)-1] != "3" {
							t.Errorf("the jobs ran in the order %q", started)
						}
						r.until("all is free", func() bool { return !r.status("k").Locked() && !r.status("k%next").Locked() })
					})
				})
			}
		})
	}
}
