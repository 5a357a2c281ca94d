package memstore

import (
	"bytes"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// This file is the transition table in the documentation of package driver. A transition
// takes the old record, the time and the request. It returns the new record and the answer.
// Its only other effect is on the queue, which both records share: so do not use the old
// record afterwards. Each case is a row of the table, by name.

// answer is what a transition gives beside the record.
type answer struct {
	driver.Reply
	pushes []push // to be delivered after the step
	bound  string // the job whose entry goes into the index in the same step
}

func outcome(o driver.Outcome) answer { return answer{Reply: driver.Reply{Outcome: o}} }

func (r record) acquire(now instant, req driver.AcquireRequest) (record, answer) {
	var a answer
	switch {
	case r.leased(now) && r.owner == req.Owner && r.nonce == req.Nonce: // again
		return r, r.acquired(now, req)
	case r.live(now): // taken
		a = r.inTheWay(now, driver.OutcomeHeld)
	default:
		first, waiting := r.nextWaiter(now)
		if !waiting || first.Nonce == req.Nonce { // next
			r.grant(now, req)
			return r, r.acquired(now, req)
		}
		p := r.grantPushed(now, first) // passed on
		a = r.inTheWay(now, driver.OutcomeHeld)
		a.pushes = []push{p}
	}
	if req.Inbox != "" {
		a.Ahead, a.Now = r.join(now, req), now.time()
	}
	return r, a
}

func (r record) resume(now instant, req driver.ResumeRequest) (record, answer) {
	switch {
	case !r.exists(): // no record
		return r, outcome(driver.OutcomeNotFound)
	case r.owner != req.Owner: // another owner
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.ended != driver.EndedNone: // ended
		return r, r.over()
	case r.job == "" && req.Fence != 0 && req.Fence < r.first: // another ownership
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.job != "" && r.job != req.Job && !(req.Unpark && r.job == req.Back): // another job
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case r.leased(now) && r.nonce == req.Nonce: // again
		a := r.granted(req.Memo)
		if req.Unpark {
			a.bound = r.job
		}
		return r, a
	case r.leased(now): // busy
		return r, r.inTheWay(now, driver.OutcomeBusy)
	}
	recovered := !r.live(now)
	r.term(now, req.Nonce)
	r.holder = req.Holder
	if req.Unpark { // taken back
		r.unpark(req.Back)
	}
	r.extend(now, req.TTL, req.Reserve, req.Retain) // taken back, resumed, recovered
	a := r.granted(req.Memo)
	a.Recovered = recovered
	if recovered || req.Unpark {
		a.bound = r.job
	}
	return r, a
}

func (r record) park(now instant, req driver.ParkRequest) (record, answer) {
	mine := r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce
	switch {
	case mine && r.job == req.Job: // again
		return r, answer{Reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}, bound: r.job}
	case mine: // moved
	case !r.exists(): // no record
		return r, outcome(driver.OutcomeNotFound)
	case r.owner != req.Owner: // another owner
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.ended != driver.EndedNone: // ended
		return r, r.over()
	case !r.named(req.Term): // another term
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case !r.leased(now): // late
		return r, outcome(driver.OutcomeLapsed)
	}
	r.term(now, req.Nonce) // moved, parked
	r.lease = 0
	r.until = now.after(req.Reserve)
	r.job = req.Job
	r.keep(now, req.Retain)
	return r, answer{Reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}, bound: r.job}
}

func (r record) renew(now instant, req driver.RenewRequest) (record, answer) {
	switch {
	case !r.exists(): // no record
		return r, outcome(driver.OutcomeNotFound)
	case r.owner != req.Owner: // another owner
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.ended != driver.EndedNone: // ended
		return r, r.over()
	case !r.named(req.Term): // another term
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.parked(now) && req.Grant != "" && req.Grant == r.nonce: // taken back
		r.unpark(req.Back)
		r.changed = now.ms
	case !r.leased(now): // late
		return r, outcome(driver.OutcomeLapsed)
	}
	if req.Memo != nil {
		r.memo = append([]byte(nil), req.Memo...) // nil when it is empty
	}
	r.extend(now, req.TTL, req.Reserve, req.Retain) // taken back, renewed
	return r, answer{Reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}}
}

func (r record) release(now instant, req driver.ReleaseRequest) (record, answer) {
	if req.Grant != "" {
		r.leave(req.Grant)
	}
	again := r.exists() && req.Nonce != "" && r.last == req.Nonce
	owner := req.Kind.ByOwner()
	switch {
	case again && (r.ended == driver.EndedNone || r.until == 0): // again
		return r, outcome(driver.OutcomeOK)
	case again: // again, late
		return r, outcome(driver.OutcomeLapsed)
	case owner && !r.exists(), // no record
		!owner && !r.live(now): // free
		return r, outcome(driver.OutcomeNotFound)
	case owner && r.owner != req.Owner: // another owner
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case owner && r.ended != driver.EndedNone: // ended
		return r, r.over()
	case owner && (req.Fence != 0 || req.Grant != "") && !r.named(req.Term), // another term
		!owner && req.Fence != 0 && req.Fence != r.fence: // another fence
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case (req.Job != "" || req.Kind == driver.ReleaseForJob) && r.job != req.Job: // another job
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case req.Kind.IfIdle() && r.leased(now): // busy
		return r, r.inTheWay(now, driver.OutcomeBusy)
	}
	a := outcome(driver.OutcomeOK) // released, forced
	if !r.live(now) {
		a = outcome(driver.OutcomeLapsed) // released late
	}
	if !owner && r.leased(now) {
		a.pushes = append(a.pushes, push{driver.ForcedInbox, driver.Push{Key: req.Key, Fence: r.fence}})
	}
	r.end(now, req)
	if first, waiting := r.nextWaiter(now); waiting {
		a.pushes = append(a.pushes, r.grantPushed(now, first))
	}
	return r, a
}

// reserve has no row "again": a second run finds that the reservation lasts long enough.
func (r record) reserve(now instant, req driver.ReserveRequest) (record, answer) {
	switch {
	case !r.exists(): // no record
		return r, outcome(driver.OutcomeNotFound)
	case r.job != req.Job: // another job
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case r.ended != driver.EndedNone: // ended
		return r, r.over()
	}
	recovered := !r.live(now)
	r.until = max(r.until, now.after(req.Reserve)) // reserved, reserved again
	r.keep(now, req.Retain)
	a := r.inTheWay(now, driver.OutcomeOK)
	a.Recovered = recovered
	return r, a
}

// The words that the table has in capitals, and what else several rows need.

// grant is GRANT: it makes the caller of req the owner. From the previous ownership it keeps
// the memo, the fence, how it ended, and the call that ended it.
func (r *record) grant(now instant, req driver.AcquireRequest) {
	*r = record{
		owner: req.Owner, fence: r.fence, prior: r.endedBy(now), last: r.last, memo: r.memo,
		holder: req.Holder, since: now.ms, queue: r.queue,
	}
	r.term(now, req.Nonce)
	r.first = r.fence
	r.extend(now, req.TTL, 0, req.Retain)
}

// grantPushed is grant for a waiter, and returns the push that tells the waiter.
func (r *record) grantPushed(now instant, req driver.AcquireRequest) push {
	r.grant(now, req)
	return push{req.Inbox, driver.Push{Nonce: req.Nonce}}
}

// term is TERM. The clock makes fences grow if the old record was forgotten, and the old
// fence does if the clock was set back.
func (r *record) term(now instant, nonce string) {
	r.fence = max(r.fence+1, now.us)
	r.nonce, r.changed = nonce, now.ms
}

// extend is LEASE.
func (r *record) extend(now instant, ttl, reserve, retain time.Duration) {
	r.lease = now.after(ttl)
	r.until = max(r.until, r.lease+reserve.Milliseconds())
	r.keep(now, retain)
}

// unpark undoes what a Park did besides ending the term.
func (r *record) unpark(job string) { r.job, r.until = job, 0 }

// end is END: the record becomes a tombstone.
func (r *record) end(now instant, req driver.ReleaseRequest) {
	kept := r.expires - max(r.until, now.ms)
	if r.live(now) {
		r.until = 0 // what is left of it tells that the end came late
	}
	switch {
	case !req.Kind.ByOwner():
		r.ended = driver.EndedForced
	case req.Done:
		r.ended = driver.EndedDone
	default:
		r.ended = driver.EndedReleased
	}
	r.reason, r.nonce, r.last = req.Reason, req.Nonce, req.Nonce
	r.lease, r.changed = 0, now.ms
	retain := req.Retain
	switch {
	case len(r.memo) > 0:
		retain = max(retain, time.Duration(kept)*time.Millisecond)
	case req.Brief > 0 && r.fence <= now.us:
		retain = req.Brief
	}
	r.keep(now, retain)
}

// keep sets when the record is forgotten: retain after its ownership, but not before the
// queue's kept.
func (r *record) keep(now instant, retain time.Duration) {
	r.expires = max(r.until, now.ms) + retain.Milliseconds()
	if r.queue != nil {
		r.expires = max(r.expires, r.queue.kept)
	}
}

// granted is the answer to whoever holds the present term.
func (r record) granted(memo bool) answer {
	a := answer{Reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}}
	if memo {
		a.Memo = bytes.Clone(r.memo)
	}
	return a
}

// acquired is the answer to the Acquire that made the present term.
func (r record) acquired(now instant, req driver.AcquireRequest) answer {
	a := r.granted(req.Memo)
	a.Ended, a.Lease = r.prior, r.leaseLeft(now)
	if req.Memo {
		a.Now = now.time()
	}
	return a
}

// over is the answer to the owner after the ownership was ended.
func (r record) over() answer {
	return answer{Reply: driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}}
}

// inTheWay is an answer that tells who has the key and for how long. If the key is free it
// has only the job, and that only with OutcomeWrongJob: see Replies in package driver.
func (r record) inTheWay(now instant, o driver.Outcome) answer {
	a := answer{Reply: driver.Reply{Outcome: o, State: r.state(now)}}
	switch a.State {
	case driver.StateFree:
		if o == driver.OutcomeWrongJob {
			a.Job = r.job
		}
		return a
	case driver.StateHeld:
		a.Remaining = r.leaseLeft(now)
	default:
		a.Remaining = time.Duration(r.until-now.ms) * time.Millisecond
	}
	a.Holder, a.Job = r.holder, r.job
	return a
}
