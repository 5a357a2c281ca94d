package storemodel

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// reference is a second implementation of one record, with which Run compares stores. A real store decides first by
// the call and then by the state of the record. The reference decides first by the state, so that it is unlikely to be
// wrong in the same place. Times count from the beginning of the test. The reference makes no fences, and takes over
// the fences of the store.
type reference struct {
	owner, nonce string
	last         string // nonce of the call that ended an ownership last
	fence        int64
	lease, until time.Duration // ends of the lease, 0 if parked, and of the reservation
	renewed      time.Duration // begin of the lease
	holder, job  string
	prior        driver.Ended // how the previous ownership ended
	ended        driver.Ended
	late         bool // released after the reservation had run out
	reason       string
	memo         string
	first        int64 // fence
	since        time.Duration
	changed      time.Duration

	// expires is the time until which a store remembers the record. gone is the time from which on
	// a store has forgotten the record. In between a store may remember the record because of waiters, so the model
	// makes no calls in that time.
	expires, gone time.Duration

	line   []inLine // waiters, and callers that have stopped waiting without a call
	joined int      // places ever given out
}

// phase is the state in which a call finds a record. Each kind of free record has its own phase.
type phase int

const (
	absent phase = iota
	running
	waiting // parked
	orphan
	ranOut // lease and reservation have run out without an END
	ended  // released, forced or done
)

func (r *reference) phase(now time.Duration) phase {
	switch {
	case r == nil || now >= r.gone:
		return absent
	case r.ended != driver.EndedNone:
		return ended
	case now >= r.until:
		return ranOut
	case r.lease == 0:
		return waiting
	case now >= r.lease:
		return orphan
	default:
		return running
	}
}

var phaseStates = map[phase]driver.State{
	running: driver.StateHeld, waiting: driver.StateParked, orphan: driver.StateOrphaned,
}

// names reports whether t names the present term of an ownership that has not ended.
func (r *reference) names(t driver.Term) bool {
	return t.Fence != 0 && t.Fence == r.fence || t.Grant != "" && t.Grant == r.nonce
}

// prediction is what a call must answer. apply, if set, is what the call does to the record. The model calls apply
// when the fence is known from the answer of the store.
type prediction struct {
	reply driver.Reply
	again bool // a repeated call: only the outcome, the fence and the memo of its answer are compared
	grows bool // the fence must be larger than the record's fence

	// lateToo also allows Lapsed: a store may remember that the release was late.
	lateToo bool

	grants *inLine      // the waiter that becomes the owner, if any; under a larger fence
	how    driver.Ended // with grants: how the previous ownership ended

	starts bool // with grants: there is no push for a job

	queued              bool // the caller waits
	job                 bool // with queued: the caller is a job
	since               time.Duration
	minAhead, countable int // with queued: Reply.Ahead is at least minAhead, and less than countable

	apply func(r *reference)
}

func (r *reference) refuse(now time.Duration, out driver.Outcome) prediction {
	p := prediction{reply: driver.Reply{Outcome: out}}
	switch ph := r.phase(now); {
	case out == driver.OutcomeReleased:
		p.reply.Ended, p.reply.Reason = r.ended, r.reason
	case ph == running || ph == waiting || ph == orphan:
		p.reply.State, p.reply.Holder, p.reply.Job = phaseStates[ph], r.holder, r.job
		p.reply.Remaining = r.until - now
		if ph == running {
			p.reply.Remaining = r.lease - now
		}
	case out == driver.OutcomeWrongJob:
		p.reply.Job = r.job
	}
	return p
}

func (r *reference) again(memo bool) prediction {
	return prediction{again: true, reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence, Memo: asked(memo, r.memo)}}
}

// asked returns the memo in the reply to a request: text if the request asks for the memo, else nil.
func asked(memo bool, text string) []byte {
	if !memo {
		return nil
	}
	return []byte(text)
}

func (r *reference) acquire(now time.Duration, req driver.AcquireRequest) prediction {
	var p prediction
	switch ph := r.phase(now); {
	case ph == running && r.owner == req.Owner && r.nonce == req.Nonce:
		p = r.again(req.Memo)
		p.reply.Lease, p.reply.Ended, p.again = r.lease-now, r.prior, false
		if r.renewed == r.changed && r.lease < deadline(r.renewed, req.TTL) { // the waiter takes up a short lease
			p.reply.Lease = deadline(0, req.TTL)
			p.apply = func(r *reference) { r.prolong(now, req.TTL, 0, req.Retain) }
		}
		return p
	case ph == running || ph == waiting || ph == orphan:
		p = r.refuse(now, driver.OutcomeHeld)
	default:
		how, memo := r.before(ph)
		next := r.next(now, ph)
		if next == nil || next.Nonce == req.Nonce {
			return prediction{
				grows: true,
				reply: driver.Reply{
					Outcome: driver.OutcomeOK, Ended: how, Memo: asked(req.Memo, memo), Lease: deadline(0, req.TTL),
				},
				apply: func(r *reference) { r.begin(now, inLine{AcquireRequest: req}, how, memo) },
			}
		}
		p = r.serve(now, next, how)
		p.reply = servedBy(p.grants, driver.OutcomeHeld)
	}
	if req.Inbox != "" {
		p = p.thenQueue(r, now, req.Nonce, func(r *reference) { r.queue(now, inLine{AcquireRequest: req}) })
	}
	return p
}

func (r *reference) take(now time.Duration, req driver.TakeRequest) prediction {
	ph := r.phase(now)
	switch {
	case ph == waiting && r.owner == req.Owner && r.nonce == req.Nonce && r.job == req.Job:
		return prediction{reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence, Ended: r.prior}}
	}
	mine := r.place(now, req.Nonce)
	if req.Patience > 0 && mine != nil && mine.Owner != req.Owner {
		return r.refuse(now, driver.OutcomeNotOwner)
	}
	var p prediction
	joins := req.Patience > 0
	switch ph {
	case running, waiting, orphan:
		joins = joins && r.job != req.Job
		if joins && mine == nil && req.Most > 0 && len(r.line) >= req.Most {
			p = r.refuse(now, driver.OutcomeFull)
			p.reply.Ahead = len(r.line)
			return p
		}
		p = r.refuse(now, driver.OutcomeHeld)
	default:
		how, memo := r.before(ph)
		next := r.next(now, ph)
		if next == nil || next.Nonce == req.Nonce {
			return prediction{
				grows: true,
				reply: driver.Reply{Outcome: driver.OutcomeOK, Ended: how},
				apply: func(r *reference) {
					r.begin(now, jobInLine(req), how, memo)
					r.lease, r.job = 0, req.Job
				},
			}
		}
		p = r.serve(now, next, how)
		p.reply = servedBy(p.grants, driver.OutcomeHeld)
	}
	if joins {
		p = p.thenQueue(r, now, req.Nonce, func(r *reference) { r.queue(now, jobInLine(req)) })
	}
	return p
}

func (r *reference) resume(now time.Duration, req driver.ResumeRequest) prediction {
	ph := r.phase(now)
	switch {
	case ph == absent:
		return r.refuse(now, driver.OutcomeNotFound)
	case r.owner != req.Owner:
		return r.refuse(now, driver.OutcomeNotOwner)
	case ph == ended:
		return r.refuse(now, driver.OutcomeReleased)
	case r.job == "" && req.Fence != 0 && r.first > req.Fence:
		return r.refuse(now, driver.OutcomeNotOwner)
	case r.job != "" && r.job != req.Job && !(req.Unpark && r.job == req.Back):
		return r.refuse(now, driver.OutcomeWrongJob)
	case ph == running && r.nonce == req.Nonce:
		return r.again(req.Memo)
	case ph == running:
		return r.refuse(now, driver.OutcomeBusy)
	}
	return prediction{
		grows: true,
		reply: driver.Reply{Outcome: driver.OutcomeOK, Memo: asked(req.Memo, r.memo), Recovered: ph == ranOut},
		apply: func(r *reference) {
			r.nonce, r.holder, r.changed = req.Nonce, req.Holder, now
			if req.Unpark {
				r.job, r.until = req.Back, 0
			}
			r.prolong(now, req.TTL, req.Reserve, req.Retain)
		},
	}
}

func (r *reference) park(now time.Duration, req driver.ParkRequest) prediction {
	ph := r.phase(now)
	switch {
	case ph == absent:
		return r.refuse(now, driver.OutcomeNotFound)
	case r.owner != req.Owner:
		return r.refuse(now, driver.OutcomeNotOwner)
	case ph == ended:
		return r.refuse(now, driver.OutcomeReleased)
	case ph == waiting && r.nonce == req.Nonce && r.job == req.Job:
		return r.again(false)
	case ph == waiting && r.nonce == req.Nonce:
		// parked for another job by a call without an answer: parked again
	case !r.names(req.Term):
		return r.refuse(now, driver.OutcomeNotOwner)
	case ph != running:
		return prediction{reply: driver.Reply{Outcome: driver.OutcomeLapsed}}
	}
	return prediction{
		grows: true,
		reply: driver.Reply{Outcome: driver.OutcomeOK},
		apply: func(r *reference) {
			r.nonce, r.job, r.lease, r.until, r.changed = req.Nonce, req.Job, 0, deadline(now, req.Reserve), now
			r.keep(r.until, req.Retain)
		},
	}
}

func (r *reference) renew(now time.Duration, req driver.RenewRequest) prediction {
	ph := r.phase(now)
	switch {
	case ph == absent:
		return r.refuse(now, driver.OutcomeNotFound)
	case r.owner != req.Owner:
		return r.refuse(now, driver.OutcomeNotOwner)
	case ph == ended:
		return r.refuse(now, driver.OutcomeReleased)
	case !r.names(req.Term):
		return r.refuse(now, driver.OutcomeNotOwner)
	case ph == running:
	case ph == waiting && req.Grant == r.nonce:
	default:
		return prediction{reply: driver.Reply{Outcome: driver.OutcomeLapsed}}
	}
	return prediction{
		reply: driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence},
		apply: func(r *reference) {
			if req.Memo != nil {
				r.memo = string(req.Memo)
			}
			if ph == waiting {
				r.job, r.until, r.changed = req.Back, 0, now
			}
			r.prolong(now, req.TTL, req.Reserve, req.Retain)
		},
	}
}

func (r *reference) release(now time.Duration, req driver.ReleaseRequest) prediction {
	if r.phase(now) == absent {
		return r.refuse(now, driver.OutcomeNotFound)
	}
	after := *r
	var job string
	after.line, job = r.left(req)
	p := after.releaseOnly(now, req, job)
	apply := p.apply
	p.apply = func(r *reference) {
		r.line, _ = r.left(req)
		if apply != nil {
			apply(r)
		}
	}
	return p
}

// releaseOnly is the part of release after the place in the queue was given up. left is the job of that place, or "".
func (r *reference) releaseOnly(now time.Duration, req driver.ReleaseRequest, left string) prediction {
	how := map[bool]driver.Ended{false: driver.EndedReleased, true: driver.EndedDone}[req.Done]
	reply := driver.Reply{Outcome: driver.OutcomeOK}
	ph := r.phase(now)
	switch {
	case r.last == req.Nonce:
		return prediction{reply: reply, lateToo: ph == ended && r.late}
	case left != "" && req.Kind == driver.ReleaseForcedIdle && (ph == ended || ph == ranOut || r.job != req.Job):
		return prediction{reply: reply}
	case !req.Kind.ByOwner() && (ph == ended || ph == ranOut):
		return prediction{reply: driver.Reply{Outcome: driver.OutcomeNotFound}}
	case !req.Kind.ByOwner() && req.Fence != 0 && req.Fence != r.fence:
		return r.refuse(now, driver.OutcomeNotOwner)
	case !req.Kind.ByOwner():
		how = driver.EndedForced
	case r.owner != req.Owner:
		return r.refuse(now, driver.OutcomeNotOwner)
	case ph == ended:
		return r.refuse(now, driver.OutcomeReleased)
	case (req.Fence != 0 || req.Grant != "") && !r.names(req.Term):
		return r.refuse(now, driver.OutcomeNotOwner)
	}
	switch {
	case req.Job != "" && r.job != req.Job:
		return r.refuse(now, driver.OutcomeWrongJob)
	case req.Kind.IfIdle() && ph == running:
		return r.refuse(now, driver.OutcomeBusy)
	case ph == ranOut:
		reply.Outcome = driver.OutcomeLapsed
	}
	var p prediction
	if next := r.next(now, ph); next != nil {
		p = r.serve(now, next, how)
		p.starts = req.Starts
		reply.Next = next.job
		begin := p.apply
		p.apply = func(r *reference) {
			begin(r)
			r.last = req.Nonce
		}
	} else {
		p.apply = func(r *reference) {
			r.ended, r.late, r.reason = how, ph == ranOut, req.Reason
			r.nonce, r.last, r.changed = req.Nonce, req.Nonce, now
			r.lease, r.until, r.line = 0, 0, nil
			r.keep(now, req.Retain)
			if req.Brief > 0 && r.memo == "" { // Brief counts, unless the clock is behind the fence
				r.expires = now + req.Brief
			}
		}
	}
	p.reply = reply
	return p
}

// prolong begins a lease of ttl now, and reserves the key for at least the time hold beyond the lease.
func (r *reference) prolong(now, ttl, hold, retain time.Duration) {
	r.lease, r.renewed = deadline(now, ttl), now
	r.until = max(r.until, r.lease+hold)
	r.keep(r.until, retain)
}

// keep sets how long a store remembers the record: for the time retain after the ownership.
func (r *reference) keep(end, retain time.Duration) {
	r.expires = end + retain
	r.gone = max(r.gone, r.expires)
}

// rounding is how much later than requested a deadline may be. On an exact clock a deadline is later if
// the clock is not at a whole millisecond.
const rounding = time.Millisecond

// deadline returns the time d from now, rounded up.
func deadline(now, d time.Duration) time.Duration { return now + d + rounding }

// record returns the record that Inspect must show.
func (r *reference) record(now time.Duration, key string) driver.Record {
	ph := r.phase(now)
	if ph == absent {
		return driver.Record{Key: key}
	}
	out := driver.Record{
		Key: key, State: phaseStates[ph], Owner: r.owner, Fence: r.fence, First: r.first, Holder: r.holder,
		Job: r.job, Ended: r.ended, Reason: r.reason, Memo: []byte(r.memo),
	}
	switch ph {
	case running:
		out.Lease, out.Reserved = r.lease-now, r.until-now
	case waiting, orphan:
		out.Reserved = r.until - now
	case ranOut:
		out.Ended = driver.EndedLapsed
	}
	return out
}
