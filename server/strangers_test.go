package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// What unknown callers can take fits into three quarters of the memory of the chart's container.
func TestRequestsOfUnknownCallersFitTheChart(t *testing.T) {
	text, err := os.ReadFile("../deploy/helm/joblock/values.yaml")
	testkit.WantNil(t, "ReadFile", err)
	limit := regexp.MustCompile(`limits: \{memory: (\d+)Mi\}`).FindSubmatch(text)
	if limit == nil {
		t.Fatal("the chart has no limit")
	}
	mebibytes, err := strconv.Atoi(string(limit[1]))
	testkit.WantNil(t, "Atoi", err)
	if need := maxUnknownConns * maxStreams * streamBytes; need > mebibytes<<20*3/4 {
		t.Errorf("unknown callers can take %d MiB, the chart has %d", need>>20, mebibytes)
	}
}

// Callers without a token keep no more than a few handlers busy, however slowly they send a form or read an answer. Callers
// with a token are served meanwhile, and so is a form that comes at once.
func TestUnknownCallersThatTakeTheirTime(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *replica) (hangs func()){
		"forms that never end": func(t *testing.T, a *replica) func() {
			return func() {
				conn, err := a.pipes.dial(t.Context(), "", "")
				testkit.WantNil(t, "dial", err)
				t.Cleanup(func() { _ = conn.Close() })
				_, err = io.WriteString(conn, "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken=")
				testkit.WantNil(t, "Write", err)
			}
		},
		"forms in streams":   func(_ *testing.T, a *replica) func() { h := a.shut(); return func() { h.post("/login") } },
		"unread pages":       func(_ *testing.T, a *replica) func() { h := a.shut(); return func() { h.send("/login", "") } },
		"unread refusals":    func(_ *testing.T, a *replica) func() { h := a.shut(); return func() { h.send("/v1/me", "") } },
		"unread open routes": func(_ *testing.T, a *replica) func() { h := a.shut(); return func() { h.send("/openapi.json", "") } },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				path, token := accountsFile(t, `"scopes": ["lock"]`)
				a := newReplica(t, store(), withAccounts(t, path))
				p, err := a.s.Pages(PagesConfig{})
				testkit.WantNil(t, "Pages", err)
				var busy, most atomic.Int64
				hs := HTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer busy.Add(-1)
					if n := busy.Add(1); n > most.Load() {
						most.Store(n)
					}
					p.Root().ServeHTTP(w, r)
				}))
				hs.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
				synctest.Wait() // the replica listens at its own pipes
				a.pipes = newPipes()
				served := make(chan struct{})
				go func() { defer close(served); _ = hs.Serve(a.pipes) }()
				transport := &http.Transport{DialContext: a.pipes.dial}
				a.client.Transport = transport
				t.Cleanup(func() { transport.CloseIdleConnections(); _ = hs.Close(); <-served })
				hangs := begin(t, a)
				for range 4 * mostOfAddress {
					hangs()
					synctest.Wait()
				}
				if n := most.Load(); n > mostOfAddress+1 {
					t.Errorf("%d requests were under way at a time, want %d at most", n, mostOfAddress+1)
				}
				a.bearer = token
				a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}).ok()
				a.bearer = ""
				form, err := http.NewRequest(http.MethodPost, "http://localhost/login", nil)
				testkit.WantNil(t, "NewRequest", err)
				res, err := transport.RoundTrip(form)
				testkit.WantNil(t, "RoundTrip", err)
				if _ = res.Body.Close(); res.StatusCode != http.StatusUnauthorized {
					t.Errorf("%d", res.StatusCode)
				}
			})
		})
	}
}

// post begins a POST whose body never ends.
func (h *shut) post(path string) {
	h.headers(http2EndHeaders, "POST", path, "application/x-www-form-urlencoded")
	h.frame(http2Data, 0, h.next, []byte("token=")...)
	h.next += 2
}

func TestStrangers(t *testing.T) {
	var s strangers
	cut := make(map[string]int)
	leave := make(map[string]func() bool)
	enter := func(remote string, n int) {
		name := fmt.Sprint(remote, " ", n)
		leave[name] = s.enter(remote, func() { cut[name]++ })
	}
	for i := range mostOfAddress {
		enter("192.0.2.1:1", i)
	}
	enter("192.0.2.2:1", 0)
	if len(cut) != 0 {
		t.Errorf("%v was cut off", cut)
	}
	enter("192.0.2.1:2", 0) // another port of the same address
	if len(cut) != 1 || cut["192.0.2.1:1 0"] != 1 || !leave["192.0.2.1:1 0"]() || leave["192.0.2.1:1 1"]() {
		t.Errorf("%v was cut off, want the oldest of the address", cut)
	}
	for i := 0; len(s.all) < mostStrangers; i++ {
		enter(fmt.Sprintf("192.0.%d.%d:1", 3+i/100, i%100), 0)
	}
	enter("198.51.100.1:1", 0)
	if len(cut) != 2 || cut["192.0.2.1:1 2"] != 1 || len(s.all) != mostStrangers {
		t.Errorf("%v was cut off of %d, want the oldest of all as well", cut, len(s.all))
	}
	for name, left := range leave {
		if left(); cut[name] > 1 {
			t.Errorf("%s was cut off %d times", name, cut[name])
		}
	}
	if len(s.all) != 0 {
		t.Errorf("%d are left", len(s.all))
	}
}

// Beyond the bounds the oldest connection is closed over which no caller was let in, or the new one if there is none.
func TestBoundsOnConnections(t *testing.T) {
	s := newConns(4, 2)
	closed := func(c net.Conn) bool {
		_, err := c.Write([]byte("x"))
		return err == io.ErrClosedPipe
	}
	open := func() (net.Conn, context.Context) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
		return ours, s.open(t.Context(), ours)
	}
	a, _ := open()
	b, bctx := open()
	noteKnown(bctx)
	c, cctx := open()
	if closed(a) || closed(b) || closed(c) {
		t.Error("a connection was closed before there were too many")
	}
	d, dctx := open() // the third one without a caller
	if !closed(a) || closed(b) || closed(c) || closed(d) {
		t.Error("want the oldest one without a caller closed")
	}
	s.changed(a, http.StateClosed)
	noteKnown(cctx)
	noteKnown(cctx)
	noteKnown(dctx)
	e, ectx := open()
	noteKnown(ectx)
	f, _ := open()
	if !closed(f) || closed(b) || closed(c) || closed(d) || closed(e) {
		t.Error("want the new one closed, for callers were let in over all others")
	}
	s.changed(b, http.StateClosed)
	g, _ := open()
	if closed(g) {
		t.Error("a connection that has ended counts")
	}
	for _, conn := range []net.Conn{c, d, e, f, g} {
		s.changed(conn, http.StateClosed)
	}
	if len(s.all) != 0 || s.unknown != 0 || s.first != nil || s.last != nil {
		t.Errorf("%d connections are left, %d without a caller", len(s.all), s.unknown)
	}
}

// A caller has a bounded number of requests under way, whether they wait or their bodies do not end.
func TestRequestsOfACallerAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.Authorize, cfg.MaxWaitingEach = byHeader, 1 })
		for range besideWaits + 1 {
			conn, err := a.pipes.dial(t.Context(), "", "")
			testkit.WantNil(t, "dial", err)
			t.Cleanup(func() { _ = conn.Close() })
			_, err = io.WriteString(conn, "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nCaller: alice\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
			testkit.WantNil(t, "Write", err)
		}
		synctest.Wait()
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}, with("Caller", "alice")).refused(http.StatusTooManyRequests, "RATE_LIMITED")
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}, with("Caller", "bob")).ok()
	})
}

// A caller acts and walks over lists only so often, whatever the rate of its other requests is: actions are refused, and lists
// take their time.
func TestRatesOfActionsAndLists(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, record := audited(t)
		a := newReplica(t, store(), record, func(cfg *Config) { cfg.Authorize = byHeader })
		alice, bob := with("Caller", "alice"), with("Caller", "bob")
		force := func(who func(*http.Request)) *reply {
			return a.post("/v1/force-release", object{"key": "free", "reason": "x"}, who, with("If-Match", `"1"`))
		}
		for range actionBurst {
			force(alice).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		}
		r := force(alice)
		r.refused(http.StatusTooManyRequests, "RATE_LIMITED")
		if r.header.Get("Retry-After") != "1" {
			t.Errorf("%v", r.header)
		}
		force(bob).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}, alice).ok()
		time.Sleep(time.Second / actionRate)
		force(alice).refused(http.StatusNotFound, "LOCK_NOT_FOUND")

		began := time.Now()
		for range walkBurst + 2*walkRate {
			a.get("/v1/events", alice).ok()
		}
		if took := time.Since(began); took < 2*time.Second-time.Second/walkRate {
			t.Errorf("%d lists took %s", walkBurst+2*walkRate, took)
		}
		began = time.Now()
		a.get("/v1/lock?key=x", alice).ok()
		a.get("/v1/events", bob).ok()
		if took := time.Since(began); took > time.Second/walkRate {
			t.Errorf("others took %s", took)
		}
	})
}

// A caller whose read of a list would have to wait for longer than walkPatience is refused, which delays its later reads no further.
func TestReadsThatWouldWaitTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuotas(Config{})
		for i := range walkBurst + int(walkPatience/time.Second)*walkRate {
			if after, ok := q.walk("alice", walkPatience); !ok {
				t.Fatalf("read %d would wait for %s and was refused", i, after)
			}
		}
		for range 3 {
			if after, ok := q.walk("alice", walkPatience); ok || after != walkPatience+time.Second/walkRate {
				t.Errorf("the next read: %t after %s", ok, after)
			}
		}
		if after, ok := q.walk("bob", walkPatience); !ok || after != 0 {
			t.Errorf("another caller: %t after %s", ok, after)
		}
		time.Sleep(time.Second / walkRate)
		if after, ok := q.walk("alice", walkPatience); !ok {
			t.Errorf("a little later: refused, %s too early", after)
		}
	})
}

// A caller has a bounded number of locks, held and reserved. Those count no more that it has released, or whose time is up.
func TestLocksOfACaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.Authorize, cfg.MaxLocksEach = byHeader, 3 })
		alice, bob := with("Caller", "alice"), with("Caller", "bob")
		acquire := func(key string, who func(*http.Request)) *reply {
			return a.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000}, who)
		}
		first := acquire("1", alice).ok().text("token")
		parked := a.post("/v1/park", object{"token": acquire("2", alice).ok().text("token"), "reserve_ms": 60_000}, alice).ok().text("token")
		acquire("3", alice).ok()
		acquire("4", alice).refused(http.StatusTooManyRequests, "TOO_MANY_LOCKS")
		a.post("/v1/hold", object{"key": "4"}, alice).refused(http.StatusTooManyRequests, "TOO_MANY_LOCKS")
		acquire("3", alice).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED") // its own
		acquire("4", bob).ok()
		a.post("/v1/release", object{"token": first}, alice).ok()
		acquire("1", alice).ok()
		acquire("5", alice).refused(http.StatusTooManyRequests, "TOO_MANY_LOCKS")
		time.Sleep(11 * time.Second) // the leases are over, and the reservation is not
		acquire("5", alice).ok()
		acquire("6", alice).ok()
		acquire("7", alice).refused(http.StatusTooManyRequests, "TOO_MANY_LOCKS")
		a.post("/v1/release", object{"token": parked}, alice).ok()
		acquire("7", alice).ok()
	})
}

// Streams over many connections keep no more than a few handlers busy. A caller who is let in over one of the connections is
// served, with as many requests as the connection may have.
func TestStreamsOfUnknownCallersOverManyConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		synctest.Wait() // the replica listens at its own pipes
		a.pipes = newPipes()
		var strangers, callers, most atomic.Int64
		hs := HTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			busy := &strangers
			if r.URL.Path == "/let-in" {
				noteKnown(r.Context())
				busy = &callers
			}
			defer busy.Add(-1)
			if n := busy.Add(1); busy == &strangers && n > most.Load() {
				most.Store(n)
			}
			<-r.Context().Done()
		}))
		served := make(chan struct{})
		go func() { defer close(served); _ = hs.Serve(a.pipes) }()
		t.Cleanup(func() { _ = hs.Close(); <-served })
		letIn := a.shut()
		letIn.send("/let-in", "")
		const conns = 60
		for range conns {
			h := a.shut()
			for range maxStreams {
				h.send("/", "")
			}
			synctest.Wait()
		}
		for range maxStreams - 1 {
			letIn.send("/let-in", "")
		}
		synctest.Wait()
		if n := most.Load(); n < maxVisits || n > maxVisits+conns*maxVisitsEach {
			t.Errorf("%d requests were under way at a time, want from %d to %d", n, maxVisits, maxVisits+conns*maxVisitsEach)
		}
		if n := callers.Load(); n != maxStreams {
			t.Errorf("%d requests of the caller are under way, want %d", n, maxStreams)
		}
	})
}
