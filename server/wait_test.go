package server

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestWaitForALock(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
		began := time.Now()
		p := b.post("/v1/acquire", object{"key": key, "wait_ms": 2000}).refused(http.StatusConflict, "LOCK_TIMEOUT")
		if waited := time.Since(began); waited < 2*time.Second || waited > 3*time.Second {
			t.Errorf("waited %s: %v", waited, p)
		}
		got := make(chan object)
		go func() { got <- b.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000, "wait_ms": 60_000}).ok() }()
		time.Sleep(20 * time.Second)
		a.post("/v1/release", object{"token": token}).ok()
		lock := <-got
		// The client counts from the time when it sent its request.
		if trust := lock.number("elapsed_ms") + lock.number("valid_ms"); trust < 28_000 || trust > 30_000 || lock.number("elapsed_ms") < 20_000 {
			t.Errorf("%v", lock)
		}
		if st := a.status(key); st.Waiters != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A client that goes away while it waits gives up its place, and holds nothing.
func TestClientThatGoesAwayWhileItWaits(t *testing.T) {
	for name, change := range map[string][]func(*http.Request){"plain": nil, "with an Idempotency-Key": {with("Idempotency-Key", "x")}} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, peer func() driver.Store) {
				a, b := newReplica(t, peer()), newReplica(t, peer())
				token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
				ctx, hangUp := context.WithCancel(t.Context())
				over := make(chan error)
				go func() {
					_, err := b.try(ctx, http.MethodPost, "/v1/acquire", object{"key": key, "wait_ms": 60_000}, change...)
					over <- err
				}()
				synctest.Wait()
				if st := a.status(key); st.Waiters != 1 {
					t.Fatalf("%+v", st)
				}
				hangUp()
				if err := <-over; err == nil {
					t.Error("an answer came")
				}
				time.Sleep(time.Second)
				a.post("/v1/release", object{"token": token}).ok()
				if st := a.wantState(key, joblock.StateFree); st.Waiters != 0 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// Beyond the bounds a request does not wait, but is served if its lock is free.
func TestBoundsOnWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.MaxWaiting, cfg.MaxWaitingEach, cfg.Authorize = 3, 2, byHeader
		})
		alice, bob := with("Caller", "alice"), with("Caller", "bob")
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}, alice).ok().text("token")
		ctx, hangUp := context.WithCancel(t.Context())
		over := make(chan struct{})
		wait := func(who func(*http.Request)) {
			go func() {
				_, _ = a.try(ctx, http.MethodPost, "/v1/acquire", object{"key": key, "wait_ms": 60_000}, who)
				over <- struct{}{}
			}()
			synctest.Wait()
		}
		wait(alice)
		wait(alice)
		r := a.post("/v1/acquire", object{"key": key, "wait_ms": 1000}, alice)
		r.refused(http.StatusTooManyRequests, "TOO_MANY_WAITS")
		if r.header.Get("Retry-After") != "1" {
			t.Errorf("%v", r.header)
		}
		a.post("/v1/hold", object{"key": key}, alice).refused(http.StatusTooManyRequests, "TOO_MANY_WAITS")
		a.post("/v1/acquire", object{"key": "free", "wait_ms": 1000}, alice).ok()
		wait(bob)
		a.post("/v1/acquire", object{"key": key, "wait_ms": 1000}, bob).refused(http.StatusTooManyRequests, "TOO_MANY_WAITS")
		hangUp()
		for range 3 {
			<-over
		}
		synctest.Wait()
		a.post("/v1/acquire", object{"key": key, "wait_ms": 1000}, bob).refused(http.StatusConflict, "LOCK_TIMEOUT")
		a.post("/v1/release", object{"token": token}, bob).ok()
	})
}

// Close ends waits with a 503, and short requests are served on.
func TestCloseEndsWaits(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
		got := make(chan *reply)
		go func() { got <- a.post("/v1/acquire", object{"key": key, "wait_ms": 60_000}) }()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- a.s.Close(context.Background()) }()
		r := <-got
		r.refused(http.StatusServiceUnavailable, "LOCK_CLOSED")
		if err := <-closed; err != nil {
			t.Error(err)
		}
		a.post("/v1/acquire", object{"key": key, "wait_ms": 1}).refused(http.StatusServiceUnavailable, "LOCK_CLOSED")
		a.post("/v1/hold", object{"key": key}).refused(http.StatusServiceUnavailable, "LOCK_CLOSED")
		a.do(http.MethodGet, "/readyz", nil).refused(http.StatusServiceUnavailable, "LOCK_CLOSED")
		a.do(http.MethodGet, "/healthz", nil).ok()
		a.post("/v1/release", object{"token": token}).ok()
		time.Sleep(time.Second)
		if st := a.wantState(key, joblock.StateFree); st.Waiters != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A lock that was granted to a client that is gone is released, and does not last for its TTL.
func TestGrantToAClientThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		a.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: time.Second}, faultstore.Acquire)
		ctx, hangUp := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer hangUp()
		if _, err := a.try(ctx, http.MethodPost, "/v1/acquire", object{"key": key, "ttl_ms": 60_000}); err == nil {
			t.Error("an answer came")
		}
		a.wantState(key, joblock.StateHeld)
		time.Sleep(time.Second)
		if st := a.wantState(key, joblock.StateFree); st.Reason != "the client is gone" {
			t.Errorf("%+v", st)
		}
	})
}

// A request that waits is silent. By default it ends before the proxies that give up after 50 s or a minute do.
func TestWaitsAreShorterThanThePatienceOfProxies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.MaxWait = 0 })
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok()
		a.post("/v1/acquire", object{"key": key, "wait_ms": 45_000}).refused(http.StatusConflict, "LOCK_TIMEOUT")
		a.post("/v1/acquire", object{"key": key, "wait_ms": 45_001}).refused(http.StatusBadRequest, "LOCK_INVALID")
	})
}
