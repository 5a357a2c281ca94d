package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// lineCases test the places of jobs in the queue.
var lineCases = []testCase{
	{"jobs and processes stand in one line, and are served in the order in which they came", func(k *kit) {
		m := k.listen()
		term := byFence("key", "me", k.hold("key", "me").fence)
		first, third := k.lineReq("key", "q/first"), k.lineReq("key", "q/third")
		second, fourth := k.waitReq("key", "second", m), k.waitReq("key", "fourth", m)
		for i, ahead := range []int{
			k.joinLine(first).Ahead, k.join(second).Ahead, k.joinLine(third).Ahead, k.join(fourth).Ahead,
		} {
			if ahead != i {
				k.Errorf("%d places before that of waiter %d", ahead, i)
			}
		}
		for i, job := range []string{"q/first", "", "q/third", ""} {
			before := k.inspect("key")
			reply := k.release(k.releaseReq(term))
			k.want("release", reply, driver.OutcomeOK)
			if reply.Next != job {
				k.Fatalf("release %d says that %q is next, want %q", i, reply.Next, job)
			}
			if job != "" {
				r := k.wantParkedFor(k.lineReq("key", job))
				if r.Fence <= before.Fence || r.First != r.Fence || r.Waiters != 3-i {
					k.Errorf("%s has record %+v after fence %d, want a new ownership and %d waiters", job, r, before.Fence, 3-i)
				}
				resumed := k.resume(k.resumeReq("key", "next", job))
				k.wantGrant("resume "+job, resumed, r.Fence)
				term = byFence("key", "next", resumed.Fence)
				continue
			}
			req := []driver.AcquireRequest{second, fourth}[i/2]
			term = byFence("key", req.Owner, m.granted(req).Fence)
		}
		k.want("the last release", k.release(k.releaseReq(term)), driver.OutcomeOK)
		k.wantState("key", driver.StateFree)
	}},
	{"a thousand jobs get the key in the order in which they came, though each third leaves", func(k *kit) {
		const n = 1000
		k.hold("key", "me")
		reqs := make([]driver.TakeRequest, n)
		for i := range reqs {
			reqs[i] = k.lineReq("key", fmt.Sprintf("q/%d", i))
			reqs[i].Owner = fmt.Sprintf("owner-%d", i)
		}
		for i, reply := range k.takeAll(reqs) {
			if reply.Outcome != driver.OutcomeHeld || reply.Ahead != i {
				k.Fatalf("job %d: %+v, want %d places before it", i, reply, i)
			}
		}
		var leaves []driver.ReleaseRequest
		for i := 1; i < n; i += 3 {
			leaves = append(leaves, k.leaveReq(reqs[i]))
		}
		for _, reply := range k.releaseAll(leaves) {
			k.want("leave", reply, driver.OutcomeOK)
		}
		if r := k.inspect("key"); r.Waiters != n-len(leaves) {
			k.Errorf("%d waiters, want %d", r.Waiters, n-len(leaves))
		}
		for i, req := range reqs {
			if i%3 == 1 {
				continue
			}
			k.free("key")
			k.wantParkedFor(req)
		}
		k.free("key")
		k.wantState("key", driver.StateFree)
	}},
	{"a granted job has the key as if its Take had found the key free", func(k *kit) {
		k.released("other key", "me", "")
		h := k.hold("key", "me")
		req := k.lineReq("key", "q/job")
		req.Reserve = 3 * long
		if got := k.joinLine(req); got.State != driver.StateHeld || got.Holder != holderOf("me") || got.Fence != 0 && got.Fence != h.fence {
			k.Errorf("answer %+v, want who has the key, under fence %d", got, h.fence)
		}
		k.free("key")
		r := k.wantParkedFor(req)
		if r.Holder != req.Holder || r.Lease != 0 || !within(r.Reserved, 3*long) || r.Reserved <= 2*long || r.Waiters != 0 {
			k.Errorf("record %+v does not match the request", r)
		}
		reply := k.take(req)
		k.want("take again", reply, driver.OutcomeOK)
		if reply.Fence != r.Fence || reply.Ended != driver.EndedReleased {
			k.Errorf("reply %+v, want fence %d, and that the last ownership was released", reply, r.Fence)
		}
		k.unchanged("a repeated take", r)
		k.want("resume by another owner", k.resume(k.resumeReq("key", "you", "q/job")), driver.OutcomeNotOwner)
		k.want("resume for another job", k.resume(k.resumeReq("key", "next", "q/other")), driver.OutcomeWrongJob)
		k.wantGrant("resume", k.resume(k.resumeReq("key", "next", "q/job")), r.Fence)
	}},
	{"a grant to a job is pushed to JobsInbox, unless the caller starts the job", func(k *kit) {
		m := k.listenTo(driver.JobsInbox)
		wait := func(key, job string) {
			k.hold(key, "me")
			k.joinLine(k.lineReq(key, job))
		}
		pushed := func(key, job string) {
			k.Helper()
			p := m.wantGrant(job)
			if p.Key != key || p.Nonce != "" || p.Grant != nil || p.Fence != 0 {
				k.Errorf("push %+v, want key %q and job %q alone", p, key, job)
			}
			k.wantParkedFor(k.lineReq(key, job))
		}
		wait("released", "q/1")
		k.free("released")
		pushed("released", "q/1")

		wait("forced", "q/2")
		if got := k.release(k.forceReq("forced")); got.Outcome != driver.OutcomeOK || got.Next != "q/2" {
			k.Errorf("force: %+v, want that q/2 is next", got)
		}
		pushed("forced", "q/2")

		for key, call := range map[string]func(key string) driver.Reply{
			"acquired": func(key string) driver.Reply { return k.acquire(k.acquireReq(key, "you")) },
			"taken":    func(key string) driver.Reply { return k.take(k.takeReq(key, "you", "q/other")) },
		} {
			wait(key, "q/of "+key)
			k.runOut(key)
			got := call(key)
			k.want("a call that passes the key on", got, driver.OutcomeHeld)
			if got.State != driver.StateParked || got.Job != "q/of "+key || got.Next != "" {
				k.Errorf("answer %+v, want that q/of %s has the key", got, key)
			}
			pushed(key, "q/of "+key)
		}

		wait("started", "q/3")
		req := k.releaseReq(byOwner("started", "me"))
		req.Starts = true
		if got := k.release(req); got.Outcome != driver.OutcomeOK || got.Next != "q/3" {
			k.Errorf("release: %+v, want that q/3 is next", got)
		}
		wait("kept", "q/4")
		k.joinLine(k.lineReq("kept", "q/second"))
		k.runOut("kept")
		keep := k.keepReq(k.lineReq("kept", "q/second"))
		keep.Starts = true
		k.want("reserve", k.reserve(keep), driver.OutcomeHeld)
		k.wantGrant("resume", k.resume(k.resumeReq("kept", "next", "q/4")), 0)
		k.runOut("kept")
		k.want("reserve", k.reserve(keep), driver.OutcomeOK)
		wait("behind", "q/5")
		k.joinLine(k.lineReq("behind", "q/6"))
		for _, want := range []driver.Outcome{driver.OutcomeHeld, driver.OutcomeOK} {
			k.runOut("behind")
			k.want("reserve", k.reserve(k.keepReq(k.lineReq("behind", "q/6"))), want)
			if want == driver.OutcomeHeld {
				pushed("behind", "q/5")
				k.wantGrant("resume", k.resume(k.resumeReq("behind", "next", "q/5")), 0)
			}
		}
		pushed("behind", "q/6") // pushes may come late, but in order
		if n := m.left(); n != 0 {
			k.Errorf("%d pushes, want none: the callers of Release start these jobs", n)
		}
	}},
	{"a waiting process gets its push, even if the caller starts jobs", func(k *kit) {
		m := k.listen()
		h := k.hold("key", "me")
		wait := k.waitReq("key", "you", m)
		k.join(wait)
		k.joinLine(k.lineReq("key", "q/job"))
		req := k.releaseReq(byFence("key", "me", h.fence))
		req.Starts = true
		reply := k.release(req)
		k.want("release", reply, driver.OutcomeOK)
		if reply.Next != "" {
			k.Errorf("job %q is next, want a process", reply.Next)
		}
		m.granted(wait)
	}},
	{"asking again keeps the place, and takes no other", func(k *kit) {
		k.hold("key", "me")
		first, second := k.lineReq("key", "q/first"), k.lineReq("key", "q/second")
		first.Patience = k.Unit
		taken := k.joinLine(first)
		if !taken.Since.Equal(taken.Now) {
			k.Errorf("a new place since %s at %s", taken.Since, taken.Now)
		}
		k.joinLine(second)
		k.Advance(time.Millisecond)
		first.Patience, first.Reserve, first.Holder = long, 7*long, "renamed"
		again := k.joinLine(first)
		if again.Ahead != 0 || !again.Since.Equal(taken.Since) || !again.Now.After(taken.Now) {
			k.Errorf("asked again: %+v, want the first place, since %s", again, taken.Since)
		}
		if r := k.inspect("key"); r.Waiters != 2 {
			k.Errorf("%d places for 2 jobs", r.Waiters)
		}
		k.lapse()
		k.free("key")
		if r := k.wantParkedFor(first); r.Holder != "renamed" || r.Reserved <= 6*long {
			k.Errorf("record %+v, want holder and reservation of the last request", r)
		}
		k.free("key")
		k.wantParkedFor(second)
	}},
	{"a place that was not kept is skipped", func(k *kit) {
		k.hold("key", "me")
		for i, req := range []driver.TakeRequest{k.lineReq("key", "q/dead"), k.lineReq("key", "q/alive"), k.lineReq("key", "q/dead too")} {
			if i != 1 {
				req.Patience = k.Unit
			}
			k.joinLine(req)
		}
		k.lapse()
		k.free("key")
		k.wantParkedFor(k.lineReq("key", "q/alive"))
		k.free("key")
		if r := k.wantState("key", driver.StateFree); r.Waiters != 0 {
			k.Errorf("%d waiters of a key that no job waits for", r.Waiters)
		}
	}},
	{"a place belongs to its owner, and the keeper can give up any", func(k *kit) {
		h := k.runFor("key", "me", "q/running", long)
		mine, last := k.lineReq("key", "q/job"), k.lineReq("key", "q/last")
		k.joinLine(mine)
		k.joinLine(last)
		before := k.inspect("key")
		theirs := mine
		theirs.Owner, theirs.Reserve, theirs.Holder = "another", k.Unit, "another"
		reply := k.take(theirs)
		k.want("take by another owner", reply, driver.OutcomeNotOwner)
		k.checkReply(reply, before)
		if reply.Ahead != 0 || !reply.Now.IsZero() || !reply.Since.IsZero() {
			k.Errorf("another owner gets %+v, want nothing of the place", reply)
		}
		k.want("leave by another owner", k.release(k.releaseReq(byGrant("key", "another", mine.Nonce))), driver.OutcomeNotOwner)
		if r := k.inspect("key"); r.Waiters != 2 {
			k.Fatalf("%d waiters after calls by another owner, want 2", r.Waiters)
		}
		k.want("leave", k.release(k.leaveReq(last)), driver.OutcomeOK)
		k.want("leave again", k.release(k.leaveReq(last)), driver.OutcomeWrongJob)
		if r := k.inspect("key"); r.Waiters != 1 {
			k.Fatalf("%d waiters, want 1", r.Waiters)
		}
		k.want("leave by its owner", k.release(k.releaseReq(byGrant("key", mine.Owner, mine.Nonce))), driver.OutcomeNotOwner)
		k.unchanged("leaving", before)
		k.want("release", k.release(k.releaseReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		k.wantState("key", driver.StateFree)
	}},
	{"a release for a job frees the key that the job has got meanwhile", func(k *kit) {
		k.hold("key", "me")
		req, next := k.lineReq("key", "q/job"), k.lineReq("key", "q/next")
		k.joinLine(req)
		k.joinLine(next)
		k.free("key")
		k.wantParkedFor(req)
		reply := k.release(k.leaveReq(req))
		k.want("leave", reply, driver.OutcomeOK)
		if reply.Next != "q/next" {
			k.Errorf("job %q is next, want q/next", reply.Next)
		}
		k.wantParkedFor(next)
		k.joinLine(req)
		k.want("leave the second time", k.release(k.leaveReq(req)), driver.OutcomeOK)
		k.wantParkedFor(next)
	}},
	{"a job that leaves and comes back is the last", func(k *kit) {
		k.hold("key", "me")
		first, second := k.lineReq("key", "q/first"), k.lineReq("key", "q/second")
		k.joinLine(first)
		k.joinLine(second)
		k.want("leave", k.release(k.leaveReq(first)), driver.OutcomeOK)
		k.Advance(time.Millisecond)
		if got := k.joinLine(first); !got.Since.Equal(got.Now) || got.Ahead != 1 {
			k.Errorf("came back: %+v, want a new place behind another", got)
		}
		for _, req := range []driver.TakeRequest{second, first} {
			k.free("key")
			k.wantParkedFor(req)
		}
	}},
	{"a full queue gives no new place, and those who have a place keep theirs", func(k *kit) {
		k.hold("key", "me")
		most := func(job string) driver.TakeRequest {
			req := k.lineReq("key", job)
			req.Most = 2
			return req
		}
		k.joinLine(most("q/1"))
		k.joinLine(most("q/2"))
		before := k.inspect("key")
		reply := k.take(most("q/3"))
		k.want("take", reply, driver.OutcomeFull)
		k.checkReply(reply, before)
		if reply.Ahead != 2 || !reply.Now.IsZero() {
			k.Errorf("reply %+v, want the number of places, and none", reply)
		}
		k.unchanged("a refused take", before)
		if got := k.joinLine(most("q/2")); got.Ahead != 1 {
			k.Errorf("asked again: %+v, want the second place", got)
		}
		k.want("leave", k.release(k.leaveReq(most("q/1"))), driver.OutcomeOK)
		if got := k.joinLine(most("q/3")); got.Ahead != 1 {
			k.Errorf("%d places before a job that came to one waiter", got.Ahead)
		}
	}},
	{"a job that has the key gets no place behind itself", func(k *kit) {
		req := k.lineReq("key", "q/job")
		first := k.take(req)
		k.wantGrant("take", first, 0)
		none := func(what string, req driver.TakeRequest) {
			k.Helper()
			reply := k.take(req)
			k.want(what, reply, driver.OutcomeHeld)
			if r := k.inspect("key"); !reply.Now.IsZero() || reply.Job != "q/job" || r.Waiters != 0 {
				k.Errorf("%s: %+v, %d waiters, want no place", what, reply, r.Waiters)
			}
		}
		other := req
		other.Owner = "another"
		none("take by another owner while the job is parked", other)
		k.wantGrant("resume", k.resume(k.resumeReq("key", "next", "q/job")), first.Fence)
		none("take while the job runs", req)
	}},
	{"a take whose ownership has ended is a new one", func(k *kit) {
		req := k.lineReq("key", "q/job")
		first := k.take(req)
		k.wantGrant("take", first, 0)
		end := k.releaseReq(byFence("key", "next", first.Fence))
		k.want("release", k.release(end), driver.OutcomeOK)
		second := k.take(req)
		k.wantGrant("take again", second, first.Fence)
		k.want("repeated release", k.release(end), driver.OutcomeOK)
		k.wantParkedFor(req)
		k.free("key")
		k.hold("key", "me")
		k.joinLine(k.lineReq("key", "q/other"))
		if got := k.joinLine(req); got.Ahead != 1 {
			k.Errorf("%d places before a new one behind another", got.Ahead)
		}
	}},
	{"a repeated release does not end the ownership of the job that was granted", func(k *kit) {
		h := k.hold("key", "me")
		first, second := k.lineReq("key", "q/first"), k.lineReq("key", "q/second")
		k.joinLine(first)
		k.joinLine(second)
		end := k.releaseReq(byFence("key", "me", h.fence))
		for range 3 {
			k.want("release", k.release(end), driver.OutcomeOK)
			k.wantParkedFor(first)
		}
		if r := k.inspect("key"); r.Waiters != 1 {
			k.Errorf("%d waiters, want 1", r.Waiters)
		}
	}},
	{"Reserve keeps the place of a job", func(k *kit) {
		k.hold("key", "me")
		dead, kept := k.lineReq("key", "q/dead"), k.lineReq("key", "q/kept")
		dead.Patience, kept.Patience = k.Unit, k.Unit
		k.joinLine(dead)
		taken := k.joinLine(kept)
		before := k.inspect("key")
		reply := k.reserve(k.keepReq(kept))
		k.want("reserve", reply, driver.OutcomeHeld)
		k.checkReply(reply, before)
		if reply.Ahead != 1 || !reply.Since.Equal(taken.Since) || reply.Now.Before(taken.Now) || reply.Next != "" {
			k.Errorf("reply %+v, want the second place, since %s", reply, taken.Since)
		}
		k.unchanged("keeping a place", before)
		short := k.keepReq(kept)
		short.Reserve = time.Millisecond
		k.want("reserve for a shorter time", k.reserve(short), driver.OutcomeHeld)
		without, foreign := k.keepReq(dead), k.keepReq(dead)
		without.Nonce, foreign.Job = "", "q/kept"
		k.want("reserve without a nonce", k.reserve(without), driver.OutcomeWrongJob)
		k.want("reserve by the nonce of another job", k.reserve(foreign), driver.OutcomeWrongJob)
		k.lapse()
		k.free("key")
		k.wantParkedFor(kept)
		k.wantState("key", driver.StateParked)
	}},
	{"Reserve of a job that waits for a free key serves the first in line", func(k *kit) {
		m := k.listen()
		wait := k.waitReq("key", "you", m)
		first, second := k.lineReq("key", "q/first"), k.lineReq("key", "q/second")
		k.hold("key", "me")
		k.join(wait)
		k.joinLine(first)
		taken := k.joinLine(second)
		keep := func(req driver.TakeRequest, want driver.Outcome, next string) driver.Reply {
			k.Helper()
			before := k.inspect("key").Fence
			k.runOut("key")
			reply := k.reserve(k.keepReq(req))
			k.want("reserve", reply, want)
			if r := k.inspect("key"); reply.Next != next || r.Fence <= before || reply.Job != r.Job || reply.State != r.State || reply.Holder != r.Holder {
				k.Errorf("reply %+v for record %+v, want next %q under a fence after %d", reply, r, next, before)
			}
			return reply
		}
		if got := keep(second, driver.OutcomeHeld, ""); got.Ahead != 1 || !got.Since.Equal(taken.Since) {
			k.Errorf("reply %+v, want a place behind another, since %s", got, taken.Since)
		}
		m.granted(wait)
		k.wantOwner("a reserve", wait)
		if got := keep(second, driver.OutcomeHeld, "q/first"); got.Ahead != 0 {
			k.Errorf("reply %+v, want the first place", got)
		}
		k.wantParkedFor(first)
		k.wantGrant("resume", k.resume(k.resumeReq("key", "next", "q/first")), 0)
		if got := keep(second, driver.OutcomeOK, "q/second"); got.Recovered || !within(got.Remaining, second.Reserve) {
			k.Errorf("reply %+v, want a new ownership reserved for %s", got, second.Reserve)
		}
		k.wantParkedFor(second)
	}},
	{"Reserve for a job that has the key leaves the line alone", func(k *kit) {
		k.runFor("key", "me", "q/job", long)
		k.joinLine(k.lineReq("key", "q/next"))
		req := k.reserveReq("key", "q/job")
		req.Nonce = "of q/job"
		k.want("reserve", k.reserve(req), driver.OutcomeOK)
		if r := k.wantState("key", driver.StateHeld); r.Waiters != 1 || r.Job != "q/job" {
			k.Errorf("record %+v, want it of q/job, with 1 waiter", r)
		}
		h := k.hold("both", "me")
		both := k.lineReq("both", "q/job")
		k.joinLine(both)
		k.wantGrant("park for a job that waits", k.park(k.parkReq(byFence("both", "me", h.fence), "q/job")), h.fence)
		k.want("reserve", k.reserve(k.keepReq(both)), driver.OutcomeOK)
		k.want("leave", k.release(k.leaveReq(both)), driver.OutcomeOK)
		if r := k.wantState("both", driver.StateFree); r.Ended != driver.EndedForced || r.Waiters != 0 {
			k.Errorf("record %+v, want it forced and without waiters", r)
		}
		runs := k.runFor("runs", "me", "q/other", long)
		busy := k.lineReq("runs", "q/job")
		k.joinLine(busy)
		k.wantGrant("park for a job that waits", k.park(k.parkReq(byFence("runs", "me", runs.fence), "q/job")), runs.fence)
		k.wantGrant("resume", k.resume(k.resumeReq("runs", "me", "q/job")), runs.fence)
		k.want("leave while the job runs", k.release(k.leaveReq(busy)), driver.OutcomeBusy)
		if r := k.wantState("runs", driver.StateHeld); r.Waiters != 0 {
			k.Errorf("record %+v, want no waiters", r)
		}
	}},
	{"a job that waits is in the index, and a grant writes no entry", func(k *kit) {
		k.hold("key", "me")
		req := k.lineReq("key", "q/job")
		req.Grace = 0
		k.joinLine(req)
		k.Advance(time.Millisecond)
		locks := k.due(10, long)
		k.wantLocks(locks, "q/job key")
		k.settle(0, locks...)
		k.free("key")
		k.wantParkedFor(req)
		k.Advance(time.Millisecond)
		k.wantLocks(k.due(10, long))

		k.hold("other", "me")
		late := k.lineReq("other", "q/late")
		k.joinLine(late)
		k.wantLocks(k.due(10, long))
		late.Grace = 0
		k.joinLine(late)
		k.Advance(time.Millisecond)
		k.wantDue(10, "q/late other")
	}},
	{"a page of the line shows who waits, in order", func(k *kit) {
		m := k.listen()
		k.hold("key", "me")
		wait, dead := k.waitReq("key", "you", m), k.lineReq("key", "q/dead")
		dead.Patience = k.Unit
		var want []driver.Place
		add := func(reply driver.Reply, holder, job string) {
			want = append(want, driver.Place{Holder: holder, Job: job, Since: reply.Now, Until: reply.Now.Add(long)})
		}
		first, gone := k.lineReq("key", "q/first"), k.lineReq("key", "q/gone")
		next, last := k.lineReq("key", "q/next"), k.lineReq("key", "q/last")
		add(k.joinLine(first), first.Holder, "q/first")
		k.joinLine(dead)
		add(k.join(wait), wait.Holder, "")
		k.joinLine(gone)
		add(k.joinLine(next), next.Holder, "q/next")
		add(k.joinLine(last), last.Holder, "q/last")
		k.want("leave", k.release(k.leaveReq(gone)), driver.OutcomeOK)
		k.lapse()
		for _, limit := range []int{1, 2, 3, driver.MaxBatch} {
			got := k.line("key", limit)
			if len(got) != len(want) {
				k.Fatalf("limit %d: %d places, want %d", limit, len(got), len(want))
			}
			for i, p := range got {
				w := want[i]
				if p.Holder != w.Holder || p.Job != w.Job || !samePlaceTime(p.Since, w.Since) || !samePlaceTime(p.Until, w.Until) {
					k.Errorf("limit %d: place %d is %+v, want %+v", limit, i, p, w)
				}
				if p.Ahead < i || p.Ahead > i+2 {
					k.Errorf("limit %d: place %d has %d places ahead, want from %d to %d", limit, i, p.Ahead, i, i+2)
				}
			}
		}
		k.free("key")
		if got := k.line("key", 10); len(got) != 3 || got[0].Ahead > 1 {
			k.Errorf("after a grant the line is %+v, want 3 places", got)
		}
		if got := k.line("no such key", 10); len(got) != 0 {
			k.Errorf("the line of no key is %+v", got)
		}
		k.hold("no line", "me")
		if got := k.line("no line", 10); len(got) != 0 {
			k.Errorf("the line of a key without waiters is %+v", got)
		}
	}},
	{"Inspect shows the places that it is asked for", func(k *kit) {
		k.hold("key", "me")
		k.hold("alone", "me")
		first, second := k.lineReq("key", "q/first"), k.lineReq("key", "q/second")
		k.joinLine(first)
		taken := k.joinLine(second)
		records, err := k.Store.Inspect(k.ctx, driver.InspectRequest{
			Keys:   []string{"key", "key", "alone", "absent", "key"},
			Places: []string{second.Nonce, "another", second.Nonce, second.Nonce, ""},
		})
		if err != nil || len(records) != 5 {
			k.Fatalf("Inspect: %d records, %v", len(records), err)
		}
		for i, r := range records {
			if i > 0 && r.Place != nil {
				k.Errorf("record %d has place %+v, want none", i, *r.Place)
			}
		}
		p := records[0].Place
		if p == nil || p.Holder != second.Holder || p.Job != "q/second" || p.Ahead != 1 || !p.Since.Equal(taken.Since) ||
			!samePlaceTime(p.Until, taken.Now.Add(long)) {
			k.Errorf("place %+v, want that of q/second since %s", p, taken.Since)
		}
	}},
	{"the record lasts as long as a job waits", func(k *kit) {
		h := k.hold("key", "me")
		req := k.lineReq("key", "q/job")
		k.joinLine(req)
		park := k.parkReq(byFence("key", "me", h.fence), "q/before")
		park.Reserve, park.Retain = k.Unit, time.Millisecond
		k.wantGrant("park", k.park(park), h.fence)
		k.lapse()
		k.want("another's take", k.take(k.takeReq("key", "you", "q/other")), driver.OutcomeHeld)
		k.wantParkedFor(req)
	}},
	{"odd jobs wait like any other", func(k *kit) {
		k.hold("key", "me")
		var reqs []driver.TakeRequest
		for i, text := range hostileKeys {
			if len(text) > driver.MaxLabelBytes {
				text = strings.ToValidUTF8(text[:driver.MaxLabelBytes], "")
			}
			if slices.ContainsFunc(reqs, func(r driver.TakeRequest) bool { return r.Job == text }) {
				continue
			}
			req := k.lineReq("key", text)
			req.Nonce, req.Owner, req.Holder = fmt.Sprint("nonce-of-", i), text, text
			k.joinLine(req)
			reqs = append(reqs, req)
		}
		for _, req := range reqs {
			k.free("key")
			k.wantParkedFor(req)
		}
	}},
}

// leaveReq returns a release that gives up the place of a job, without the place's owner.
func (k *kit) leaveReq(wait driver.TakeRequest) driver.ReleaseRequest {
	req := k.freeReq(wait.Key, wait.Job)
	req.Grant = wait.Nonce
	return req
}

// wantParkedFor fails the test unless the key is parked for the job of req, by the owner of req.
func (k *kit) wantParkedFor(req driver.TakeRequest) driver.Record {
	k.Helper()
	r := k.inspect(req.Key)
	if r.State != driver.StateParked || r.Owner != req.Owner || r.Job != req.Job {
		k.Fatalf("key %q is %s by %q for job %q, want parked by %q for %q", req.Key, r.State, r.Owner, r.Job, req.Owner, req.Job)
	}
	return r
}

// line reads all places, by pages of at most limit places.
func (k *kit) line(key string, limit int) (all []driver.Place) {
	k.Helper()
	req := driver.LineRequest{Key: key, Limit: limit}
	for {
		page, err := k.Store.Line(k.ctx, req)
		if err != nil {
			k.Fatalf("Line: %v", err)
		}
		if len(page.Places) > limit {
			k.Fatalf("Line gave %d places, at most %d were asked for", len(page.Places), limit)
		}
		if all = append(all, page.Places...); page.Next == "" {
			return all
		}
		req.Cursor = page.Next
	}
}

// samePlaceTime reports whether two times of a place are equal, as far as a store that rounds can tell.
func samePlaceTime(a, b time.Time) bool { return a.Sub(b).Abs() <= time.Millisecond }
