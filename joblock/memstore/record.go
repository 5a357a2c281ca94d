package memstore

import (
	"bytes"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// instant is one reading of the store's clock: milliseconds for deadlines,
// microseconds for fences.
type instant struct{ ms, us int64 }

func at(t time.Time) instant { return instant{ms: t.UnixMilli(), us: t.UnixMicro()} }

// after is the deadline d from now. The clock is read rounded down, so without
// the extra millisecond a lease could end up to one millisecond short.
func (now instant) after(d time.Duration) int64 { return now.ms + 1 + d.Milliseconds() }

// record is all that is known of a key. The zero record, recognised by its fence,
// is that of an unknown key.
type record struct {
	owner   string // stays when the ownership ends, to tell "already released" from "not the owner"
	fence   int64  // of the present term, strictly growing
	nonce   string // of the call that wrote the present fence or the present end
	last    string // nonce of the call that ended an ownership last; outlives the grants that follow
	lease   int64  // ms; 0 while nobody is running
	until   int64  // ms; afterwards the key is anybody's; 0 if the ownership was ended before
	first   int64  // fence that the ownership began with
	since   int64  // ms
	changed int64  // ms; when the record was last granted, parked, taken back, resumed or ended
	holder  string
	job     string
	prior   driver.Ended // how the ownership before ended
	ended   driver.Ended // released, forced or done; lapsed is derived from until, never stored
	reason  string
	memo    []byte
	expires int64  // ms; afterwards the record is forgotten
	queue   *queue // nil if nobody waits; shared by the copies of the record
}

func (r record) exists() bool            { return r.fence != 0 }
func (r record) live(now instant) bool   { return r.ended == driver.EndedNone && r.until > now.ms }
func (r record) leased(now instant) bool { return r.live(now) && r.lease > now.ms }
func (r record) parked(now instant) bool { return r.live(now) && r.lease == 0 }

// leaseLeft is 0 unless somebody is running.
func (r record) leaseLeft(now instant) time.Duration {
	if !r.leased(now) {
		return 0
	}
	return time.Duration(r.lease-now.ms) * time.Millisecond
}

func (r record) state(now instant) driver.State {
	switch {
	case !r.live(now):
		return driver.StateFree
	case r.leased(now):
		return driver.StateHeld
	case r.parked(now):
		return driver.StateParked
	default:
		return driver.StateOrphaned
	}
}

// endedBy tells how the last ownership ended.
func (r record) endedBy(now instant) driver.Ended {
	if r.exists() && r.ended == driver.EndedNone && !r.live(now) {
		return driver.EndedLapsed
	}
	return r.ended
}

// term begins a new term of the record: the next fence, under the nonce of the
// call that asks. The clock keeps fences growing when the record before was
// forgotten, the previous fence when the clock has stepped back.
func (r *record) term(now instant, nonce string) {
	r.fence = max(r.fence+1, now.us)
	r.nonce, r.changed = nonce, now.ms
}

// end ends the ownership: the first waiter has the next one, and without waiters
// the record becomes a tombstone.
func (r *record) end(now instant, how driver.Ended, req driver.ReleaseRequest, out *outbox) {
	kept := r.expires - max(r.until, now.ms)
	if r.live(now) {
		r.until = 0 // what is left of it tells that the end came late
	}
	r.ended, r.reason, r.nonce, r.last = how, req.Reason, req.Nonce, req.Nonce
	r.lease, r.changed = 0, now.ms
	if next, waiting := r.nextWaiter(now); waiting {
		r.grantPushed(now, next, out)
		return
	}
	retain := req.Retain
	switch {
	case len(r.memo) > 0:
		retain = max(retain, time.Duration(kept)*time.Millisecond)
	case req.Brief > 0 && r.fence <= now.us:
		retain = req.Brief
	}
	r.keep(now, retain)
}

// keep remembers the record for retain longer than its ownership, and not for
// less than somebody's place in the queue.
func (r *record) keep(now instant, retain time.Duration) {
	r.expires = max(r.until, now.ms) + retain.Milliseconds()
	if r.queue != nil {
		r.expires = max(r.expires, r.queue.kept)
	}
}

// names reports whether t names the present term.
func (r record) names(t driver.Term) bool {
	return r.owner == t.Owner && r.ended == driver.EndedNone &&
		(t.Fence != 0 && t.Fence == r.fence || t.Grant != "" && t.Grant == r.nonce)
}

// Each transition takes the record before and returns the record after, which
// for a refusal is the one before, and the answer. The queue is changed in place.

func (r record) acquire(now instant, req driver.AcquireRequest, out *outbox) (record, driver.Reply) {
	if r.leased(now) && r.owner == req.Owner && r.nonce == req.Nonce {
		return r, r.acquired(now, req) // a re-send of the call that got it, or it got it while it waited
	}
	if !r.live(now) {
		waiter, waiting := r.nextWaiter(now)
		if !waiting || waiter.Nonce == req.Nonce {
			r.grant(now, req)
			return r, r.acquired(now, req)
		}
		r.grantPushed(now, waiter, out)
	}
	reply := r.inTheWay(now, driver.OutcomeHeld)
	if req.Inbox != "" {
		reply.Ahead, reply.Now = r.join(now, req), time.UnixMicro(now.us)
	}
	return r, reply
}

func (r record) resume(now instant, req driver.ResumeRequest) (record, driver.Reply) {
	switch {
	case !r.exists() || r.owner != req.Owner || r.ended != driver.EndedNone:
		return r, r.refuse(now, req.Owner)
	case r.job == "" && req.Fence != 0 && r.first > req.Fence: // of an ownership before
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case r.job != "" && r.job != req.Job && !(req.Unpark && r.job == req.Back):
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case r.leased(now) && r.nonce == req.Nonce:
		return r, r.granted(req.Memo) // a re-send of the call that got it
	case r.leased(now):
		return r, r.inTheWay(now, driver.OutcomeBusy)
	}
	recovered := !r.live(now)
	r.term(now, req.Nonce)
	r.lease = now.after(req.TTL)
	if req.Unpark {
		r.unpark(req.Back)
	}
	r.until = max(r.until, r.lease+req.Reserve.Milliseconds())
	r.holder = req.Holder
	r.keep(now, req.Retain)
	reply := r.granted(req.Memo)
	reply.Recovered = recovered
	return r, reply
}

func (r record) park(now instant, req driver.ParkRequest) (record, driver.Reply) {
	// This very call has parked it before. With another job its caller had no
	// answer, and parks for that one now.
	again := r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce
	switch {
	case again && r.job == req.Job:
		return r, driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
	case again:
	case !r.names(req.Term):
		return r, r.refuse(now, req.Owner)
	case !r.leased(now):
		return r, driver.Reply{Outcome: driver.OutcomeLapsed}
	}
	r.term(now, req.Nonce)
	r.lease = 0
	r.until = now.after(req.Reserve)
	r.job = req.Job
	r.keep(now, req.Retain)
	return r, driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
}

// reserve leaves the term as it is, so it needs no nonce: a second run finds that
// the reservation lasts long enough.
func (r record) reserve(now instant, req driver.ReserveRequest) (record, driver.Reply) {
	switch {
	case !r.exists():
		return r, driver.Reply{Outcome: driver.OutcomeNotFound}
	case r.job != req.Job:
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case r.ended != driver.EndedNone:
		return r, r.refuse(now, r.owner)
	}
	recovered := !r.live(now)
	r.until = max(r.until, now.after(req.Reserve))
	r.keep(now, req.Retain)
	reply := r.inTheWay(now, driver.OutcomeOK)
	reply.Recovered = recovered
	return r, reply
}

func (r record) renew(now instant, req driver.RenewRequest) (record, driver.Reply) {
	// The caller's own Park, of which it never got the answer: it goes on holding.
	unparks := r.parked(now) && req.Grant != "" && req.Grant == r.nonce
	switch {
	case !r.names(req.Term):
		return r, r.refuse(now, req.Owner)
	case !r.leased(now) && !unparks:
		return r, driver.Reply{Outcome: driver.OutcomeLapsed}
	}
	r.lease = now.after(req.TTL)
	if unparks {
		r.changed = now.ms
		r.unpark(req.Back)
	}
	r.until = max(r.until, r.lease+req.Reserve.Milliseconds())
	if req.Memo != nil {
		r.memo = append([]byte(nil), req.Memo...) // nil when it is empty
	}
	r.keep(now, req.Retain)
	return r, driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
}

// unpark undoes what a Park did besides ending the term.
func (r *record) unpark(job string) { r.job, r.until = job, 0 }

func (r record) release(now instant, req driver.ReleaseRequest, out *outbox) (record, driver.Reply) {
	if req.Grant != "" {
		r.leave(req.Grant)
	}
	whatever := req.Fence == 0 && req.Grant == "" && r.owner == req.Owner && r.ended == driver.EndedNone
	how := driver.EndedReleased
	if req.Done {
		how = driver.EndedDone
	}
	switch {
	case r.exists() && req.Nonce != "" && r.last == req.Nonce:
		// A re-send; the next ownership may have begun since.
		return r, endedInTime(r.ended == driver.EndedNone || r.until == 0)
	case !req.Kind.ByOwner() && !r.live(now):
		return r, driver.Reply{Outcome: driver.OutcomeNotFound}
	case !req.Kind.ByOwner() && req.Fence != 0 && req.Fence != r.fence:
		return r, r.inTheWay(now, driver.OutcomeNotOwner)
	case !req.Kind.ByOwner():
		how = driver.EndedForced
	case !whatever && !r.names(req.Term):
		return r, r.refuse(now, req.Owner)
	}
	switch {
	case (req.Job != "" || req.Kind == driver.ReleaseForJob) && r.job != req.Job:
		return r, r.inTheWay(now, driver.OutcomeWrongJob)
	case req.Kind.IfIdle() && r.leased(now):
		return r, r.inTheWay(now, driver.OutcomeBusy)
	}
	if req.Kind == driver.ReleaseForced && r.leased(now) {
		out.push(driver.ForcedInbox, driver.Push{Key: req.Key, Fence: r.fence})
	}
	reply := endedInTime(r.live(now))
	r.end(now, how, req, out)
	return r, reply
}

// endedInTime is the answer to whoever has ended an ownership.
func endedInTime(yes bool) driver.Reply {
	if yes {
		return driver.Reply{Outcome: driver.OutcomeOK}
	}
	return driver.Reply{Outcome: driver.OutcomeLapsed}
}

// granted is the answer to whoever holds the present term.
func (r record) granted(memo bool) driver.Reply {
	reply := driver.Reply{Outcome: driver.OutcomeOK, Fence: r.fence}
	if memo {
		reply.Memo = bytes.Clone(r.memo)
	}
	return reply
}

// acquired is the answer to the Acquire that made the present term.
func (r record) acquired(now instant, req driver.AcquireRequest) driver.Reply {
	reply := r.granted(req.Memo)
	reply.Ended, reply.Lease = r.prior, r.leaseLeft(now)
	if req.Memo {
		reply.Now = time.UnixMicro(now.us)
	}
	return reply
}

// refuse is the answer to an owner that the present term is not that of.
func (r record) refuse(now instant, owner string) driver.Reply {
	switch {
	case !r.exists():
		return driver.Reply{Outcome: driver.OutcomeNotFound}
	case r.owner == owner && r.ended != driver.EndedNone:
		return driver.Reply{Outcome: driver.OutcomeReleased, Ended: r.ended, Reason: r.reason}
	default:
		return r.inTheWay(now, driver.OutcomeNotOwner)
	}
}

// inTheWay is an answer that tells who has the key and for how long. Of a record
// that is no longer live it tells nothing but the job of OutcomeWrongJob: the
// rest would describe somebody who has gone.
func (r record) inTheWay(now instant, out driver.Outcome) driver.Reply {
	reply := driver.Reply{Outcome: out, State: r.state(now)}
	switch reply.State {
	case driver.StateFree:
		if out == driver.OutcomeWrongJob {
			reply.Job = r.job
		}
		return reply
	case driver.StateHeld:
		reply.Remaining = r.leaseLeft(now)
	default:
		reply.Remaining = time.Duration(r.until-now.ms) * time.Millisecond
	}
	reply.Holder, reply.Job = r.holder, r.job
	return reply
}

// read is the record as Inspect and List show it, without its memo.
func (r record) read(now instant, key string) driver.Record {
	if !r.exists() {
		return driver.Record{Key: key}
	}
	out := driver.Record{
		Key: key, State: r.state(now), Owner: r.owner, Fence: r.fence, First: r.first,
		Since: time.UnixMilli(r.since), Changed: time.UnixMilli(r.changed), Holder: r.holder, Job: r.job,
		Ended: r.endedBy(now), Reason: r.reason,
		Lease: r.leaseLeft(now), Waiters: r.waiters(), Now: time.UnixMicro(now.us),
	}
	if r.live(now) {
		out.Reserved = time.Duration(r.until-now.ms) * time.Millisecond
	}
	return out
}
