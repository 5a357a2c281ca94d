package storetest

import (
	"fmt"

	"github.com/joblock/toolkit/joblock/driver"
)

var batchCases = []testCase{
	{"an empty batch is no call", func(k *kit) {
		k.takeAll(nil)
		k.resumeAll(nil)
		k.parkAll(nil)
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
	{"takes are answered in order, each on its own", func(k *kit) {
		k.hold("held", "you")
		k.released("released", "me", "done")
		k.hold("awaited", "you")
		k.join(k.waiterReq("awaited"))
		k.runOut("awaited")
		again := k.takeReq("new", "me", "q/1")
		other := again
		other.Job = "q/2"
		reqs := []driver.TakeRequest{
			again,
			k.takeReq("held", "me", "q/2"),
			k.takeReq("released", "me", "q/3"),
			again,
			k.takeReq("awaited", "me", "q/4"),
			other,
			k.takeReq("last", "me", "q/5"),
		}
		want := []driver.Outcome{
			driver.OutcomeOK, driver.OutcomeHeld, driver.OutcomeOK, driver.OutcomeOK, driver.OutcomeHeld, driver.OutcomeHeld, driver.OutcomeOK,
		}
		for i, reply := range k.takeAll(reqs) {
			k.want(fmt.Sprintf("item %d, %s", i, reqs[i].Key), reply, want[i])
			if reply.Outcome == driver.OutcomeOK {
				if r := k.wantState(reqs[i].Key, driver.StateParked); r.Fence != reply.Fence || r.Job != reqs[i].Job {
					k.Errorf("item %d: record %+v, want fence %d and job %s", i, r, reply.Fence, reqs[i].Job)
				}
			}
		}
	}},
	{"resumptions are answered in order, each on its own", func(k *kit) {
		k.parkFor("run out", "me", "q/job", k.Unit)
		k.lapse()
		k.parkFor("parked", "me", "q/job", 10*long)
		k.parkFor("of another job", "me", "q/other", 10*long)
		k.parkFor("taken back", "me", "q/other", 10*long)
		k.runFor("running", "me", "q/job", long)
		k.released("released", "me", "done")
		back := k.resumeReq("taken back", "me", "q/job")
		back.Unpark, back.Back = true, "q/other"
		reqs := []driver.ResumeRequest{
			k.resumeReq("run out", "me", "q/job"),
			k.resumeReq("parked", "me", "q/job"),
			k.resumeReq("absent", "me", "q/job"),
			k.resumeReq("of another job", "me", "q/job"),
			back,
			k.resumeReq("running", "me", "q/job"),
			k.resumeReq("released", "me", "q/job"),
			k.resumeReq("parked", "me", "q/job"), // the second one of this batch
		}
		want := []driver.Outcome{
			driver.OutcomeOK, driver.OutcomeOK, driver.OutcomeNotFound, driver.OutcomeWrongJob, driver.OutcomeOK,
			driver.OutcomeBusy, driver.OutcomeReleased, driver.OutcomeBusy,
		}
		for i, reply := range k.resumeAll(reqs) {
			k.want(fmt.Sprintf("item %d, %s", i, reqs[i].Key), reply, want[i])
			if reply.Recovered != (reqs[i].Key == "run out") {
				k.Errorf("item %d, %s: recovered %t", i, reqs[i].Key, reply.Recovered)
			}
			if reply.Outcome == driver.OutcomeOK {
				if r := k.wantState(reqs[i].Key, driver.StateHeld); r.Fence != reply.Fence {
					k.Errorf("item %d: record %+v, want fence %d", i, r, reply.Fence)
				}
			}
		}
	}},
	{"parks are answered in order, each on its own", func(k *kit) {
		k.holdFor("lapsed", "me", k.Unit)
		lapsed := k.inspect("lapsed").Fence
		k.lapse()
		mine, plain := k.hold("mine", "me"), k.hold("plain", "me")
		theirs, released := k.hold("theirs", "you"), k.released("released", "me", "done")
		park := k.parkReq(byFence("mine", "me", mine.fence), "q/job")
		moved := park
		moved.Job = "q/next"
		reqs := []driver.ParkRequest{
			park,
			k.parkReq(byFence("lapsed", "me", lapsed), "q/job"),
			k.parkReq(byFence("theirs", "me", theirs.fence), "q/job"),
			k.parkReq(byFence("plain", "me", plain.fence), ""),
			k.parkReq(byFence("released", "me", released.fence), "q/job"),
			k.parkReq(byFence("absent", "me", 1), "q/job"),
			moved, // the second one of this batch
		}
		want := []driver.Outcome{
			driver.OutcomeOK, driver.OutcomeLapsed, driver.OutcomeNotOwner, driver.OutcomeOK, driver.OutcomeReleased,
			driver.OutcomeNotFound, driver.OutcomeOK,
		}
		for i, reply := range k.parkAll(reqs) {
			k.want(fmt.Sprintf("item %d, %s", i, reqs[i].Key), reply, want[i])
		}
		if r := k.wantState("mine", driver.StateParked); r.Job != "q/next" {
			k.Errorf("job %q, want that of the later park", r.Job)
		}
		if r := k.wantState("plain", driver.StateParked); r.Job != "" {
			k.Errorf("job %q, want none", r.Job)
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
		takes, resumptions, parks := make([]driver.TakeRequest, n), make([]driver.ResumeRequest, n), make([]driver.ParkRequest, n)
		for i, key := range keys {
			takes[i] = k.takeReq(key, "me", "q/"+key)
			resumptions[i] = k.resumeReq(key, "me", "q/"+key)
		}
		for i, reply := range k.takeAll(takes) {
			k.wantGrant("take "+keys[i], reply, renewals[i].Fence)
		}
		for i, reply := range k.resumeAll(resumptions) {
			k.want("resume "+keys[i], reply, driver.OutcomeOK)
			parks[i] = k.parkReq(byFence(keys[i], "me", reply.Fence), "q/"+keys[i])
		}
		for i, reply := range k.parkAll(parks) {
			k.wantGrant("park "+keys[i], reply, parks[i].Fence)
		}
	}},
}
