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
	{"an ended lease is never extended", func(k *kit) {
		plain := k.holdFor("plain", "me", k.Unit)
		job := k.runFor("job", "me", "q/job", k.Unit)
		k.lapse()
		for range 2 {
			k.want("renew plain", k.renew(k.renewReq(byFence("plain", "me", plain.fence))), driver.OutcomeLapsed)
			k.want("renew job", k.renew(k.renewReq(byFence("job", "me", job.fence))), driver.OutcomeLapsed)
		}
		k.want("acquire", k.acquire(k.acquireReq("plain", "you")), driver.OutcomeOK)
		k.wantState("job", driver.StateOrphaned)
	}},
	{"the successor is named to a holder that comes too late", func(k *kit) {
		h := k.holdFor("key", "me", k.Unit)
		k.lapse()
		k.hold("key", "you")
		before := k.inspect("key")
		reply := k.renew(k.renewReq(byFence("key", "me", h.fence)))
		k.want("renew", reply, driver.OutcomeNotOwner)
		k.checkReply(reply, before)
		k.unchanged("renew", before)
	}},
	{"the grant names the term when its fence never arrived", func(k *kit) {
		for _, tc := range []struct {
			key string
			h   held
		}{
			{"acquired", k.hold("acquired", "me")},
			{"resumed", k.runFor("resumed", "me", "q/job", long)},
		} {
			reply := k.renew(k.renewReq(byGrant(tc.key, "me", tc.h.grant)))
			k.want("renew by grant", reply, driver.OutcomeOK)
			if reply.Fence != tc.h.fence {
				k.Errorf("%s: renew by grant gave fence %d, want %d", tc.key, reply.Fence, tc.h.fence)
			}
			k.want("renew by another grant", k.renew(k.renewReq(byGrant(tc.key, "me", "another"))), driver.OutcomeNotOwner)
		}
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
	{"the owner alone does not renew", func(k *kit) {
		k.hold("key", "me")
		before := k.inspect("key")
		k.want("renew", k.renew(k.renewReq(byOwner("key", "me"))), driver.OutcomeNotOwner)
		k.unchanged("renew", before)
	}},
}
