package server

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// A client waits in line, gets the lock, holds it for long, and releases it by hanging up.
func TestHold(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
		h := b.hold(object{"key": key, "ttl_ms": 9000, "holder": "stream"})
		if o := h.line(); o.text("type") != "waiting" || o.number("ahead") != 0 {
			t.Errorf("%v", o)
		}
		time.AfterFunc(20*time.Second, func() { a.post("/v1/release", object{"token": token}).ok() })
		got := h.until("lock-acquired")
		if trust := got.number("elapsed_ms") + got.number("valid_ms"); trust > 29_500 || trust < 25_000 || // a grant that was pushed counts from the request before
			got.number("ttl_ms") != 9000 {
			t.Errorf("%v", got)
		}
		if st := a.wantState(key, joblock.StateHeld); st.Fence != got.number("fence") || st.Holder != "stream" {
			t.Errorf("%+v", st)
		}
		last, at := got, time.Now()
		for range 20 {
			o := h.line()
			if o.text("type") != "ping" || o.number("fence") != got.number("fence") {
				t.Fatalf("%v", o)
			}
			if gap := time.Since(at); gap > 3*time.Second {
				t.Errorf("a ping after %s, with a TTL of 9 s", gap)
			}
			if o.number("elapsed_ms")+o.number("valid_ms") < last.number("elapsed_ms")+last.number("valid_ms") {
				t.Errorf("trust shrinks: %v after %v", o, last)
			}
			last, at = o, time.Now()
		}
		h.leave()
		synctest.Wait()
		if st := a.wantState(key, joblock.StateFree); st.Reason != "the stream has ended" {
			t.Errorf("%+v", st)
		}
		a.wantNoSecrets(got.text("token"))
		b.wantNoSecrets(got.text("token"))
	})
}

// Server-sent events have the same lines.
func TestHoldAsEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		h := a.hold(object{"key": key, "ttl_ms": 3000, "max_hold_ms": 2000}, with("Accept", "text/event-stream"))
		if h.res.Header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("%v", h.res.Header)
		}
		// The lease is longer than the hold, and the client may rely on neither for longer than the other.
		for _, kind := range []string{"lock-acquired", "ping"} {
			if o := h.until(kind); o.number("elapsed_ms")+o.number("valid_ms") > 2001 || o.number("valid_ms") < 500 {
				t.Errorf("%v", o)
			}
		}
		h.until("released")
		h.ended()
		a.wantState(key, joblock.StateFree)
		if !strings.Contains(h.read.String(), "event: ping\ndata: {") {
			t.Errorf("%s", h.read.String())
		}
	})
}

// A hold that is refused before its first line has an ordinary answer, and after that a last line.
func TestHoldThatIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok()
		a.post("/v1/hold", object{"key": key, "wait_ms": 0}).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
		h := a.hold(object{"key": key, "wait_ms": 5000})
		if o := h.until("error"); o.text("code") != "LOCK_TIMEOUT" || !o.flag("retryable") || o.text("error") == "" {
			t.Errorf("%v", o)
		}
		h.ended()
	})
}

// When the client hangs up, its lock is treated as on_disconnect says.
func TestOnDisconnect(t *testing.T) {
	for on, want := range map[string]joblock.State{"": joblock.StateFree, "release": joblock.StateFree, "lapse": joblock.StateHeld, "park": joblock.StateParked} {
		bubble(t, func(t *testing.T) {
			a := newReplica(t, store())
			h := a.hold(object{"key": key, "ttl_ms": 9000, "on_disconnect": on, "reserve_ms": 30_000})
			token := h.until("lock-acquired").text("token")
			h.leave()
			synctest.Wait()
			a.wantState(key, want)
			switch on {
			case "park":
				a.post("/v1/resume", object{"token": token}).ok()
			case "lapse":
				time.Sleep(9*time.Second + 10*time.Millisecond)
				a.wantState(key, joblock.StateFree)
			}
		})
	}
}

// A client that hangs up while it waits leaves no place behind.
func TestHoldThatIsLeftInLine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
		h := a.hold(object{"key": key})
		h.until("waiting")
		h.leave()
		time.Sleep(time.Second)
		a.post("/v1/release", object{"token": token}).ok()
		if st := a.wantState(key, joblock.StateFree); st.Waiters != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A client that reads nothing is noticed within a TTL, and the lock is free.
func TestClientThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		a.holdUnread(object{"key": key, "ttl_ms": 9000})
		began := time.Now()
		for a.status(key).Locked() { // the connection has no buffers
			if time.Since(began) > 9*time.Second {
				t.Fatal("the lock is held for a client that has read nothing for a TTL")
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// A loss is reported when it happens.
func TestHoldThatLosesItsLock(t *testing.T) {
	t.Run("forced", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			a := newReplica(t, store())
			h := a.hold(object{"key": key, "ttl_ms": 9000})
			h.until("lock-acquired")
			if err := a.locks.ForceRelease(t.Context(), key, joblock.Reason("by hand")); err != nil {
				t.Fatal(err)
			}
			if o := h.until("lock-lost"); o.text("code") != "LOCK_LOST" && o.text("code") != "LOCK_ALREADY_RELEASED" {
				t.Errorf("%v", o)
			}
			h.ended()
		})
	})
	t.Run("no store", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			a := newReplica(t, store())
			h := a.hold(object{"key": key, "ttl_ms": 9000})
			got := h.until("lock-acquired")
			began := time.Now().Add(-time.Duration(got.number("elapsed_ms")) * time.Millisecond)
			a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew, faultstore.Release)
			trusted := got
			for o := h.line(); ; o = h.line() {
				if o.text("type") == "ping" {
					trusted = o
					continue
				}
				if o.text("type") != "lock-lost" {
					t.Errorf("%v", o)
				}
				break
			}
			if deadline := began.Add(time.Duration(trusted.number("elapsed_ms")+trusted.number("valid_ms")) * time.Millisecond); time.Now().After(deadline) {
				t.Errorf("the loss is reported %s after the client had to stop", time.Since(deadline))
			}
			h.ended()
		})
	})
}

// A replica that closes hands its locks over: each client resumes at another replica, and no other caller gets in between.
func TestDrain(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		h := a.hold(object{"key": key, "ttl_ms": 9000})
		got := h.until("lock-acquired")
		waiting := b.hold(object{"key": key, "ttl_ms": 9000})
		waiting.until("waiting")
		closed := make(chan error)
		go func() { closed <- a.s.Close(context.Background()) }()
		o := h.until("draining")
		if o.number("resume_within_ms") != 60_000 || o.text("token") == got.text("token") {
			t.Errorf("%v", o)
		}
		h.ended()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		a.wantState(key, joblock.StateParked)
		again := b.hold(object{"token": o.text("token")})
		resumed := again.until("lock-acquired")
		if resumed.number("fence") <= got.number("fence") || resumed.number("ttl_ms") != 9000 {
			t.Errorf("%v after %v", resumed, got)
		}
		again.until("ping")
		again.leave()
		waiting.until("lock-acquired")
	})
}

// A client that is gone when its replica closes holds up neither Close nor the lock.
func TestDrainOfAClientThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		a.holdUnread(object{"key": key, "ttl_ms": 9000})
		synctest.Wait()
		began := time.Now()
		if err := a.s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("Close took %s", took)
		}
		a.wantState(key, joblock.StateFree)
	})
}

// A stream takes a permit of a limit.
func TestHoldOfALimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		one := a.hold(object{"key": key, "limit": 1})
		if o := one.until("lock-acquired"); !strings.HasPrefix(o.text("key"), key+"%#") {
			t.Errorf("%v", o)
		}
		two := a.hold(object{"key": key, "limit": 1, "ttl_ms": 4000})
		two.until("waiting")
		one.leave()
		two.until("lock-acquired")
	})
}

// A replica that dies takes its locks along for one TTL at most: the lock of a stream, and a lock of a client that does
// not find another replica.
func TestReplicaThatDies(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		a.hold(object{"key": "stream", "ttl_ms": 9000}).until("lock-acquired")
		token := a.post("/v1/acquire", object{"key": "lease", "ttl_ms": 9000}).ok().text("token")
		time.Sleep(4 * time.Second)
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew, faultstore.Release, faultstore.Park, faultstore.Acquire) // as if a were dead
		b.post("/v1/renew", object{"token": token}).ok()
		began := time.Now()
		b.post("/v1/acquire", object{"key": "stream", "ttl_ms": 9000, "wait_ms": 30_000}).ok()
		if took := time.Since(began); took > 9*time.Second+100*time.Millisecond {
			t.Errorf("the stream's lock was free after %s", took)
		}
		b.post("/v1/acquire", object{"key": "lease", "ttl_ms": 9000, "wait_ms": 30_000}).ok()
		if took := time.Since(began); took > 9*time.Second+100*time.Millisecond {
			t.Errorf("the client's lock was free after %s", took)
		}
		a.store.Clear()
	})
}

// Over HTTP/2 many streams share a connection, and the end of one of them ends only its own lock.
func TestHoldOverHTTP2(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{DialContext: a.pipes.dial, Protocols: protocols}
		a.client = &http.Client{Transport: transport}
		one, two := a.hold(object{"key": "one", "ttl_ms": 9000}), a.hold(object{"key": "two", "ttl_ms": 9000})
		if one.res.ProtoMajor != 2 {
			t.Fatalf("%s", one.res.Proto)
		}
		one.until("ping")
		two.until("ping")
		one.leave()
		time.Sleep(time.Second)
		a.wantState("one", joblock.StateFree)
		a.wantState("two", joblock.StateHeld)
		two.until("ping")
		two.leave()
		transport.CloseIdleConnections()
	})
}
