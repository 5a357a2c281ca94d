package worker_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker"
)

// every is the period of the keepers in virtual time.
const every = 20 * time.Second

// everyCall is a store that is away.
var everyCall = []string{
	faultstore.Acquire, faultstore.Resume, faultstore.Park, faultstore.Renew, faultstore.Release, faultstore.Inspect,
	faultstore.Reserve, faultstore.Due, faultstore.Settle,
}

// keep runs a keeper until the end of the test, or until stop is called, which
// waits for it.
func (r *rig) keep(locks *joblock.Locker, cfg worker.Config) (w *worker.Worker, stop func()) {
	r.t.Helper()
	if cfg.Keeper.Interval == 0 {
		cfg.Keeper.Interval = every
	}
	w = r.newWorker(locks, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.RunKeeper(ctx); err != nil {
			r.t.Errorf("the keeper ended with %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return w, stop
}

// kept is virtual with a keeper that has been at work for a while.
func kept(t *testing.T, f func(r *rig)) {
	t.Helper()
	virtual(t, func(r *rig) {
		r.keep(r.locks, worker.Config{})
		f(r)
	})
}

// wantFreed checks that the keeper has freed a key, and why.
func (r *rig) wantFreed(key, reason string) {
	r.t.Helper()
	st := r.status(key)
	if st.Locked() || st.Ended != driver.EndedForced || st.Reason != reason {
		r.t.Errorf("lock %q is %s, ended %q because %q; want it freed because %q",
			key, st.State, st.Ended, st.Reason, reason)
	}
}

// hang makes Workers that are created from now on ask an asynq whose Redis is silent until
// it is released: as with a default client, a call takes twenty seconds to fail, whatever
// its context says.
func (r *rig) hang() *silent {
	rdb, hook := redistest.MiniClient(r.t, r.mini), new(silent)
	rdb.AddHook(hook)
	r.t.Cleanup(func() { time.Sleep(silence) }) // a call whose callers have gone ends by itself
	r.inspector = asynq.NewInspectorFromRedisClient(rdb)
	return hook
}

type silent struct{ answer atomic.Bool }

// silence is how long a call of a default client takes to fail.
const silence = 20 * time.Second

func (*silent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*silent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *silent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.answer.Load() {
			return next(ctx, cmd)
		}
		time.Sleep(silence)
		return errors.New("i/o timeout")
	}
}

// slow has the Workers made from now on ask an asynq whose Redis takes the time d for each
// command.
func (r *rig) slow(d time.Duration) *pace {
	rdb, hook := redistest.MiniClient(r.t, r.mini), &pace{d: d}
	hook.busy.Store(true)
	rdb.AddHook(hook)
	r.t.Cleanup(func() { time.Sleep(2 * d) }) // as in the method hang
	r.inspector = asynq.NewInspectorFromRedisClient(rdb)
	return hook
}

// pace delays the commands of a client, and measures how long at least one command was
// under way.
type pace struct {
	d    time.Duration
	busy atomic.Bool

	mu       sync.Mutex
	underWay int
	since    time.Time
	total    time.Duration
	commands int
}

func (p *pace) off() { p.busy.Store(false) }

func (*pace) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*pace) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (p *pace) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.count(1)
		defer p.count(-1)
		// go-redis holds a mutex while it sets up a connection, and no virtual time passes for who waits for a mutex.
		if name := cmd.Name(); p.busy.Load() && name != "hello" && name != "client" {
			time.Sleep(p.d)
		}
		return next(ctx, cmd)
	}
}

func (p *pace) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.underWay == 0 {
		p.since = time.Now()
	}
	if p.underWay += n; p.underWay == 0 {
		p.total += time.Since(p.since)
	}
	if n > 0 {
		p.commands++
	}
}

// measured returns for how long commands were under way, and how many there were.
func (p *pace) measured() (time.Duration, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total, p.commands
}
