package process

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// Server is an asynq.Server whose tasks run under the locks that they carry. Its keeper looks after the locks of tasks
// that nobody runs. Make a Server with Process.NewServer.
type Server struct {
	*asynq.Server
	Worker *worker.Worker // for WithoutOverlapping

	p      *Process
	once   sync.Once
	keeper sync.WaitGroup
}

// NewServer returns a Server on the Process's Redis. cfg is as for asynq.NewServer, and goes through Worker.Configure.
// wcfg configures the Worker and may be nil. A process may have several Servers.
//
// The error is joblock.ErrInvalid if a field of wcfg is out of bounds, and joblock.ErrClosed after Close. NewServer
// panics where asynq.NewServer panics: if GroupGracePeriod is below a second.
func (p *Process) NewServer(cfg asynq.Config, wcfg *worker.Config) (*Server, error) {
	if !p.opened() {
		return nil, invalid("the Process was not made by Open")
	}
	var full worker.Config
	if wcfg != nil {
		full = *wcfg
	}
	if full.Logger == nil {
		full.Logger = p.logger
	}
	w, err := worker.New(p.Locks, p.Inspector, &full)
	if err != nil {
		return nil, err
	}
	s := &Server{Worker: w, p: p}
	s.Server = asynq.NewServerFromRedisClient(p.Redis, w.Configure(cfg))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("process: %w", &joblock.Error{Code: joblock.CodeOf(joblock.ErrClosed), Op: "new server"})
	}
	p.servers = append(p.servers, s)
	return s, nil
}

// ended returns an error if Close has begun. The caller has p.mu.
func (p *Process) ended() error {
	if p.closed {
		return fmt.Errorf("process: %w", &joblock.Error{Code: joblock.CodeOf(joblock.ErrClosed), Op: "start"})
	}
	return nil
}

// Start starts the server with handler, as asynq.Server.Start does, and a keeper. The Worker's Middleware is put around
// handler: middlewares of an asynq.ServeMux, such as WithoutOverlapping, run inside of it. Register them before Start.
// If handler has the Middleware already, nothing changes. Process.Close shuts the server down.
// After Process.Close the error is joblock.ErrClosed.
func (s *Server) Start(handler asynq.Handler) error {
	handler = s.around(handler)
	s.p.mu.Lock() // Close shuts down only what has started
	defer s.p.mu.Unlock()
	if err := s.p.ended(); err != nil {
		return err
	}
	if err := s.Server.Start(handler); err != nil {
		return err
	}
	s.keep()
	return nil
}

// Run is Start, waits for a signal to exit as asynq.Server.Run does, and shuts the server down. Call Process.Close when
// Run has returned.
func (s *Server) Run(handler asynq.Handler) error {
	s.p.mu.Lock()
	err := s.p.ended()
	s.p.mu.Unlock()
	if err != nil {
		return err
	}
	s.keep() // a keeper may work although the server does not start
	return s.Server.Run(s.around(handler))
}

// around returns handler inside of the Worker's Middleware, and nil for nil, which asynq refuses.
func (s *Server) around(handler asynq.Handler) asynq.Handler {
	if handler == nil {
		return nil
	}
	if mux, ok := handler.(*asynq.ServeMux); ok && mux != nil {
		// Middleware, outside of the mux, does not see which middlewares the mux has. Started, the innermost of them,
		// tells where a task starts.
		mux.Use(s.Worker.Started)
		// A ServeMux calls its middlewares at each task, but Middleware must know before the first one.
		s.Worker.Started(handler)
	}
	return s.Worker.Middleware(handler)
}

// keep starts the keeper, once. Worker.Close ends it, when the last handler has settled its locks.
func (s *Server) keep() {
	s.once.Do(func() {
		s.keeper.Go(func() {
			if err := s.Worker.Run(context.Background()); err != nil && !errors.Is(err, joblock.ErrClosed) {
				s.p.fail("the keeper", err)
			}
		})
	})
}

// close closes the Worker. The server was shut down before.
func (s *Server) close(ctx context.Context) error {
	if err := s.Worker.Close(ctx); err != nil {
		return fmt.Errorf("process: close the Worker: %w", err)
	}
	s.once.Do(func() {})
	s.keeper.Wait() // Worker.Close has waited for Run
	return nil
}
