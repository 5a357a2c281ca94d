package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

// unheardCases test grants to waiters whose inboxes have no subscriber.
var unheardCases = []testCase{
	{"an unheard grant ends with the waiter's place", func(k *kit) {
		ways := map[string]func(key string, job driver.TakeRequest){
			"release": func(key string, _ driver.TakeRequest) { k.free(key) },
			"forced release": func(key string, _ driver.TakeRequest) {
				k.want("force", k.release(k.forceReq(key)), driver.OutcomeOK)
			},
			"acquire": func(key string, _ driver.TakeRequest) {
				reply := k.acquire(k.acquireReq(key, "other"))
				k.want("acquire", reply, driver.OutcomeHeld)
				if reply.State != driver.StateHeld || reply.Holder != holderOf("dead") || !within(reply.Remaining, long) {
					k.Errorf("%s: answer %+v, want holder %q, with at most %s left (the time of its place in line)", key, reply, holderOf("dead"), long)
				}
			},
			"take": func(key string, _ driver.TakeRequest) {
				reply := k.take(k.takeReq(key, "other", "q/other"))
				k.want("take", reply, driver.OutcomeHeld)
				if reply.State != driver.StateHeld || reply.Holder != holderOf("dead") || !within(reply.Remaining, long) {
					k.Errorf("%s: answer %+v, want holder %q, with at most %s left (the time of its place in line)", key, reply, holderOf("dead"), long)
				}
			},
			"reserve": func(_ string, job driver.TakeRequest) {
				k.want("reserve", k.reserve(k.keepReq(job)), driver.OutcomeHeld)
			},
		}
		before, dead, jobs := make(map[string]held), make(map[string]driver.AcquireRequest), make(map[string]driver.TakeRequest)
		for way := range ways {
			before[way], dead[way] = k.hold(way, "me"), k.deadReq(way)
			k.join(dead[way])
			if way == "forced release" || way == "reserve" { // others wait too
				jobs[way] = k.lineReq(way, "q/waits")
				k.joinLine(jobs[way])
			}
			if way == "acquire" || way == "take" || way == "reserve" { // the call finds the key free
				req := k.parkReq(byFence(way, "me", before[way].fence), "q/job")
				req.Reserve = k.Unit
				k.wantGrant("park", k.park(req), before[way].fence)
			}
		}
		k.lapse()
		for way, grant := range ways {
			grant(way, jobs[way])
			req := dead[way]
			r := k.wantOwner(way, req)
			if r.Fence <= before[way].fence || r.Lease <= req.Patience/2 || !within(r.Lease, req.Patience) || !within(r.Reserved, req.Patience) {
				k.Errorf("%s: fence %d after %d, lease %s and reservation %s, want at most the place's %s and not the %s that were asked for",
					way, r.Fence, before[way].fence, r.Lease, r.Reserved, req.Patience, req.TTL)
			}
		}
		if !k.Exact {
			return
		}
		k.Advance(long + 2*rounding)
		for way := range ways {
			if r := k.inspect(way); r.State != driver.StateFree || r.Ended != driver.EndedLapsed {
				k.Errorf("%s: %s and ended %q when the place has ended, want free and lapsed", way, r.State, r.Ended)
			}
		}
		k.want("acquire", k.acquire(k.acquireReq("release", "other")), driver.OutcomeOK)
	}},
	{"an unheard grant lasts no longer than was asked for", func(k *kit) {
		k.hold("key", "me")
		dead := k.deadReq("key")
		dead.TTL = long / 2
		k.join(dead)
		k.free("key")
		if r := k.wantOwner("release", dead); r.Lease <= long/4 || !within(r.Lease, dead.TTL) || !within(r.Reserved, dead.TTL) {
			k.Errorf("lease %s and reservation %s, want %s", r.Lease, r.Reserved, dead.TTL)
		}
	}},
	{"a grant that is heard is a whole one", func(k *kit) {
		one, two := k.listen(), k.listen()
		for key, m := range map[string]*mailbox{"one": one, "two": two} {
			k.hold(key, "me")
			req := k.deadReq(key)
			req.Inbox = m.inbox
			k.join(req)
			k.free(key)
			m.wantGrant(req.Nonce)
			if r := k.wantOwner(key, req); r.Lease <= 2*long || !within(r.Lease, req.TTL) || !within(r.Reserved, req.TTL) {
				k.Errorf("%s: lease %s and reservation %s, want %s", key, r.Lease, r.Reserved, req.TTL)
			}
		}
	}},
	{"a waiter takes up an unheard grant", func(k *kit) {
		k.hold("key", "me")
		req := k.deadReq("key")
		k.join(req)
		next := k.deadReq("key")
		next.Owner = "next"
		k.join(next)
		k.free("key")
		before := k.wantOwner("release", req)
		k.Advance(k.Unit)
		reply := k.acquire(req)
		k.want("ask", reply, driver.OutcomeOK)
		r := k.wantOwner("ask", req)
		if reply.Fence != before.Fence || reply.Ended != driver.EndedReleased || reply.Lease <= 2*long || !within(reply.Lease, req.TTL) {
			k.Errorf("answer %+v, want fence %d and a lease of %s", reply, before.Fence, req.TTL)
		}
		if r.Fence != before.Fence || r.First != before.First || !r.Since.Equal(before.Since) || !r.Changed.Equal(before.Changed) || r.Waiters != 1 {
			k.Errorf("record %+v, want only the lease of %+v changed", r, before)
		}
		if r.Lease <= 2*long || !within(r.Lease, req.TTL) || !within(r.Reserved, req.TTL) || !r.Renewed.After(before.Renewed) {
			k.Errorf("lease %s, reservation %s, renewed %s; want a lease of %s, later than %s", r.Lease, r.Reserved, r.Renewed, req.TTL, before.Renewed)
		}
		k.Advance(k.Unit)
		k.want("ask again", k.acquire(req), driver.OutcomeOK)
		k.unchanged("asking again", r)
	}},
	{"asking again after a renewal changes nothing", func(k *kit) {
		k.hold("key", "me")
		req := k.deadReq("key")
		k.join(req)
		k.free("key")
		k.Advance(k.Unit)
		renew := k.renewReq(byFence("key", req.Owner, k.wantOwner("release", req).Fence))
		renew.TTL = long / 2
		k.want("renew", k.renew(renew), driver.OutcomeOK)
		before := k.inspect("key")
		k.want("ask", k.acquire(req), driver.OutcomeOK)
		k.unchanged("asking", before)
	}},
	{"an unheard grant can be given back", func(k *kit) {
		k.hold("key", "me")
		req := k.deadReq("key")
		k.join(req)
		k.free("key")
		k.want("give back", k.giveUp(req), driver.OutcomeOK)
		k.wantState("key", driver.StateFree)
	}},
}

// deadReq returns an Acquire of a process that has died or gets no pushes. Its place lasts for a third of its lease.
func (k *kit) deadReq(key string) driver.AcquireRequest {
	req := k.acquireReq(key, "dead")
	req.TTL, req.Inbox, req.Patience = 3*long, "inbox without a subscriber", long
	return req
}
