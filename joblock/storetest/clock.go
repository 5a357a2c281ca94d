package storetest

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// stepCases need a Harness with Step.
var stepCases = []testCase{
	{"fences grow although the clock went back", func(k *kit) {
		h := k.hold("key", "me")
		k.Step(-time.Hour)
		fence := h.fence
		for range 3 {
			parked := k.park(k.parkReq(byFence("key", "me", fence), "q/job"))
			k.wantGrant("park", parked, fence)
			resumed := k.resume(k.resumeReq("key", "me", "q/job"))
			k.wantGrant("resume", resumed, parked.Fence)
			k.want("release", k.release(k.releaseReq(byFence("key", "me", resumed.Fence))), driver.OutcomeOK)
			acquired := k.acquire(k.acquireReq("key", "me"))
			k.wantGrant("acquire", acquired, resumed.Fence)
			fence = acquired.Fence
		}
	}},
	{"fences grow although the clock went back and the end was to be remembered briefly", func(k *kit) {
		h := k.hold("key", "me")
		k.Step(-time.Hour)
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Brief = k.Unit
		k.want("release", k.release(req), driver.OutcomeOK)
		k.lapse()
		k.wantGrant("acquire", k.acquire(k.acquireReq("key", "you")), h.fence)
	}},
	{"a clock that went back ends no lease", func(k *kit) {
		h := k.hold("key", "me")
		k.Step(-time.Hour)
		k.want("acquire", k.acquire(k.acquireReq("key", "you")), driver.OutcomeHeld)
		k.want("renew", k.renew(k.renewReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		k.wantState("key", driver.StateHeld)
	}},
	{"a clock that jumped ahead ends leases, and the holder's renewal fails", func(k *kit) {
		req := k.acquireReq("key", "me")
		req.Retain = 10 * time.Hour
		reply := k.acquire(req)
		k.wantGrant("acquire", reply, 0)
		k.Step(time.Hour)
		k.want("renew", k.renew(k.renewReq(byFence("key", "me", reply.Fence))), driver.OutcomeLapsed)
		k.wantGrant("acquire", k.acquire(k.acquireReq("key", "you")), reply.Fence)
	}},
}

// exactCases test the last instant before a deadline and the first instant after the deadline.
var exactCases = []testCase{
	{"rounding never shortens a lease", func(k *kit) {
		// The clock may show any fraction of a millisecond at the grant. The lease always lasts at least its TTL, and
		// less than 2 ms longer.
		const ttl = 5 * time.Millisecond
		for range 10 {
			k.Advance(100 * time.Microsecond)
			h := k.holdFor("key", "me", ttl)
			k.Advance(ttl - time.Microsecond)
			k.wantState("key", driver.StateHeld)
			k.want("renew", k.renew(driver.RenewRequest{
				Term: byFence("key", "me", h.fence), TTL: ttl, Retain: long,
			}), driver.OutcomeOK)
			k.Advance(ttl - time.Microsecond)
			k.want("acquire", k.acquire(k.acquireReq("key", "you")), driver.OutcomeHeld)
			k.Advance(2 * time.Millisecond)
			k.wantState("key", driver.StateFree)
		}
	}},
	{"rounding never shortens a reservation", func(k *kit) {
		const hold = 5 * time.Millisecond
		for range 10 {
			k.Advance(100 * time.Microsecond)
			k.parkFor("key", "me", "q/job", hold)
			k.Advance(hold - time.Microsecond)
			k.wantState("key", driver.StateParked)
			k.Advance(2 * time.Millisecond)
			k.wantState("key", driver.StateFree)
		}
	}},
	{"a park at the instant of a Due keeps its entry", func(k *kit) {
		for _, again := range []time.Duration{0, 10 * long} {
			for range 2 { // once at an even number of microseconds, once at an odd number
				k.parkDue("key", "me", "q/job")
				seen := k.due(10, k.Unit)
				k.wantLocks(seen, "q/job key")
				k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
				req := k.parkReq(driver.Term{}, "q/job")
				req.Grace = k.Unit
				k.parkAs("key", "me", req)
				k.settle(again, seen...)
				k.lapse()
				k.wantDue(10, "q/job key")
				k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
				k.Advance(time.Microsecond)
			}
		}
	}},
	{"a Settle at the instant of a Due ends the mark", func(k *kit) {
		for range 2 { // see above
			k.parkDue("key", "me", "q/job")
			seen := k.due(10, k.Unit)
			k.wantLocks(seen, "q/job key")
			k.settle(k.Unit, seen...)
			k.settle(0, seen...)
			k.lapse()
			k.wantDue(10, "q/job key")
			k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
			k.Advance(time.Microsecond)
		}
	}},
	{"what is left of lease and reservation counts down", func(k *kit) {
		k.runFor("key", "me", "q/job", long)
		before := k.inspect("key")
		k.Advance(long / 2)
		after := k.inspect("key")
		if before.Lease-after.Lease != long/2 || before.Reserved-after.Reserved != long/2 {
			k.Errorf("lease %s and reservation %s became %s and %s in %s",
				before.Lease, before.Reserved, after.Lease, after.Reserved, long/2)
		}
	}},
	{"a place in the queue keeps the record of a holder that died", func(k *kit) {
		m := k.listen()
		brief := k.acquireReq("key", "me")
		brief.TTL, brief.Retain = k.Unit, k.Unit
		k.wantGrant("acquire", k.acquire(brief), 0)
		req := k.waitReq("key", "you", m)
		k.join(req)
		k.Advance(10 * k.Unit)
		if r := k.wantState("key", driver.StateFree); r.Waiters != 1 || r.Ended != driver.EndedLapsed {
			k.Errorf("record %+v, want it lapsed, with 1 waiter", r)
		}
		k.want("acquire", k.acquire(k.acquireReq("key", "other")), driver.OutcomeHeld)
		m.wantGrant(req.Nonce)
	}},
	{"a place lasts for its Patience, and not longer", func(k *kit) {
		m := k.listen()
		for name, over := range map[string]time.Duration{"in time": -time.Millisecond, "over": 0} {
			k.hold(name, "me")
			req := k.waitReq(name, "you", m)
			req.Patience = k.Unit
			k.join(req)
			k.Advance(k.Unit / 2)
			k.join(req)
			k.Advance(k.Unit + over)
			k.free(name)
			if over < 0 {
				m.wantGrant(req.Nonce)
			} else {
				k.wantState(name, driver.StateFree)
			}
		}
		m.wantNothing("a place that was not kept")
	}},
}
