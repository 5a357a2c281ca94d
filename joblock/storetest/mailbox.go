package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// pushTimeout is the longest time that a test waits for a push. The timeout only ends a test that would hang.
const pushTimeout = 30 * time.Second

// inboxes counts the inboxes of all tests. On a shared server, each inbox needs a name of its own.
var inboxes atomic.Int64

// mailbox collects the pushes to an inbox.
type mailbox struct {
	kit    *kit
	inbox  string
	stop   func()
	signal chan struct{} // has room for one signal: a push has come

	mu     sync.Mutex               // guards the fields below
	pushes map[string][]driver.Push // unread pushes, by the nonce or the job in the push
	unread int
}

// listen makes an inbox and subscribes to that inbox until the test ends.
func (k *kit) listen() *mailbox {
	k.Helper()
	return k.listenTo(fmt.Sprintf("inbox-%d", inboxes.Add(1)))
}

// listenTo subscribes to an inbox until the test ends.
func (k *kit) listenTo(inbox string) *mailbox {
	k.Helper()
	m := &mailbox{
		kit: k, inbox: inbox,
		signal: make(chan struct{}, 1), pushes: make(map[string][]driver.Push),
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
	name := p.Nonce + p.Job // a push has at most one of these
	m.mu.Lock()
	m.pushes[name] = append(m.pushes[name], p)
	m.unread++
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take reads a push for the call with this nonce, or for this job. take reports false if no such push has come.
func (m *mailbox) take(call string) (p driver.Push, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	unread := m.pushes[call]
	if len(unread) == 0 {
		return p, false
	}
	m.pushes[call] = unread[1:]
	m.unread--
	return unread[0], true
}

// left returns the number of unread pushes.
func (m *mailbox) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unread
}

// await waits for a push for the call with this nonce, or for this job.
func (m *mailbox) await(call string) (driver.Push, error) {
	timeout := time.NewTimer(pushTimeout)
	defer timeout.Stop()
	for {
		if p, ok := m.take(call); ok {
			return p, nil
		}
		select {
		case <-m.signal:
		case <-timeout.C:
			return driver.Push{}, fmt.Errorf("no push for %s came to %s in %s", call, m.inbox, pushTimeout)
		}
	}
}

// wantGrant fails the test unless a push for the call with this nonce comes.
func (m *mailbox) wantGrant(call string) driver.Push {
	m.kit.Helper()
	p, err := m.await(call)
	if err != nil {
		m.kit.Fatal(err)
	}
	return p
}

// granted waits for the push for an Acquire, and then sends that Acquire again. A grant in the push must be the grant
// in the answer.
func (m *mailbox) granted(req driver.AcquireRequest) driver.Reply {
	m.kit.Helper()
	p := m.wantGrant(req.Nonce)
	reply := m.kit.acquire(req)
	m.kit.want("ask for the grant", reply, driver.OutcomeOK)
	if want := (driver.Grant{Fence: reply.Fence, Ended: reply.Ended}); p.Grant != nil && *p.Grant != want {
		m.kit.Errorf("the push has the grant %+v, the answer %+v", *p.Grant, want)
	}
	return reply
}

// wantNothing fails the test if there is an unread push. A store may push in the background, so wantNothing first makes
// a grant for another key, and waits for the push of that grant.
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

// waitReq returns an Acquire that waits for longer than the test takes.
func (k *kit) waitReq(key, owner string, m *mailbox) driver.AcquireRequest {
	req := k.acquireReq(key, owner)
	req.Inbox, req.Patience = m.inbox, long
	return req
}

// join sends an Acquire and fails the test unless the Acquire waits. The key must not be free.
func (k *kit) join(req driver.AcquireRequest) driver.Reply {
	k.Helper()
	reply := k.acquire(req)
	k.want("join", reply, driver.OutcomeHeld)
	return reply
}

// giveUp releases the place of an Acquire, or the lock that the store has granted to the Acquire.
func (k *kit) giveUp(req driver.AcquireRequest) driver.Reply {
	k.Helper()
	return k.release(k.releaseReq(byGrant(req.Key, req.Owner, req.Nonce)))
}

// free releases the key, whichever owner has it.
func (k *kit) free(key string) {
	k.Helper()
	r := k.inspect(key)
	k.want("release", k.release(k.releaseReq(byFence(key, r.Owner, r.Fence))), driver.OutcomeOK)
}

// runOut parks a key for one Unit, waits until the reservation has run out, and returns the term that has ended. A test
// calls it after its waiters have joined. A short lease cannot replace it: the lease could run out before they join.
func (k *kit) runOut(key string) driver.Term {
	k.Helper()
	r := k.inspect(key)
	req := k.parkReq(byFence(key, r.Owner, r.Fence), "q/job")
	req.Reserve = k.Unit
	parked := k.park(req)
	k.wantGrant("park", parked, r.Fence)
	k.lapse()
	return byFence(key, r.Owner, parked.Fence)
}

// wantOwner fails the test unless the caller of req holds the key.
func (k *kit) wantOwner(what string, req driver.AcquireRequest) driver.Record {
	k.Helper()
	r := k.inspect(req.Key)
	if r.State != driver.StateHeld || r.Owner != req.Owner {
		k.Fatalf("%s: key %q is %s by %q, want held by %q", what, req.Key, r.State, r.Owner, req.Owner)
	}
	return r
}
