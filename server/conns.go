package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// The limits of an HTTPServer's connections: of all of them, and of those over which no caller has been admitted yet. A
// connection takes some 20 kB of memory, and as much again with TLS.
const (
	maxConns        = 10_000
	maxUnknownConns = 500
)

// The limits of HTTP/2 requests under way over connections over which no caller has been admitted yet. Without them, many
// streams over each of many connections would take a gigabyte, and queue for every lock. If there are more than maxVisits
// requests, a connection with more than maxVisitsEach of them is closed.
const (
	maxVisits     = 1024
	maxVisitsEach = 8
)

// conns has the open connections of an http.Server.
type conns struct {
	most, unknownMost int

	visits atomic.Int32 // requests under way that gate has counted

	mu  sync.Mutex // guards what follows
	all map[net.Conn]*conn
	// first and last are the ends of the list of connections over which no caller has been admitted, the oldest first.
	first, last *conn
	unknown     int
}

// A conn is an open connection.
type conn struct {
	of         *conns
	net        net.Conn
	prev, next *conn
	known      atomic.Bool  // a caller was admitted over it
	visits     atomic.Int32 // its share of conns.visits
}

func newConns(most, unknownMost int) *conns {
	return &conns{most: most, unknownMost: unknownMost, all: make(map[net.Conn]*conn)}
}

type connKey struct{}

// noteKnown records that a caller was admitted over the connection of a request.
func noteKnown(ctx context.Context) {
	if v, _ := ctx.Value(visitKey{}).(*visit); v != nil {
		v.end()
	}
	if c, _ := ctx.Value(connKey{}).(*conn); c != nil {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		if !c.known.Swap(true) {
			c.of.unlinkLocked(c)
		}
	}
}

// A visit is an HTTP/2 request under way that began before a caller was admitted over its connection.
type visit struct {
	c    *conn
	over atomic.Bool // the request has ended, or its caller was admitted
}

type visitKey struct{}

// gate returns a handler that limits the visits to h. gate takes no lock and logs nothing, so that refused requests cost
// as little as possible.
func (s *conns) gate(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*conn)
		if c == nil || r.ProtoMajor < 2 || c.known.Load() {
			h.ServeHTTP(w, r)
			return
		}
		v := &visit{c: c}
		defer v.end()
		all, each := s.visits.Add(1), c.visits.Add(1)
		if all > maxVisits && each > maxVisitsEach && cutOff(r.Context()) {
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// end removes the visit from the counts, once.
func (v *visit) end() {
	if !v.over.Swap(true) {
		v.c.of.visits.Add(-1)
		v.c.visits.Add(-1)
	}
}

// open is an http.Server.ConnContext. It records a new connection. If there are too many, it closes the oldest connection
// over which no caller has been admitted, or else the new one. So a client that sends its token at once is admitted,
// however many other connections are idle.
func (s *conns) open(ctx context.Context, made net.Conn) context.Context {
	c := &conn{of: s, net: made}
	s.mu.Lock()
	s.all[made] = c
	c.prev = s.last
	if s.last == nil {
		s.first = c
	} else {
		s.last.next = c
	}
	s.last = c
	s.unknown++
	var over *conn
	if len(s.all) > s.most || s.unknown > s.unknownMost {
		over = s.first
		s.forgetLocked(over)
	}
	s.mu.Unlock()
	if over != nil {
		over.close()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// cutOff closes the connection of a request unless a caller has been admitted over it, and reports whether it did.
func cutOff(ctx context.Context) bool {
	c, _ := ctx.Value(connKey{}).(*conn)
	if c == nil {
		return false
	}
	c.of.mu.Lock()
	known := c.known.Load() && c.of.all[c.net] == c
	c.of.mu.Unlock()
	if !known {
		c.close()
	}
	return !known
}

// close closes the connection at once: a tls.Conn would wait for the client to read the TLS close notification.
func (c *conn) close() {
	of := c.net
	if secure, ok := of.(*tls.Conn); ok {
		of = secure.NetConn()
	}
	_ = of.Close()
}

// changed is an http.Server.ConnState.
func (s *conns) changed(of net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.all[of]; c != nil {
		s.forgetLocked(c)
	}
}

func (s *conns) forgetLocked(c *conn) {
	delete(s.all, c.net)
	if !c.known.Swap(true) { // the connection is no longer in the list
		s.unlinkLocked(c)
	}
}

func (s *conns) unlinkLocked(c *conn) {
	if c.prev == nil {
		s.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		s.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	s.unknown--
}
