package storetest

import (
	"fmt"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

var resumeCases = []testCase{
	{"Resume continues the ownership under a new term", func(k *kit) {
		parked := k.parkFor("key", "me", "q/job", 10*long)
		since := k.inspect("key").Since
		req := k.resumeReq("key", "me", "q/job")
		req.Holder = "worker 7"
		reply := k.resume(req)
		k.wantGrant("resume", reply, parked.fence)
		if reply.Recovered {
			k.Error("Recovered is set, although the reservation had not ended")
		}
		r := k.wantState("key", driver.StateHeld)
		if r.Owner != "me" || r.Fence != reply.Fence || r.Holder != "worker 7" || r.Job != "q/job" || !r.Since.Equal(since) {
			k.Errorf("record %+v does not match the request", r)
		}
		if !within(r.Lease, long) || r.Reserved <= 9*long {
			k.Errorf("lease %s, reserved %s, want %s and, as parked, %s", r.Lease, r.Reserved, long, 10*long)
		}
	}},
	{"a token of an ownership that has ended does not continue a later one of its owner", func(k *kit) {
		first := k.parkFor("key", "me", "q/job", k.Unit)
		k.lapse()
		h := k.hold("key", "me")
		before := k.inspect("key")
		req := k.resumeReq("key", "me", "q/job")
		req.Fence = first.fence
		k.want("resume with the fence of before", k.resume(req), driver.OutcomeNotOwner)
		k.unchanged("a refused resume", before)
		req.Fence = h.fence
		k.want("resume with its own", k.resume(req), driver.OutcomeBusy)

		// The job itself has resumed its lock since. The job has only the first token.
		again := k.park(k.parkReq(byFence("key", "me", h.fence), "q/job"))
		req.Fence = first.fence
		k.wantGrant("resume of what is the job's", k.resume(req), again.Fence)
	}},
	{"the same token does not continue the later ownership while no work runs", func(k *kit) {
		for _, orphaned := range []bool{false, true} {
			key := fmt.Sprintf("orphaned %t", orphaned)
			first := k.parkFor(key, "me", "", k.Unit)
			k.lapse()
			later := k.parkFor(key, "me", "", 10*long) // by the same owner, for no job
			state := driver.StateParked
			if orphaned {
				req := k.resumeReq(key, "me", "")
				req.TTL = k.Unit
				reply := k.resume(req)
				k.wantGrant("resume", reply, later.fence)
				later.fence = reply.Fence
				k.lapse()
				state = driver.StateOrphaned
			}
			before := k.wantState(key, state)
			req := k.resumeReq(key, "me", "")
			req.Fence = first.fence
			k.want("resume with the fence of before", k.resume(req), driver.OutcomeNotOwner)
			k.unchanged("a refused resume", before)
			req.Fence = later.fence
			k.wantGrant("resume with its own", k.resume(req), later.fence)
		}
	}},
	{"Resume reserves the key for Reserve beyond the lease", func(k *kit) {
		k.parkFor("key", "me", "q/job", k.Unit)
		req := k.resumeReq("key", "me", "q/job")
		req.Reserve = 5 * long
		k.want("resume", k.resume(req), driver.OutcomeOK)
		if r := k.wantState("key", driver.StateHeld); r.Reserved <= 5*long || !within(r.Reserved, 6*long) {
			k.Errorf("reserved %s, want %s", r.Reserved, 6*long)
		}
	}},
	{"a lease longer than the reservation prolongs the reservation", func(k *kit) {
		parked := k.parkFor("key", "me", "q/job", 10*long)
		req := k.resumeReq("key", "me", "q/job")
		req.TTL = 20 * long
		k.wantGrant("resume", k.resume(req), parked.fence)
		if r := k.wantState("key", driver.StateHeld); r.Reserved < r.Lease || r.Lease <= 19*long {
			k.Errorf("lease %s, reserved %s, want both %s", r.Lease, r.Reserved, 20*long)
		}
	}},
	{"a park that is taken back leaves nothing behind", func(k *kit) {
		parked := k.parkFor("key", "me", "q/job", 10*long)
		req := k.resumeReq("key", "me", "q/job")
		req.Fence, req.Unpark = parked.fence, true
		for range 2 { // the second call repeats the first
			reply := k.resume(req)
			k.wantGrant("resume", reply, parked.fence)
			if reply.Recovered {
				k.Error("Recovered is set, although the reservation had not ended")
			}
			if r := k.wantState("key", driver.StateHeld); r.Job != "" || r.Reserved != r.Lease || !within(r.Lease, long) {
				k.Errorf("job %q, lease %s, reserved %s; want a plain lock of %s", r.Job, r.Lease, r.Reserved, long)
			}
		}
		k.want("resume by the job that it was for", k.resume(k.resumeReq("key", "me", "q/job")), driver.OutcomeBusy)
		k.want("reserve", k.reserve(k.reserveReq("key", "q/job")), driver.OutcomeWrongJob)
	}},
	{"taking a park back binds the lock to its job again", func(k *kit) {
		h := k.runFor("key", "me", "q/one", long)
		parked := k.park(k.parkReq(byFence("key", "me", h.fence), "q/two"))
		k.wantGrant("park", parked, h.fence)
		req := k.resumeReq("key", "me", "q/two")
		req.Fence, req.Unpark, req.Back, req.Reserve, req.Grace, req.TTL = parked.Fence, true, "q/one", 2*long, 0, long
		k.wantGrant("resume", k.resume(req), parked.Fence)
		r := k.wantState("key", driver.StateHeld)
		if r.Job != "q/one" || r.Reserved != r.Lease+2*long {
			k.Errorf("job %q, reserved for %s, lease %s, want q/one, reserved for %s longer than the lease", r.Job, r.Reserved, r.Lease, 2*long)
		}
		k.lapse() // the Grace is 0
		if due := k.due(10, long); !slices.ContainsFunc(due, func(l driver.Entry) bool { return l.Key == "key" && l.Job == "q/one" }) {
			k.Errorf("due are %v, want the lock of q/one among them", due)
		}
		// Another call does the same, as after an answer that was lost.
		k.want("release", k.release(k.releaseReq(byOwner("key", "me"))), driver.OutcomeOK)
		k.runFor("again", "me", "q/one", k.Unit)
		k.lapse()
		req.Key, req.Nonce, req.Fence = "again", k.nonce(), 0
		k.want("resume what is bound back already", k.resume(req), driver.OutcomeOK)
	}},
	{"a holder that died can do nothing after a Resume", func(k *kit) {
		dead := k.runFor("key", "me", "q/job", k.Unit)
		k.lapse()
		reply := k.resume(k.resumeReq("key", "me", "q/job"))
		k.wantGrant("resume", reply, dead.fence)
		if reply.Recovered {
			k.Error("Recovered is set, although the reservation had not ended")
		}
		before := k.inspect("key")
		zombie := byFence("key", "me", dead.fence)
		k.want("renew", k.renew(k.renewReq(zombie)), driver.OutcomeNotOwner)
		k.want("park", k.park(k.parkReq(zombie, "q/other")), driver.OutcomeNotOwner)
		k.want("release", k.release(k.releaseReq(zombie)), driver.OutcomeNotOwner)
		k.unchanged("a zombie", before)
	}},
}
