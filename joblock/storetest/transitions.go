package storetest

import (
	"fmt"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
)

// waiterReq returns the Acquire of owner "next", who waits for the key.
func (k *kit) waiterReq(key string) driver.AcquireRequest {
	req := k.acquireReq(key, "next")
	req.Nonce, req.Inbox, req.Patience = "next for "+key, "an inbox of "+key, long
	return req
}

// again returns nonce, or a new nonce if nonce is "".
func (k *kit) again(nonce string) string {
	if nonce == "" {
		return k.nonce()
	}
	return nonce
}

// memoReq returns a Renew with a memo, which a refused Renew must not write.
func (k *kit) memoReq(term driver.Term) driver.RenewRequest {
	req := k.renewReq(term)
	req.Memo = []byte("a memo")
	return req
}

// transitions says, for each call in each state, which row of the table decides. A "lapsed" lock was never parked and
// its lease has run out. An "expired" lock was parked and its reservation has run out. A "late" lock was released
// after its lease had run out. In the states "queued" and "overdue" one Acquire waits: a "queued" lock is held, and
// an "overdue" lock was parked for no job until its reservation ran out. In the states "awaited" and "vacated" the
// same holds, but two jobs wait.
var transitions = []struct {
	call, how string
	//    absent held queued awaited running parked orphaned lapsed overdue vacated expired released forced done late
	rows [len(starts)]string
	do   func(k *kit, key string, f found) driver.Reply
}{
	{
		acquire, "by another owner",
		[...]string{"next", "taken", "taken", "taken", "taken", "taken", "taken", "next", "passed on", "passed on", "next", "next", "next", "next", "next"},
		func(k *kit, key string, _ found) driver.Reply { return k.acquire(k.acquireReq(key, "you")) },
	},
	{
		acquire, "by the same owner",
		[...]string{"next", "taken", "taken", "taken", "taken", "taken", "taken", "next", "passed on", "passed on", "next", "next", "next", "next", "next"},
		func(k *kit, key string, _ found) driver.Reply { return k.acquire(k.acquireReq(key, "me")) },
	},
	{
		acquire, "by the call that made the term",
		[...]string{"next", "again", "again", "again", "again", "taken", "taken", "next", "passed on", "passed on", "next", "next", "next", "next", "next"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.acquireReq(key, "me")
			req.Nonce = k.again(f.grant)
			return k.acquire(req)
		},
	},
	{
		acquire, "by who waits",
		[...]string{"next", "taken", "taken", "taken", "taken", "taken", "taken", "next", "next", "passed on", "next", "next", "next", "next", "next"},
		func(k *kit, key string, _ found) driver.Reply { return k.acquire(k.waiterReq(key)) },
	},
	{
		take, "by another owner",
		[...]string{"parked", "taken", "taken", "taken", "taken", "taken", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply { return k.take(k.takeReq(key, "you", "q/next")) },
	},
	{
		take, "by the same owner",
		[...]string{"parked", "taken", "taken", "taken", "taken", "taken", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply { return k.take(k.takeReq(key, "me", "q/job")) },
	},
	{
		take, "by the call that made the term",
		[...]string{"parked", "taken", "taken", "taken", "taken", "again", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.takeReq(key, "me", "q/job")
			req.Nonce = k.again(f.grant)
			return k.take(req)
		},
	},
	{
		take, "by that call, for another job",
		[...]string{"parked", "taken", "taken", "taken", "taken", "taken", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.takeReq(key, "me", "q/next")
			req.Nonce = k.again(f.grant)
			return k.take(req)
		},
	},
	{
		take, "with patience",
		[...]string{"parked", "taken", "taken", "taken", "taken", "taken", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.takeReq(key, "you", "q/next")
			req.Patience = long
			return k.take(req)
		},
	},
	{
		take, "by a job that waits",
		[...]string{"parked", "taken", "taken", "taken", "taken", "taken", "taken", "parked", "passed on", "parked", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply { return k.take(k.lineReq(key, "q/first")) },
	},
	{
		take, "by a job that waits behind another",
		[...]string{"parked", "taken", "taken", "taken", "taken", "taken", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply { return k.take(k.lineReq(key, "q/second")) },
	},
	{
		take, "by another owner for a job that waits",
		[...]string{"parked", "taken", "taken", "another owner", "taken", "taken", "taken", "parked", "passed on", "another owner", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.lineReq(key, "q/first")
			req.Owner = "you"
			return k.take(req)
		},
	},
	{
		take, "with patience, to a queue of one place at most",
		[...]string{"parked", "taken", "full", "full", "taken", "taken", "taken", "parked", "passed on", "passed on", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.takeReq(key, "you", "q/next")
			req.Patience, req.Most = long, 1
			return k.take(req)
		},
	},
	{
		take, "by a job that waits, to a queue of one place at most",
		[...]string{"parked", "taken", "full", "taken", "taken", "taken", "taken", "parked", "passed on", "parked", "parked", "parked", "parked", "parked", "parked"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.lineReq(key, "q/first")
			req.Most = 1
			return k.take(req)
		},
	},
	{
		resume, "for its job",
		[...]string{"no record", "busy", "busy", "busy", "busy", "resumed", "resumed", "recovered", "recovered", "recovered", "recovered", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply { return k.resume(k.resumeReq(key, "me", "q/job")) },
	},
	{
		resume, "for another job",
		[...]string{"no record", "busy", "busy", "busy", "another job", "another job", "another job", "recovered", "recovered", "recovered", "another job", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply { return k.resume(k.resumeReq(key, "me", "q/other")) },
	},
	{
		resume, "for no job",
		[...]string{"no record", "busy", "busy", "busy", "another job", "another job", "another job", "recovered", "recovered", "recovered", "another job", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply { return k.resume(k.resumeReq(key, "me", "")) },
	},
	{
		resume, "by another owner",
		[...]string{"no record", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner"},
		func(k *kit, key string, _ found) driver.Reply { return k.resume(k.resumeReq(key, "you", "q/job")) },
	},
	{
		resume, "by the call that made the term",
		[...]string{"no record", "again", "again", "again", "again", "resumed", "resumed", "recovered", "recovered", "recovered", "recovered", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.resumeReq(key, "me", "q/job")
			req.Nonce = k.again(f.grant)
			return k.resume(req)
		},
	},
	{
		resume, "by a fence of this ownership",
		[...]string{"no record", "busy", "busy", "busy", "busy", "resumed", "resumed", "recovered", "recovered", "recovered", "recovered", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.resumeReq(key, "me", "q/job")
			req.Fence = f.first
			return k.resume(req)
		},
	},
	{
		resume, "by a fence of an earlier one",
		[...]string{"no record", "another ownership", "another ownership", "another ownership", "busy", "resumed", "resumed", "another ownership", "another ownership", "another ownership", "recovered", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.resumeReq(key, "me", "q/job")
			req.Fence = f.first - 1
			return k.resume(req)
		},
	},
	{
		resume, "by who takes the park back",
		[...]string{"no record", "busy", "busy", "busy", "busy", "taken back", "taken back", "recovered", "recovered", "recovered", "recovered", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.resumeReq(key, "me", "q/job")
			req.Unpark = true
			return k.resume(req)
		},
	},
	{
		resume, "by who has taken it back",
		[...]string{"no record", "busy", "busy", "busy", "busy", "taken back", "taken back", "recovered", "recovered", "recovered", "recovered", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.resumeReq(key, "me", "q/other")
			req.Unpark, req.Back = true, "q/job"
			return k.resume(req)
		},
	},
	{
		park, "by fence",
		[...]string{"no record", "parked", "parked", "parked", "parked", "late", "late", "late", "late", "late", "late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.park(k.parkReq(byFence(key, "me", f.fence), "q/next"))
		},
	},
	{
		park, "by grant",
		[...]string{"no record", "parked", "parked", "parked", "parked", "late", "late", "late", "late", "late", "late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.park(k.parkReq(byGrant(key, "me", f.grant), "q/next"))
		},
	},
	{
		park, "by the call that made the term",
		[...]string{"no record", "parked", "parked", "parked", "parked", "again", "late", "late", "late", "late", "late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.parkReq(byFence(key, "me", f.fence), "q/job")
			req.Nonce = k.again(f.grant)
			return k.park(req)
		},
	},
	{
		park, "by that call, for another job",
		[...]string{"no record", "parked", "parked", "parked", "parked", "moved", "late", "late", "late", "late", "late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.parkReq(byFence(key, "me", f.fence), "q/next")
			req.Nonce = k.again(f.grant)
			return k.park(req)
		},
	},
	{
		park, "by an older fence",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.park(k.parkReq(byFence(key, "me", f.first-1), "q/next"))
		},
	},
	{
		park, "by no term",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply { return k.park(k.parkReq(byOwner(key, "me"), "q/next")) },
	},
	{
		park, "by another owner",
		[...]string{"no record", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner"},
		func(k *kit, key string, f found) driver.Reply {
			return k.park(k.parkReq(byFence(key, "you", f.fence), "q/next"))
		},
	},
	{
		renew, "by fence",
		[...]string{"no record", "renewed", "renewed", "renewed", "renewed", "late", "late", "late", "late", "late", "late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.renew(k.memoReq(byFence(key, "me", f.fence)))
		},
	},
	{
		renew, "by grant",
		[...]string{"no record", "renewed", "renewed", "renewed", "renewed", "taken back", "late", "late", "late", "late", "late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.renew(k.memoReq(byGrant(key, "me", f.grant)))
		},
	},
	{
		renew, "by an older fence",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.renew(k.memoReq(byFence(key, "me", f.first-1)))
		},
	},
	{
		renew, "by another grant",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply {
			return k.renew(k.memoReq(byGrant(key, "me", "another grant")))
		},
	},
	{
		renew, "by no term",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply { return k.renew(k.memoReq(byOwner(key, "me"))) },
	},
	{
		renew, "by another owner",
		[...]string{"no record", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner"},
		func(k *kit, key string, f found) driver.Reply {
			return k.renew(k.memoReq(byFence(key, "you", f.fence)))
		},
	},
	{
		release, "by fence",
		[...]string{"no record", "released", "released", "released", "released", "released", "released", "released late", "released late", "released late", "released late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.release(k.releaseReq(byFence(key, "me", f.fence)))
		},
	},
	{
		release, "by grant",
		[...]string{"no record", "released", "released", "released", "released", "released", "released", "released late", "released late", "released late", "released late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.release(k.releaseReq(byGrant(key, "me", f.grant)))
		},
	},
	{
		release, "by owner",
		[...]string{"no record", "released", "released", "released", "released", "released", "released", "released late", "released late", "released late", "released late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply { return k.release(k.releaseReq(byOwner(key, "me"))) },
	},
	{
		release, "by the call that ended it",
		[...]string{"no record", "released", "released", "released", "released", "released", "released", "released late", "released late", "released late", "released late", "again", "again", "again", "again, late"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.releaseReq(byFence(key, "me", f.fence))
			req.Nonce = k.again(f.end)
			return k.release(req)
		},
	},
	{
		release, "by an older fence",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			return k.release(k.releaseReq(byFence(key, "me", f.first-1)))
		},
	},
	{
		release, "by another grant",
		[...]string{"no record", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "another term", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply {
			return k.release(k.releaseReq(byGrant(key, "me", "another grant")))
		},
	},
	{
		release, "by another owner",
		[...]string{"no record", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner"},
		func(k *kit, key string, f found) driver.Reply {
			return k.release(k.releaseReq(byFence(key, "you", f.fence)))
		},
	},
	{
		release, "by another owner, any term",
		[...]string{"no record", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner", "another owner"},
		func(k *kit, key string, _ found) driver.Reply { return k.release(k.releaseReq(byOwner(key, "you"))) },
	},
	{
		release, "if idle",
		[...]string{"no record", "busy", "busy", "busy", "busy", "released", "released", "released late", "released late", "released late", "released late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.releaseReq(byOwner(key, "me"))
			req.Kind = driver.ReleaseIdle
			return k.release(req)
		},
	},
	{
		release, "for its job",
		[...]string{"no record", "another job", "another job", "another job", "released", "released", "released", "another job", "another job", "another job", "released late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.releaseReq(byOwner(key, "me"))
			req.Job = "q/job"
			return k.release(req)
		},
	},
	{
		release, "for another job",
		[...]string{"no record", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.releaseReq(byFence(key, "me", f.fence))
			req.Job = "q/other"
			return k.release(req)
		},
	},
	{
		release, "as done",
		[...]string{"no record", "another job", "another job", "another job", "released", "released", "released", "another job", "another job", "another job", "released late", "ended", "ended", "ended", "ended"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.releaseReq(byFence(key, "me", f.fence))
			req.Job, req.Done = "q/job", true
			return k.release(req)
		},
	},
	{
		force, "any holder",
		[...]string{"free", "forced", "forced", "forced", "forced", "forced", "forced", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, _ found) driver.Reply { return k.release(k.forceReq(key)) },
	},
	{
		force, "by fence",
		[...]string{"free", "forced", "forced", "forced", "forced", "forced", "forced", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.forceReq(key)
			req.Fence = f.fence
			return k.release(req)
		},
	},
	{
		force, "by an older fence",
		[...]string{"free", "another fence", "another fence", "another fence", "another fence", "another fence", "another fence", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.forceReq(key)
			req.Fence = f.first - 1
			return k.release(req)
		},
	},
	{
		force, "by the call that ended it",
		[...]string{"free", "forced", "forced", "forced", "forced", "forced", "forced", "free", "free", "free", "free", "again", "again", "again", "again, late"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.forceReq(key)
			req.Nonce = k.again(f.end)
			return k.release(req)
		},
	},
	{
		force, "while no work runs",
		[...]string{"free", "busy", "busy", "busy", "busy", "forced", "forced", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, _ found) driver.Reply { return k.release(k.freeReq(key, "")) },
	},
	{
		force, "if it is its job's",
		[...]string{"free", "another job", "another job", "another job", "forced", "forced", "forced", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.forceReq(key)
			req.Job = "q/job"
			return k.release(req)
		},
	},
	{
		force, "for its job",
		[...]string{"free", "another job", "another job", "another job", "busy", "forced", "forced", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, _ found) driver.Reply { return k.release(k.freeReq(key, "q/job")) },
	},
	{
		force, "for another job",
		[...]string{"free", "another job", "another job", "another job", "another job", "another job", "another job", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, _ found) driver.Reply { return k.release(k.freeReq(key, "q/other")) },
	},
	{
		force, "for its job, by an older fence",
		[...]string{"free", "another fence", "another fence", "another fence", "another fence", "another fence", "another fence", "free", "free", "free", "free", "free", "free", "free", "free"},
		func(k *kit, key string, f found) driver.Reply {
			req := k.freeReq(key, "q/job")
			req.Fence = f.first - 1
			return k.release(req)
		},
	},
	{
		force, "for a job that waits",
		[...]string{"free", "another job", "another job", "left", "another job", "another job", "another job", "free", "free", "left", "free", "free", "free", "free", "free"},
		func(k *kit, key string, _ found) driver.Reply {
			req := k.freeReq(key, "q/second")
			req.Grant = k.lineReq(key, "q/second").Nonce
			return k.release(req)
		},
	},
	{
		reserve, "for a job that waits",
		[...]string{"no record", "another job", "another job", "waits", "another job", "another job", "another job", "another job", "another job", "next", "another job", "another job", "another job", "another job", "another job"},
		func(k *kit, key string, _ found) driver.Reply { return k.reserve(k.keepReq(k.lineReq(key, "q/first"))) },
	},
	{
		reserve, "for a job that waits behind another",
		[...]string{"no record", "another job", "another job", "waits", "another job", "another job", "another job", "another job", "another job", "passed on", "another job", "another job", "another job", "another job", "another job"},
		func(k *kit, key string, _ found) driver.Reply {
			return k.reserve(k.keepReq(k.lineReq(key, "q/second")))
		},
	},
	{
		reserve, "for its job",
		[...]string{"no record", "another job", "another job", "another job", "reserved", "reserved", "reserved", "another job", "another job", "another job", "reserved again", "another job", "another job", "ended", "another job"},
		func(k *kit, key string, _ found) driver.Reply { return k.reserve(k.reserveReq(key, "q/job")) },
	},
	{
		reserve, "for another job",
		[...]string{"no record", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job", "another job"},
		func(k *kit, key string, _ found) driver.Reply { return k.reserve(k.reserveReq(key, "q/other")) },
	},
}

// runTransitions tests the table state by state, so it waits only once for each state that takes time.
func runTransitions(t *testing.T, newHarness func(t *testing.T) *Harness) {
	for s, from := range starts {
		t.Run(from.name, func(t *testing.T) {
			k := newKit(t, newHarness)
			all := make([]found, len(transitions))
			for i := range all {
				all[i] = k.begin(from, transitionKey(i))
			}
			if from.lapse {
				k.lapse()
			}
			for i, tr := range transitions {
				t.Run(tr.call+" "+tr.how, func(t *testing.T) {
					sub := *k
					sub.T = t
					defer func() { k.nonces = sub.nonces }()
					key := transitionKey(i)
					if from.then != nil {
						from.then(&sub, key, &all[i])
					}
					before := sub.wantState(key, from.state)
					if before.Ended != from.ended || all[i].end != "" && before.Reason != endReason {
						t.Fatalf("key ended %q because %q before the call, want %q", before.Ended, before.Reason, from.ended)
					}
					row, ok := rowOf(tr.call, tr.rows[s])
					if !ok {
						t.Fatalf("the table has no row %q of %s", tr.rows[s], tr.call)
					}
					reply := tr.do(&sub, key, all[i])
					what := fmt.Sprintf("row %q of %s", row.name, tr.call)
					sub.want(what, reply, row.outcome)
					if recovered := row.name == "recovered" || row.name == "reserved again"; reply.Recovered != recovered {
						t.Errorf("%s: recovered %t, want %t", what, reply.Recovered, recovered)
					}
					if row.name == "again" && tr.call != release && tr.call != force && reply.Fence != before.Fence {
						t.Errorf("%s: fence %d, want %d again", what, reply.Fence, before.Fence)
					}
					sub.checkReply(reply, before)
					sub.checkEffect(what, row.effect, reply, before)
				})
			}
		})
	}
}

func transitionKey(i int) string { return fmt.Sprintf("key-%02d", i) }
