package ministore

import (
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// record is the state of a key. A record with fence 0 means that the store knows nothing of the key.
type record struct {
	fence int64  // of the present term
	first int64  // the fence that the ownership began with
	nonce string // of the call that began the term
	owner string // stays when the ownership ends, to distinguish OutcomeReleased from OutcomeNotOwner

	lease   time.Time // the lease's end; zero while the lock is parked
	renewed time.Time // the lease's begin
	ttl     time.Duration
	until   time.Time // end of the reservation
	since   time.Time // when the ownership began
	changed time.Time

	holder, job, reason string
	memo                []byte

	ended driver.Ended // stays EndedNone when the reservation runs out
	prior driver.Ended // how the previous ownership ended

	end     string // nonce of the last END, also under later ownerships
	endLate bool   // the reservation had run out at that END

	expires time.Time // when the store forgets the record
	queue   []place
	joined  int // places that the queue has ever had
}

// place is a waiter's place in the queue: the last request of the waiter's Acquire. The place of a job has the
// request of the job's Take, with Reserve as TTL and JobsInbox as Inbox.
type place struct {
	driver.AcquireRequest
	job          string // "" for an Acquire
	number       int    // larger than those of all earlier places
	since, until time.Time
}

// placeOf returns the place that a Take asks for.
func placeOf(req driver.TakeRequest) place {
	return place{job: req.Job, AcquireRequest: driver.AcquireRequest{
		Key: req.Key, Owner: req.Owner, Nonce: req.Nonce, TTL: req.Reserve, Retain: req.Retain, Holder: req.Holder,
		Inbox: driver.JobsInbox, Patience: req.Patience,
	}}
}

func (r *record) exists() bool              { return r.fence != 0 }
func (r *record) live(now time.Time) bool   { return r.ended == driver.EndedNone && now.Before(r.until) }
func (r *record) held(now time.Time) bool   { return r.live(now) && now.Before(r.lease) }
func (r *record) parked(now time.Time) bool { return r.live(now) && r.lease.IsZero() }

func (r *record) state(now time.Time) driver.State {
	switch {
	case !r.live(now):
		return driver.StateFree
	case r.held(now):
		return driver.StateHeld
	case r.parked(now):
		return driver.StateParked
	}
	return driver.StateOrphaned
}

// howEnded returns how the last ownership ended. The record does not store EndedLapsed; howEnded computes it.
func (r *record) howEnded(now time.Time) driver.Ended {
	if r.exists() && r.ended == driver.EndedNone && !r.live(now) {
		return driver.EndedLapsed
	}
	return r.ended
}

// named reports whether t names the present term.
func (r *record) named(t driver.Term) bool {
	return t.Fence != 0 && t.Fence == r.fence || t.Grant != "" && t.Grant == r.nonce
}

// keep makes the store remember the record for the time retain after the reservation, and as long as a place
// in the record has not ended.
func (r *record) keep(now time.Time, retain time.Duration) {
	r.expires = later(now, r.until).Add(retain)
	for _, p := range r.queue {
		r.expires = later(r.expires, p.until.Add(p.Retain))
	}
}

// at returns the index of the place of the call with this nonce, -1 if there is none.
func (r *record) at(nonce string) int {
	return slices.IndexFunc(r.queue, func(p place) bool { return p.Nonce == nonce })
}

// leave gives up the place of the call with this nonce, if there is one.
func (r *record) leave(nonce string) {
	r.queue = slices.DeleteFunc(slices.Clone(r.queue), func(p place) bool { return p.Nonce == nonce })
}

// join gives a waiter a place, or keeps the place that the waiter has. The result is the number of places
// before that place.
func (r *record) join(now time.Time, p place) int {
	at := r.at(p.Nonce)
	if at < 0 {
		at, r.joined = len(r.queue), r.joined+1
		p.since, p.number = now, r.joined
		r.queue = append(r.queue, p)
	} else {
		p.since, p.number = r.queue[at].since, r.queue[at].number
	}
	p.until = now.Add(p.Patience)
	r.queue[at] = p
	r.expires = later(r.expires, p.until.Add(p.Retain))
	return at
}

// waits adds to reply what a call reports of a job's place.
func (r *record) waits(now time.Time, reply driver.Reply, at int) driver.Reply {
	reply.Fence, reply.Ahead, reply.Now, reply.Since = r.fence, at, now, r.queue[at].since
	return reply
}

// next returns the first waiter whose place has not ended.
func (r *record) next(now time.Time) (place, bool) {
	if at := slices.IndexFunc(r.queue, func(p place) bool { return now.Before(p.until) }); at >= 0 {
		return r.queue[at], true
	}
	return place{}, false
}

// nextJob removes the first job whose place has not ended from the queue, and the ended places before it.
func (r *record) nextJob(now time.Time) (place, bool) {
	for _, p := range r.queue {
		ended := !now.Before(p.until)
		if !ended && p.job == "" {
			continue
		}
		if r.leave(p.Nonce); !ended {
			return p, true
		}
	}
	return place{}, false
}

// show returns a place as Inspect and Line show it.
func (r *record) show(at int) driver.Place {
	p := r.queue[at]
	return driver.Place{Holder: p.Holder, Job: p.job, Since: p.since, Until: p.until, Ahead: at}
}

// who returns an answer that names the holder of the key and the remaining time.
func (r *record) who(now time.Time, o driver.Outcome) driver.Reply {
	reply := driver.Reply{Outcome: o, State: r.state(now)}
	switch reply.State {
	case driver.StateFree:
		if o == driver.OutcomeWrongJob {
			reply.Job = r.job
		}
		return reply
	case driver.StateHeld:
		reply.Remaining = r.lease.Sub(now)
	default:
		reply.Remaining = r.until.Sub(now)
	}
	reply.Holder, reply.Job = r.holder, r.job
	return reply
}

// read returns the record as Inspect and List show it.
func (r *record) read(now time.Time, key string, memo bool) driver.Record {
	if !r.exists() {
		return driver.Record{Key: key}
	}
	out := driver.Record{
		Key: key, State: r.state(now), Owner: r.owner, Fence: r.fence, First: r.first,
		Since: r.since, Changed: r.changed, Holder: r.holder, Job: r.job,
		Ended: r.howEnded(now), Reason: r.reason, Waiters: len(r.queue), Now: now,
	}
	if r.live(now) {
		out.Reserved = r.until.Sub(now)
	}
	if r.held(now) {
		out.Lease = r.lease.Sub(now)
	}
	if !r.lease.IsZero() {
		out.Renewed, out.TTL = r.renewed, r.ttl
	}
	switch {
	case r.ended != driver.EndedNone:
		out.EndedAt = r.changed
	case !r.live(now):
		out.EndedAt = r.until
	}
	if memo {
		out.Memo = slices.Clone(r.memo)
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
