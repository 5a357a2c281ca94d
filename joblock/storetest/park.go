package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

var parkCases = []testCase{
	{"Park reserves the key for the job", func(k *kit) {
		h := k.hold("key", "me")
		since := k.inspect("key").Since
		req := k.parkReq(byFence("key", "me", h.fence), "q/job")
		reply := k.park(req)
		k.wantGrant("park", reply, h.fence)
		r := k.wantState("key", driver.StateParked)
		if r.Owner != "me" || r.Fence != reply.Fence || r.Job != "q/job" || r.Lease != 0 || !r.Since.Equal(since) {
			k.Errorf("record %+v does not match the request", r)
		}
		if r.Reserved <= 9*long || !within(r.Reserved, 10*long) {
			k.Errorf("reserved for %s, want %s", r.Reserved, 10*long)
		}
	}},
	{"the old handle can do nothing any more", func(k *kit) {
		old := k.hold("key", "me")
		k.wantGrant("park", k.park(k.parkReq(byFence("key", "me", old.fence), "q/job")), old.fence)
		before := k.inspect("key")
		for _, term := range []driver.Term{byFence("key", "me", old.fence), byGrant("key", "me", old.grant)} {
			renew := k.renewReq(term)
			renew.Memo = []byte("too late")
			k.want("renew", k.renew(renew), driver.OutcomeNotOwner)
			k.unchanged("renew", before)
			k.want("park", k.park(k.parkReq(term, "q/other")), driver.OutcomeNotOwner)
			k.unchanged("park", before)
			k.want("release", k.release(k.releaseReq(term)), driver.OutcomeNotOwner)
			k.unchanged("release", before)
		}
	}},
	{"each park begins a new term", func(k *kit) {
		first := k.parkFor("key", "me", "q/one", 10*long)
		resumed := k.resume(k.resumeReq("key", "me", "q/one"))
		k.wantGrant("resume", resumed, first.fence)
		second := k.park(k.parkReq(byFence("key", "me", resumed.Fence), "q/two"))
		k.wantGrant("second park", second, resumed.Fence)
		if r := k.wantState("key", driver.StateParked); r.Job != "q/two" {
			k.Errorf("job %q after the second park, want q/two", r.Job)
		}
		before := k.inspect("key")
		again := k.park(k.parkReq(byFence("key", "me", resumed.Fence), "q/three"))
		k.want("a second park of one term", again, driver.OutcomeNotOwner)
		k.unchanged("a second park of one term", before)
	}},
	{"parking for no job lets any job resume", func(k *kit) {
		h := k.runFor("key", "me", "q/job", long)
		k.wantGrant("park", k.park(k.parkReq(byFence("key", "me", h.fence), "")), h.fence)
		if r := k.wantState("key", driver.StateParked); r.Job != "" {
			k.Errorf("job %q, want none", r.Job)
		}
		k.want("resume", k.resume(k.resumeReq("key", "me", "q/any")), driver.OutcomeOK)
	}},
	{"an unanswered park is taken back by renewing under its nonce", func(k *kit) {
		h := k.hold("key", "me")
		park := k.parkReq(byFence("key", "me", h.fence), "q/job")
		parked := k.park(park) // the caller does not get this reply
		k.wantGrant("park", parked, h.fence)

		term := driver.Term{Key: "key", Owner: "me", Fence: h.fence, Grant: park.Nonce}
		reply := k.renew(k.renewReq(term))
		k.want("renew", reply, driver.OutcomeOK)
		if reply.Fence != parked.Fence {
			k.Errorf("renew gave fence %d, want %d, that of the park", reply.Fence, parked.Fence)
		}
		r := k.wantState("key", driver.StateHeld)
		if !within(r.Lease, long) || r.Reserved != r.Lease || r.Job != "" {
			k.Errorf("lease %s, reserved %s for job %q, want both %s and no job, as before the park", r.Lease, r.Reserved, r.Job, long)
		}
		k.want("resume while it is held again", k.resume(k.resumeReq("key", "me", "q/job")), driver.OutcomeBusy)

		// The same Park comes once more, with the fence that this Park itself has made.
		park.Fence = reply.Fence
		again := k.park(park)
		k.wantGrant("park again", again, reply.Fence)
		k.wantState("key", driver.StateParked)
	}},
	{"an unanswered park of a job's lock is taken back to that job", func(k *kit) {
		h := k.runFor("key", "me", "q/one", long)
		park := k.parkReq(byFence("key", "me", h.fence), "q/two")
		k.wantGrant("park", k.park(park), h.fence)

		req := k.renewReq(driver.Term{Key: "key", Owner: "me", Fence: h.fence, Grant: park.Nonce})
		req.Back, req.Reserve = "q/one", 2*long
		k.want("renew", k.renew(req), driver.OutcomeOK)
		r := k.wantState("key", driver.StateHeld)
		if r.Job != "q/one" || r.Reserved != r.Lease+2*long {
			k.Errorf("job %q, reserved %s with a lease of %s, want q/one and %s more", r.Job, r.Reserved, r.Lease, 2*long)
		}
	}},
	{"a park that the job has resumed is not taken back", func(k *kit) {
		parked := k.parkFor("key", "me", "q/job", 10*long)
		k.wantGrant("resume", k.resume(k.resumeReq("key", "me", "q/job")), parked.fence)
		before := k.inspect("key")
		k.want("renew", k.renew(k.renewReq(byGrant("key", "me", parked.grant))), driver.OutcomeNotOwner)
		k.unchanged("renew", before)
	}},
}
