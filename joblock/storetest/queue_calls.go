package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

// queueCallCases test the calls other than Acquire while the key has waiters.
var queueCallCases = []testCase{
	{"a call that frees no key grants no key", func(k *kit) {
		m := k.listen()
		h := k.hold("key", "me")
		req := k.waitReq("key", "you", m)
		k.join(req)
		k.want("renew", k.renew(k.renewReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		park := k.parkReq(byFence("key", "me", h.fence), "q/job")
		k.wantGrant("park", k.park(park), h.fence)
		k.want("take back", k.renew(k.renewReq(byGrant("key", "me", park.Nonce))), driver.OutcomeOK)
		k.wantGrant("park", k.park(k.parkReq(byGrant("key", "me", park.Nonce), "q/job")), h.fence)
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.want("resume", resumed, driver.OutcomeOK)
		if r := k.wantState("key", driver.StateHeld); r.Owner != "me" || r.Waiters != 1 {
			k.Errorf("record %+v, want me as the holder, with 1 waiter", r)
		}
		m.wantNothing("renew, park and resume")
		k.free("key")
		if g := m.granted(req); g.Fence <= resumed.Fence {
			k.Errorf("fence %d after %d", g.Fence, resumed.Fence)
		}
	}},
	{"a refusal grants nothing", func(k *kit) {
		m := k.listen()
		h := k.runFor("key", "me", "q/job", long)
		k.join(k.waitReq("key", "you", m))
		before := k.inspect("key")
		idle, free := k.releaseReq(byOwner("key", "me")), k.freeReq("key", "q/job")
		idle.Kind = driver.ReleaseIdle
		for _, tc := range []struct {
			what string
			got  driver.Reply
			want driver.Outcome
		}{
			{"release if idle", k.release(idle), driver.OutcomeBusy},
			{"release for its job", k.release(free), driver.OutcomeBusy},
			{"release by another owner", k.release(k.releaseReq(byOwner("key", "you"))), driver.OutcomeNotOwner},
			{"release by an older fence", k.release(k.releaseReq(byFence("key", "me", h.fence-1))), driver.OutcomeNotOwner},
			{"release by another grant", k.release(k.releaseReq(byGrant("key", "me", "another"))), driver.OutcomeNotOwner},
			{"park by another owner", k.park(k.parkReq(byFence("key", "you", h.fence), "")), driver.OutcomeNotOwner},
			{"resume", k.resume(k.resumeReq("key", "me", "q/job")), driver.OutcomeBusy},
		} {
			k.want(tc.what, tc.got, tc.want)
		}
		k.unchanged("a refusal", before)
		m.wantNothing("a refusal")
	}},
	{"forcing a lock that has run out grants no key", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		req := k.waitReq("key", "you", m)
		k.join(req)
		k.runOut("key")
		k.want("force", k.release(k.forceReq("key")), driver.OutcomeNotFound)
		m.wantNothing("a force of what has run out")
		k.want("acquire", k.acquire(req), driver.OutcomeOK)
	}},
	{"a parked key is waited for until it is released", func(k *kit) {
		m := k.listen()
		k.parkFor("key", "me", "q/job", 10*long)
		req := k.waitReq("key", "you", m)
		if got := k.join(req); got.State != driver.StateParked || got.Job != "q/job" || got.Remaining <= long {
			k.Errorf("answer %+v, want parked for q/job, with more than %s left", got, long)
		}
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.want("resume", resumed, driver.OutcomeOK)
		m.wantNothing("a resume")
		k.want("release", k.release(k.releaseReq(byFence("key", "me", resumed.Fence))), driver.OutcomeOK)
		m.wantGrant(req.Nonce)
		if r := k.wantOwner("release", req); r.Reserved > 2*long {
			k.Errorf("the waiter got the job's reservation: %s", r.Reserved)
		}
	}},
	{"an orphaned key is waited for until it is given up", func(k *kit) {
		m := k.listen()
		k.runFor("key", "me", "q/job", k.Unit)
		k.lapse()
		req := k.waitReq("key", "you", m)
		if got := k.join(req); got.State != driver.StateOrphaned || got.Job != "q/job" {
			k.Errorf("answer %+v, want orphaned by q/job", got)
		}
		k.join(req)
		m.wantNothing("asking for an orphaned key")
		idle := k.releaseReq(byOwner("key", "me"))
		idle.Kind = driver.ReleaseIdle
		k.want("release if idle", k.release(idle), driver.OutcomeOK)
		m.wantGrant(req.Nonce)
		k.wantOwner("release", req)
	}},
	{"a lock that ran out can be resumed before the next Acquire", func(k *kit) {
		m := k.listen()
		k.parkFor("key", "me", "q/job", 10*long)
		req := k.waitReq("key", "you", m)
		k.join(req)
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.want("resume", resumed, driver.OutcomeOK)
		k.runOut("key")
		again := k.resume(k.resumeReq("key", "me", "q/job"))
		k.wantGrant("resume", again, resumed.Fence)
		if !again.Recovered {
			k.Error("not reported as recovered")
		}
		m.wantNothing("a resume")
		k.free("key")
		m.wantGrant(req.Nonce)
	}},
	{"each release of a batch grants its own key", func(k *kit) {
		m := k.listen()
		var reqs []driver.AcquireRequest
		var ends []driver.ReleaseRequest
		for _, key := range []string{"one", "two", "three"} {
			h := k.hold(key, "me")
			reqs = append(reqs, k.waitReq(key, "you", m))
			k.join(reqs[len(reqs)-1])
			ends = append(ends, k.releaseReq(byFence(key, "me", h.fence)))
		}
		ends[1].Owner = "another owner"
		replies := k.releaseAll(append(ends, k.releaseReq(byOwner("one", "you"))))
		for i, want := range []driver.Outcome{
			driver.OutcomeOK, driver.OutcomeNotOwner, driver.OutcomeOK, driver.OutcomeOK,
		} {
			k.want("release", replies[i], want)
		}
		m.wantGrant(reqs[0].Nonce)
		m.wantGrant(reqs[2].Nonce)
		m.wantNothing("a release that was refused")
		k.wantState("one", driver.StateFree)
		k.wantOwner("release", reqs[2])
	}},
	{"a re-sent release does not free the waiter that was granted", func(k *kit) {
		for _, end := range []string{"release", "force"} {
			m := k.listen()
			h := k.hold(end, "me")
			req := k.waitReq(end, "you", m)
			next := k.waitReq(end, "them", m)
			k.join(req)
			k.join(next)
			release := k.releaseReq(byFence(end, "me", h.fence))
			if end == "force" {
				release.Kind = driver.ReleaseForced
			}
			k.want(end, k.release(release), driver.OutcomeOK)
			g := m.granted(req)
			before := k.wantOwner(end, req)
			k.want("re-sent "+end, k.release(release), driver.OutcomeOK)
			// The answer is the same after the successor has renewed.
			k.want("renew", k.renew(k.renewReq(byFence(end, "you", g.Fence))), driver.OutcomeOK)
			k.want("re-sent "+end, k.release(release), driver.OutcomeOK)
			if r := k.wantOwner("re-sent "+end, req); r.Fence != before.Fence || r.Waiters != 1 {
				k.Errorf("record %+v after a re-sent %s, want fence %d and 1 waiter", r, end, before.Fence)
			}
			m.wantNothing("a re-sent " + end)
		}
	}},
	{"a waiter's re-sent release of its grant passes the key on once", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		first, second, third := k.waitReq("key", "a", m), k.waitReq("key", "b", m), k.waitReq("key", "c", m)
		for _, req := range []driver.AcquireRequest{first, second, third} {
			k.join(req)
		}
		k.free("key")
		m.wantGrant(first.Nonce)
		leave := k.releaseReq(byGrant("key", "a", first.Nonce))
		for range 3 {
			k.want("leave", k.release(leave), driver.OutcomeOK)
		}
		m.wantGrant(second.Nonce)
		k.wantOwner("leaving", second)
		m.wantNothing("re-sends")
	}},
}
