package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

var releaseCases = []testCase{
	{"Release frees the key and leaves a tombstone", func(k *kit) {
		h := k.runFor("key", "me", "q/job", long)
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Reason = "all done"
		k.want("release", k.release(req), driver.OutcomeOK)
		r := k.wantState("key", driver.StateFree)
		if r.Ended != driver.EndedReleased || r.Reason != "all done" || r.Fence != h.fence {
			k.Errorf("record %+v, want released, the reason, and fence %d", r, h.fence)
		}
		if r.Lease != 0 || r.Reserved != 0 {
			k.Errorf("lease %s and reservation %s left, want none", r.Lease, r.Reserved)
		}
		k.wantGrant("acquire", k.acquire(k.acquireReq("key", "you")), h.fence)
	}},
	{"a second release has another answer than the first", func(k *kit) {
		k.released("key", "me", "the first")
		before := k.inspect("key")
		req := k.releaseReq(byOwner("key", "me"))
		req.Reason = "the second"
		reply := k.release(req)
		k.want("release", reply, driver.OutcomeReleased)
		if reply.Ended != driver.EndedReleased || reply.Reason != "the first" {
			k.Errorf("ended %q because %q, want released because of the first", reply.Ended, reply.Reason)
		}
		k.unchanged("a second release", before)
	}},
	{"a late release does not free the successor", func(k *kit) {
		h := k.holdFor("key", "me", k.Unit)
		k.lapse()
		k.hold("key", "you")
		before := k.inspect("key")
		for _, term := range []driver.Term{byFence("key", "me", h.fence), byGrant("key", "me", h.grant), byOwner("key", "me")} {
			reply := k.release(k.releaseReq(term))
			k.want("release", reply, driver.OutcomeNotOwner)
			k.checkReply(reply, before)
		}
		k.unchanged("a late release", before)
	}},
	{"a late release does not free the next term of the same owner", func(k *kit) {
		old := k.hold("key", "me")
		k.want("release", k.release(k.releaseReq(byFence("key", "me", old.fence))), driver.OutcomeOK)
		k.hold("key", "me")
		before := k.inspect("key")
		k.want("late release", k.release(k.releaseReq(byFence("key", "me", old.fence))), driver.OutcomeNotOwner)
		k.unchanged("a late release", before)
	}},
	{"a release after the lease has run out still ends the lock", func(k *kit) {
		h := k.holdFor("key", "me", k.Unit)
		k.lapse()
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Reason = "late"
		k.want("release", k.release(req), driver.OutcomeLapsed)
		if r := k.wantState("key", driver.StateFree); r.Ended != driver.EndedReleased || r.Reason != "late" {
			k.Errorf("ended %q because %q, want released because late", r.Ended, r.Reason)
		}
		k.want("resume", k.resume(k.resumeReq("key", "me", "")), driver.OutcomeReleased)
	}},
	{"if idle leaves a live lease alone and frees the rest", func(k *kit) {
		k.runFor("running", "me", "q/job", long)
		k.parkFor("parked", "me", "q/job", 10*long)
		k.runFor("orphaned", "me", "q/job", k.Unit)
		k.lapse()
		before := k.inspect("running")
		for key, want := range map[string]driver.Outcome{
			"running":  driver.OutcomeBusy,
			"parked":   driver.OutcomeOK,
			"orphaned": driver.OutcomeOK,
		} {
			req := k.releaseReq(byOwner(key, "me"))
			req.Kind = driver.ReleaseIdle
			reply := k.release(req)
			k.want("release "+key, reply, want)
			if want == driver.OutcomeOK {
				k.wantState(key, driver.StateFree)
			} else {
				k.checkReply(reply, before)
			}
		}
		k.unchanged("release if idle", before)
	}},
	{"a release with Done differs only in how the record shows the end", func(k *kit) {
		for name, end := range map[string]func(key string, h held){
			"by fence": func(key string, h held) {
				req := k.releaseReq(byFence(key, "me", h.fence))
				req.Job, req.Done, req.Reason = "q/job", true, "all of it"
				k.want("release", k.release(req), driver.OutcomeOK)
			},
			"if idle, of any term": func(key string, h held) {
				k.want("park", k.park(k.parkReq(byFence(key, "me", h.fence), "q/job")), driver.OutcomeOK)
				req := k.releaseReq(byOwner(key, "me"))
				req.Job, req.Done, req.Reason, req.Kind = "q/job", true, "all of it", driver.ReleaseIdle
				k.want("release", k.release(req), driver.OutcomeOK)
			},
		} {
			h := k.runFor(name, "me", "q/job", long)
			end(name, h)
			if r := k.wantState(name, driver.StateFree); r.Ended != driver.EndedDone || r.Reason != "all of it" || r.Job != "q/job" {
				k.Errorf("%s: record %+v, want it ended as done, with the reason and the job", name, r)
			}
			if reply := k.resume(k.resumeReq(name, "me", "q/job")); reply.Outcome != driver.OutcomeReleased || reply.Ended != driver.EndedDone {
				k.Errorf("%s: a resumption is told %+v, want released, ended as done", name, reply)
			}
		}
		h := k.runFor("reason", "me", "q/job", long)
		req := k.releaseReq(byFence("reason", "me", h.fence))
		req.Job, req.Reason = "q/job", "done"
		k.want("release", k.release(req), driver.OutcomeOK)
		if r := k.wantState("reason", driver.StateFree); r.Ended != driver.EndedReleased {
			k.Errorf("ended %q, want released: a reason is no fact", r.Ended)
		}
	}},
	{"a forced release needs no owner, and the holder learns of it", func(k *kit) {
		h := k.runFor("key", "me", "q/job", long)
		req := k.forceReq("key")
		req.Owner = "somebody else, which does not matter"
		req.Reason = "by hand"
		k.want("force", k.release(req), driver.OutcomeOK)
		if r := k.wantState("key", driver.StateFree); r.Ended != driver.EndedForced || r.Reason != "by hand" || r.Fence != h.fence {
			k.Errorf("record %+v, want forced by hand with fence %d", r, h.fence)
		}
		reply := k.renew(k.renewReq(byFence("key", "me", h.fence)))
		k.want("renew", reply, driver.OutcomeReleased)
		if reply.Ended != driver.EndedForced || reply.Reason != "by hand" {
			k.Errorf("the holder hears ended %q because %q, want forced by hand", reply.Ended, reply.Reason)
		}
		k.want("force again", k.release(k.forceReq("key")), driver.OutcomeNotFound)
	}},
}
