package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// pushTimeout is how long a grant may take to its inbox: a guard against hanging,
// not a measure.
const pushTimeout = 10 * time.Second

// inboxes numbers the inboxes of all tests: on a shared server each needs its own name.
var inboxes atomic.Int64

// mailbox collects what is pushed to an inbox.
type mailbox struct {
	kit    *kit
	inbox  string
	stop   func()
	signal chan struct{} // 1-buffered: something has come

	mu     sync.Mutex     // guards what follows
	pushes map[string]int // not read yet, by the call that they are for
	unread int
}

// listen makes an inbox and listens to it until the test ends.
func (k *kit) listen() *mailbox {
	k.Helper()
	m := &mailbox{
		kit: k, inbox: fmt.Sprintf("inbox-%d", inboxes.Add(1)),
		signal: make(chan struct{}, 1), pushes: make(map[string]int),
	}
	stop, err := k.Store.Subscribe(k.ctx, m.inbox, m.deliver)
	if err != nil {
		k.Fatalf("Subscribe: %v", err)
	}
	m.stop = sync.OnceFunc(stop)
	k.Cleanup(m.stop)
	return m
}

func (m *mailbox) deliver(p driver.Push) {
	m.mu.Lock()
	m.pushes[p.Nonce]++
	m.unread++
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take reads a push to a call, and reports false if none has come.
func (m *mailbox) take(call string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pushes[call] == 0 {
		return false
	}
	m.pushes[call]--
	m.unread--
	return true
}

// left is the number of pushes that have come and were not taken.
func (m *mailbox) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unread
}

// await waits for a push to a call.
func (m *mailbox) await(call string) error {
	timeout := time.NewTimer(pushTimeout)
	defer timeout.Stop()
	for {
		if m.take(call) {
			return nil
		}
		select {
		case <-m.signal:
		case <-timeout.C:
			return fmt.Errorf("no push for %s came to %s in %s", call, m.inbox, pushTimeout)
		}
	}
}

// wantGrant waits for the push to a call that has been granted.
func (m *mailbox) wantGrant(call string) {
	m.kit.Helper()
	if err := m.await(call); err != nil {
		m.kit.Fatal(err)
	}
}

// granted waits for the push to an Acquire, and sends that again.
func (m *mailbox) granted(req driver.AcquireRequest) driver.Reply {
	m.kit.Helper()
	m.wantGrant(req.Nonce)
	reply := m.kit.acquire(req)
	m.kit.want("ask for the grant", reply, driver.OutcomeOK)
	return reply
}

// wantNothing fails the test if there is a push that was not taken. A store may push in the
// background, so it first makes another grant, for a key of its own, and waits for its push.
func (m *mailbox) wantNothing(what string) {
	m.kit.Helper()
	k := m.kit
	key := "of the postman " + k.nonce()
	h := k.hold(key, "me")
	req := k.waitReq(key, "you", m)
	k.want("join", k.acquire(req), driver.OutcomeHeld)
	k.want("release", k.release(k.releaseReq(byFence(key, "me", h.fence))), driver.OutcomeOK)
	m.wantGrant(req.Nonce)
	if n := m.left(); n != 0 {
		k.Fatalf("%s: %d pushes came to %s that were not to be expected", what, n, m.inbox)
	}
}

// waitReq is an Acquire that waits, with patience for the whole test.
func (k *kit) waitReq(key, owner string, m *mailbox) driver.AcquireRequest {
	req := k.acquireReq(key, owner)
	req.Inbox, req.Patience = m.inbox, long
	return req
}

// join sends an Acquire that is to wait: the key must not be free.
func (k *kit) join(req driver.AcquireRequest) driver.Reply {
	k.Helper()
	reply := k.acquire(req)
	k.want("join", reply, driver.OutcomeHeld)
	return reply
}

// giveUp gives back the place of an Acquire, and whatever it was granted.
func (k *kit) giveUp(req driver.AcquireRequest) driver.Reply {
	k.Helper()
	return k.release(k.releaseReq(byGrant(req.Key, req.Owner, req.Nonce)))
}

// free releases the key, whoever has it.
func (k *kit) free(key string) {
	k.Helper()
	r := k.inspect(key)
	k.want("release", k.release(k.releaseReq(byFence(key, r.Owner, r.Fence))), driver.OutcomeOK)
}

// runOut parks a key for one Unit and lets that pass. Other ways to a lapse would begin
// before the waiters have joined.
func (k *kit) runOut(key string) {
	k.Helper()
	r := k.inspect(key)
	req := k.parkReq(byFence(key, r.Owner, r.Fence), "q/job")
	req.Reserve = k.Unit
	k.wantGrant("park", k.park(req), r.Fence)
	k.lapse()
}

// wantOwner fails the test unless the holder of the key is that of req.
func (k *kit) wantOwner(what string, req driver.AcquireRequest) driver.Record {
	k.Helper()
	r := k.inspect(req.Key)
	if r.State != driver.StateHeld || r.Owner != req.Owner {
		k.Fatalf("%s: key %q is %s by %q, want held by %q", what, req.Key, r.State, r.Owner, req.Owner)
	}
	return r
}
