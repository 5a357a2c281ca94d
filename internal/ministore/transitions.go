package ministore

import (
	"context"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Each case is a row of the table in the documentation of package driver.

// Acquire implements driver.Store.
func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return s.step(ctx, req.Key, func(r *record, now time.Time) driver.Reply {
		var reply driver.Reply
		switch first, waits := r.next(now); {
		case r.held(now) && r.owner == req.Owner && r.nonce == req.Nonce:
			if r.renewed.Equal(r.changed) && r.ttl < req.TTL { // taken up
				r.extend(now, req.TTL, 0, req.Retain)
			}
			return r.acquired(now, req) // again
		case r.live(now): // taken
			reply = r.who(now, driver.OutcomeHeld)
		case !waits || first.Nonce == req.Nonce: // next
			s.grant(r, now, place{AcquireRequest: req})
			return r.acquired(now, req)
		default: // passed on
			s.serve(r, now, first, false)
			reply = r.who(now, driver.OutcomeHeld)
		}
		reply.Fence = r.fence
		if req.Inbox != "" {
			reply.Ahead, reply.Now = r.join(now, place{AcquireRequest: req}), now
		}
		return reply
	})
}

// acquired returns the answer to the Acquire that began the present term.
func (r *record) acquired(now time.Time, req driver.AcquireRequest) driver.Reply {
	reply := driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence, Ended: r.prior, Lease: r.lease.Sub(now)}
	if req.Memo {
		reply.Memo, reply.Now = slices.Clone(r.memo), now
	}
	return reply
}

// Take implements driver.Store.
func (s *Store) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	key := func(req driver.TakeRequest) string { return req.Key }
	return steps(ctx, s, reqs, key, func(req driver.TakeRequest, r *record, now time.Time) driver.Reply {
		reply := driver.Reply{Outcome: driver.OutcomeOK}
		asks := req.Patience > 0 && !(r.live(now) && r.job == req.Job)
		at := r.at(req.Nonce)
		if again := r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce && r.job == req.Job; again { // again
			reply.Fence, reply.Ended = r.fence, r.prior
			return reply
		}
		if req.Patience > 0 && at >= 0 && r.queue[at].Owner != req.Owner { // another owner
			return r.who(now, driver.OutcomeNotOwner)
		}
		switch first, waits := r.next(now); {
		case r.live(now) && asks && at < 0 && req.Most > 0 && len(r.queue) >= req.Most: // full
			reply = r.who(now, driver.OutcomeFull)
			reply.Ahead = len(r.queue)
			return reply
		case r.live(now): // taken
			reply = r.who(now, driver.OutcomeHeld)
		case !waits || first.Nonce == req.Nonce: // parked
			s.list(now, req.Key, req.Job, req.Grace)
			s.grant(r, now, placeOf(req))
			r.lease, r.job = time.Time{}, req.Job
			reply.Fence, reply.Ended = r.fence, r.prior
			return reply
		default: // passed on
			s.serve(r, now, first, false)
			reply = r.who(now, driver.OutcomeHeld)
		}
		if reply.Fence = r.fence; asks {
			s.list(now, req.Key, req.Job, req.Grace)
			reply = r.waits(now, reply, r.join(now, placeOf(req)))
		}
		return reply
	})
}

// Resume implements driver.Store.
func (s *Store) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	key := func(req driver.ResumeRequest) string { return req.Key }
	return steps(ctx, s, reqs, key, func(req driver.ResumeRequest, r *record, now time.Time) driver.Reply {
		again := r.held(now) && r.nonce == req.Nonce
		recovered := !r.live(now)
		switch {
		case !r.exists(): // no record
			return driver.Reply{Outcome: driver.OutcomeNotFound}
		case r.owner != req.Owner: // another owner
			return r.who(now, driver.OutcomeNotOwner)
		case r.ended != driver.EndedNone: // ended
			return driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}
		case r.job == "" && req.Fence != 0 && req.Fence < r.first: // another ownership
			return r.who(now, driver.OutcomeNotOwner)
		case r.job != "" && r.job != req.Job && !(req.Unpark && r.job == req.Back): // another job
			return r.who(now, driver.OutcomeWrongJob)
		case again: // again
		case r.held(now): // busy
			return r.who(now, driver.OutcomeBusy)
		default: // taken back, resumed, recovered
			s.term(r, now, req.Nonce)
			r.holder = req.Holder
			if req.Unpark {
				r.job, r.until = req.Back, time.Time{}
			}
			if r.job != "" && (req.Unpark || recovered) {
				s.list(now, req.Key, r.job, req.Grace)
			}
			r.extend(now, req.TTL, req.Reserve, req.Retain)
		}
		reply := driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence, Recovered: recovered}
		if req.Memo {
			reply.Memo = slices.Clone(r.memo)
		}
		return reply
	})
}

// Park implements driver.Store.
func (s *Store) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	key := func(req driver.ParkRequest) string { return req.Key }
	return steps(ctx, s, reqs, key, func(req driver.ParkRequest, r *record, now time.Time) driver.Reply {
		mine := r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce
		switch {
		case mine && r.job == req.Job: // again
			return driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
		case mine: // moved
		case !r.exists(): // no record
			return driver.Reply{Outcome: driver.OutcomeNotFound}
		case r.owner != req.Owner: // another owner
			return r.who(now, driver.OutcomeNotOwner)
		case r.ended != driver.EndedNone: // ended
			return driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}
		case !r.named(req.Term): // another term
			return r.who(now, driver.OutcomeNotOwner)
		case !r.held(now): // late
			return driver.Reply{Outcome: driver.OutcomeLapsed}
		}
		if req.Job != "" {
			s.list(now, req.Key, req.Job, req.Grace)
		}
		s.term(r, now, req.Nonce) // moved, parked
		r.lease, r.until, r.job = time.Time{}, after(now, req.Reserve), req.Job
		r.keep(now, req.Retain)
		return driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
	})
}

// Renew implements driver.Store.
func (s *Store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	key := func(req driver.RenewRequest) string { return req.Key }
	return steps(ctx, s, reqs, key, func(req driver.RenewRequest, r *record, now time.Time) driver.Reply {
		switch {
		case !r.exists(): // no record
			return driver.Reply{Outcome: driver.OutcomeNotFound}
		case r.owner != req.Owner: // another owner
			return r.who(now, driver.OutcomeNotOwner)
		case r.ended != driver.EndedNone: // ended
			return driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}
		case !r.named(req.Term): // another term
			return r.who(now, driver.OutcomeNotOwner)
		case r.parked(now) && req.Grant != "" && req.Grant == r.nonce: // taken back
			r.job, r.until, r.changed = req.Back, time.Time{}, now
		case !r.held(now): // late
			return driver.Reply{Outcome: driver.OutcomeLapsed}
		}
		if req.Memo != nil {
			r.memo = slices.Clone(req.Memo)
		}
		r.extend(now, req.TTL, req.Reserve, req.Retain) // taken back, renewed
		return driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
	})
}

// Release implements driver.Store.
func (s *Store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	key := func(req driver.ReleaseRequest) string { return req.Key }
	return steps(ctx, s, reqs, key, func(req driver.ReleaseRequest, r *record, now time.Time) driver.Reply {
		q, done := s.queueOf(r, now, req.Key)
		defer done()
		byOwner := req.Kind.ByOwner()
		reply := driver.Reply{Outcome: driver.OutcomeOK}
		left := ""
		if at := q.at(req.Grant); at >= 0 && (!byOwner || q.queue[at].Owner == req.Owner) {
			left = q.queue[at].job
			q.leave(req.Grant)
		}
		switch {
		case r.exists() && req.Nonce != "" && r.end == req.Nonce: // again
			if r.endLate && r.ended != driver.EndedNone { // again, late
				reply.Outcome = driver.OutcomeLapsed
			}
			if q != r && r.ended != driver.EndedNone { // a job may have come after the first run of the call
				reply.Next = s.pass(r, q, now, req)
			}
			return reply
		case left != "" && req.Kind == driver.ReleaseForcedIdle && !(r.live(now) && r.job == req.Job): // left
			return reply
		case !byOwner && !r.live(now) && q != r: // passed on, free
			return driver.Reply{Outcome: driver.OutcomeNotFound, Next: s.pass(r, q, now, req)}
		case !r.exists(), !byOwner && !r.live(now): // no record; free
			return driver.Reply{Outcome: driver.OutcomeNotFound}
		case byOwner && r.owner != req.Owner: // another owner
			return r.who(now, driver.OutcomeNotOwner)
		case byOwner && r.ended != driver.EndedNone: // ended
			return driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}
		case byOwner && (req.Fence != 0 || req.Grant != "") && !r.named(req.Term): // another term
			return r.who(now, driver.OutcomeNotOwner)
		case !byOwner && req.Fence != 0 && req.Fence != r.fence: // another fence
			return r.who(now, driver.OutcomeNotOwner)
		case req.Job != "" && r.job != req.Job: // another job
			return r.who(now, driver.OutcomeWrongJob)
		case req.Kind.IfIdle() && r.held(now): // busy
			return r.who(now, driver.OutcomeBusy)
		case !r.live(now): // released late
			reply.Outcome = driver.OutcomeLapsed
		case !byOwner && r.held(now): // forced
			s.push(driver.ForcedInbox, driver.Push{Key: req.Key, Fence: r.fence})
		}
		r.finish(now, req) // released, released late, forced
		reply.Next = s.pass(r, q, now, req)
		return reply
	})
}

// Reserve implements driver.Store.
func (s *Store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	key := func(req driver.ReserveRequest) string { return req.Key }
	return steps(ctx, s, reqs, key, func(req driver.ReserveRequest, r *record, now time.Time) driver.Reply {
		switch at := r.at(req.Nonce); {
		case !r.exists(): // no record
			return driver.Reply{Outcome: driver.OutcomeNotFound}
		case r.live(now) && r.job == req.Job: // reserved
		case at >= 0 && r.queue[at].job == req.Job: // waits, next, passed on
			return s.reservePlace(r, now, req, at)
		case r.job != req.Job: // another job
			return r.who(now, driver.OutcomeWrongJob)
		case r.ended != driver.EndedNone: // ended
			return driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}
		}
		recovered := !r.live(now)
		if recovered {
			s.list(now, req.Key, req.Job, req.Grace)
		}
		r.until = later(r.until, after(now, req.Reserve)) // reserved, reserved again
		r.keep(now, req.Retain)
		reply := r.who(now, driver.OutcomeOK)
		reply.Recovered = recovered
		return reply
	})
}

// reservePlace is Reserve of a job that waits: KEEP, and if the key is free GRANT to the first in line.
func (s *Store) reservePlace(r *record, now time.Time, req driver.ReserveRequest, at int) driver.Reply {
	p := &r.queue[at]
	p.until = later(p.until, now.Add(req.Reserve))
	r.expires = later(r.expires, p.until.Add(req.Retain))
	next := ""
	if !r.live(now) {
		first, _ := r.next(now)                                                  // the job's own place has not ended
		if next = s.serve(r, now, first, req.Starts); first.Nonce == req.Nonce { // next
			reply := r.who(now, driver.OutcomeOK)
			reply.Next = next
			return reply
		}
	}
	reply := r.waits(now, r.who(now, driver.OutcomeHeld), r.at(req.Nonce)) // waits, passed on
	reply.Next = next
	return reply
}

// grant is GRANT of the contract; see package driver.
func (s *Store) grant(r *record, now time.Time, to place) {
	var behind []place
	if at := r.at(to.Nonce); at >= 0 && now.Before(r.queue[at].until) {
		behind = r.queue[at+1:]
	}
	*r = record{
		owner: to.Owner, holder: to.Holder, since: now, prior: r.howEnded(now),
		memo: r.memo, end: r.end, endLate: r.endLate, queue: behind, joined: r.joined,
	}
	s.term(r, now, to.Nonce)
	r.first = r.fence
	r.extend(now, to.TTL, 0, to.Retain)
	if to.job != "" {
		r.lease, r.job = time.Time{}, to.job
	}
}

// pass is GRANT to the first in line, if q has waiters.
func (s *Store) pass(r, q *record, now time.Time, req driver.ReleaseRequest) (job string) {
	first, waits := q.next(now)
	if q != r { // a slot other than the first
		if first, waits = q.nextJob(now); waits {
			s.list(now, req.Key, first.job, min(req.Grace, first.TTL/2))
		}
		first.Key = req.Key
	}
	switch {
	case waits:
		return s.serve(r, now, first, req.Starts)
	case q == r:
		r.queue = nil // all places have ended
	}
	return ""
}

// queueOf returns the record with the queue of key: r or, for a slot other than the first, the record of the key
// of all slots. done stores that record.
func (s *Store) queueOf(r *record, now time.Time, key string) (q *record, done func()) {
	line, other := driver.LineOf(key)
	if !other {
		return r, func() {}
	}
	first := s.find(now, line)
	return &first, func() {
		if first.exists() {
			s.records[line] = first
		}
	}
}

// serve is GRANT to a waiter, and the push that notifies the waiter. The result is the waiting job, "" for an
// Acquire. If starts is true, the caller starts the job, and there is no push.
func (s *Store) serve(r *record, now time.Time, first place, starts bool) (job string) {
	if first.job == "" && len(s.inboxes[first.Inbox]) == 0 { // the grant is unheard
		first.TTL = min(first.TTL, first.until.Sub(now))
	}
	s.grant(r, now, first)
	switch {
	case first.job == "":
		s.push(first.Inbox, driver.Push{Nonce: first.Nonce, Grant: &driver.Grant{Fence: r.fence, Ended: r.prior}})
	case !starts:
		s.push(first.Inbox, driver.Push{Key: first.Key, Job: first.job})
	}
	return first.job
}

// term is TERM. The fences of all keys are one sequence, so the fences of a key grow even if its record was
// forgotten.
func (s *Store) term(r *record, now time.Time, nonce string) {
	s.fence++
	r.fence, r.nonce, r.changed = s.fence, nonce, now
}

// extend is LEASE.
func (r *record) extend(now time.Time, ttl, reserve, retain time.Duration) {
	r.lease, r.renewed, r.ttl = after(now, ttl), now, ttl
	r.until = later(r.until, r.lease.Add(reserve))
	r.keep(now, retain)
}

// after returns the deadline d from now. A database may keep times in whole milliseconds. So the deadline
// is rounded up: it must not be early.
func after(now time.Time, d time.Duration) time.Time {
	return now.Truncate(time.Millisecond).Add(d + time.Millisecond)
}

// finish is END without the GRANT to the first in line.
func (r *record) finish(now time.Time, req driver.ReleaseRequest) {
	remembered := r.expires.Sub(later(now, r.until)) // beyond the reservation
	r.end, r.endLate = req.Nonce, !r.live(now)
	switch {
	case !req.Kind.ByOwner():
		r.ended = driver.EndedForced
	case req.Done:
		r.ended = driver.EndedDone
	default:
		r.ended = driver.EndedReleased
	}
	r.reason, r.changed = req.Reason, now
	r.lease, r.until = time.Time{}, time.Time{}
	switch {
	case len(r.memo) > 0:
		r.keep(now, max(req.Retain, remembered))
	case req.Brief > 0:
		r.keep(now, req.Brief)
	default:
		r.keep(now, req.Retain)
	}
}
