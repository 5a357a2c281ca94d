package scheduler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// service counts the running services. Like asynq's, a service cannot be started twice.
type service struct {
	t       *testing.T
	running *atomic.Int32
	started bool
	fail    error
}

func (s *service) Start() error {
	if s.started {
		s.t.Error("started twice")
	}
	if s.fail != nil {
		return s.fail
	}
	s.started = true
	if n := s.running.Add(1); n != 1 {
		s.t.Errorf("%d run at once", n)
	}
	return nil
}

func (s *service) Shutdown() { s.running.Add(-1) }

func TestRunSingleton(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var running, terms atomic.Int32
		type member struct {
			*node
			stop context.CancelFunc
			done chan error
		}
		begin := func() member {
			n := c.admin()
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				done <- asynqtick.RunSingleton(ctx, n.locks, "lead", func() (asynqtick.Runner, error) {
					terms.Add(1)
					return &service{t: t, running: &running}, nil
				})
			}()
			synctest.Wait()
			return member{n, cancel, done}
		}
		a, b, d := begin(), begin(), begin()
		wantTerms := func(n int32, within time.Duration) {
			t.Helper()
			time.Sleep(within)
			synctest.Wait()
			if running.Load() != 1 || terms.Load() != n {
				t.Errorf("%d run, in term %d, want 1 in term %d", running.Load(), terms.Load(), n)
			}
		}
		wantTerms(1, 0)
		a.stop()
		wantNil(t, "RunSingleton", <-a.done)
		wantTerms(2, 0)
		b.cut()
		wantTerms(3, ttl+time.Second)
		b.heal()
		d.stop()
		wantNil(t, "RunSingleton", <-d.done)
		wantTerms(4, ttl+time.Second) // b has got in line again
		b.stop()
		wantNil(t, "RunSingleton", <-b.done)
		if running.Load() != 0 {
			t.Error("still running")
		}
	})
}

func TestRunSingletonErrors(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		locks := c.admin().locks
		ctx := c.Context()
		mine := errors.New("mine")
		var running atomic.Int32
		for name, tc := range map[string]struct {
			make func() (asynqtick.Runner, error)
			want error
		}{
			"none":       {nil, joblock.ErrInvalid},
			"made":       {func() (asynqtick.Runner, error) { return nil, mine }, mine},
			"nil Runner": {func() (asynqtick.Runner, error) { return nil, nil }, joblock.ErrInvalid},
			"Start":      {func() (asynqtick.Runner, error) { return &service{t: t, running: &running, fail: mine}, nil }, mine},
		} {
			if err := asynqtick.RunSingleton(ctx, locks, "lead", tc.make); !errors.Is(err, tc.want) {
				t.Errorf("%s: %v, want %v", name, err, tc.want)
			}
		}
		if running.Load() != 0 {
			t.Error("what did not start was shut down")
		}
		if err := asynqtick.RunSingleton(ctx, nil, "lead", func() (asynqtick.Runner, error) { return nil, mine }); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("nil locks: %v", err)
		}
		if st, err := testkit.One(locks.Status(ctx, "lead")); err != nil || st.Locked() {
			t.Errorf("the lock is %s, %v", st.State, err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := asynqtick.RunSingleton(ended, locks, "lead", func() (asynqtick.Runner, error) { return nil, mine }); err != nil {
			t.Errorf("with a context that has ended: %v, want nil", err)
		}
	})
}
