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

// A request whose answer was lost is sent again, through another replica, and finds its own lock.
func TestRepeatedAcquireFindsItsLock(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		again := with("Idempotency-Key", "req-1")
		a.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000}, again).refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		time.Sleep(3 * time.Second)
		first := a.wantState(key, joblock.StateHeld)
		lock := b.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000, "wait_ms": 100}, again).ok()
		if lock.number("fence") != first.Fence || lock.number("valid_ms") > 7000 {
			t.Errorf("%v, want fence %d and the rest of the lease", lock, first.Fence)
		}
		same := a.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000}, again).ok()
		if same.text("token") != lock.text("token") {
			t.Errorf("%v, want the token of %v", same, lock)
		}
		b.post("/v1/acquire", object{"key": key, "ttl_ms": 20_000}, again).refused(http.StatusUnprocessableEntity, "IDEMPOTENCY_MISMATCH")
		b.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000}, with("Idempotency-Key", "req-2")).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
		other := b.post("/v1/acquire", object{"key": "another", "ttl_ms": 10_000}, again).ok()
		if other.text("token") == lock.text("token") {
			t.Error("two keys have one token")
		}
		parked := b.post("/v1/park", object{"token": lock.text("token")}).ok()
		if twice := a.post("/v1/park", object{"token": lock.text("token")}).ok(); twice.text("token") != parked.text("token") {
			t.Errorf("a repeated park: %v, want %v", twice, parked)
		}
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000}, again).refused(http.StatusConflict, "LOCK_BUSY")
		back := with("Idempotency-Key", "resume-1")
		resumed := a.post("/v1/resume", object{"token": parked.text("token")}, back).ok()
		if twice := b.post("/v1/resume", object{"token": parked.text("token")}, back).ok(); twice.text("token") != resumed.text("token") {
			t.Errorf("a repeated resume: %v, want %v", twice, resumed)
		}
		b.post("/v1/resume", object{"token": parked.text("token")}).refused(http.StatusConflict, "LOCK_BUSY")
		a.post("/v1/release", object{"token": resumed.text("token")}).ok()
		b.post("/v1/release", object{"token": resumed.text("token")}).ok()
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000}, again).refused(http.StatusGone, "LOCK_ALREADY_RELEASED")
		a.wantState(key, joblock.StateFree)
	})
}

// A repeated acquire whose lease ends while it is on its way is refused because of the present holder, and not because of
// other parameters: the client has sent the same.
func TestRepeatedAcquireThatComesTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		one := store()
		a, b := newReplica(t, shared{one}), newReplica(t, shared{one})
		again := with("Idempotency-Key", "req-1")
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}, again).ok()
		late := func() { // the lease ends behind the look at the key, and another caller comes
			time.Sleep(2 * time.Second)
			b.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok()
		}
		a.store.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: late}, faultstore.Acquire)
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}, again).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	})
}

// The Idempotency-Key of one caller is nothing to another one.
func TestIdempotencyKeysOfTwoCallers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.Authorize = byHeader })
		again := with("Idempotency-Key", "req-1")
		a.post("/v1/acquire", object{"key": key}, again, with("Caller", "alice")).ok()
		a.post("/v1/acquire", object{"key": key}, again, with("Caller", "bob")).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
		a.post("/v1/acquire", object{"key": key}, again, with("Caller", "alice")).ok()
	})
}

// A client waits, loses its connection, and asks again through another replica: it gets the lock there, and the end of
// the first wait costs it nothing.
func TestRepeatedWait(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		again := with("Idempotency-Key", "req-1")
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
		ctx, hangUp := context.WithCancel(t.Context())
		first := make(chan struct{})
		go func() {
			defer close(first)
			_, _ = a.try(ctx, http.MethodPost, "/v1/acquire", object{"key": key, "wait_ms": 60_000}, again)
		}()
		synctest.Wait()
		second := make(chan object)
		go func() { second <- b.post("/v1/acquire", object{"key": key, "wait_ms": 60_000}, again).ok() }()
		synctest.Wait()
		if st := a.status(key); st.Waiters != 1 {
			t.Errorf("%d places, want one for both", st.Waiters)
		}
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		b.post("/v1/release", object{"token": token}).ok()
		lock := <-second
		hangUp()
		<-first
		a.store.Clear()
		time.Sleep(10 * time.Second)
		if st := a.wantState(key, joblock.StateHeld); st.Fence != lock.number("fence") {
			t.Errorf("fence %d, want %d", st.Fence, lock.number("fence"))
		}
		a.post("/v1/release", object{"token": lock.text("token")}).ok()
	})
}

// byHeader lets everybody in under the name in the header Caller.
var byHeader = AuthorizeFunc(func(r *http.Request) (Principal, error) {
	return Principal{ID: r.Header.Get("Caller"), Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, nil
})
