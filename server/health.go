package server

import (
	"context"
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// healthz answers while the process serves. It does not use the store, so that an outage of Redis restarts no server.
func (s *Server) healthz(*call, *routes.Empty) (routes.Health, error) {
	return routes.Health{Status: "ok"}, nil
}

// readyz answers 200 while this replica should get requests.
func (s *Server) readyz(c *call, none *routes.Empty) (routes.Health, error) {
	if s.closing.Err() != nil {
		return routes.Health{}, problem.Closing()
	}
	if err := s.ready.check(c.lasting(), s.in); err != nil {
		return routes.Health{}, err
	}
	return s.healthz(c, none)
}

// readyFor is how long an answer of the store is reused. readyz needs no authentication, so without this clients could
// make the server send any number of calls to the store.
const readyFor = 100 * time.Millisecond

// readiness is whether the store answers.
type readiness struct {
	mu    sync.Mutex // held during a call to the store, so that concurrent requests share one answer
	asked time.Time
	err   error
}

func (r *readiness) check(ctx context.Context, in *core.Locker) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.asked.IsZero() && time.Since(r.asked) < readyFor {
		return r.err
	}
	r.err = in.Call(ctx, "ready", "", func(ctx context.Context, store driver.Store) error {
		_, err := store.Inspect(ctx, driver.InspectRequest{Keys: []string{readyKey}})
		return err
	})
	r.asked = time.Now()
	return r.err
}

// readyKey is the key that readyz looks up. It is never taken.
const readyKey = "joblock:ready"

// metrics serves Config.Metrics. The metrics are about all keys, so a caller without AllKeys may not see them.
func (s *Server) metrics(c *call, _ *routes.Empty) (none routes.Empty, err error) {
	if !c.who.AllKeys {
		return none, problem.New(http.StatusForbidden, problem.Forbidden, "the metrics are about all keys, and the caller may use only some")
	}
	c.w.Header().Set("Cache-Control", "no-store")
	c.send(func() { s.cfg.Metrics.ServeHTTP(c.w, c.r) })
	return none, nil
}

// me returns the rights of the caller.
func (s *Server) me(c *call, _ *routes.Empty) (routes.Caller, error) {
	who := c.who
	me := routes.Caller{ID: who.ID, Scopes: who.Scopes.Names(), Prefixes: who.Prefixes, AllKeys: who.AllKeys, Queues: who.Queues, AllQueues: who.AllQueues}
	if !who.Expires.IsZero() {
		me.Expires = &ops.Time{Time: who.Expires}
	}
	return me, nil
}

//go:generate go test -count=1 -run ^TestOpenAPI$ . -update

//go:embed openapi.json
var openAPI []byte

func (s *Server) openAPI(c *call, none *routes.Empty) (routes.Empty, error) {
	c.write(http.StatusOK, "application/json", openAPI)
	return *none, nil
}
