package storetest

import (
	"fmt"

	"github.com/joblock/toolkit/joblock/driver"
)

// queueCases test the order of places in the queue.
var queueCases = []testCase{
	{"a thousand waiters are served in the order in which they came", func(k *kit) {
		const n = 1000
		m := k.listen()
		last := k.hold("key", "me").fence
		reqs := make([]driver.AcquireRequest, n)
		for i := range reqs {
			reqs[i] = k.waitReq("key", fmt.Sprintf("waiter-%d", i), m)
			if got := k.join(reqs[i]); got.Ahead != i {
				k.Fatalf("waiter %d has %d before it", i, got.Ahead)
			}
		}
		if r := k.inspect("key"); r.Waiters != n {
			k.Fatalf("%d waiters, want %d", r.Waiters, n)
		}
		term := byFence("key", "me", last)
		for i, req := range reqs {
			k.want("release", k.release(k.releaseReq(term)), driver.OutcomeOK)
			g := m.granted(req)
			if g.Fence <= last || m.left() != 0 {
				k.Fatalf("grant %d has fence %d after %d, and %d more came with it", i, g.Fence, last, m.left())
			}
			last, term = g.Fence, byFence("key", req.Owner, g.Fence)
		}
		if r := k.wantOwner("at the end", reqs[n-1]); r.Waiters != 0 {
			k.Errorf("%d waiters left, want none", r.Waiters)
		}
		k.free("key")
		k.wantState("key", driver.StateFree)
		m.wantNothing("a release without waiters")
	}},
	{"a waiter's answer says who has the key and what time it is", func(k *kit) {
		m := k.listen()
		h := k.runFor("key", "me", "q/job", long)
		before := k.inspect("key")
		first := k.join(k.waitReq("key", "you", m))
		k.checkReply(first, before)
		second := k.join(k.waitReq("key", "them", m))
		k.checkReply(second, before)
		if first.Now.UnixMilli() <= 0 || second.Now.Before(first.Now) {
			k.Errorf("the store's clock is %s, then %s", first.Now, second.Now)
		}
		r := k.wantState("key", driver.StateHeld)
		if r.Owner != "me" || r.Fence != h.fence || r.Waiters != 2 {
			k.Errorf("record %+v, want it as it was, with 2 waiters", r)
		}
		plain := k.acquire(k.acquireReq("key", "other"))
		k.want("acquire", plain, driver.OutcomeHeld)
		if r := k.inspect("key"); r.Waiters != 2 {
			k.Errorf("%d waiters after an acquire that does not wait, want 2", r.Waiters)
		}
	}},
	{"asking again keeps the place, and takes no other", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		first, second, third := k.waitReq("key", "a", m), k.waitReq("key", "b", m), k.waitReq("key", "c", m)
		for range 3 {
			for i, req := range []driver.AcquireRequest{first, second, third} {
				if got := k.join(req); got.Ahead != i {
					k.Fatalf("%d places before that of waiter %d", got.Ahead, i)
				}
			}
		}
		if r := k.inspect("key"); r.Waiters != 3 {
			k.Errorf("%d places for 3 waiters", r.Waiters)
		}
		k.free("key")
		m.wantGrant(first.Nonce)
		if got := k.join(third); got.Ahead != 1 {
			k.Errorf("%d places before the last of two", got.Ahead)
		}
		for _, req := range []driver.AcquireRequest{second, third} {
			k.free("key")
			m.wantGrant(req.Nonce)
		}
		k.free("key")
		k.wantState("key", driver.StateFree)
		m.wantNothing("a release without waiters")
	}},
	{"a place that was not asked for again in time is skipped", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		var reqs []driver.AcquireRequest
		for i, patience := range []bool{false, true, false, false, true, false} {
			req := k.waitReq("key", fmt.Sprintf("waiter-%d", i), m)
			if !patience {
				req.Patience = k.Unit
			}
			k.join(req)
			reqs = append(reqs, req)
		}
		k.lapse()
		for _, i := range []int{1, 4} {
			k.free("key")
			m.wantGrant(reqs[i].Nonce)
			k.wantOwner("a release", reqs[i])
		}
		k.free("key")
		if r := k.wantState("key", driver.StateFree); r.Waiters != 0 {
			k.Errorf("%d waiters, want none", r.Waiters)
		}
		m.wantNothing("waiters that have given up")
	}},
	{"asking again keeps the place for longer", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		req := k.waitReq("key", "you", m)
		req.Patience = k.Unit
		k.join(req)
		req.Patience = long
		k.join(req)
		k.lapse()
		k.free("key")
		m.wantGrant(req.Nonce)
		k.wantOwner("a release", req)
	}},
	{"the grant follows the waiter's last request", func(k *kit) {
		m, other := k.listen(), k.listen()
		k.hold("key", "me")
		req := k.waitReq("key", "you", m)
		k.join(req)
		req.Inbox, req.Holder, req.TTL = other.inbox, "renamed", 3*long
		k.join(req)
		k.free("key")
		other.wantGrant(req.Nonce)
		if r := k.wantOwner("a release", req); r.Holder != "renamed" || r.Lease <= 2*long {
			k.Errorf("record %+v, want holder and lease of the second call", r)
		}
		m.wantNothing("the inbox of the first call")
	}},
	{"a waiter that asks too late loses its place", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		late, next := k.waitReq("key", "late", m), k.waitReq("key", "next", m)
		late.Patience = k.Unit
		k.join(late)
		k.join(next)
		k.runOut("key")
		k.join(late)
		m.wantGrant(next.Nonce)
		k.wantOwner("the late one's asking", next)
		late.Patience = long
		k.join(late)
		k.free("key")
		m.wantGrant(late.Nonce)
	}},
	{"a waiter that leaves is skipped, the others are served", func(k *kit) {
		m := k.listen()
		for gone, name := range []string{"first", "middle", "last"} {
			k.hold(name, "me")
			var reqs []driver.AcquireRequest
			for i := range 3 {
				reqs = append(reqs, k.waitReq(name, fmt.Sprintf("waiter-%d", i), m))
				k.join(reqs[i])
			}
			before := k.inspect(name)
			k.want("leave", k.giveUp(reqs[gone]), driver.OutcomeNotOwner)
			k.want("leave again", k.giveUp(reqs[gone]), driver.OutcomeNotOwner)
			k.unchanged("leaving", before)
			for i, req := range reqs {
				if i != gone {
					k.free(name)
					m.wantGrant(req.Nonce)
					k.wantOwner("a release", req)
				}
			}
			k.free(name)
			k.wantState(name, driver.StateFree)
		}
		m.wantNothing("those who left")
	}},
	{"a waiter that leaves and comes back is the last", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		first, second := k.waitReq("key", "a", m), k.waitReq("key", "b", m)
		k.join(first)
		k.join(second)
		k.giveUp(first)
		k.join(first)
		for _, req := range []driver.AcquireRequest{second, first} {
			k.free("key")
			m.wantGrant(req.Nonce)
		}
	}},
	{"leaving ends neither the holder's term nor another's waiting", func(k *kit) {
		m := k.listen()
		h := k.hold("key", "me")
		mine, other := k.waitReq("key", "me", m), k.waitReq("key", "me", m)
		k.join(mine)
		k.join(other)
		k.want("leave", k.giveUp(mine), driver.OutcomeNotOwner)
		k.want("renew", k.renew(k.renewReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		k.free("key")
		m.wantGrant(other.Nonce)
	}},
	{"the record lasts as long as a waiter's place", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		brief, waiter := k.waitReq("key", "brief", m), k.waitReq("key", "waiter", m)
		brief.TTL, brief.Retain = k.Unit, k.Unit
		k.join(brief)
		k.join(waiter)
		k.free("key")
		m.wantGrant(brief.Nonce)
		k.lapse()
		k.lapse()
		k.want("acquire", k.acquire(k.acquireReq("key", "other")), driver.OutcomeHeld)
		m.wantGrant(waiter.Nonce)
		k.wantOwner("an acquire", waiter)
	}},
}
