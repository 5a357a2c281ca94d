package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

var retainCases = []testCase{
	{"a tombstone answers until its retention is over", func(k *kit) {
		for _, kind := range []driver.ReleaseKind{driver.ReleaseOwn, driver.ReleaseForced} {
			h := k.hold("key", "me")
			term := byFence("key", "me", h.fence)
			req := k.releaseReq(term)
			req.Kind, req.Retain = kind, k.Unit
			k.want("release", k.release(req), driver.OutcomeOK)
			k.lapse()
			k.wantForgotten("key")
			k.want("resume", k.resume(k.resumeReq("key", "me", "")), driver.OutcomeNotFound)
			k.want("renew", k.renew(k.renewReq(term)), driver.OutcomeNotFound)
			k.want("park", k.park(k.parkReq(term, "")), driver.OutcomeNotFound)
			k.want("release", k.release(k.releaseReq(term)), driver.OutcomeNotFound)
			k.want("force", k.release(k.forceReq("key")), driver.OutcomeNotFound)
			reply := k.acquire(k.acquireReq("key", "you"))
			k.wantGrant("acquire", reply, h.fence)
			if reply.Ended != driver.EndedNone {
				k.Errorf("ended %q, want it forgotten", reply.Ended)
			}
			k.want("release", k.release(k.forceReq("key")), driver.OutcomeOK)
		}
	}},
	{"an end with Brief is remembered for Brief", func(k *kit) {
		h := k.hold("key", "me")
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Brief = 4 * k.Unit
		k.want("release", k.release(req), driver.OutcomeOK)
		if again := k.release(req); again.Outcome != driver.OutcomeNotFound { // a slow machine may already have forgotten
			k.want("re-sent release", again, driver.OutcomeOK)
		}
		k.Advance(5 * k.Unit)
		k.wantForgotten("key")
		k.want("re-sent release", k.release(req), driver.OutcomeNotFound)
		reply := k.acquire(k.acquireReq("key", "you"))
		k.wantGrant("acquire", reply, h.fence)
		k.want("the release once more", k.release(req), driver.OutcomeNotOwner)
		k.wantState("key", driver.StateHeld)
	}},
	{"a memo is remembered for all of the retention", func(k *kit) {
		h := k.hold("key", "me")
		k.leave("key", "me", h.fence, "page 7")
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Brief = k.Unit
		k.want("release", k.release(req), driver.OutcomeOK)
		k.lapse()
		k.wantMemo("acquire", k.acquire(k.acquireReq("key", "you")), "page 7")
	}},
	{"a release does not shorten the life of the memo", func(k *kit) {
		for _, key := range []string{"by its owner", "by force", "too late"} {
			h := k.hold(key, "me")
			k.leave(key, "me", h.fence, "page 7")
			req, want := k.releaseReq(byFence(key, "me", h.fence)), driver.OutcomeOK
			switch key {
			case "by force":
				req = k.forceReq(key)
			case "too late":
				req.Term = k.runOut(key)
				want = driver.OutcomeLapsed
			}
			req.Retain = k.Unit
			k.want("release", k.release(req), want)
			k.lapse()
			k.wantMemo("acquire", k.acquire(k.acquireReq(key, "you")), "page 7")
		}
	}},
	{"a brief end does not cut the next owner's time short", func(k *kit) {
		m := k.listen()
		h := k.hold("key", "me")
		next := k.waitReq("key", "you", m)
		k.join(next)
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Brief = k.Unit
		k.want("release", k.release(req), driver.OutcomeOK)
		m.wantGrant(next.Nonce)
		k.lapse()
		k.wantOwner("release", next)
	}},
	{"the retention begins when the ownership ends, not before", func(k *kit) {
		short := k.acquireReq("lease", "me")
		short.Retain = k.Unit
		held := k.acquire(short)
		k.wantGrant("acquire", held, 0)

		parked := k.hold("reservation", "me")
		park := k.parkReq(byFence("reservation", "me", parked.fence), "q/job")
		park.Retain = k.Unit
		k.wantGrant("park", k.park(park), parked.fence)

		resumed := k.parkFor("resumed", "me", "q/job", 10*long)
		resume := k.resumeReq("resumed", "me", "q/job")
		resume.TTL, resume.Retain = k.Unit, k.Unit
		k.wantGrant("resume", k.resume(resume), resumed.fence)

		k.lapse()
		k.lapse()
		k.wantState("lease", driver.StateHeld)
		k.wantState("reservation", driver.StateParked)
		k.wantState("resumed", driver.StateOrphaned)
	}},
	{"a record that ran out is remembered for as long", func(k *kit) {
		kept := k.acquireReq("kept", "me")
		kept.TTL = k.Unit
		k.wantGrant("acquire", k.acquire(kept), 0)
		dropped := k.acquireReq("dropped", "me")
		dropped.TTL, dropped.Retain = k.Unit, k.Unit
		k.wantGrant("acquire", k.acquire(dropped), 0)
		k.lapse()
		k.lapse()
		if r := k.wantState("kept", driver.StateFree); r.Ended != driver.EndedLapsed || r.Owner != "me" {
			k.Errorf("record %+v, want it remembered as lapsed", r)
		}
		k.wantForgotten("dropped")
	}},
	{"each renewal restarts the retention", func(k *kit) {
		req := k.acquireReq("key", "me")
		req.Retain = k.Unit
		reply := k.acquire(req)
		k.wantGrant("acquire", reply, 0)
		renew := k.renewReq(byFence("key", "me", reply.Fence))
		renew.Retain = long
		k.want("renew", k.renew(renew), driver.OutcomeOK)
		renew.TTL = 2 * long
		k.want("renew", k.renew(renew), driver.OutcomeOK)
		k.lapse()
		k.wantState("key", driver.StateHeld)
	}},
	{"a refused call does not restart the retention", func(k *kit) {
		h := k.hold("key", "me")
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Retain = k.Unit
		k.want("release", k.release(req), driver.OutcomeOK)
		k.resume(k.resumeReq("key", "me", "")) // OutcomeReleased, or OutcomeNotFound on a slow machine
		k.release(k.releaseReq(byOwner("key", "me")))
		k.release(k.forceReq("key"))
		k.lapse()
		k.wantForgotten("key")
	}},
}

func (k *kit) wantForgotten(key string) {
	k.Helper()
	// List comes before Inspect: a store may drop a record when a call asks for the key.
	if _, listed := k.list(key, 10)[key]; listed {
		k.Fatalf("%q is listed, want it forgotten", key)
	}
	if r := k.inspect(key); r.Fence != 0 || r.Owner != "" || r.Ended != driver.EndedNone {
		k.Fatalf("record %+v, want it forgotten", r)
	}
}
