package storetest

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// grantCases test how a waiter becomes the owner, and how it is notified.
var grantCases = []testCase{
	{"a waiter's grant says all that an immediate grant says", func(k *kit) {
		for name, tc := range map[string]struct {
			end  func(key string, h held)
			want driver.Ended
		}{
			"released": {func(key string, h held) {
				req := k.releaseReq(byFence(key, "me", h.fence))
				req.Reason = "done"
				k.want("release", k.release(req), driver.OutcomeOK)
			}, driver.EndedReleased},
			"released late": {func(key string, h held) {
				k.runOut(key)
				k.want("release", k.release(k.releaseReq(byOwner(key, "me"))), driver.OutcomeLapsed)
			}, driver.EndedReleased},
			"forced": {func(key string, _ held) {
				req := k.forceReq(key)
				req.Reason = "by hand"
				k.want("force", k.release(req), driver.OutcomeOK)
			}, driver.EndedForced},
			"done": {func(key string, h held) {
				req := k.releaseReq(byFence(key, "me", h.fence))
				req.Job, req.Done = "q/job", true
				k.want("release", k.release(req), driver.OutcomeOK)
			}, driver.EndedDone},
			"lapsed": {func(key string, _ held) {
				k.runOut(key)
				k.want("acquire", k.acquire(k.acquireReq(key, "other")), driver.OutcomeHeld)
			}, driver.EndedLapsed},
		} {
			m := k.listen()
			h := k.runFor(name, "me", "q/job", long)
			renew := k.renewReq(byFence(name, "me", h.fence))
			renew.Memo = []byte("memo\nof\x00 " + name)
			k.want("renew", k.renew(renew), driver.OutcomeOK)
			req := k.waitReq(name, "you", m)
			req.TTL = 2 * long
			joined := k.inspect(name)
			k.join(req)
			tc.end(name, h)
			g := m.granted(req)
			r := k.wantOwner(name, req)
			if g.Fence <= h.fence || g.Fence != r.Fence || string(g.Memo) != string(renew.Memo) || g.Ended != tc.want {
				k.Errorf("%s: grant %+v, want the fence of %+v, its memo, and ended %q", name, g, r, tc.want)
			}
			if again := k.acquire(req); again.Ended != tc.want {
				k.Errorf("%s: when it asks again it ended %q, want %q", name, again.Ended, tc.want)
			}
			if r.Holder != req.Holder || r.Job != "" || r.Reason != "" || r.Ended != driver.EndedNone || string(r.Memo) != string(renew.Memo) {
				k.Errorf("%s: record %+v has something of the owner before", name, r)
			}
			if r.Lease <= long || !within(r.Lease, req.TTL) || r.Reserved < r.Lease || !within(r.Reserved, req.TTL) {
				k.Errorf("%s: lease %s and reservation %s, want both %s", name, r.Lease, r.Reserved, req.TTL)
			}
			if r.Since.Before(joined.Now.Truncate(time.Millisecond)) || r.Since.After(r.Now) {
				k.Errorf("%s: since %s, joined after %s and read at %s", name, r.Since, joined.Now, r.Now)
			}
			k.want("renew", k.renew(k.renewReq(byFence(name, "you", g.Fence))), driver.OutcomeOK)
			m.wantNothing(name)
		}
	}},
	{"a grant in a push is newer than each refusal before it", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		first, second := k.waitReq("key", "first", m), k.waitReq("key", "second", m)
		k.join(first)
		for _, req := range []driver.AcquireRequest{first, second} {
			before := k.inspect("key")
			refused := k.join(second)
			k.free("key")
			p := m.wantGrant(req.Nonce)
			if p.Grant == nil {
				continue // the waiter asks
			}
			if refused.Fence != before.Fence || p.Grant.Fence <= refused.Fence {
				k.Errorf("held under fence %d, then granted %+v; want the record's fence %d, and a larger one", refused.Fence, *p.Grant, before.Fence)
			}
		}
		// A grant that the Acquire of another waiter makes is newer, too.
		k.join(first)
		k.runOut("key")
		refused := k.join(second)
		if p, r := m.wantGrant(first.Nonce), k.wantOwner("an acquire", first); p.Grant != nil && (refused.Fence != r.Fence || *p.Grant != driver.Grant{Fence: r.Fence, Ended: driver.EndedLapsed}) {
			k.Errorf("held under fence %d, granted %+v; want fence %d for both, lapsed", refused.Fence, *p.Grant, r.Fence)
		}
	}},
	{"the push goes to the waiter's inbox and to no other", func(k *kit) {
		one, two := k.listen(), k.listen()
		k.hold("key", "me")
		order := []*mailbox{one, two, two, one}
		var reqs []driver.AcquireRequest
		for _, m := range order {
			req := k.waitReq("key", m.inbox, m)
			k.join(req)
			reqs = append(reqs, req)
		}
		for i, req := range reqs {
			k.free("key")
			if g, r := order[i].granted(req), k.wantOwner("a release", req); g.Fence != r.Fence {
				k.Errorf("grant of fence %d, the record has %d", g.Fence, r.Fence)
			}
			one.wantNothing("one release")
			two.wantNothing("one release")
		}
	}},
	{"a free key goes to the first in line, not to the caller", func(k *kit) {
		for _, asks := range []string{"in passing", "to wait", "from further back"} {
			m, askers := k.listen(), k.listen()
			k.hold(asks, "me")
			first, second := k.waitReq(asks, "first", m), k.waitReq(asks, "second", askers)
			k.join(first)
			ask := k.waitReq(asks, "asker", askers)
			waiters := 2
			switch asks {
			case "in passing":
				k.join(second)
				ask.Inbox, waiters = "", 1
			case "to wait":
				k.join(second)
			case "from further back":
				k.join(second)
				ask, waiters = second, 1
			}
			k.runOut(asks)
			reply := k.acquire(ask)
			k.want("acquire", reply, driver.OutcomeHeld)
			if reply.Holder != first.Holder || reply.State != driver.StateHeld || reply.Job != "" || !within(reply.Remaining, long) {
				k.Errorf("%s: the caller gets %+v, want that %q has it", asks, reply, first.Holder)
			}
			g := m.granted(first)
			if r := k.wantOwner(asks, first); r.Fence != g.Fence || r.Waiters != waiters {
				k.Errorf("%s: record %+v, want fence %d and %d waiters", asks, r, g.Fence, waiters)
			}
			askers.wantNothing(asks)
		}
	}},
	{"the first in line that asks is answered, and nothing is pushed", func(k *kit) {
		m := k.listen()
		h := k.hold("key", "me")
		renew := k.renewReq(byFence("key", "me", h.fence))
		renew.Memo = []byte("memo")
		k.want("renew", k.renew(renew), driver.OutcomeOK)
		first, second := k.waitReq("key", "first", m), k.waitReq("key", "second", m)
		k.join(first)
		k.join(second)
		k.runOut("key")
		reply := k.acquire(first)
		k.wantGrant("acquire", reply, h.fence)
		if reply.Ended != driver.EndedLapsed || string(reply.Memo) != "memo" || reply.Lease < long || !within(reply.Lease, long) {
			k.Errorf("answer %+v, want lapsed, the memo and a whole lease", reply)
		}
		m.wantNothing("the first in line")
		if r := k.wantOwner("acquire", first); r.Waiters != 1 {
			k.Errorf("%d waiters, want the second alone", r.Waiters)
		}
		k.free("key")
		m.wantGrant(second.Nonce)
	}},
	{"a key that is free is granted to a waiter at once", func(k *kit) {
		m := k.listen()
		k.released("released", "me", "done")
		for _, key := range []string{"absent", "released"} {
			reply := k.acquire(k.waitReq(key, "you", m))
			k.want("acquire", reply, driver.OutcomeOK)
			if reply.Lease < long || !within(reply.Lease, long) {
				k.Errorf("%s: lease %s, want %s", key, reply.Lease, long)
			}
			if r := k.inspect(key); r.Waiters != 0 {
				k.Errorf("%s: %d waiters of a key granted at once", key, r.Waiters)
			}
		}
		m.wantNothing("grants that were answered")
	}},
	{"a grant whose push was lost is found by asking again", func(k *kit) {
		unheard := k.listen()
		unheard.stop()
		k.hold("key", "me")
		req := k.waitReq("key", "you", unheard)
		req.Patience = 2 * long // the place outlasts the lease, which is a whole one then: see unheardCases
		k.join(req)
		k.free("key")
		before := k.wantOwner("release", req)
		for range 2 {
			k.Advance(k.Unit)
			reply := k.acquire(req)
			k.want("acquire", reply, driver.OutcomeOK)
			if now := k.inspect("key"); reply.Fence != before.Fence || reply.Lease > before.Lease || reply.Lease < now.Lease {
				k.Errorf("found fence %d with %s left, want fence %d and less than %s", reply.Fence, reply.Lease, before.Fence, before.Lease)
			}
		}
		k.unchanged("asking again", before)
		k.free("key")
		k.wantState("key", driver.StateFree)
		if n := unheard.left(); n != 0 {
			k.Errorf("%d grants delivered to an inbox without a subscriber", n)
		}
	}},
	{"a waiter that was granted and is dead gives way to the next", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		dead, next := k.waitReq("key", "dead", m), k.waitReq("key", "next", m)
		dead.TTL = k.Unit
		k.join(dead)
		k.join(next)
		k.free("key")
		m.wantGrant(dead.Nonce)
		g := k.inspect("key")
		k.lapse()
		reply := k.acquire(next)
		k.wantGrant("acquire", reply, g.Fence)
		if reply.Ended != driver.EndedLapsed {
			k.Errorf("ended %q, want lapsed", reply.Ended)
		}
		k.want("renew by the dead", k.renew(k.renewReq(byFence("key", "dead", g.Fence))), driver.OutcomeNotOwner)
		k.join(dead) // the caller dead has lost its grant, and waits again
		k.free("key")
		m.wantGrant(dead.Nonce)
	}},
	{"a waiter that leaves after its grant passes the key on", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		first, second := k.waitReq("key", "first", m), k.waitReq("key", "second", m)
		k.join(first)
		k.join(second)
		k.free("key")
		g := m.granted(first)
		k.want("leave", k.giveUp(first), driver.OutcomeOK)
		next := m.granted(second)
		if next.Fence <= g.Fence || next.Ended != driver.EndedReleased {
			k.Errorf("grant %+v after fence %d, want a larger one, after a release", next, g.Fence)
		}
		k.wantOwner("leaving", second)
	}},
}
