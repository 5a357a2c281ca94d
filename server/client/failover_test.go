package client_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/client"
)

// asked returns how many requests the replica has got.
func (n *network) asked(name string) (times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, sent := range n.sent {
		if strings.HasPrefix(sent, name+" ") {
			times++
		}
	}
	return times
}

// garble makes res the answer of a proxy whose server is away.
func garble(res *http.Response) {
	_ = res.Body.Close()
	res.StatusCode, res.Body = http.StatusBadGateway, io.NopCloser(strings.NewReader("x"))
}

// A Hold asks the replicas in turn, also when none of them has answered at first.
func TestHoldAsksInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		n.answers(func(r *http.Request, res *http.Response) error {
			if r.Host == "a" || n.asked("b") < 3 {
				garble(res)
			}
			return nil
		})
		h, err := c.Hold(t.Context(), client.HoldRequest{Key: key, TTL: time.Second, WaitForever: true})
		testkit.WantNil(t, "Hold", err)
		if a, b := n.asked("a"), n.asked("b"); a > 4 || b != 3 {
			t.Errorf("a was asked %d times and b %d times", a, b)
		}
		testkit.WantNil(t, "Release", h.Release(t.Context(), ""))
	})
}

// A replica that takes a request and never answers does not keep a Hold from the others.
func TestHoldLeavesAReplicaThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		n.answers(func(r *http.Request, res *http.Response) error {
			if r.Host != "a" {
				return nil
			}
			_ = res.Body.Close()
			<-r.Context().Done()
			return r.Context().Err()
		})
		began := time.Now()
		h, err := c.Hold(t.Context(), client.HoldRequest{Key: key, TTL: 5 * time.Second, WaitForever: true})
		testkit.WantNil(t, "Hold", err)
		if took := time.Since(began); took > 11*time.Second { // 5 s until b is asked, and what a has left of a lease
			t.Errorf("the Hold took %s", took)
		}
		testkit.WantNil(t, "Release", h.Release(t.Context(), ""))
	})
}

// However long the TTL is, whether the caller or the server chose it: a waiting Hold sees from the lines of its stream that
// its replica is up, and goes on at another replica if its own dies.
func TestHoldWaitsUnderALongTTL(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		n.startWith("c", 5*time.Minute)
		byDefault := n.client(func(cfg *client.Config) { cfg.URLs = []string{"http://c"} })
		for _, limit := range []int{0, 1} {
			h, err := byDefault.Hold(t.Context(), client.HoldRequest{Key: key, Limit: limit})
			testkit.WantNil(t, "Hold", err)
			time.AfterFunc(90*time.Second, func() { testkit.WantNil(t, "Release", h.Release(context.Background(), "")) })
			h, err = byDefault.Hold(t.Context(), client.HoldRequest{Key: key, Limit: limit, WaitForever: true})
			testkit.WantNil(t, "Hold in line", err)
			testkit.WantNil(t, "Release", h.Release(t.Context(), ""))
		}

		h, err := c.Hold(t.Context(), client.HoldRequest{Key: key, TTL: 2 * time.Minute})
		testkit.WantNil(t, "Hold", err)
		time.AfterFunc(25*time.Second, func() { n.down("a") })
		time.AfterFunc(85*time.Second, func() { testkit.WantNil(t, "Release", h.Release(context.Background(), "")) })
		h, err = c.Hold(t.Context(), client.HoldRequest{Key: key, TTL: 2 * time.Minute, WaitForever: true})
		testkit.WantNil(t, "Hold in line", err)
		if n.asked("b") == 0 {
			t.Error("b was not asked")
		}
		testkit.WantNil(t, "Release", h.Release(t.Context(), ""))
	})
}

// startWith starts a replica whose default TTL is ttl.
func (n *network) startWith(name string, ttl time.Duration) {
	r := &replica{store: faultstore.New(n.store), conns: make(chan net.Conn), down: make(chan struct{})}
	quiet := slog.New(slog.DiscardHandler)
	locks, err := joblock.New(r.store, &joblock.Config{Holder: name, TTL: ttl, Logger: quiet})
	testkit.WantNil(n, "New", err)
	r.s, err = server.New(server.Config{Locks: locks, Authorize: server.Anyone(), Hosts: []string{"*"}, Logger: quiet})
	testkit.WantNil(n, "New", err)
	hs := server.HTTPServer(r.s)
	go func() { _ = hs.Serve(r) }()
	n.mu.Lock()
	n.replicas[name] = r
	n.mu.Unlock()
	n.Cleanup(func() {
		testkit.WantNil(n, "Close", r.s.Close(context.Background()))
		n.down(name)
		_ = hs.Close()
		testkit.WantNil(n, "Close of the Locker", locks.Close(context.Background()))
	})
}

// A Hold that is released while it looks for another replica releases what the server that closes has parked, also if a
// Resume has succeeded without an answer.
func TestReleaseWhileAHoldMoves(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		var lost atomic.Bool
		lost.Store(true)
		moving := make(chan struct{})
		h, err := c.Hold(t.Context(), client.HoldRequest{Key: key, OnEvent: func(e client.HoldEvent) {
			if e.Kind == client.HoldDrains {
				close(moving)
			}
		}})
		testkit.WantNil(t, "Hold", err)
		n.answers(func(r *http.Request, res *http.Response) error {
			if r.URL.Path == "/v1/resume" && lost.Load() {
				garble(res)
			}
			return nil
		})
		go func() { _ = n.replicas["a"].s.Close(context.Background()) }()
		<-moving
		time.Sleep(time.Second) // some Resumes have no answer
		lost.Store(false)
		testkit.WantNil(t, "Release", h.Release(t.Context(), "done"))
		if st := n.status(); st.State != joblock.StateFree {
			t.Errorf("the key is %s for %s", st.State, st.Reserved)
		}
	})
}
