package toolkit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// settleTimeout is how long Run and Shutdown wait, after asynq's own ShutdownTimeout, for handlers that were cut short.
const settleTimeout = 10 * time.Second

// leastGrace is the least GroupGracePeriod at which asynq.NewServer does not panic.
const leastGrace = time.Second

// Server is an asynq.Server whose tasks run under the locks that they carry. Its keeper looks after the locks of tasks
// that no worker runs. Make a Server with Process.NewServer.
type Server struct {
	*asynq.Server
	Worker *worker.Worker // for WithoutOverlapping

	p        *Process
	patience time.Duration // how long settle waits
	started  atomic.Bool
	once     sync.Once
	keeper   sync.WaitGroup
}

// NewServer returns a Server on the Redis of p. cfg is as for asynq.NewServer; worker.Worker.Configure completes it.
// Config.Worker of p configures the Server's Worker. A Process may have several Servers. Errors:
//
//	joblock.ErrInvalid  a field of Config.Worker is out of bounds, GroupGracePeriod is below a second, for which
//	                    asynq.NewServer would panic, or p was not made by New
//	joblock.ErrClosed   NewServer was called after Close
func (p *Process) NewServer(cfg asynq.Config) (*Server, error) {
	const op = "new server"
	if !p.made() {
		return nil, notMade(op)
	}
	if grace := cfg.GroupGracePeriod; grace != 0 && grace < leastGrace {
		return nil, invalid(op, "asynq.Config.GroupGracePeriod is %s, must be at least %s, or 0 for 1m", grace, leastGrace)
	}
	w, err := p.newWorker()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ended(op)
	}
	s := &Server{Server: asynq.NewServerFromRedisClient(p.Redis, w.Configure(cfg)), Worker: w, p: p, patience: settleTimeout}
	p.servers = append(p.servers, s)
	return s, nil
}

func (p *Process) newWorker() (*worker.Worker, error) {
	var full worker.Config
	if p.worker != nil {
		full = *p.worker
	}
	if full.Logger == nil {
		full.Logger = p.logger
	}
	w, err := worker.New(p.Locks, p.Inspector, &full)
	if err != nil {
		return nil, fmt.Errorf("toolkit: %w", err)
	}
	return w, nil
}

// ready returns an error if the server cannot start. The caller has locked s.p.mu.
func (s *Server) ready() error {
	if s.p.closed {
		return ended("start")
	}
	return nil
}

// Start starts the server with handler, as asynq.Server.Start does, and a keeper. The Worker's Middleware is put around
// handler: middlewares of an asynq.ServeMux, such as WithoutOverlapping, run inside of it. Register them before Start.
// If handler already has the Middleware, nothing changes. Process.Close shuts the server down.
//
// Errors are those of asynq.Server.Start, and joblock.ErrClosed after Process.Close. An unreachable Redis is not an
// error: see Ping.
func (s *Server) Start(handler asynq.Handler) error {
	handler = s.around(handler)
	s.p.mu.Lock() // Close shuts down only started servers
	defer s.p.mu.Unlock()
	if err := s.ready(); err != nil {
		return err
	}
	if err := s.Server.Start(handler); err != nil {
		return err
	}
	s.started.Store(true)
	s.keep()
	return nil
}

// Run does what Start does, waits for a signal to exit as asynq.Server.Run does, and then does what Shutdown does.
// Errors are those of Start. Run also returns an error if a handler has not returned ten seconds after its context has
// ended.
func (s *Server) Run(handler asynq.Handler) error {
	handler = s.around(handler)
	s.p.mu.Lock()
	err := s.ready()
	s.p.mu.Unlock()
	if err != nil {
		return err
	}
	if handler != nil {
		s.started.Store(true)
		s.keep() // a keeper may work although the server does not start
	}
	if err := s.Server.Run(handler); err != nil {
		return err
	}
	return s.settle()
}

// Shutdown shuts the server down as asynq.Server.Shutdown does. After its ShutdownTimeout asynq cancels the handlers
// that still run and does not wait for them. Shutdown waits until they have settled their locks: parked them for the
// next attempt, or released them. Then it ends the keeper.
//
// If a handler has not returned ten seconds after its context has ended, Shutdown logs an ERROR, which Process.Close
// returns too. The handler's lock is settled if the handler does return. Otherwise the next attempt can have the lock
// when the lease ends. Before Start, Shutdown does nothing.
func (s *Server) Shutdown() {
	s.Server.Shutdown()
	if !s.started.Load() {
		return
	}
	if err := s.settle(); err != nil {
		s.p.fail("Shutdown", err)
	}
}

// settle closes the Worker, and waits for at most patience.
func (s *Server) settle() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.patience,
		fmt.Errorf("a handler still runs %s after the end of its context", s.patience))
	defer cancel()
	return s.close(ctx)
}

// around returns handler wrapped in the Worker's Middleware. A nil handler stays nil, which asynq refuses.
func (s *Server) around(handler asynq.Handler) asynq.Handler {
	if handler == nil {
		return nil
	}
	if mux, ok := handler.(*asynq.ServeMux); ok && mux != nil {
		// Middleware, outside of the mux, does not see which middlewares the mux has. Started, the innermost of them, marks
		// where a task starts.
		mux.Use(s.Worker.Started)
		// A ServeMux calls its middlewares for each task, but Middleware must know before the first one.
		s.Worker.Started(handler)
	}
	return s.Worker.Middleware(handler)
}

// keep starts the keeper, once. Worker.Close ends it, when the last handler has settled its locks.
func (s *Server) keep() {
	s.once.Do(func() {
		s.keeper.Go(func() {
			if err := s.Worker.RunKeeper(context.Background()); err != nil && !errors.Is(err, joblock.ErrClosed) {
				s.p.fail("the keeper", err)
			}
		})
	})
}

// close closes the Worker. The server was shut down before.
func (s *Server) close(ctx context.Context) error {
	if err := s.Worker.Close(ctx); err != nil {
		return fmt.Errorf("toolkit: close the Worker: %w", err)
	}
	s.once.Do(func() {})
	s.keeper.Wait() // Worker.Close has ended RunKeeper
	return nil
}
