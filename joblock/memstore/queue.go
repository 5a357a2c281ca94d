package memstore

import (
	"container/list"

	"github.com/joblock/toolkit/joblock/driver"
)

// queue has the places of one key, the oldest first. The methods join, leave and nextWaiter each take constant time per
// place. A ring buffer would be smaller, but could not drop a place in the middle.
type queue struct {
	places list.List                // of *place
	byCall map[string]*list.Element // by the Nonce of the waiter's Acquire
	joined int                      // number of places that the queue has ever given
	kept   int64                    // ms; until when the places keep the record, retention included
}

// A place is one waiter's position in a queue, with the last request that the waiter has sent.
type place struct {
	number int
	until  int64 // ms; when the place ends
	req    driver.AcquireRequest
}

// join gives the caller of req a place, or prolongs the caller's place. join returns the number of places before the
// caller's, including places that were given up.
func (r *record) join(now instant, req driver.AcquireRequest) (ahead int) {
	if r.queue == nil {
		r.queue = &queue{byCall: make(map[string]*list.Element)}
	}
	q := r.queue
	e := q.byCall[req.Nonce]
	if e == nil {
		e = q.places.PushBack(&place{number: q.joined})
		q.byCall[req.Nonce] = e
		q.joined++
	}
	p := placeAt(e)
	p.until, p.req = now.ms+req.Patience.Milliseconds(), req
	q.kept = max(q.kept, p.until+req.Retain.Milliseconds())
	r.expires = max(r.expires, q.kept)
	return p.number - placeAt(q.places.Front()).number
}

// leave removes the place of the Acquire with this nonce, if that Acquire has a place.
func (r *record) leave(nonce string) {
	if q := r.queue; q != nil && q.byCall[nonce] != nil {
		r.remove(q.byCall[nonce])
	}
}

// nextWaiter removes the first place that has not ended and all places before that place. nextWaiter returns the
// waiter's request; ok is false if no place is left.
func (r *record) nextWaiter(now instant) (req driver.AcquireRequest, ok bool) {
	for r.queue != nil {
		if p := r.remove(r.queue.places.Front()); p.until > now.ms {
			return p.req, true
		}
	}
	return req, false
}

func (r *record) remove(e *list.Element) *place {
	p := placeAt(e)
	r.queue.places.Remove(e)
	delete(r.queue.byCall, p.req.Nonce)
	if r.queue.places.Len() == 0 {
		r.queue = nil // a record without waiters needs no queue
	}
	return p
}

func placeAt(e *list.Element) *place { return e.Value.(*place) }
