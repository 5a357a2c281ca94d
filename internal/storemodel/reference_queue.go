package storemodel

import (
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// inLine is a place in the queue, with the latest repeat of the Acquire that waits.
type inLine struct {
	driver.AcquireRequest
	number int           // how many places were given out before this one
	until  time.Duration // when the store drops the place
}

// The method next returns the first waiter whose place has not ended, or nil.
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

// The method without returns the queue without the place of a call.
func (r *reference) without(call string) []inLine {
	return slices.DeleteFunc(slices.Clone(r.line), func(w inLine) bool { return w.Nonce == call })
}

// The method before returns how the last ownership ended, and the memo that stays.
func (r *reference) before(ph phase) (driver.Ended, string) {
	switch ph {
	case ranOut:
		return driver.EndedLapsed, r.memo
	case ended:
		return r.ended, r.memo
	}
	return driver.EndedNone, ""
}

// The method begin makes the caller of req the owner, and drops the caller's place and all places before that place.
func (r *reference) begin(now time.Duration, req driver.AcquireRequest, prior driver.Ended, memo string) {
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
	*r = next
}

// The method serve makes the waiter in the parameter next the owner, in the call of somebody else.
func (r *reference) serve(now time.Duration, next *inLine, how driver.Ended) prediction {
	memo := r.memo
	return prediction{
		grants: next,
		how:    how,
		apply:  func(r *reference) { r.begin(now, next.AcquireRequest, how, memo) },
	}
}

// thenQueue adds to p that the caller of the Acquire waits.
func (p prediction) thenQueue(r *reference, now time.Duration, req driver.AcquireRequest) prediction {
	apply := p.apply
	p.apply = func(r *reference) {
		if apply != nil {
			apply(r)
		}
		r.queue(now, req)
	}
	after := *r // a copy, to find the place that the call will have
	after.line = slices.Clone(r.line)
	p.apply(&after)
	p.queued = true
	for _, w := range after.line {
		if w.Nonce == req.Nonce {
			p.countable = w.number + 1
			break
		}
		if now < w.until {
			p.minAhead++
		}
	}
	return p
}

// The method queue gives a call a place, or prolongs the place that the call has.
func (r *reference) queue(now time.Duration, req driver.AcquireRequest) {
	w := inLine{AcquireRequest: req, number: r.joined, until: now + req.Patience}
	if i := slices.IndexFunc(r.line, func(w inLine) bool { return w.Nonce == req.Nonce }); i >= 0 {
		w.number = r.line[i].number
		r.line[i] = w
	} else {
		r.joined++
		r.line = append(r.line, w)
	}
	r.gone = max(r.gone, w.until+req.Retain)
}

// The method waiters returns the least and the largest number of waiters that a store may report.
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
