package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/client"
)

// A diary notes the events of a Hold.
type diary struct {
	mu  sync.Mutex
	all []client.HoldEvent
}

func (d *diary) note(e client.HoldEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, e)
}

func (d *diary) kinds() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var kinds []string
	for _, e := range d.all {
		kinds = append(kinds, e.Kind)
	}
	return strings.Join(kinds, " ")
}

// watched checks that the key is never free, and never of anybody else, while the Hold has it. It returns a function that
// ends the check.
func (n *network) watched(h *client.Hold) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			st := n.status()
			if h.Err() == nil && time.Now().Before(h.ExpiresAt()) && st.State == joblock.StateFree {
				n.Errorf("the Hold relies on the lock until %s, and the key is %+v", h.ExpiresAt(), st)
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func hold(t *testing.T, c *client.Client, req client.HoldRequest) *client.Hold {
	t.Helper()
	h, err := c.Hold(t.Context(), req)
	testkit.WantNil(t, "Hold", err)
	t.Cleanup(func() { _ = h.Release(context.Background(), "") })
	return h
}

// wantKept fails if a Hold looks lost.
func wantKept(t *testing.T, ctx context.Context, h *client.Hold) {
	t.Helper()
	synctest.Wait()
	select {
	case <-h.Done():
		t.Error("Done is closed, and the lock is not lost")
	case <-ctx.Done():
		t.Errorf("the context has ended: %v", context.Cause(ctx))
	default:
	}
}

// A Hold waits in line, holds for as long as wanted, and is free at once when released.
func TestHold(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		first := hold(t, c, client.HoldRequest{Key: key, TTL: 2 * time.Second})
		stop := n.watched(first)
		_, err := c.Hold(t.Context(), client.HoldRequest{Key: key})
		wantIs(t, "without a wait", err, joblock.ErrHeld)
		_, err = c.Hold(t.Context(), client.HoldRequest{Key: key, MaxWait: 3 * time.Second})
		wantIs(t, "MaxWait", err, joblock.ErrTimeout)
		for _, req := range []client.HoldRequest{{Key: "free", MaxWait: -1}, {Key: "free", MaxWait: time.Second, WaitForever: true}, {Token: first.Token(), WaitForever: true}} {
			_, err := c.Hold(t.Context(), req)
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
		var d diary
		second := make(chan *client.Hold)
		go func() {
			h, err := c.Hold(context.Background(), client.HoldRequest{Key: key, WaitForever: true, TTL: 2 * time.Second, OnEvent: d.note})
			testkit.WantNil(t, "Hold", err)
			second <- h
		}()
		time.Sleep(time.Minute)
		if err := first.Err(); err != nil || time.Until(first.ExpiresAt()) < 500*time.Millisecond {
			t.Errorf("after a minute: %v, %s left", err, time.Until(first.ExpiresAt()))
		}
		ctx, end := first.Context(t.Context())
		stop()
		testkit.WantNil(t, "Release", first.Release(t.Context(), "done"))
		h := <-second
		if h.Fence() <= first.Fence() || d.kinds() == "" || h.Key() != key {
			t.Errorf("fence %d after %d; %s", h.Fence(), first.Fence(), d.kinds())
		}
		wantKept(t, ctx, first)
		wantIs(t, "Err", first.Err(), joblock.ErrAlreadyReleased)
		wantIs(t, "a second Release", first.Release(t.Context(), ""), joblock.ErrAlreadyReleased)
		end()
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("after stop: %v", ctx.Err())
		}
		late, end := first.Context(t.Context())
		defer end()
		wantIs(t, "a Context after Release", context.Cause(late), joblock.ErrAlreadyReleased)
		ctx, end = h.Context(t.Context())
		defer end()
		token, err := h.Park(t.Context(), "", time.Minute)
		testkit.WantNil(t, "Park", err)
		wantKept(t, ctx, h)
		wantIs(t, "Err", h.Err(), joblock.ErrNotOwner)
		_, err = h.Detach()
		wantIs(t, "Detach", err, joblock.ErrNotOwner)
		back := hold(t, c, client.HoldRequest{Token: token})
		testkit.WantNil(t, "Release", back.Release(t.Context(), ""))
		if n.status().State != joblock.StateFree {
			t.Errorf("%+v", n.status())
		}
	})
}

// Whatever happens to one replica, the Hold goes on at the other one, and the key is never free.
func TestHoldMoves(t *testing.T) {
	for name, fail := range map[string]func(n *network){
		"a deploy": func(n *network) {
			testkit.WantNil(n, "Close", n.replicas["a"].s.Close(n.Context()))
			n.down("a")
		},
		"the replica dies": func(n *network) { n.down("a") },
		"a proxy cuts":     func(n *network) { n.cut() },
		"twice":            func(n *network) { n.cut(); time.Sleep(100 * time.Millisecond); n.cut() },
		"a deploy, and lost answers": func(n *network) {
			var lost atomic.Int64
			n.answers(func(r *http.Request, _ *http.Response) error {
				if r.URL.Path != "/v1/hold" && lost.Add(1)%3 != 0 {
					return errCut
				}
				return nil
			})
			testkit.WantNil(n, "Close", n.replicas["a"].s.Close(n.Context()))
			n.down("a")
		},
		"lost answers": func(n *network) {
			var lost atomic.Int64
			n.answers(func(r *http.Request, _ *http.Response) error {
				if r.URL.Path != "/v1/hold" && lost.Add(1)%3 != 0 {
					return errCut
				}
				return nil
			})
			n.cut()
		},
		"the only replica restarts": func(n *network) {
			n.down("b")
			testkit.WantNil(n, "Close", n.replicas["a"].s.Close(n.Context()))
			n.down("a")
			time.Sleep(2 * time.Second)
			n.start("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network, c *client.Client) {
				var d diary
				h := hold(t, c, client.HoldRequest{Key: key, TTL: 10 * time.Second, OnEvent: d.note})
				fence := h.Fence()
				defer n.watched(h)()
				go func() { // another caller waits all the time
					_, _ = c.Hold(t.Context(), client.HoldRequest{Key: key, WaitForever: true})
				}()
				time.Sleep(5 * time.Second)
				fail(n)
				time.Sleep(time.Minute)
				kinds := d.kinds()
				if h.Err() != nil || !strings.HasPrefix(kinds, "drains moved") || (h.Fence() > fence) != (strings.Contains(name, "deploy") || strings.Contains(name, "restarts")) {
					t.Fatalf("%v; %s; fence %d, was %d", h.Err(), kinds, h.Fence(), fence)
				}
				if st := n.status(); st.State != joblock.StateHeld || st.Fence != h.Fence() {
					t.Errorf("%+v, want fence %d", st, h.Fence())
				}
			})
		})
	}
}

// Without an answer, a Hold is lost before its lease ends, and no sooner than need be.
func TestHoldWithoutAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		h := hold(t, c, client.HoldRequest{Key: key, TTL: 10 * time.Second})
		time.Sleep(4 * time.Second)
		n.down("a")
		n.down("b")
		synctest.Wait()
		until := h.ExpiresAt()
		<-h.Done()
		st := n.status()
		if !errors.Is(h.Err(), joblock.ErrLost) || st.State != joblock.StateHeld || st.Lease <= 0 {
			t.Errorf("%v; the key: %+v", h.Err(), st)
		}
		if time.Now().Before(until) || time.Now().After(until.Add(10*time.Millisecond)) {
			t.Errorf("lost at %s, trusted until %s", time.Now(), until)
		}
	})
}

// A connection that stands still is no news, as long as its lease lasts.
func TestHoldOfASilentStream(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		var silent atomic.Bool
		n.answers(func(r *http.Request, res *http.Response) error {
			res.Body = &stalling{res.Body, r.Context(), &silent}
			return nil
		})
		h := hold(t, c, client.HoldRequest{Key: key, TTL: 10 * time.Second})
		time.Sleep(4 * time.Second)
		silent.Store(true)
		time.Sleep(3 * time.Second) // a line may have been on its way
		until := h.ExpiresAt()
		<-h.Done()
		if !errors.Is(h.Err(), joblock.ErrLost) || !time.Now().Equal(until) {
			t.Errorf("%v at %s, trusted until %s", h.Err(), time.Now(), until)
		}
	})
}

// stalling is a body that has nothing more from some time on.
type stalling struct {
	io.ReadCloser
	ctx    context.Context
	silent *atomic.Bool
}

func (s *stalling) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if s.silent.Load() {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	return n, err
}

// An operator frees the key: the holder knows at its next renewal, and why.
func TestHoldIsForced(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		var d diary
		h := hold(t, c, client.HoldRequest{Key: key, TTL: 3 * time.Second, OnEvent: d.note})
		ctx, end := h.Context(t.Context())
		defer end()
		_, err := n.store.Release(t.Context(), []driver.ReleaseRequest{{
			Term: driver.Term{Key: key, Fence: h.Fence()}, Kind: driver.ReleaseForced, Reason: "test", Nonce: "x", Retain: time.Minute,
		}})
		testkit.WantNil(t, "Release", err)
		<-ctx.Done()
		var p *client.Problem
		if !errors.As(context.Cause(ctx), &p) || !strings.HasPrefix(p.Code, "LOCK_") || d.kinds() != "lost" {
			t.Errorf("%v; %s", context.Cause(ctx), d.kinds())
		}
		if err := h.Release(t.Context(), ""); err == nil {
			t.Error("a release of a lost lock has succeeded")
		}
	})
}

// The end of the context of the wait ends the wait, and its place in line.
func TestHoldIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		h := hold(t, c, client.HoldRequest{Key: key})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := c.Hold(ctx, client.HoldRequest{Key: key, WaitForever: true}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if st := n.status(); st.Waiters != 0 {
			t.Errorf("%d places are left", st.Waiters)
		}
		testkit.WantNil(t, "Release", h.Release(t.Context(), ""))
	})
}

// A later server may write lines of other types. They neither end a wait nor a Hold.
func TestHoldPassesOverLinesOfLaterServers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		n.answers(func(r *http.Request, res *http.Response) error {
			if r.URL.Path == "/v1/hold" {
				res.Body = &wordy{Reader: bufio.NewReader(res.Body), Closer: res.Body}
			}
			return nil
		})
		first := hold(t, c, client.HoldRequest{Key: key, TTL: 2 * time.Second})
		var d diary
		second := make(chan *client.Hold)
		go func() {
			h, err := c.Hold(context.Background(), client.HoldRequest{Key: key, WaitForever: true, TTL: 2 * time.Second, OnEvent: d.note})
			testkit.WantNil(t, "Hold", err)
			second <- h
		}()
		time.Sleep(time.Minute)
		if first.Err() != nil || time.Until(first.ExpiresAt()) < 500*time.Millisecond {
			t.Fatalf("after a minute: %v, %s left", first.Err(), time.Until(first.ExpiresAt()))
		}
		testkit.WantNil(t, "Release", first.Release(t.Context(), "done"))
		h := <-second
		time.Sleep(time.Minute)
		if h.Err() != nil || strings.Trim(d.kinds(), "waits ") != "" {
			t.Errorf("%v; %s", h.Err(), d.kinds())
		}
		testkit.WantNil(t, "Release", h.Release(t.Context(), ""))
		if opened := strings.Count(strings.Join(n.requests(), "\n"), "/v1/hold"); opened != 2 {
			t.Errorf("%d streams for two Holds", opened)
		}
	})
}

// wordy is a stream with a line of an unknown type before each line.
type wordy struct {
	*bufio.Reader
	io.Closer
	left []byte
}

func (w *wordy) Read(p []byte) (int, error) {
	if len(w.left) == 0 {
		line, err := w.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		w.left = append([]byte(`{"type":"queue-moved","elapsed_ms":1,"to":{"place":2}}`+"\n"), line...)
	}
	n := copy(p, w.left)
	w.left = w.left[n:]
	return n, nil
}
