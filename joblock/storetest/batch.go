package storetest

import (
	"fmt"

	"github.com/joblock/toolkit/joblock/driver"
)

var batchCases = []testCase{
	{"an empty batch is no call", func(k *kit) {
		k.renewAll(nil)
		k.renewAll([]driver.RenewRequest{})
		k.releaseAll(nil)
		k.inspectAll(nil)
	}},
	{"a batch of renewals has one answer for each, in order", func(k *kit) {
		k.holdFor("lapsed", "me", k.Unit)
		lapsed := k.inspect("lapsed").Fence
		k.lapse()
		fence := map[string]int64{"lapsed": lapsed, "absent": 1}
		fence["mine"] = k.hold("mine", "me").fence
		fence["theirs"] = k.hold("theirs", "you").fence
		fence["released"] = k.released("released", "me", "done").fence
		fence["last"] = k.hold("last", "me").fence
		want := []struct {
			key     string
			outcome driver.Outcome
		}{
			{"mine", driver.OutcomeOK},
			{"absent", driver.OutcomeNotFound},
			{"theirs", driver.OutcomeNotOwner},
			{"released", driver.OutcomeReleased},
			{"lapsed", driver.OutcomeLapsed},
			{"last", driver.OutcomeOK},
			{"mine", driver.OutcomeOK}, // a batch may name a key twice
		}
		var reqs []driver.RenewRequest
		for _, w := range want {
			reqs = append(reqs, k.renewReq(byFence(w.key, "me", fence[w.key])))
		}
		for i, reply := range k.renewAll(reqs) {
			k.want(fmt.Sprintf("item %d, %s", i, want[i].key), reply, want[i].outcome)
			if reply.Outcome == driver.OutcomeOK && reply.Fence != fence[want[i].key] {
				k.Errorf("item %d has fence %d, want %d", i, reply.Fence, fence[want[i].key])
			}
		}
	}},
	{"a batch of releases has one answer for each, in order", func(k *kit) {
		k.holdFor("lapsed", "me", k.Unit)
		k.lapse()
		k.hold("mine", "me")
		k.hold("theirs", "you")
		k.hold("theirs too", "you")
		k.released("released", "me", "done")
		k.hold("running", "me")
		idle := k.releaseReq(byOwner("running", "me"))
		idle.Kind = driver.ReleaseIdle
		reqs := []driver.ReleaseRequest{
			k.releaseReq(byOwner("absent", "me")),
			k.releaseReq(byOwner("mine", "me")),
			k.releaseReq(byOwner("theirs", "me")),
			k.forceReq("theirs too"),
			k.releaseReq(byOwner("released", "me")),
			k.releaseReq(byOwner("lapsed", "me")),
			idle,
			k.releaseReq(byOwner("mine", "me")), // the second release of this key in the batch
		}
		want := []driver.Outcome{
			driver.OutcomeNotFound, driver.OutcomeOK, driver.OutcomeNotOwner, driver.OutcomeOK,
			driver.OutcomeReleased, driver.OutcomeLapsed, driver.OutcomeBusy, driver.OutcomeReleased,
		}
		for i, reply := range k.releaseAll(reqs) {
			k.want(fmt.Sprintf("item %d, %s", i, reqs[i].Key), reply, want[i])
		}
	}},
	{"hundreds of items are answered in order", func(k *kit) {
		const n = 250
		keys := make([]string, n)
		renewals := make([]driver.RenewRequest, n)
		releases := make([]driver.ReleaseRequest, n)
		for i := range n {
			keys[i] = fmt.Sprintf("key-%03d", i)
			h := k.hold(keys[i], "me")
			renewals[i] = k.renewReq(byFence(keys[i], "me", h.fence))
			releases[i] = k.releaseReq(byFence(keys[i], "me", h.fence))
		}
		for i, reply := range k.renewAll(renewals) {
			k.want("renew "+keys[i], reply, driver.OutcomeOK)
			if reply.Fence != renewals[i].Fence {
				k.Fatalf("renew %s: fence %d, want %d", keys[i], reply.Fence, renewals[i].Fence)
			}
		}
		for i, r := range k.inspectAll(keys) {
			if r.Key != keys[i] || r.Fence != renewals[i].Fence || r.State != driver.StateHeld {
				k.Fatalf("item %d is %+v, want %s held with fence %d", i, r, keys[i], renewals[i].Fence)
			}
		}
		for i, reply := range k.releaseAll(releases) {
			k.want("release "+keys[i], reply, driver.OutcomeOK)
		}
	}},
}
