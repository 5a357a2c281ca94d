package server

import (
	"context"
	_ "embed"
	"net/http"

	"github.com/joblock/toolkit/joblock/driver"
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
		return nil, closed()
	}
	err := s.in.Call(c.r.Context(), "ready", "", func(ctx context.Context, store driver.Store) error {
		_, err := store.Inspect(ctx, driver.InspectRequest{Keys: []string{readyKey}})
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.healthz(c)
}

// readyKey is the key that readyz looks at. Nobody takes it.
const readyKey = "joblock:ready"

// me tells the caller its rights.
func (s *Server) me(c *call) (*answer, error) {
	who := c.who
	var expires *stamp
	if !who.Expires.IsZero() {
		expires = (*stamp)(&who.Expires)
	}
	return ok(struct {
		ID       string   `json:"id"`
		Scopes   []string `json:"scopes"`
		Prefixes []string `json:"prefixes,omitempty"`
		Queues   []string `json:"queues,omitempty"`
		Expires  *stamp   `json:"expires,omitempty"`
	}{who.ID, who.Scopes.Names(), who.Prefixes, who.Queues, expires}), nil
}

//go:embed openapi.json
var openAPI []byte

func (s *Server) openAPI(c *call) (*answer, error) {
	c.write(http.StatusOK, "application/json", openAPI)
	return nil, nil
}
