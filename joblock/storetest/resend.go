package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

// resendCases test repeated calls. A Redis client repeats a command whose reply was lost, with the same nonce.
var resendCases = []testCase{
	{"acquire finds its own grant", func(k *kit) {
		req := k.acquireReq("key", "me")
		first := k.acquire(req)
		k.wantGrant("acquire", first, 0)
		before := k.inspect("key")
		k.sameAnswer("acquire", first, k.acquire(req))
		k.unchanged("a re-sent acquire", before)
		k.want("a separate acquire", k.acquire(k.acquireReq("key", "me")), driver.OutcomeHeld)
		other := req
		other.Owner = "you"
		k.want("an acquire with another caller's nonce", k.acquire(other), driver.OutcomeHeld)
	}},
	{"acquire finds how the ownership before its grant ended", func(k *kit) {
		k.released("released", "me", "")
		k.forced("forced", "me", "")
		k.done("done", "me", "q/job", "")
		k.holdFor("lapsed", "me", k.Unit)
		k.parkFor("expired", "me", "q/job", k.Unit)
		k.lapse()
		for key, want := range map[string]driver.Ended{
			"absent": driver.EndedNone, "released": driver.EndedReleased, "forced": driver.EndedForced, "done": driver.EndedDone,
			"lapsed": driver.EndedLapsed, "expired": driver.EndedLapsed,
		} {
			req := k.acquireReq(key, "you")
			for range 2 {
				first := k.acquire(req)
				k.want("acquire", first, driver.OutcomeOK)
				if first.Ended != want {
					k.Errorf("%s: it ended %q, want %q", key, first.Ended, want)
				}
				// The answer is the same after a renewal.
				k.want("renew", k.renew(k.renewReq(byFence(key, "you", first.Fence))), driver.OutcomeOK)
			}
		}
	}},
	{"take finds its own reservation", func(k *kit) {
		req := k.takeReq("key", "me", "q/job")
		first := k.take(req)
		k.want("take", first, driver.OutcomeOK)
		before := k.inspect("key")
		k.sameAnswer("take", first, k.take(req))
		k.unchanged("a re-sent take", before)
		k.want("a separate take", k.take(k.takeReq("key", "me", "q/job")), driver.OutcomeHeld)
		other := req
		other.Owner = "you"
		k.want("a take with another caller's nonce", k.take(other), driver.OutcomeHeld)
	}},
	{"a repeated park for another job binds the lock to that job", func(k *kit) {
		h := k.hold("key", "me")
		req := k.parkReq(byFence("key", "me", h.fence), "q/one")
		first := k.park(req)
		k.want("park", first, driver.OutcomeOK)
		req.Job = "q/two"
		k.wantGrant("park for another job", k.park(req), first.Fence)
		if r := k.wantState("key", driver.StateParked); r.Job != "q/two" {
			k.Errorf("job %q, want q/two", r.Job)
		}
	}},
	{"a re-sent acquire does not take the key back", func(k *kit) {
		req := k.acquireReq("key", "me")
		first := k.acquire(req)
		k.wantGrant("acquire", first, 0)
		k.wantGrant("park", k.park(k.parkReq(byFence("key", "me", first.Fence), "q/job")), first.Fence)
		before := k.inspect("key")
		k.want("re-sent acquire of a parked key", k.acquire(req), driver.OutcomeHeld)
		k.unchanged("a re-sent acquire", before)
	}},
	{"a re-sent park does not take the job's term", func(k *kit) {
		h := k.hold("key", "me")
		req := k.parkReq(byFence("key", "me", h.fence), "q/job")
		k.want("park", k.park(req), driver.OutcomeOK)
		k.want("resume", k.resume(k.resumeReq("key", "me", "q/job")), driver.OutcomeOK)
		before := k.inspect("key")
		k.want("re-sent park", k.park(req), driver.OutcomeNotOwner)
		k.unchanged("a re-sent park", before)
	}},
	{"a re-sent release does not free the successor", func(k *kit) {
		h := k.hold("key", "me")
		req := k.releaseReq(byFence("key", "me", h.fence))
		k.want("release", k.release(req), driver.OutcomeOK)
		k.hold("key", "you")
		before := k.inspect("key")
		k.want("re-sent release", k.release(req), driver.OutcomeOK)
		k.unchanged("a re-sent release", before)
		k.want("a separate release", k.release(k.releaseReq(byFence("key", "me", h.fence))), driver.OutcomeNotOwner)
		k.unchanged("a separate release", before)
	}},
	{"a re-sent force does not free the successor", func(k *kit) {
		k.hold("key", "me")
		req := k.forceReq("key")
		k.want("force", k.release(req), driver.OutcomeOK)
		h := k.hold("key", "you")
		before := k.inspect("key")
		k.want("re-sent force", k.release(req), driver.OutcomeOK)
		k.unchanged("a re-sent force", before)
		k.want("the successor's release", k.release(k.releaseReq(byFence("key", "you", h.fence))), driver.OutcomeOK)
		before = k.inspect("key")
		k.want("force sent once more", k.release(req), driver.OutcomeNotFound) // another call has ended the lock since
		k.unchanged("a force", before)
	}},
}

// sameAnswer fails the test unless the answer to the repeated call equals the first answer.
func (k *kit) sameAnswer(what string, first, again driver.Reply) {
	k.Helper()
	k.want("re-sent "+what, again, first.Outcome)
	if again.Ended != first.Ended {
		k.Errorf("re-sent %s: ended %q, want %q again", what, again.Ended, first.Ended)
	}
	if again.Fence != first.Fence {
		k.Errorf("re-sent %s: fence %d, want %d again", what, again.Fence, first.Fence)
	}
	if string(again.Memo) != string(first.Memo) {
		k.Errorf("re-sent %s: memo %q, want %q again", what, again.Memo, first.Memo)
	}
}
