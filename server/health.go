package server

import (
	"context"
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
)

// healthz answers as long as the process serves. It asks no store, so an outage of Redis restarts no server.
func (s *Server) healthz(*call) (*answer, error) {
	return ok(struct {
		Status string `json:"status"`
	}{"ok"}), nil
}

// readyz answers 200 while this replica should get requests.
func (s *Server) readyz(c *call) (*answer, error) {
	if s.closing.Err() != nil {
		return nil, problem.Closing()
	}
	if err := s.ready.check(c.lasting(), s.in); err != nil {
		return nil, err
	}
	return s.healthz(c)
}

// readyFor is for how long an answer of the store counts. Nobody has to be known to ask for readyz, and nobody can make
// the server ask the store more often than that.
const readyFor = 100 * time.Millisecond

// readiness is whether the store answers.
type readiness struct {
	mu    sync.Mutex // held while the store is asked, so that all who ask meanwhile have one answer
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

// readyKey is the key that readyz looks at. Nobody takes it.
const readyKey = "joblock:ready"

// metrics serves Config.Metrics. The metrics are about all keys, so a caller without AllKeys may not see them.
func (s *Server) metrics(c *call) (*answer, error) {
	if !c.who.AllKeys {
		return nil, problem.New(http.StatusForbidden, problem.Forbidden, "the metrics are about all keys, and the caller may use only some")
	}
	c.w.Header().Set("Cache-Control", "no-store")
	c.send(func() { s.cfg.Metrics.ServeHTTP(c.w, c.r) })
	return nil, nil
}

// me tells the caller its rights.
func (s *Server) me(c *call) (*answer, error) {
	who := c.who
	var expires *stamp
	if !who.Expires.IsZero() {
		expires = (*stamp)(&who.Expires)
	}
	return ok(struct {
		ID        string   `json:"id"`
		Scopes    []string `json:"scopes"`
		Prefixes  []string `json:"prefixes,omitempty"`
		AllKeys   bool     `json:"all_keys"`
		Queues    []string `json:"queues,omitempty"`
		AllQueues bool     `json:"all_queues"`
		Expires   *stamp   `json:"expires,omitempty"`
	}{who.ID, who.Scopes.Names(), who.Prefixes, who.AllKeys, who.Queues, who.AllQueues, expires}), nil
}

//go:embed openapi.json
var openAPI []byte

func (s *Server) openAPI(c *call) (*answer, error) {
	c.write(http.StatusOK, "application/json", openAPI)
	return nil, nil
}
