package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

var acquireCases = []testCase{
	{"a grant is what the record shows", func(k *kit) {
		req := k.acquireReq("key", "me")
		reply := k.acquire(req)
		k.wantGrant("acquire", reply, 0)
		if reply.Ended != driver.EndedNone || reply.Recovered || len(reply.Memo) != 0 {
			k.Errorf("grant of a new key tells of a predecessor: %+v", reply)
		}
		r := k.wantState("key", driver.StateHeld)
		if r.Key != "key" || r.Owner != "me" || r.Fence != reply.Fence || r.Holder != req.Holder || r.Job != "" {
			k.Errorf("record %+v does not match the request", r)
		}
		if !within(r.Lease, long) || !within(r.Reserved, long) || r.Reserved < r.Lease {
			k.Errorf("lease %s and reservation %s, want both %s", r.Lease, r.Reserved, long)
		}
		if r.Since.UnixMilli() <= 0 {
			k.Errorf("since %s, want the time of the grant", r.Since)
		}
	}},
	{"a grant says how the previous ownership ended", func(k *kit) {
		k.released("released", "me", "done")
		k.forced("forced", "me", "by hand")
		k.done("done", "me", "q/job", "all of it")
		k.holdFor("lapsed", "me", k.Unit)
		k.parkFor("expired", "me", "q/job", k.Unit)
		k.lapse()
		for key, want := range map[string]driver.Ended{
			"never":    driver.EndedNone,
			"released": driver.EndedReleased,
			"forced":   driver.EndedForced,
			"done":     driver.EndedDone,
			"lapsed":   driver.EndedLapsed,
			"expired":  driver.EndedLapsed,
		} {
			reply := k.acquire(k.acquireReq(key, "you"))
			k.want("acquire "+key, reply, driver.OutcomeOK)
			if reply.Ended != want {
				k.Errorf("acquire %s: ended %q, want %q", key, reply.Ended, want)
			}
		}
	}},
	{"a grant leaves nothing of the previous ownership but the memo", func(k *kit) {
		k.parkFor("expired", "me", "q/job", k.Unit)
		k.released("released", "me", "done")
		k.lapse()
		for _, key := range []string{"expired", "released"} {
			k.hold(key, "you")
			r := k.wantState(key, driver.StateHeld)
			if r.Owner != "you" || r.Job != "" || r.Ended != driver.EndedNone || r.Reason != "" {
				k.Errorf("%s: record %+v has something of the previous owner", key, r)
			}
		}
	}},
	{"leases of different keys are independent", func(k *kit) {
		k.hold("one", "me")
		k.hold("two", "you")
		k.want("release one", k.release(k.releaseReq(byOwner("one", "me"))), driver.OutcomeOK)
		k.wantState("one", driver.StateFree)
		k.wantState("two", driver.StateHeld)
	}},
	{"being refused does not prolong the lease in the way", func(k *kit) {
		k.holdFor("key", "me", k.Unit)
		k.acquire(k.acquireReq("key", "you")) // OutcomeHeld, or OutcomeOK on a very slow machine
		k.lapse()
		if r := k.inspect("key"); r.Owner == "me" && r.State != driver.StateFree {
			k.Errorf("the lease still stands: %s left", r.Lease)
		}
	}},
}
