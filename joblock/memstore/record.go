package memstore

import (
	"bytes"
	"time"

	"github.com/joblock/toolkit/joblock"
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
	lease   int64  // ms; 0 while nobody is running
	until   int64  // ms; afterwards the key is anybody's
	since   int64  // ms
	holder  string
	job     string
	ended   joblock.Ended // released or forced; lapsed is derived from until, never stored
	reason  string
	memo    []byte
	expires int64 // ms; afterwards the record is forgotten
}

func (r record) exists() bool            { return r.fence != 0 }
func (r record) live(now instant) bool   { return r.ended == joblock.EndedNone && r.until > now.ms }
func (r record) leased(now instant) bool { return r.live(now) && r.lease > now.ms }
func (r record) parked(now instant) bool { return r.live(now) && r.lease == 0 }

func (r record) state(now instant) joblock.State {
	switch {
	case !r.live(now):
		return joblock.StateFree
	case r.leased(now):
		return joblock.StateHeld
	case r.parked(now):
		return joblock.StateParked
	default:
		return joblock.StateOrphaned
	}
}

// endedBy tells how the last ownership ended.
func (r record) endedBy(now instant) joblock.Ended {
	if r.exists() && r.ended == joblock.EndedNone && !r.live(now) {
		return joblock.EndedLapsed
	}
	return r.ended
}

// term begins a new term of the record: the next fence, under the nonce of the
// call that asks. The clock keeps fences growing when the record before was
// forgotten, the previous fence when the clock has stepped back.
func (r *record) term(now instant, nonce string) {
	r.fence = max(r.fence+1, now.us)
	r.nonce = nonce
}

// end ends the ownership and makes the record a tombstone.
func (r *record) end(now instant, how joblock.Ended, req joblock.ReleaseRequest) {
	r.ended, r.reason, r.nonce = how, req.Reason, req.Nonce
	r.lease, r.until = 0, 0
	r.keep(now, req.Retain)
}

// keep remembers the record for retain longer than its ownership.
func (r *record) keep(now instant, retain time.Duration) {
	r.expires = max(r.until, now.ms) + retain.Milliseconds()
}

// names reports whether t names the present term.
func (r record) names(t joblock.Term) bool {
	return r.owner == t.Owner && r.ended == joblock.EndedNone &&
		(t.Fence != 0 && t.Fence == r.fence || t.Grant != "" && t.Grant == r.nonce)
}

// Each transition takes the record before and returns the record after, which
// for a refusal is the one before, and the answer.

func (r record) acquire(now instant, req joblock.AcquireRequest) (record, joblock.Reply) {
	if r.leased(now) && r.owner == req.Owner && r.nonce == req.Nonce {
		return r, r.granted() // a re-send of the call that got it
	}
	if r.live(now) {
		return r, r.inTheWay(now, joblock.OutcomeHeld)
	}
	reply := joblock.Reply{Ended: r.endedBy(now), Reason: r.reason}
	r = record{owner: req.Owner, fence: r.fence, holder: req.Holder, since: now.ms, memo: r.memo}
	r.term(now, req.Nonce)
	r.lease = now.after(req.TTL)
	r.until = r.lease
	r.keep(now, req.Retain)
	reply.Outcome, reply.Fence, reply.Memo = joblock.OutcomeOK, r.fence, bytes.Clone(r.memo)
	return r, reply
}

func (r record) resume(now instant, req joblock.ResumeRequest) (record, joblock.Reply) {
	switch {
	case !r.exists() || r.owner != req.Owner || r.ended != joblock.EndedNone:
		return r, r.refuse(now, req.Owner)
	case r.job != "" && r.job != req.Job:
		return r, r.inTheWay(now, joblock.OutcomeWrongJob)
	case r.leased(now) && r.nonce == req.Nonce:
		return r, r.granted() // a re-send of the call that got it
	case r.leased(now):
		return r, r.inTheWay(now, joblock.OutcomeBusy)
	}
	recovered := !r.live(now)
	r.term(now, req.Nonce)
	r.lease = now.after(req.TTL)
	r.until = max(r.until, r.lease)
	r.holder = req.Holder
	r.keep(now, req.Retain)
	reply := r.granted()
	reply.Recovered = recovered
	return r, reply
}

func (r record) park(now instant, req joblock.ParkRequest) (record, joblock.Reply) {
	// This very call has parked it before. With another job its caller had no
	// answer, and parks for that one now.
	again := r.parked(now) && r.owner == req.Owner && r.nonce == req.Nonce
	switch {
	case again && r.job == req.Job:
		return r, joblock.Reply{Outcome: joblock.OutcomeOK, Fence: r.fence}
	case again:
	case !r.names(req.Term):
		return r, r.refuse(now, req.Owner)
	case !r.leased(now):
		return r, joblock.Reply{Outcome: joblock.OutcomeLapsed}
	}
	r.term(now, req.Nonce)
	r.lease = 0
	r.until = now.after(req.Hold)
	r.job = req.Job
	r.keep(now, req.Retain)
	return r, joblock.Reply{Outcome: joblock.OutcomeOK, Fence: r.fence}
}

func (r record) renew(now instant, req joblock.RenewRequest) (record, joblock.Reply) {
	// The caller's own Park, of which it never got the answer: it goes on holding.
	unparks := r.parked(now) && req.Grant != "" && req.Grant == r.nonce
	switch {
	case !r.names(req.Term):
		return r, r.refuse(now, req.Owner)
	case !r.leased(now) && !unparks:
		return r, joblock.Reply{Outcome: joblock.OutcomeLapsed}
	}
	r.lease = now.after(req.TTL)
	r.until = max(r.until, r.lease)
	if req.Memo != nil {
		r.memo = append([]byte(nil), req.Memo...) // nil when it is empty
	}
	r.keep(now, req.Retain)
	return r, joblock.Reply{Outcome: joblock.OutcomeOK, Fence: r.fence}
}

func (r record) release(now instant, req joblock.ReleaseRequest) (record, joblock.Reply) {
	if req.Force {
		return r.force(now, req)
	}
	whatever := req.Fence == 0 && req.Grant == "" && r.owner == req.Owner && r.ended == joblock.EndedNone
	switch {
	case !r.exists():
		return r, joblock.Reply{Outcome: joblock.OutcomeNotFound}
	case r.owner == req.Owner && r.ended == joblock.EndedReleased && r.nonce == req.Nonce:
		// A re-send. One of what was answered Lapsed is answered OK: the record is
		// ended, and does not show any more that its time had run out before.
		return r, joblock.Reply{Outcome: joblock.OutcomeOK}
	case !whatever && !r.names(req.Term):
		return r, r.refuse(now, req.Owner)
	case req.IdleOnly && r.leased(now):
		return r, r.inTheWay(now, joblock.OutcomeBusy)
	}
	reply := joblock.Reply{Outcome: joblock.OutcomeOK}
	if !r.live(now) {
		reply.Outcome = joblock.OutcomeLapsed
	}
	r.end(now, joblock.EndedReleased, req)
	return r, reply
}

func (r record) force(now instant, req joblock.ReleaseRequest) (record, joblock.Reply) {
	switch {
	case r.live(now):
		r.end(now, joblock.EndedForced, req)
	case r.ended != joblock.EndedForced || r.nonce != req.Nonce:
		return r, joblock.Reply{Outcome: joblock.OutcomeNotFound}
	}
	return r, joblock.Reply{Outcome: joblock.OutcomeOK}
}

// granted is the answer to whoever holds the present term.
func (r record) granted() joblock.Reply {
	return joblock.Reply{Outcome: joblock.OutcomeOK, Fence: r.fence, Memo: bytes.Clone(r.memo)}
}

// refuse is the answer to an owner that the present term is not that of.
func (r record) refuse(now instant, owner string) joblock.Reply {
	switch {
	case !r.exists():
		return joblock.Reply{Outcome: joblock.OutcomeNotFound}
	case r.owner == owner && r.ended != joblock.EndedNone:
		return joblock.Reply{Outcome: joblock.OutcomeReleased, Ended: r.ended, Reason: r.reason}
	default:
		return r.inTheWay(now, joblock.OutcomeNotOwner)
	}
}

// inTheWay is a refusal that tells who has the key and for how long. Of a record
// that is no longer live it tells nothing but the job of OutcomeWrongJob: the
// rest would describe somebody who has gone.
func (r record) inTheWay(now instant, out joblock.Outcome) joblock.Reply {
	reply := joblock.Reply{Outcome: out, State: r.state(now)}
	switch reply.State {
	case joblock.StateFree:
		if out == joblock.OutcomeWrongJob {
			reply.Job = r.job
		}
		return reply
	case joblock.StateHeld:
		reply.Remaining = time.Duration(r.lease-now.ms) * time.Millisecond
	default:
		reply.Remaining = time.Duration(r.until-now.ms) * time.Millisecond
	}
	reply.Holder, reply.Job = r.holder, r.job
	return reply
}

// read is the record as Inspect and List show it.
func (r record) read(now instant, key string) joblock.Record {
	if !r.exists() {
		return joblock.Record{Key: key}
	}
	out := joblock.Record{
		Key: key, State: r.state(now), Owner: r.owner, Fence: r.fence,
		Since: time.UnixMilli(r.since), Holder: r.holder, Job: r.job,
		Ended: r.endedBy(now), Reason: r.reason, Memo: bytes.Clone(r.memo),
	}
	if r.leased(now) {
		out.Lease = time.Duration(r.lease-now.ms) * time.Millisecond
	}
	if r.live(now) {
		out.Reserved = time.Duration(r.until-now.ms) * time.Millisecond
	}
	return out
}
