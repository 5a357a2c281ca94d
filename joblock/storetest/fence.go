package storetest

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

var fenceCases = []testCase{
	{"fences grow over thousands of terms of one key", func(k *kit) {
		var fence int64
		next := func(what string, reply driver.Reply) {
			k.Helper()
			k.wantGrant(what, reply, fence)
			fence = reply.Fence
		}
		for i := range 500 {
			owner, job := fmt.Sprintf("owner-%d", i%3), fmt.Sprintf("q/%d", i)
			next("acquire", k.acquire(k.acquireReq("key", owner)))
			next("park", k.park(k.parkReq(byFence("key", owner, fence), job)))
			next("resume", k.resume(k.resumeReq("key", owner, job)))
			if r := k.renew(k.renewReq(byFence("key", owner, fence))); r.Fence != fence {
				k.Fatalf("renew gave fence %d, want %d", r.Fence, fence)
			}
			next("second park", k.park(k.parkReq(byFence("key", owner, fence), job)))
			end := k.releaseReq(byOwner("key", owner))
			if i%2 == 0 {
				end = k.forceReq("key")
			}
			k.want("release", k.release(end), driver.OutcomeOK)
		}
		if fence > driver.MaxFence {
			k.Errorf("fence %d is above %d", fence, int64(driver.MaxFence))
		}
	}},
	{"fences grow after the store has forgotten the record", func(k *kit) {
		var last int64
		for range 3 {
			// There are several terms, so that a count that begins again at 1 would show.
			for range 5 {
				h := k.hold("key", "me")
				if h.fence <= last {
					k.Fatalf("fence %d is not larger than %d, the one before", h.fence, last)
				}
				last = h.fence
				req := k.releaseReq(byFence("key", "me", last))
				req.Retain = k.Unit
				k.want("release", k.release(req), driver.OutcomeOK)
			}
			k.lapse()
			if r := k.inspect("key"); r.Fence != 0 {
				k.Fatalf("record with fence %d, want it forgotten", r.Fence)
			}
		}
	}},
	{"the times of a record agree with its fences", func(k *kit) {
		changed := func(what string, anew bool, since time.Time) time.Time {
			k.Helper()
			r := k.inspect("key")
			if r.Changed.Before(since) || r.Changed.After(r.Now) || !anew && !r.Changed.Equal(since) {
				k.Errorf("after %s the record was changed at %s, want that at the call: %t, before that %s, now %s",
					what, r.Changed, anew, since, r.Now)
			}
			k.Advance(2 * time.Millisecond)
			return r.Changed
		}
		k.released("key", "before", "")
		at := changed("an end", true, time.UnixMilli(0))
		req := k.acquireReq("key", "me")
		reply := k.acquire(req)
		k.wantGrant("acquire", reply, 0)
		if now := k.inspect("key").Now; reply.Now.Before(at) || reply.Now.After(now) {
			k.Errorf("the clock was %s at the grant, want it from %s to %s", reply.Now, at, now)
		}
		acquired := changed("an acquisition", true, at.Add(time.Millisecond))
		if r := k.renew(k.renewReq(byFence("key", "me", reply.Fence))); r.Outcome != driver.OutcomeOK {
			k.Fatalf("renew: %+v", r)
		}
		at = changed("a renewal", false, acquired)
		parked := k.park(k.parkReq(byFence("key", "me", reply.Fence), "q/job"))
		k.wantGrant("park", parked, reply.Fence)
		at = changed("a park", true, at.Add(time.Millisecond))
		k.want("reserve", k.reserve(k.reserveReq("key", "q/job")), driver.OutcomeOK)
		at = changed("a reservation", false, at)
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.wantGrant("resume", resumed, parked.Fence)
		at = changed("a resumption", true, at.Add(time.Millisecond))
		k.want("release", k.release(k.releaseReq(byFence("key", "me", resumed.Fence))), driver.OutcomeOK)
		changed("the end", true, at.Add(time.Millisecond))
		if r := k.inspect("key"); r.First != reply.Fence || !r.Since.Equal(acquired) {
			k.Errorf("acquired at %s under fence %d, want %s and %d", r.Since, r.First, acquired, reply.Fence)
		}
	}},
	{"a record says when its lease began, and how long the lease is", func(k *kit) {
		var at time.Time
		look := func(what string, ttl time.Duration, anew bool) driver.Record {
			k.Helper()
			r := k.inspect("key")
			switch {
			case ttl == 0 && (!r.Renewed.IsZero() || r.TTL != 0):
				k.Errorf("after %s: renewed %s for %s, want no lease", what, r.Renewed, r.TTL)
			case ttl == 0:
			case r.TTL != ttl || r.Renewed.After(r.Now) || anew && !r.Renewed.After(at) || !anew && !r.Renewed.Equal(at):
				k.Errorf("after %s: renewed %s for %s, want for %s, restarted %t, before that %s, now %s", what, r.Renewed, r.TTL, ttl, anew, at, r.Now)
			case r.State == driver.StateHeld && r.Now.Sub(r.Renewed)+r.Lease > ttl+2*rounding:
				k.Errorf("after %s: renewed %s ago, %s left, want %s in all", what, r.Now.Sub(r.Renewed), r.Lease, ttl)
			}
			if !r.EndedAt.IsZero() {
				k.Errorf("after %s: ended at %s, want no end", what, r.EndedAt)
			}
			at = r.Renewed
			k.Advance(2 * time.Millisecond)
			return r
		}
		h := k.holdFor("key", "me", long)
		look("an acquisition", long, true)
		renew := k.renewReq(byFence("key", "me", h.fence))
		renew.TTL, renew.Reserve = 2*long, 5*long
		k.wantGrant("renew", k.renew(renew), 0)
		look("a renewal", 2*long, true)
		k.want("a refused acquire", k.acquire(k.acquireReq("key", "you")), driver.OutcomeHeld)
		look("a refusal", 2*long, false)
		renew.TTL = long // the reservation stays where it is
		k.wantGrant("renew", k.renew(renew), 0)
		look("a shorter renewal", long, true)
		parked := k.park(k.parkReq(byFence("key", "me", h.fence), "q/job"))
		k.wantGrant("park", parked, h.fence)
		look("a park", 0, false)
		resume := k.resumeReq("key", "me", "q/job")
		resume.TTL, resume.Reserve = k.Unit, long
		resumed := k.resume(resume)
		k.wantGrant("resume", resumed, parked.Fence)
		began := look("a resumption", k.Unit, true)
		k.want("reserve", k.reserve(k.reserveReq("key", "q/job")), driver.OutcomeOK)
		look("a reservation", k.Unit, false)
		k.lapse()
		if r := look("the end of the lease", k.Unit, false); r.State != driver.StateOrphaned || r.Renewed != began.Renewed {
			k.Errorf("%s, renewed %s, want orphaned and %s", r.State, r.Renewed, began.Renewed)
		}
		k.want("release", k.release(k.releaseReq(byFence("key", "me", resumed.Fence))), driver.OutcomeOK)
		if r := k.inspect("key"); !r.Renewed.IsZero() || r.TTL != 0 || r.EndedAt.IsZero() || !r.EndedAt.Equal(r.Changed) {
			k.Errorf("after the release: %+v, want no lease, and the end when it was changed", r)
		}
	}},
	{"a record says when its reservation ran out", func(k *kit) {
		h := k.holdFor("held", "me", k.Unit)
		k.parkFor("parked", "me", "q/job", k.Unit)
		held, parked := k.inspect("held"), k.inspect("parked")
		k.lapse()
		for _, before := range []driver.Record{held, parked} {
			r := k.wantState(before.Key, driver.StateFree)
			end := before.Changed.Add(k.Unit)
			// On a busy machine a Unit may pass before the first look.
			if d := before.Now.Add(before.Reserved).Sub(end); before.State != driver.StateFree && (d < -rounding || d > 2*rounding) {
				k.Errorf("%s: reserved until %s, want about %s", r.Key, before.Now.Add(before.Reserved), end)
			}
			if d := r.EndedAt.Sub(end); d < -rounding || d > rounding || r.EndedAt.After(r.Now) {
				k.Errorf("%s: ended at %s, want about %s, and not after %s", r.Key, r.EndedAt, end, r.Now)
			}
			if !r.Renewed.Equal(before.Renewed) || r.TTL != before.TTL {
				k.Errorf("%s: renewed %s for %s, want %s for %s", r.Key, r.Renewed, r.TTL, before.Renewed, before.TTL)
			}
		}
		k.want("late release", k.release(k.releaseReq(byFence("held", "me", h.fence))), driver.OutcomeLapsed)
		if r := k.inspect("held"); !r.EndedAt.Equal(r.Changed) {
			k.Errorf("released late: ended at %s, changed at %s", r.EndedAt, r.Changed)
		}
	}},
}
