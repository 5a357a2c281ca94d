package storetest

import (
	"fmt"

	"github.com/joblock/toolkit/joblock/driver"
)

// jobCases test the calls that name the job of a lock, not the owner of the lock.
var jobCases = []testCase{
	{"Reserve prolongs a reservation of any holder and owner", func(k *kit) {
		k.parkFor("parked", "me", "q/job", 10*long)
		k.runFor("running", "you", "q/job", long)
		k.runFor("orphaned", "them", "q/job", k.Unit)
		k.lapse()
		for key, state := range map[string]driver.State{
			"parked": driver.StateParked, "running": driver.StateHeld, "orphaned": driver.StateOrphaned,
		} {
			before := k.inspect(key)
			req := k.reserveReq(key, "q/job")
			req.Reserve = 20 * long
			reply := k.reserve(req)
			k.want("reserve "+key, reply, driver.OutcomeOK)
			after := k.wantState(key, state)
			if !within(after.Reserved, req.Reserve) || after.Reserved <= 19*long {
				k.Errorf("%s: reserved for %s, want %s", key, after.Reserved, req.Reserve)
			}
			left := after.Reserved
			if state == driver.StateHeld {
				left = after.Lease
			}
			if reply.Recovered || reply.State != state || reply.Holder != before.Holder || reply.Job != "q/job" ||
				reply.Remaining < left || reply.Remaining > left+long/2 {
				k.Errorf("%s: reply %+v, want %s by %s for about %s", key, reply, state, before.Holder, left)
			}
			after.Reserved = before.Reserved
			if diff := recordDiff(before, after); diff != "" {
				k.Errorf("%s: more than the reservation has changed: %s", key, diff)
			}
		}
	}},
	{"a reservation is never shortened", func(k *kit) {
		k.parkFor("key", "me", "q/job", 10*long)
		req := k.reserveReq("key", "q/job")
		req.Reserve = k.Unit
		k.want("reserve", k.reserve(req), driver.OutcomeOK)
		if r := k.inspect("key"); r.Reserved <= 9*long {
			k.Errorf("reserved for %s, want %s as before", r.Reserved, 10*long)
		}
	}},
	{"the term goes on after a reservation", func(k *kit) {
		running := k.runFor("running", "me", "q/job", long)
		parked := k.parkFor("parked", "me", "q/job", 10*long)
		k.want("reserve", k.reserve(k.reserveReq("running", "q/job")), driver.OutcomeOK)
		k.want("reserve", k.reserve(k.reserveReq("parked", "q/job")), driver.OutcomeOK)
		k.want("renew", k.renew(k.renewReq(byFence("running", "me", running.fence))), driver.OutcomeOK)
		k.want("renew by the grant", k.renew(k.renewReq(byGrant("parked", "me", parked.grant))), driver.OutcomeOK)
	}},
	{"Reserve restores a reservation that ran out", func(k *kit) {
		k.parkFor("parked", "me", "q/job", k.Unit)
		req := k.resumeReq("orphaned", "me", "q/job")
		req.TTL = k.Unit
		k.parkFor("orphaned", "me", "q/job", k.Unit)
		k.wantGrant("resume", k.resume(req), 0)
		k.lapse()
		for key, state := range map[string]driver.State{
			"parked": driver.StateParked, "orphaned": driver.StateOrphaned,
		} {
			before := k.wantState(key, driver.StateFree)
			reply := k.reserve(k.reserveReq(key, "q/job"))
			k.want("reserve", reply, driver.OutcomeOK)
			if !reply.Recovered || reply.State != state || !within(reply.Remaining, 10*long) {
				k.Errorf("%s: reply %+v, want it recovered and %s", key, reply, state)
			}
			if r := k.wantState(key, state); r.Fence != before.Fence || r.Ended != driver.EndedNone {
				k.Errorf("%s: record %+v, want fence %d as before and no end", key, r, before.Fence)
			}
			k.want("acquire", k.acquire(k.acquireReq(key, "you")), driver.OutcomeHeld)
			if again := k.reserve(k.reserveReq(key, "q/job")); again.Recovered {
				k.Errorf("%s: recovered a second time", key)
			}
			reply = k.resume(k.resumeReq(key, "me", "q/job"))
			k.wantGrant("resume", reply, before.Fence)
			if reply.Recovered {
				k.Errorf("%s: Resume recovered what stood", key)
			}
		}
	}},
	{"the retention of a reservation counts from its end", func(k *kit) {
		k.parkFor("brief", "me", "q/job", k.Unit)
		req := k.reserveReq("brief", "q/job")
		req.Reserve, req.Retain = k.Unit, k.Unit
		k.want("reserve", k.reserve(req), driver.OutcomeOK)
		k.parkFor("long", "me", "q/job", k.Unit)
		req = k.reserveReq("long", "q/job")
		req.Retain = k.Unit
		k.want("reserve", k.reserve(req), driver.OutcomeOK)
		k.lapse()
		k.lapse()
		k.wantForgotten("brief")
		k.wantState("long", driver.StateParked)
	}},
	{"a batch of reservations has one answer for each, in order", func(k *kit) {
		k.parkFor("mine", "me", "q/job", 10*long)
		k.parkFor("theirs", "you", "q/other", 10*long)
		k.hold("unbound", "me")
		want := []struct {
			key     string
			outcome driver.Outcome
		}{
			{"mine", driver.OutcomeOK},
			{"absent", driver.OutcomeNotFound},
			{"theirs", driver.OutcomeWrongJob},
			{"unbound", driver.OutcomeWrongJob},
			{"mine", driver.OutcomeOK},
		}
		var reqs []driver.ReserveRequest
		for _, w := range want {
			reqs = append(reqs, k.reserveReq(w.key, "q/job"))
		}
		for i, reply := range k.reserveAll(reqs) {
			k.want(fmt.Sprintf("item %d, %s", i, want[i].key), reply, want[i].outcome)
		}
		k.reserveAll(nil)
	}},
	{"a release for a job that names a fence frees that term and no later one", func(k *kit) {
		h := k.parkFor("key", "me", "q/job", 10*long)
		req := k.freeReq("key", "q/job")
		req.Fence = h.fence
		k.want("release of the present term", k.release(req), driver.OutcomeOK)
		k.parkFor("key", "me", "q/job", 10*long) // the same job parks the key once more
		before := k.inspect("key")
		req = k.freeReq("key", "q/job")
		req.Fence = h.fence
		reply := k.release(req)
		k.want("release of the earlier term", reply, driver.OutcomeNotOwner)
		k.checkReply(reply, before)
		k.unchanged("a release of an earlier term", before)
	}},
	{"a release for a job frees it once, and for those who wait", func(k *kit) {
		m := k.listen()
		k.parkFor("key", "me", "q/job", 10*long)
		wait := k.waitReq("key", "you", m)
		k.join(wait)
		req := k.freeReq("key", "q/job")
		req.Reason = "the task was deleted"
		k.want("release", k.release(req), driver.OutcomeOK)
		if g := m.granted(wait); g.Ended != driver.EndedForced {
			k.Errorf("the waiter gets that it ended %q, want forced", g.Ended)
		}
		k.want("the same release again", k.release(req), driver.OutcomeOK)
		k.want("another one", k.release(k.freeReq("key", "q/job")), driver.OutcomeWrongJob)
		k.wantState("key", driver.StateHeld)
	}},
}
