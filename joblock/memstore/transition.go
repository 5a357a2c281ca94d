package memstore

import (
	"bytes"
	"cmp"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// This file is the transition table in the package comment of driver. A transition takes the old record, the time and
// the request; it returns the new record and the answer. A comment at each case names its row. Both records share the
// queue, which a transition may change. So do not use the old record after a transition.

// answer is what a transition returns in addition to the record.
type answer struct {
	driver.Reply
	pushes []push        // to deliver after the step
	bound  string        // if set, the step writes the index entry of this job
	grace  time.Duration // from now until that entry is due
}

func (a answer) binding(job string, grace time.Duration) answer {
	a.bound, a.grace = job, grace
	return a
}

// waits sets the fields of a that describe p, a place in the queue of r.
func (a answer) waits(now instant, r record, p *place) answer {
	a.Ahead, a.Now, a.Since = r.ahead(p), now.time(), time.UnixMicro(p.since)
	return a
}

func outcome(o driver.Outcome) answer { return answer{Reply: driver.Reply{Outcome: o}} }

func (r record) acquire(now instant, req driver.AcquireRequest) (record, answer) {
	if r.leased(now) && r.owner == req.Owner && r.nonce == req.Nonce {
		if r.renewed == r.changed && now.after(req.TTL)-now.ms > r.lease-r.renewed { // taken up
			r.extend(now, req.TTL, 0, req.Retain)
		}
		return r, r.acquired(now, req) // again
	}
	var pushes []push
	if !r.live(now) {
		first := r.nextWaiter(now, false)
		if first == nil || first.Nonce == req.Nonce { // next
			r.grant(now, waiter{AcquireRequest: req})
			return r, r.acquired(now, req)
		}
		pushes = []push{r.serve(now, first)} // passed on
	}
	a := r.inTheWay(now, driver.OutcomeHeld) // taken, passed on
	a.pushes, a.Fence = pushes, r.fence
	if req.Inbox != "" {
		a.Ahead, a.Now = r.ahead(r.join(now, waiter{AcquireRequest: req})), now.time()
	}
	return r, a
}

func (r record) take(now instant, req driver.TakeRequest) (record, answer) {
	if r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce && r.job == req.Job { // again
		return r, r.taken().binding(r.job, req.Grace)
	}
	queues := req.Patience > 0 && !(r.live(now) && r.job == req.Job) // QUEUE gives the job a place, or keeps its place
	p := r.placeOf(req.Nonce)
	switch {
	case req.Patience > 0 && p != nil && p.Owner != req.Owner: // another owner
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.live(now) && queues && p == nil && req.Most > 0 && r.waiters() >= req.Most: // full
		a := r.inTheWay(now, driver.OutcomeFull)
		a.Ahead = r.waiters()
		return r, a
	}
	var pushes []push
	if !r.live(now) {
		first := r.nextWaiter(now, false)
		if first == nil || first.Nonce == req.Nonce { // parked
			r.grant(now, asWaiter(req))
			r.parkAs(req.Job)
			return r, r.taken().binding(r.job, req.Grace)
		}
		pushes = []push{r.serve(now, first)} // passed on
	}
	a := r.inTheWay(now, driver.OutcomeHeld) // taken, passed on
	a.pushes, a.Fence = pushes, r.fence
	if queues {
		a = a.waits(now, r, r.join(now, asWaiter(req))).binding(req.Job, req.Grace)
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
			a = a.binding(r.job, req.Grace)
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
		a = a.binding(r.job, req.Grace)
	}
	return r, a
}

func (r record) park(now instant, req driver.ParkRequest) (record, answer) {
	mine := r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce
	switch {
	case mine && r.job == req.Job: // again
		return r, r.granted(false).binding(r.job, req.Grace)
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
	return r, r.granted(false).binding(r.job, req.Grace)
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
		r.memo = append([]byte(nil), req.Memo...) // nil if req.Memo is empty
	}
	r.extend(now, req.TTL, req.Reserve, req.Retain) // taken back, renewed
	return r, r.granted(false)
}

// release applies a release. For a slot other than the first, line is the record that has the queue; otherwise it is
// nil.
func (r record) release(now instant, req driver.ReleaseRequest, line *record) (record, answer) {
	owner := req.Kind.ByOwner()
	q := cmp.Or(line, &r)
	var left *place
	if p := q.placeOf(req.Grant); p != nil && (!owner || p.Owner == req.Owner) {
		left = q.leave(req.Grant)
	}
	again := r.exists() && req.Nonce != "" && r.last == req.Nonce
	switch {
	case again:
		a := outcome(driver.OutcomeOK) // again
		if r.ended != driver.EndedNone && r.until != 0 {
			a = outcome(driver.OutcomeLapsed) // again, late
		}
		if line != nil && r.ended != driver.EndedNone { // a job may have come after the first run of the call
			a = r.pass(now, req, q, a)
		}
		return r, a
	case left != nil && left.job != "" && req.Kind == driver.ReleaseForcedIdle && !(r.live(now) && r.job == req.Job): // left
		return r, outcome(driver.OutcomeOK)
	case !owner && !r.live(now) && line != nil: // passed on, free
		a := r.pass(now, req, q, outcome(driver.OutcomeNotFound))
		return r, a
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
	case req.Job != "" && r.job != req.Job: // another job
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
	a = r.pass(now, req, q, a)
	return r, a
}

// pass grants the free key to the first waiter in the queue of q, and adds the grant to the answer a.
func (r *record) pass(now instant, req driver.ReleaseRequest, q *record, a answer) answer {
	first := q.nextWaiter(now, q != r)
	if first == nil {
		return a
	}
	if q != r {
		first.Key = req.Key
		a = a.binding(first.job, min(req.Grace, first.TTL/2))
	}
	granted := r.serve(now, first)
	if a.Next = first.job; first.job == "" || !req.Starts {
		a.pushes = append(a.pushes, granted)
	}
	return a
}

// reserve need not recognise a repeated call: such a call finds that the reservation already lasts long enough.
func (r record) reserve(now instant, req driver.ReserveRequest) (record, answer) {
	p := r.placeOf(req.Nonce)
	switch {
	case !r.exists(): // no record
		return r, outcome(driver.OutcomeNotFound)
	case r.live(now) && r.job == req.Job: // reserved
	case p != nil && p.job == req.Job: // waits, next, passed on
		return r.reservePlace(now, req, p)
	case r.job != req.Job: // another job
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case r.ended != driver.EndedNone: // ended
		return r, r.over()
	}
	recovered := !r.live(now)
	r.until = max(r.until, now.after(req.Reserve)) // reserved, reserved again
	r.keep(now, req.Retain)
	a := r.inTheWay(now, driver.OutcomeOK)
	if recovered {
		a.Recovered = true
		a = a.binding(req.Job, req.Grace)
	}
	return r, a
}

// reservePlace is reserve for a job that waits.
func (r record) reservePlace(now instant, req driver.ReserveRequest, p *place) (record, answer) {
	r.prolong(now, p, req.Reserve, req.Retain)
	var next string
	var pushes []push
	if !r.live(now) {
		first := r.nextWaiter(now, false) // not nil, because p has not ended
		granted := r.serve(now, first)
		if next = first.job; next == "" || !req.Starts {
			pushes = []push{granted}
		}
		if first.Nonce == req.Nonce { // next
			a := r.inTheWay(now, driver.OutcomeOK)
			a.pushes, a.Next = pushes, next
			return r, a
		}
	}
	a := r.inTheWay(now, driver.OutcomeHeld).waits(now, r, p) // waits, passed on
	a.pushes, a.Fence, a.Next = pushes, r.fence, next
	return r, a
}

// The methods below are the steps that the table names in capitals, and other parts that several rows share.

// serve is the step GRANT of the transition table, for the waiter at p, in the call of another caller. The result is
// the push for the waiter. If the waiter's inbox has no subscriber, the waiter has died, or will soon ask again by
// itself. So its lease ends with its place.
func (r *record) serve(now instant, p *place) push {
	w := p.waiter
	if w.job == "" && len(now.inboxes[w.Inbox]) == 0 {
		w.TTL = min(w.TTL, time.Duration(p.until-now.ms)*time.Millisecond)
	}
	return r.grant(now, w)
}

// grant is the step GRANT of the transition table, for w. grant returns the push for a waiter. The push to an Acquire
// carries the grant: only the store can deliver a push, so the waiter may trust the push without asking.
func (r *record) grant(now instant, w waiter) push {
	*r = record{
		owner: w.Owner, fence: r.fence, prior: r.endedBy(now), last: r.last, memo: r.memo,
		holder: w.Holder, since: now.ms, queue: r.queue,
	}
	r.term(now, w.Nonce)
	r.first = r.fence
	r.extend(now, w.TTL, 0, w.Retain)
	if w.job != "" {
		r.parkAs(w.job)
		return push{w.Inbox, driver.Push{Key: w.Key, Job: w.job}}
	}
	return push{w.Inbox, driver.Push{Nonce: w.Nonce, Grant: &driver.Grant{Fence: r.fence, Ended: r.prior}}}
}

// parkAs drops the lease of a grant to a Take, and keeps the reservation.
func (r *record) parkAs(job string) { r.lease, r.job = 0, job }

// term is the step TERM of the transition table. The new fence is the store's time in µs, or the old fence plus 1 if
// that is more, as after a step back of the clock.
func (r *record) term(now instant, nonce string) {
	r.fence = max(r.fence+1, now.us)
	r.nonce, r.changed = nonce, now.ms
}

// extend is the step LEASE of the transition table.
func (r *record) extend(now instant, ttl, reserve, retain time.Duration) {
	r.lease, r.renewed = now.after(ttl), now.ms
	r.until = max(r.until, r.lease+reserve.Milliseconds())
	r.keep(now, retain)
}

// unpark undoes the job and the reservation of a Park. unpark followed by extend is the step "new LEASE".
func (r *record) unpark(job string) { r.job, r.until = job, 0 }

// end is the step END of the transition table.
func (r *record) end(now instant, req driver.ReleaseRequest) {
	kept := r.expires - max(r.until, now.ms)
	if r.live(now) {
		r.until = 0 // after a late end, r.until stays set: it shows a repeated call that the end was late
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

// keep sets when the record expires: retain after the end of the ownership, but not before queue.kept.
func (r *record) keep(now instant, retain time.Duration) {
	r.expires = max(r.until, now.ms) + retain.Milliseconds()
	if r.queue != nil {
		r.expires = max(r.expires, r.queue.kept)
	}
}

// granted returns the answer OutcomeOK with the present fence and, if memo is true, the memo.
func (r record) granted(memo bool) answer {
	a := answer{Reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}}
	if memo {
		a.Memo = bytes.Clone(r.memo)
	}
	return a
}

// taken returns the answer OutcomeOK to the Take that began the present term.
func (r record) taken() answer {
	a := r.granted(false)
	a.Ended = r.prior
	return a
}

// acquired returns the answer OutcomeOK to the Acquire that began the present term.
func (r record) acquired(now instant, req driver.AcquireRequest) answer {
	a := r.granted(req.Memo)
	a.Ended, a.Lease = r.prior, now.left(r.lease)
	if req.Memo {
		a.Now = now.time()
	}
	return a
}

// over returns the answer OutcomeReleased.
func (r record) over() answer {
	return answer{Reply: driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}}
}

// inTheWay returns an answer that describes who has the key: see driver.Reply.
func (r record) inTheWay(now instant, o driver.Outcome) answer {
	a := answer{Reply: driver.Reply{Outcome: o, State: r.state(now)}}
	if a.State != driver.StateFree {
		a.Holder, a.Remaining = r.holder, cmp.Or(now.left(r.lease), now.left(r.until))
	}
	if a.State != driver.StateFree || o == driver.OutcomeWrongJob {
		a.Job = r.job
	}
	return a
}
