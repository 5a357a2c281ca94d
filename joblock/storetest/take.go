package storetest

import (
	"reflect"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

var takeCases = []testCase{
	{"the key is parked for the job without having been held", func(k *kit) {
		req := k.takeReq("key", "me", "q/job")
		reply := k.take(req)
		k.wantGrant("take", reply, 0)
		r := k.wantState("key", driver.StateParked)
		if r.Owner != "me" || r.Holder != req.Holder || r.Job != "q/job" || r.Lease != 0 || r.Fence != reply.Fence || r.First != r.Fence {
			k.Errorf("record %+v does not match the request", r)
		}
		if r.Reserved <= 9*long || !within(r.Reserved, req.Reserve) {
			k.Errorf("reserved for %s, want %s", r.Reserved, req.Reserve)
		}
		if !r.Since.Equal(r.Changed) || r.Since.After(r.Now) {
			k.Errorf("since %s, changed %s, want both the time of the take", r.Since, r.Changed)
		}
		if !reflect.DeepEqual(reply, driver.Reply{Outcome: driver.OutcomeOK, Fence: reply.Fence}) {
			k.Errorf("reply %+v, want the fence and no previous ownership", reply)
		}
	}},
	{"the lock of one job after the other", func(k *kit) {
		var last driver.Reply
		for _, job := range []string{"q/1", "q/2"} {
			taken := k.take(k.takeReq("key", "me", job))
			if k.wantGrant("take", taken, last.Fence); taken.Ended != last.Ended {
				k.Errorf("%s: the previous ownership ended as %s, want %s", job, taken.Ended, last.Ended)
			}
			resume := func(owner, job string) driver.Reply {
				req := k.resumeReq("key", owner, job)
				req.Reserve = 20 * long // longer than the reservation of the Take
				return k.resume(req)
			}
			parked := k.inspect("key")
			k.want("resume for another job", resume("me", "q/3"), driver.OutcomeWrongJob)
			k.want("resume by another owner", resume("you", job), driver.OutcomeNotOwner)
			k.unchanged("a refused resume", parked)
			last = resume("me", job)
			k.wantGrant("resume", last, taken.Fence)
			held := k.wantState("key", driver.StateHeld)
			if held.Reserved <= 20*long || !within(held.Reserved, 21*long) || !within(held.Lease, long) {
				k.Errorf("%s: leased for %s and reserved for %s, want %s and %s", job, held.Lease, held.Reserved, long, 21*long)
			}
			k.want("resume while the job runs", resume("me", job), driver.OutcomeBusy)
			release := func(fence int64, job string) driver.Reply {
				req := k.releaseReq(byFence("key", "me", fence))
				req.Job, req.Done, req.Reason = job, true, "job done"
				return k.release(req)
			}
			k.want("release for another job", release(last.Fence, "q/3"), driver.OutcomeWrongJob)
			k.want("release under the fence of the take", release(taken.Fence, job), driver.OutcomeNotOwner)
			k.unchanged("a refused release", held)
			k.want("release", release(last.Fence, job), driver.OutcomeOK)
			if r := k.wantState("key", driver.StateFree); r.Ended != driver.EndedDone || r.Reason != "job done" || r.Job != job || r.First != taken.Fence {
				k.Errorf("%s: after its end the record is %+v", job, r)
			}
			last.Ended = driver.EndedDone
		}
		acquired := k.acquire(k.acquireReq("key", "you"))
		if k.wantGrant("acquire", acquired, last.Fence); acquired.Ended != driver.EndedDone {
			k.Errorf("acquire: the previous ownership ended as %s, want %s", acquired.Ended, driver.EndedDone)
		}
	}},
	{"a take that the job has resumed since is refused", func(k *kit) {
		req := k.takeReq("key", "me", "q/job")
		taken := k.take(req)
		k.wantGrant("resume", k.resume(k.resumeReq("key", "me", "q/job")), taken.Fence)
		before := k.inspect("key")
		k.want("take again", k.take(req), driver.OutcomeHeld)
		k.unchanged("a late take", before)
	}},
	{"the reservation ends", func(k *kit) {
		req := k.takeReq("key", "me", "q/job")
		req.Reserve = k.Unit
		first := k.take(req)
		k.wantGrant("take", first, 0)
		k.lapse()
		k.wantState("key", driver.StateFree)
		k.wantGrant("take by another", k.take(k.takeReq("key", "you", "q/other")), first.Fence)
		if r := k.wantState("key", driver.StateParked); r.Owner != "you" || r.Job != "q/other" {
			k.Errorf("record %+v has something of the previous owner", r)
		}
	}},
	{"a release ends it by its fence or by its nonce", func(k *kit) {
		for name, term := range map[string]func(fence int64, req driver.TakeRequest) driver.Term{
			"by fence": func(fence int64, req driver.TakeRequest) driver.Term { return byFence(req.Key, "me", fence) },
			"by nonce": func(_ int64, req driver.TakeRequest) driver.Term { return byGrant(req.Key, "me", req.Nonce) },
		} {
			req := k.takeReq(name, "me", "q/job")
			reply := k.take(req)
			k.want("release "+name, k.release(k.releaseReq(term(reply.Fence, req))), driver.OutcomeOK)
			k.wantState(name, driver.StateFree)
		}
	}},
	{"a released take that arrives late takes the key again, and can be released again", func(k *kit) {
		req := k.takeReq("key", "me", "q/job")
		first := k.take(req)
		k.want("release", k.release(k.releaseReq(byGrant("key", "me", req.Nonce))), driver.OutcomeOK)
		k.wantGrant("late take", k.take(req), first.Fence)
		k.want("release again", k.release(k.releaseReq(byGrant("key", "me", req.Nonce))), driver.OutcomeOK)
		k.wantState("key", driver.StateFree)
	}},
	{"the memo stays, and the next owner gets how the take ended", func(k *kit) {
		h := k.hold("key", "me")
		renew := k.renewReq(byFence("key", "me", h.fence))
		renew.Memo = []byte("memo")
		k.want("renew", k.renew(renew), driver.OutcomeOK)
		k.want("release", k.release(k.releaseReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		taken := k.take(k.takeReq("key", "you", "q/job"))
		k.wantGrant("take", taken, h.fence)
		if r := k.inspect("key"); string(r.Memo) != "memo" || r.Ended != driver.EndedNone {
			k.Errorf("record %+v, want the memo, and no end", r)
		}
		k.want("force", k.release(k.forceReq("key")), driver.OutcomeOK)
		reply := k.acquire(k.acquireReq("key", "me"))
		k.wantGrant("acquire", reply, taken.Fence)
		if reply.Ended != driver.EndedForced || string(reply.Memo) != "memo" {
			k.Errorf("grant %+v, want the memo, and that the last ownership was forced", reply)
		}
	}},
	{"the reply says how the previous ownership ended", func(k *kit) {
		k.released("released", "me", "done")
		k.parkFor("expired", "me", "q/job", k.Unit)
		k.lapse()
		for key, want := range map[string]driver.Ended{
			"never": driver.EndedNone, "released": driver.EndedReleased, "expired": driver.EndedLapsed,
		} {
			req := k.takeReq(key, "you", "q/other")
			for range 2 {
				reply := k.take(req)
				k.want("take "+key, reply, driver.OutcomeOK)
				if reply.Ended != want {
					k.Errorf("take %s: ended %q, want %q", key, reply.Ended, want)
				}
			}
		}
	}},
	{"a free key goes to the first in line", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		first, second := k.waitReq("key", "first", m), k.waitReq("key", "second", m)
		k.join(first)
		k.join(second)
		k.want("take of a held key", k.take(k.takeReq("key", "asker", "q/job")), driver.OutcomeHeld)
		m.wantNothing("a take of a held key")
		k.runOut("key")
		reply := k.take(k.takeReq("key", "asker", "q/job"))
		k.want("take", reply, driver.OutcomeHeld)
		if reply.Holder != first.Holder || reply.State != driver.StateHeld || reply.Job != "" || !within(reply.Remaining, long) {
			k.Errorf("the caller gets %+v, want that %q has it", reply, first.Holder)
		}
		if reply.Ahead != 0 || !reply.Now.IsZero() {
			k.Errorf("reply %+v, want no place in the queue", reply)
		}
		g := m.granted(first)
		if r := k.wantOwner("key", first); r.Fence != g.Fence || r.Waiters != 1 {
			k.Errorf("record %+v, want fence %d and 1 waiter", r, g.Fence)
		}
	}},
	{"waiters whose places have ended are passed over", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		req := k.waitReq("key", "you", m)
		req.Patience = k.Unit
		k.join(req)
		k.runOut("key")
		k.want("take", k.take(k.takeReq("key", "asker", "q/job")), driver.OutcomeOK)
		m.wantNothing("a take past a place that has ended")
	}},
	{"a waiter of a key that was taken is served when the job is done", func(k *kit) {
		m := k.listen()
		k.want("take", k.take(k.takeReq("key", "me", "q/job")), driver.OutcomeOK)
		req := k.waitReq("key", "you", m)
		k.join(req)
		k.want("free", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
		m.granted(req)
		k.wantOwner("key", req)
	}},
	{"its entry is in the index, and due when its grace is over", func(k *kit) {
		req := k.takeReq("key", "me", "q/job")
		req.Grace = 0
		k.wantGrant("take", k.take(req), 0)
		k.wantGrant("take", k.take(k.takeReq("later", "me", "q/job")), 0)
		k.wantGrant("take", k.take(k.takeReq("for no job", "me", "")), 0)
		k.Advance(time.Millisecond)
		k.wantDue(10, "q/job key")
	}},
}
