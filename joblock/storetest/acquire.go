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
			k.Errorf("grant of a new key names a predecessor: %+v", reply)
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
}
