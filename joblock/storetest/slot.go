package storetest

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// slotCases test the slots of a key, which let several jobs of its queue run at a time.
var slotCases = []testCase{
	{"a slot that is released goes to the first waiting job, in the same step", func(k *kit) {
		slot := driver.SlotKey("key", 2)
		k.hold("key", "me")
		h := k.hold(slot, "you")
		first, second := k.lineReq("key", "q/first"), k.lineReq("key", "q/second")
		k.joinLine(first)
		k.joinLine(second)
		req := k.releaseReq(byFence(slot, "you", h.fence))
		reply := k.release(req)
		k.want("release", reply, driver.OutcomeOK)
		if reply.Next != "q/first" {
			k.Fatalf("job %q is next, want q/first", reply.Next)
		}
		r := k.wantSlotOf(slot, first)
		if r.Fence <= h.fence || r.First != r.Fence || r.Waiters != 0 {
			k.Errorf("record %+v after fence %d, want a new ownership, and no waiters", r, h.fence)
		}
		if r := k.inspect("key"); r.Owner != "me" || r.Waiters != 1 {
			k.Errorf("the key is %s's with %d waiters, want me, and 1", r.Owner, r.Waiters)
		}
		k.wantNoPlace("key", first)
		k.Advance(time.Millisecond) // until the entry is due
		k.wantDue(10, "q/first "+slot)
		k.want("a repeated release", k.release(req), driver.OutcomeOK)
		k.unchanged("a repeated release", r)
		k.wantGrant("resume", k.resume(k.resumeReq(slot, "next", "q/first")), r.Fence)
		k.free("key")
		k.wantParkedFor(second)
	}},
	{"slots go to jobs in the order of their line, whichever slot is free", func(k *kit) {
		const slots, jobs = 4, 12
		for n := range slots {
			k.hold(driver.SlotKey("key", n+1), fmt.Sprint("first-", n+1))
		}
		for i := range jobs {
			k.joinLine(k.lineReq("key", fmt.Sprint("q/", i)))
		}
		for i := range jobs {
			slot := driver.SlotKey("key", 1+i*3%slots)
			if got := k.release(k.forceReq(slot)); got.Outcome != driver.OutcomeOK || got.Next != fmt.Sprint("q/", i) {
				k.Fatalf("slot %s: %+v, want that q/%d is next", slot, got, i)
			}
			k.wantSlotOf(slot, k.lineReq("key", fmt.Sprint("q/", i)))
		}
		if got := k.line("key", 10); len(got) != 0 {
			k.Errorf("%+v are still in line", got)
		}
		last := k.release(k.forceReq(driver.SlotKey("key", 2)))
		if last.Outcome != driver.OutcomeOK || last.Next != "" {
			k.Errorf("no waiters, and a release says %+v", last)
		}
		k.wantState(driver.SlotKey("key", 2), driver.StateFree)
	}},
	{"a slot that is free goes to the first waiting job when a release finds it so", func(k *kit) {
		m := k.listenTo(driver.JobsInbox)
		k.hold("key", "me")
		for i := range 4 {
			k.joinLine(k.lineReq("key", fmt.Sprint("q/", i)))
		}
		never, ended, lapsed := driver.SlotKey("key", 2), driver.SlotKey("key", 3), driver.SlotKey("key", 4)
		h := k.hold(ended, "you")
		k.want("release", k.release(k.releaseReq(byFence(ended, "you", h.fence))), driver.OutcomeOK)
		k.wantSlotOf(ended, k.lineReq("key", "q/0"))
		k.holdFor(lapsed, "you", k.Unit)
		k.lapse()
		for i, slot := range []string{never, lapsed} {
			req := k.freeReq(slot, "q/none")
			req.Starts = i == 1
			job := fmt.Sprint("q/", i+1)
			reply := k.release(req)
			k.want("free "+slot, reply, driver.OutcomeNotFound)
			if reply.Next != job {
				k.Errorf("%s: job %q is next, want %s", slot, reply.Next, job)
			}
			k.wantSlotOf(slot, k.lineReq("key", job))
		}
		for i, slot := range []string{ended, never} {
			if p := m.wantGrant(fmt.Sprint("q/", i)); p.Key != slot {
				k.Errorf("push %+v, want one for slot %s", p, slot)
			}
		}
		if n := m.left(); n != 0 {
			k.Errorf("%d pushes, want none: the callers of Release start these jobs", n)
		}
		k.want("free a slot that another job has", k.release(k.freeReq(never, "q/none")), driver.OutcomeWrongJob)
		k.wantSlotOf(never, k.lineReq("key", "q/1"))
	}},
	{"a repeated release of a slot serves a job that came in between", func(k *kit) {
		m := k.listenTo(driver.JobsInbox)
		slot := driver.SlotKey("key", 2)
		h := k.hold(slot, "you")
		release := k.releaseReq(byFence(slot, "you", h.fence))
		k.want("release", k.release(release), driver.OutcomeOK)
		k.hold("key", "me")
		k.joinLine(k.lineReq("key", "q/0"))
		for i, next := range []string{"q/0", ""} {
			reply := k.release(release)
			k.want("the same call", reply, driver.OutcomeOK)
			if reply.Next != next {
				k.Errorf("repeat %d: job %q is next, want %q", i+1, reply.Next, next)
			}
			k.wantSlotOf(slot, k.lineReq("key", "q/0"))
		}
		if p := m.wantGrant("q/0"); p.Key != slot {
			k.Errorf("push %+v, want one for slot %s", p, slot)
		}
	}},
	{"a slot passes over processes, whose places stay", func(k *kit) {
		m := k.listen()
		h := k.hold("key", "me")
		slot := driver.SlotKey("key", 2)
		k.hold(slot, "you")
		before, after := k.waitReq("key", "before", m), k.waitReq("key", "after", m)
		dead := k.lineReq("key", "q/dead")
		dead.Patience = k.Unit
		k.join(before)
		k.joinLine(dead)
		k.joinLine(k.lineReq("key", "q/first"))
		k.join(after)
		k.joinLine(k.lineReq("key", "q/second"))
		k.lapse()
		for _, job := range []string{"q/first", "q/second", ""} {
			if got := k.release(k.forceReq(slot)); got.Outcome != driver.OutcomeOK || got.Next != job {
				k.Fatalf("release: %+v, want that %q is next", got, job)
			}
		}
		k.wantState(slot, driver.StateFree)
		if got := k.line("key", 10); len(got) != 2 || got[0].Job != "" || got[1].Job != "" {
			k.Errorf("the line is %+v, want two processes", got)
		}
		k.want("release", k.release(k.releaseReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		grant := m.granted(before)
		k.want("release", k.release(k.releaseReq(byFence("key", "before", grant.Fence))), driver.OutcomeOK)
		m.granted(after)
	}},
	{"the entry of a job that gets a slot is due in time for its reservation", func(k *kit) {
		k.hold("key", "me")
		slot := driver.SlotKey("key", 2)
		h := k.hold(slot, "you")
		wait := k.lineReq("key", "q/job")
		wait.Reserve = 2 * k.Unit
		k.joinLine(wait)
		req := k.releaseReq(byFence(slot, "you", h.fence))
		req.Grace = long
		k.want("release", k.release(req), driver.OutcomeOK)
		k.lapse()
		k.wantDue(10, "q/job "+slot)
	}},
	{"a job that leaves by the name of a slot has no place any more", func(k *kit) {
		k.hold("key", "me")
		slot := driver.SlotKey("key", 2)
		k.hold(slot, "you")
		first := k.lineReq("key", "q/first")
		k.joinLine(first)
		k.joinLine(k.lineReq("key", "q/second"))
		leave := k.leaveReq(first)
		leave.Key = slot
		k.want("leave", k.release(leave), driver.OutcomeOK)
		k.wantNoPlace("key", first)
		if got := k.release(k.forceReq(slot)); got.Next != "q/second" {
			k.Errorf("release: %+v, want that q/second is next", got)
		}
	}},
	{"a key without slots in use is like any other", func(k *kit) {
		for _, key := range []string{"key%+1", "key%+257", "key%+02", "%+2", "key%+", "key%+2x"} {
			k.hold(key, "me")
			k.joinLine(k.lineReq(key, "q/of "+key))
			k.free(key)
			k.wantParkedFor(k.lineReq(key, "q/of "+key))
		}
	}},
}

// wantSlotOf fails the test unless slot is parked for the job of wait, which has waited for the key of the slot.
func (k *kit) wantSlotOf(slot string, wait driver.TakeRequest) driver.Record {
	k.Helper()
	wait.Key = slot
	return k.wantParkedFor(wait)
}

// wantNoPlace fails the test if the job of wait is in line.
func (k *kit) wantNoPlace(key string, wait driver.TakeRequest) {
	k.Helper()
	records, err := k.Store.Inspect(k.ctx, driver.InspectRequest{Keys: []string{key}, Places: []string{wait.Nonce}})
	if err != nil || len(records) != 1 || records[0].Place != nil {
		k.Errorf("Inspect: %+v, %v, want no place of %s", records, err, wait.Job)
	}
}
