package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// pushTimeout is how long a grant may take to its inbox: a guard against hanging,
// not a measure.
const pushTimeout = 10 * time.Second

// inboxes numbers the inboxes of all tests: those of a server that is shared must
// not meet.
var inboxes atomic.Int64

// mailbox collects what is pushed to an inbox.
type mailbox struct {
	kit    *kit
	inbox  string
	stop   func()
	signal chan struct{} // 1-buffered: something has come

	mu     sync.Mutex // guards what follows
	grants map[string][]joblock.Grant
	unread int
}

// listen makes an inbox and listens to it until the test ends.
func (k *kit) listen() *mailbox {
	k.Helper()
	m := &mailbox{
		kit: k, inbox: fmt.Sprintf("inbox-%d", inboxes.Add(1)),
		signal: make(chan struct{}, 1), grants: make(map[string][]joblock.Grant),
	}
	stop, err := k.Store.Listen(k.ctx, m.inbox, m.deliver)
	if err != nil {
		k.Fatalf("Listen: %v", err)
	}
	m.stop = sync.OnceFunc(stop)
	k.Cleanup(m.stop)
	return m
}

func (m *mailbox) deliver(g joblock.Grant) {
	m.mu.Lock()
	m.grants[g.Nonce] = append(m.grants[g.Nonce], g)
	m.unread++
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take returns the grant of a call, if it has come.
func (m *mailbox) take(call string) (joblock.Grant, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	got := m.grants[call]
	if len(got) == 0 {
		return joblock.Grant{}, false
	}
	m.grants[call] = got[1:]
	m.unread--
	return got[0], true
}

// clear forgets what has come.
func (m *mailbox) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.grants)
	m.unread = 0
}

// left is the number of grants that have come and that nobody has taken.
func (m *mailbox) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unread
}

// await waits for the grant of a call.
func (m *mailbox) await(call string) (joblock.Grant, error) {
	timeout := time.NewTimer(pushTimeout)
	defer timeout.Stop()
	for {
		if g, ok := m.take(call); ok {
			return g, nil
		}
		select {
		case <-m.signal:
		case <-timeout.C:
			return joblock.Grant{}, fmt.Errorf("no grant for %s came to %s in %s", call, m.inbox, pushTimeout)
		}
	}
}

// wantGrant waits for the grant of a call.
func (m *mailbox) wantGrant(call string) joblock.Grant {
	m.kit.Helper()
	g, err := m.await(call)
	if err != nil {
		m.kit.Fatal(err)
	}
	return g
}

// wantNothing fails the test if any grant has come that nobody has taken. A store
// that pushes in the background has had the time to do so: a grant that is made
// now, for a key of its own, is waited for first.
func (m *mailbox) wantNothing(what string) {
	m.kit.Helper()
	k := m.kit
	key := "of the postman " + k.nonce()
	h := k.hold(key, "me")
	req := k.waitReq(key, "you", m)
	k.want("join", k.acquire(req), joblock.OutcomeHeld)
	k.want("release", k.release(k.releaseReq(byFence(key, "me", h.fence))), joblock.OutcomeOK)
	m.wantGrant(req.Nonce)
	if n := m.left(); n != 0 {
		k.Fatalf("%s: %d grants pushed to %s that were not to be expected", what, n, m.inbox)
	}
}

// waitReq is an Acquire that waits, with patience for the whole test.
func (k *kit) waitReq(key, owner string, m *mailbox) joblock.AcquireRequest {
	req := k.acquireReq(key, owner)
	req.Inbox, req.Patience = m.inbox, long
	return req
}

// join has an Acquire wait for the key, which must not be free.
func (k *kit) join(req joblock.AcquireRequest) joblock.Reply {
	k.Helper()
	reply := k.acquire(req)
	k.want("join", reply, joblock.OutcomeHeld)
	return reply
}

// giveUp gives back the place of an Acquire, and whatever it was granted.
func (k *kit) giveUp(req joblock.AcquireRequest) joblock.Reply {
	k.Helper()
	return k.release(k.releaseReq(byGrant(req.Key, req.Owner, req.Nonce)))
}

// free releases the key, whoever has it.
func (k *kit) free(key string) {
	k.Helper()
	r := k.inspect(key)
	k.want("release", k.release(k.releaseReq(byFence(key, r.Owner, r.Fence))), joblock.OutcomeOK)
}

// runOut ends the holding of a key by time alone: it is parked for one Unit, which
// passes. Other ways to a lapse would begin before the waiters have joined.
func (k *kit) runOut(key string) {
	k.Helper()
	r := k.inspect(key)
	req := k.parkReq(byFence(key, r.Owner, r.Fence), "q/job")
	req.Hold = k.Unit
	k.wantGrant("park", k.park(req), r.Fence)
	k.lapse()
}

// wantOwner fails the test unless the holder of the key is that of req.
func (k *kit) wantOwner(what string, req joblock.AcquireRequest) joblock.Record {
	k.Helper()
	r := k.inspect(req.Key)
	if r.State != joblock.StateHeld || r.Owner != req.Owner {
		k.Fatalf("%s: key %q is %s by %q, want held by %q", what, req.Key, r.State, r.Owner, req.Owner)
	}
	return r
}
