package storemodel

import (
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// inLine is a place in the queue, with the latest repeat of the Acquire or Take that waits. For a Take, the TTL is the
// Reserve.
type inLine struct {
	driver.AcquireRequest
	job    string        // "" for an Acquire
	number int           // how many places were given out before this one
	since  time.Duration // when the place was taken
	until  time.Duration // when the store drops the place
}

// jobInLine returns the place that a Take asks for.
func jobInLine(req driver.TakeRequest) inLine {
	return inLine{job: req.Job, AcquireRequest: driver.AcquireRequest{
		Key: req.Key, Owner: req.Owner, Nonce: req.Nonce, TTL: req.Reserve, Retain: req.Retain, Holder: req.Holder,
		Inbox: driver.JobsInbox, Patience: req.Patience,
	}}
}

// place returns the place of a call, or nil.
func (r *reference) place(now time.Duration, call string) *inLine {
	if r.phase(now) == absent {
		return nil
	}
	if i := slices.IndexFunc(r.line, func(w inLine) bool { return w.Nonce == call }); i >= 0 {
		return &r.line[i]
	}
	return nil
}

// next returns the first waiter whose place has not ended, or nil.
func (r *reference) next(now time.Duration, ph phase) *inLine {
	if ph == absent {
		return nil
	}
	for _, w := range r.line {
		if now < w.until {
			return &w
		}
	}
	return nil
}

// left returns the queue after a Release, and the job whose place the Release has given up, or "".
func (r *reference) left(req driver.ReleaseRequest) (line []inLine, job string) {
	for _, w := range r.line {
		if w.Nonce == req.Grant && (w.Owner == req.Owner || !req.Kind.ByOwner()) {
			return r.without(req.Grant), w.job
		}
	}
	return r.line, ""
}

// without returns the queue without the place of a call.
func (r *reference) without(call string) []inLine {
	return slices.DeleteFunc(slices.Clone(r.line), func(w inLine) bool { return w.Nonce == call })
}

// before returns how the last ownership ended, and the memo that stays.
func (r *reference) before(ph phase) (driver.Ended, string) {
	switch ph {
	case ranOut:
		return driver.EndedLapsed, r.memo
	case ended:
		return r.ended, r.memo
	}
	return driver.EndedNone, ""
}

// begin makes the waiter req the owner, and drops the waiter's place and all places before that place.
func (r *reference) begin(now time.Duration, req inLine, prior driver.Ended, memo string) {
	next := reference{
		owner: req.Owner, nonce: req.Nonce, holder: req.Holder, prior: prior, memo: memo, since: now, changed: now,
		last: r.last, gone: r.gone, joined: r.joined,
	}
	if r.phase(now) == absent {
		next.last, next.joined = "", 0
	} else if i := slices.IndexFunc(r.line, func(w inLine) bool { return w.Nonce == req.Nonce && now < w.until }); i >= 0 {
		next.line = slices.Clone(r.line[i+1:])
	}
	next.prolong(now, req.TTL, 0, req.Retain)
	if req.job != "" {
		next.job, next.lease = req.job, 0
	}
	*r = next
}

// serve makes the waiter next the owner, in the call of another caller. A lease that is granted to an inbox without a
// subscriber ends with the waiter's place.
func (r *reference) serve(now time.Duration, next *inLine, how driver.Ended) prediction {
	memo, heir := r.memo, *next
	if heir.job == "" && heir.Inbox == unheardInbox {
		heir.TTL = min(heir.TTL, heir.until-now)
	}
	return prediction{
		grants: &heir,
		how:    how,
		apply:  func(r *reference) { r.begin(now, heir, how, memo) },
	}
}

// servedBy returns the answer to a call that has made the waiter next the owner.
func servedBy(next *inLine, out driver.Outcome) driver.Reply {
	state := driver.StateHeld
	if next.job != "" {
		state = driver.StateParked
	}
	return driver.Reply{Outcome: out, State: state, Holder: next.Holder, Job: next.job, Remaining: deadline(0, next.TTL)}
}

// thenQueue adds to p that the caller waits: join gives the call a place, or keeps the call's place for longer.
func (p prediction) thenQueue(r *reference, now time.Duration, nonce string, join func(r *reference)) prediction {
	apply := p.apply
	p.apply = func(r *reference) {
		if apply != nil {
			apply(r)
		}
		join(r)
	}
	after := *r // a copy, to find the place that the call will have
	after.line = slices.Clone(r.line)
	p.apply(&after)
	p.queued = true
	for _, w := range after.line {
		if w.Nonce == nonce {
			p.countable, p.since, p.job = w.number+1, w.since, w.job != ""
			break
		}
		if now < w.until {
			p.minAhead++
		}
	}
	return p
}

// queue gives w a place, or prolongs the place that w has.
func (r *reference) queue(now time.Duration, w inLine) {
	w.number, w.since, w.until = r.joined, now, now+w.Patience
	if i := slices.IndexFunc(r.line, func(other inLine) bool { return other.Nonce == w.Nonce }); i >= 0 {
		w.number, w.since = r.line[i].number, r.line[i].since
		r.line = slices.Clone(r.line) // predictions may share the array
		r.line[i] = w
	} else {
		r.joined++
		r.line = append(slices.Clip(r.line), w)
	}
	r.gone = max(r.gone, w.until+w.Retain)
}

// keepPlace makes the place of a Reserve's job last longer.
func (r *reference) keepPlace(now time.Duration, req driver.ReserveRequest) {
	i := slices.IndexFunc(r.line, func(w inLine) bool { return w.Nonce == req.Nonce })
	if i < 0 {
		return
	}
	r.line = slices.Clone(r.line)
	r.line[i].until = max(r.line[i].until, now+req.Reserve)
	r.gone = max(r.gone, r.line[i].until+req.Retain)
}

// waiters returns the least and the largest number of waiters that a store may report.
func (r *reference) waiters(now time.Duration) (atLeast, atMost int) {
	ph := r.phase(now)
	if ph == absent {
		return 0, 0
	}
	for _, w := range r.line {
		if now < w.until {
			atLeast++
		}
	}
	return atLeast, r.joined
}
