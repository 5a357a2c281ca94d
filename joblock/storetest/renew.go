package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

var renewCases = []testCase{
	{"Renew extends the lease and keeps the term", func(k *kit) {
		h := k.hold("key", "me")
		before := k.inspect("key")
		req := k.renewReq(byFence("key", "me", h.fence))
		req.TTL = 3 * long
		reply := k.renew(req)
		k.want("renew", reply, driver.OutcomeOK)
		after := k.wantState("key", driver.StateHeld)
		if reply.Fence != h.fence || after.Fence != h.fence {
			k.Errorf("fence %d became %d (reply), %d (record)", h.fence, reply.Fence, after.Fence)
		}
		if after.Lease <= 2*long || !within(after.Lease, 3*long) || after.Reserved < after.Lease {
			k.Errorf("lease %s and reservation %s, want %s", after.Lease, after.Reserved, 3*long)
		}
		if after.Owner != before.Owner || after.Holder != before.Holder || !after.Since.Equal(before.Since) {
			k.Errorf("record was %+v, is %+v", before, after)
		}
	}},
	{"Renew reserves the key for Reserve beyond the lease", func(k *kit) {
		h := k.hold("key", "me")
		req := k.renewReq(byFence("key", "me", h.fence))
		req.Reserve = 5 * long
		k.want("renew", k.renew(req), driver.OutcomeOK)
		if r := k.wantState("key", driver.StateHeld); r.Reserved <= 5*long || !within(r.Reserved, 6*long) || !within(r.Lease, long) {
			k.Errorf("lease %s, reserved %s, want %s and %s", r.Lease, r.Reserved, long, 6*long)
		}
	}},
	{"Renew keeps a longer reservation", func(k *kit) {
		h := k.runFor("key", "me", "q/job", long)
		k.want("renew", k.renew(k.renewReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		r := k.wantState("key", driver.StateHeld)
		if r.Reserved <= 9*long || !within(r.Lease, long) || r.Job != "q/job" {
			k.Errorf("lease %s, reserved %s for job %q, want %s, %s and q/job", r.Lease, r.Reserved, r.Job, long, 10*long)
		}
	}},
	{"a renewed lease outlives the lease of the grant", func(k *kit) {
		// On a busy machine a Unit may pass before the renewal. So the lease of the grant is long, and the lease of
		// the renewal is longer. Only exactCases test the exact deadline.
		h := k.hold("key", "me")
		req := k.renewReq(byFence("key", "me", h.fence))
		req.TTL = 100 * long
		k.want("renew", k.renew(req), driver.OutcomeOK)
		k.lapse()
		k.wantState("key", driver.StateHeld)
		k.want("acquire", k.acquire(k.acquireReq("key", "you")), driver.OutcomeHeld)
	}},
	{"Renew may shorten a lease but not a reservation", func(k *kit) {
		h := k.hold("key", "me")
		req := k.renewReq(byFence("key", "me", h.fence))
		req.TTL = k.Unit
		k.want("renew", k.renew(req), driver.OutcomeOK)
		k.lapse()
		k.wantState("key", driver.StateOrphaned)
	}},
	{"either of fence and grant is enough", func(k *kit) {
		h := k.hold("key", "me")
		for _, term := range []driver.Term{
			{Key: "key", Owner: "me", Fence: h.fence, Grant: "another"},
			{Key: "key", Owner: "me", Fence: h.fence - 1, Grant: h.grant},
		} {
			k.want("renew", k.renew(k.renewReq(term)), driver.OutcomeOK)
		}
	}},
}
