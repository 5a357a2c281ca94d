package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

// foreignCases need a back end in which another program may have written a value at a key.
var foreignCases = []testCase{
	{"every call answers Foreign and leaves the value unchanged", func(k *kit) {
		const key = "key"
		k.Foreign(key)
		term := byFence(key, "me", 1)
		idle := k.releaseReq(byOwner(key, "me"))
		idle.Kind = driver.ReleaseIdle
		for _, c := range []struct {
			call string
			do   func() driver.Reply
		}{
			{"acquire", func() driver.Reply { return k.acquire(k.acquireReq(key, "me")) }},
			{"resume", func() driver.Reply { return k.resume(k.resumeReq(key, "me", "q/job")) }},
			{"park", func() driver.Reply { return k.park(k.parkReq(term, "q/job")) }},
			{"renew", func() driver.Reply { return k.renew(k.renewReq(term)) }},
			{"release", func() driver.Reply { return k.release(k.releaseReq(term)) }},
			{"release if idle", func() driver.Reply { return k.release(idle) }},
			{"reserve", func() driver.Reply { return k.reserve(k.reserveReq(key, "q/job")) }},
			{"force release if idle for its job", func() driver.Reply { return k.release(k.freeReq(key, "q/job")) }},
			{"force release", func() driver.Reply { return k.release(k.forceReq(key)) }},
		} {
			k.want(c.call, c.do(), driver.OutcomeForeign)
			if !k.ForeignIntact(key) {
				k.Fatalf("%s changed the foreign value", c.call)
			}
		}
		k.wantState(key, driver.StateForeign)
		if !k.ForeignIntact(key) {
			k.Error("Inspect changed the foreign value")
		}
	}},
	{"List shows the value as foreign", func(k *kit) {
		k.Foreign("foreign")
		k.hold("lock", "me")
		listed := k.list("", 10)
		if r, ok := listed["foreign"]; !ok || r.State != driver.StateForeign {
			k.Errorf("listed %t as %s, want true as foreign", ok, r.State)
		}
		if r := listed["lock"]; r.State != driver.StateHeld {
			k.Errorf("the lock next to it is listed as %s, want held", r.State)
		}
		if !k.ForeignIntact("foreign") {
			k.Error("List changed the foreign value")
		}
	}},
	{"a foreign value does not change the rest of a batch", func(k *kit) {
		k.Foreign("foreign")
		one, two := k.hold("one", "me"), k.hold("two", "me")
		replies := k.renewAll([]driver.RenewRequest{
			k.renewReq(byFence("one", "me", one.fence)),
			k.renewReq(byFence("foreign", "me", 1)),
			k.renewReq(byFence("two", "me", two.fence)),
		})
		k.want("the one before", replies[0], driver.OutcomeOK)
		k.want("the foreign one", replies[1], driver.OutcomeForeign)
		k.want("the one behind", replies[2], driver.OutcomeOK)
		records := k.inspectAll([]string{"one", "foreign", "two"})
		for i, want := range []driver.State{driver.StateHeld, driver.StateForeign, driver.StateHeld} {
			if records[i].State != want {
				k.Errorf("%s is %s, want %s", records[i].Key, records[i].State, want)
			}
		}
	}},
}
