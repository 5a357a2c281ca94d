package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/foreign"
	"github.com/joblock/toolkit/server/internal/problem"
)

// Host returns the interface on which package compat builds its handlers.
func (s *Server) Host() foreign.Server { return host{s} }

type host struct{ s *Server }

func (h host) Mount(routes []foreign.Route, refuse func(foreign.Call, *problem.Problem)) http.Handler {
	own := make([]route, len(routes))
	for i, r := range routes {
		scopes, err := ParseScopes(r.Scopes...)
		if err != nil {
			panic(err)
		}
		own[i] = route{r.Method, r.Path, scopes, func(c *call) (*answer, error) {
			a, err := r.Do(guest{c})
			if a == nil || err != nil {
				return nil, err
			}
			return &answer{status: a.Status, body: a.Body}, nil
		}}
	}
	return h.s.mount(own, func(c *call, p *problem.Problem) { refuse(guest{c}, p) })
}

func (h host) Locks() *joblock.Locker   { return h.s.cfg.Locks }
func (h host) Desk() *ops.Desk          { return h.s.desk }
func (h host) Logger() *slog.Logger     { return h.s.cfg.Logger }
func (h host) Closing() <-chan struct{} { return h.s.closing.Done() }

func (h host) UntilClosing(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	return h.s.untilClosing(ctx)
}

// A guest is a call to a route of another lock API.
type guest struct{ c *call }

func (g guest) Request() *http.Request             { return g.c.r }
func (g guest) Body() ([]byte, error)              { return g.c.body() }
func (g guest) Read(into any) error                { return g.c.read(into) }
func (g guest) Caller() string                     { return g.c.who.ID }
func (g guest) Expires() time.Time                 { return g.c.who.Expires }
func (g guest) UseKey(key string) error            { return g.c.useKey(key) }
func (g guest) MayHold(key string) error           { return g.c.mayHold(key) }
func (g guest) Gave(key string)                    { g.c.s.quotas.gave(g.c.who.ID, key) }
func (g guest) Problem(err error) *problem.Problem { return g.c.problemOf(err) }
func (g guest) Lasting() context.Context           { return g.c.lasting() }
func (g guest) Ended() bool                        { return g.c.ended() }

func (g guest) Holds(key string, until time.Time)    { g.c.s.quotas.holds(g.c.who.ID, key, until) }
func (g guest) WillBeRead(token joblock.Token) error { return g.c.willBeRead(token) }
func (g guest) WriteEmpty(status int)                { g.c.writeEmpty(status) }
func (g guest) WriteJSON(status int, contentType string, v any) {
	g.c.writeJSON(status, contentType, v)
}

func (g guest) WriteProblem(p *problem.Problem) { asProblem(g.c, p) }

func (g guest) May(scope string) bool {
	s, err := ParseScopes(scope)
	return err == nil && g.c.who.may(s)
}

func (g guest) Note(code string, detail error) {
	if code != "" {
		g.c.code = code
	}
	if g.c.detail == nil {
		g.c.detail = detail
	}
}

func (g guest) Force(key string, fence int64, reason string) error {
	if p := g.c.act(); p != nil {
		return p
	}
	_, err := g.c.operator().Act(g.c.lasting(), ops.ForceRelease{Key: key, Fence: fence, Reason: reason})
	return err
}

func (g guest) Watch(key string, end func(*problem.Problem)) foreign.Watch {
	// The watch calls the Authorizer after the request has ended, so its context must not end with the request.
	after := *g.c
	after.r = g.c.r.WithContext(g.c.lasting())
	return after.watch(mayLock(key), end)
}

func (g guest) Enter() (leave func(), err error) {
	left, ok := g.c.s.quotas.enter(g.c.who.ID)
	if !ok {
		return nil, g.c.tooManyStreams()
	}
	done, err := g.c.s.begin(false)
	if err != nil {
		left()
		return nil, err
	}
	return func() { left(); done() }, nil
}

func (g guest) Stream(s foreign.Stream, take foreign.Taker) error {
	st := &stream{
		c: g.c, rc: http.NewResponseController(g.c.w), key: s.Key, ttl: s.TTL, ended: make(chan *problem.Problem, 1),
		shape: func(l *line) any { return s.Shape(l.Type, l.Error) },
	}
	return st.run(taker(take))
}
