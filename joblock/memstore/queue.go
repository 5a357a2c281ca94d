package memstore

import (
	"container/list"

	"github.com/joblock/toolkit/joblock/driver"
)

// queue has the waiters for one key, in the order in which they came. Joining, asking again,
// leaving and taking the first each take constant time. A ring buffer would be smaller, but
// could not drop a place in its middle.
type queue struct {
	places list.List                // of *place
	byCall map[string]*list.Element // nonce of the Acquire that waits
	joined int                      // places ever given out
	kept   int64                    // ms; the longest that any place is kept, retention included
}

// place is one waiter, as it asked the last time.
type place struct {
	number int
	until  int64 // ms; afterwards the place is skipped
	req    driver.AcquireRequest
}

// waiters returns the number of places, including those that have ended.
func (r record) waiters() int {
	if r.queue == nil {
		return 0
	}
	return r.queue.places.Len()
}

// join gives the call of req a place, or prolongs the one that it has. It returns how many
// places are before it, including those that were given up.
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

// leave gives up the place of a call, if it has one.
func (r *record) leave(call string) {
	if r.queue == nil {
		return
	}
	if e := r.queue.byCall[call]; e != nil {
		r.remove(e)
	}
}

// nextWaiter removes and returns the first waiter whose place has not ended. The
// waiters before that one are dropped.
func (r *record) nextWaiter(now instant) (driver.AcquireRequest, bool) {
	for r.queue != nil {
		p := r.remove(r.queue.places.Front())
		if p.until > now.ms {
			return p.req, true
		}
	}
	return driver.AcquireRequest{}, false
}

func (r *record) remove(e *list.Element) *place {
	p := placeAt(e)
	r.queue.places.Remove(e)
	delete(r.queue.byCall, p.req.Nonce)
	if r.queue.places.Len() == 0 {
		r.queue = nil // a record that nobody waits for costs no queue
	}
	return p
}

func placeAt(e *list.Element) *place { return e.Value.(*place) }
