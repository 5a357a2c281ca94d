package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "export:acct-7"

// A network has replicas by name. Its connections are in memory.
type network struct {
	*testing.T
	replicas map[string]*replica
	store    driver.Store

	mu      sync.Mutex
	conns   map[net.Conn]string
	sent    []string // method and path of the requests
	corrupt func(r *http.Request, res *http.Response) error
}

type replica struct {
	s     *server.Server
	store *faultstore.Store
	conns chan net.Conn
	down  chan struct{}
}

func (r *replica) Accept() (net.Conn, error) {
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.down:
		return nil, net.ErrClosed
	}
}

func (r *replica) Close() error   { return nil }
func (r *replica) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

type shared struct{ driver.Store }

func (shared) Close() error { return nil }

// bubble runs f in virtual time with two replicas, a and b, and a client of both.
func bubble(t *testing.T, f func(t *testing.T, n *network, c *client.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &network{T: t, replicas: map[string]*replica{}, conns: map[net.Conn]string{}, store: shared{memstore.New(&memstore.Config{Silent: true})}}
		n.start("a")
		n.start("b")
		f(t, n, n.client())
	})
}

// start starts a replica.
func (n *network) start(name string) {
	n.Helper()
	r := &replica{store: faultstore.New(n.store), conns: make(chan net.Conn), down: make(chan struct{})}
	locks, err := joblock.New(r.store, &joblock.Config{Holder: name, Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(n, "New", err)
	r.s, err = server.New(server.Config{Locks: locks, Authorize: server.Anyone(), Hosts: []string{"*"}, Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(n, "New", err)
	hs := server.HTTPServer(r.s)
	hs.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	go func() { _ = hs.Serve(r) }()
	n.mu.Lock()
	n.replicas[name] = r
	n.mu.Unlock()
	n.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		testkit.WantNil(n, "Close", r.s.Close(ctx))
		n.down(name)
		_ = hs.Close()
		testkit.WantNil(n, "Close of the Locker", locks.Close(ctx))
	})
}

// down makes a replica unreachable, and cuts its connections.
func (n *network) down(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.replicas[name].down:
	default:
		close(n.replicas[name].down)
	}
	for c, to := range n.conns {
		if to == name {
			_ = c.Close()
		}
	}
}

// cut cuts all connections.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		_ = c.Close()
	}
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	name, _, _ := strings.Cut(addr, ":")
	n.mu.Lock()
	r := n.replicas[name]
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	select {
	case <-r.down:
		return nil, refused
	default:
	}
	ours, theirs := net.Pipe()
	select {
	case r.conns <- theirs:
	case <-r.down:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	n.conns[ours] = name
	n.mu.Unlock()
	return ours, nil
}

// RoundTrip notes requests, and lets tests change answers.
type tripper struct {
	n     *network
	inner *http.Transport
}

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) {
	t.n.mu.Lock()
	t.n.sent = append(t.n.sent, r.Host+" "+r.Method+" "+r.URL.Path+" "+r.Header.Get("Idempotency-Key")+r.Header.Get("Authorization"))
	change := t.n.corrupt
	t.n.mu.Unlock()
	res, err := t.inner.RoundTrip(r)
	if err == nil && change != nil {
		if err = change(r, res); err != nil {
			_ = res.Body.Close()
			return nil, err
		}
	}
	return res, err
}

func (t tripper) CloseIdleConnections() { t.inner.CloseIdleConnections() }

func (n *network) client(change ...func(*client.Config)) *client.Client {
	n.Helper()
	cfg := client.Config{
		URLs: []string{"http://a", "http://b/"}, HTTP: &http.Client{Transport: tripper{n, &http.Transport{DialContext: n.dial}}},
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := client.New(cfg)
	testkit.WantNil(n, "New", err)
	n.Cleanup(func() { testkit.WantNil(n, "Close", c.Close(context.Background())) })
	return c
}

// answers sets what changes the answers from now on.
func (n *network) answers(f func(r *http.Request, res *http.Response) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.corrupt, n.sent = f, nil
}

func (n *network) requests() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.sent...)
}

// status reads the key past the servers.
func (n *network) status() joblock.Status {
	n.Helper()
	recs, err := n.store.Inspect(context.Background(), driver.InspectRequest{Keys: []string{key}})
	testkit.WantNil(n, "Inspect", err)
	return joblock.Status(core.StatusOf(recs[0]))
}
