package memstore

import (
	"container/list"
	"context"
	"strconv"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// queue has the places of one key, the oldest first. The methods join, leave and nextWaiter each take constant time per
// place. A ring buffer would be smaller, but could not drop a place in the middle.
type queue struct {
	places list.List                // of *place
	byCall map[string]*list.Element // by the Nonce of the waiter's Acquire or Take
	joined int                      // number of places that the queue has ever given
	kept   int64                    // ms; until when the places keep the record, retention included
}

// place is one waiter's position in a queue.
type place struct {
	waiter
	number int
	until  int64 // ms; when the place ends
	since  int64 // µs; when the place was taken
}

// waiter is the latest request of a waiter. For a waiting job, the TTL is the Reserve of the Take.
type waiter struct {
	driver.AcquireRequest
	job string // the job that waits, or "" for an Acquire
}

// asWaiter returns the caller of req as a waiter.
func asWaiter(req driver.TakeRequest) waiter {
	return waiter{driver.AcquireRequest{
		Key: req.Key, Owner: req.Owner, Nonce: req.Nonce, TTL: req.Reserve, Retain: req.Retain, Holder: req.Holder,
		Inbox: driver.JobsInbox, Patience: req.Patience,
	}, req.Job}
}

// placeOf returns the place of the call with this nonce, or nil.
func (r *record) placeOf(nonce string) *place {
	if r.queue == nil || r.queue.byCall[nonce] == nil {
		return nil
	}
	return placeAt(r.queue.byCall[nonce])
}

// waiters returns the number of places.
func (r *record) waiters() int {
	if r.queue == nil {
		return 0
	}
	return r.queue.places.Len()
}

// join gives w a place, or prolongs the place that w has.
func (r *record) join(now instant, w waiter) *place {
	if r.queue == nil {
		r.queue = &queue{byCall: make(map[string]*list.Element)}
	}
	q := r.queue
	e := q.byCall[w.Nonce]
	if e == nil {
		e = q.places.PushBack(&place{number: q.joined, since: now.us})
		q.byCall[w.Nonce] = e
		q.joined++
	}
	p := placeAt(e)
	p.waiter = w
	p.until = now.ms + w.Patience.Milliseconds()
	r.keepQueue(p.until, w.Retain)
	return p
}

// prolong makes p last for at least d.
func (r *record) prolong(now instant, p *place, d, retain time.Duration) {
	p.until = max(p.until, now.ms+d.Milliseconds())
	r.keepQueue(p.until, retain)
}

// keepQueue makes the store remember the record for retain after until, the end of a place.
func (r *record) keepQueue(until int64, retain time.Duration) {
	r.queue.kept = max(r.queue.kept, until+retain.Milliseconds())
	r.expires = max(r.expires, r.queue.kept)
}

// ahead returns the number of places before p, including places that were given up.
func (r *record) ahead(p *place) int { return p.number - placeAt(r.queue.places.Front()).number }

// leave removes the place of the call with this nonce, and returns that place, or nil if there is none.
func (r *record) leave(nonce string) *place {
	if r.placeOf(nonce) == nil {
		return nil
	}
	return r.remove(r.queue.byCall[nonce])
}

// nextWaiter removes the first place that has not ended, and the ended places before that place. If onlyJobs is true,
// nextWaiter passes over the places of Acquires that have not ended. The result is nil if no such place is left.
func (r *record) nextWaiter(now instant, onlyJobs bool) *place {
	if r.queue == nil {
		return nil
	}
	for e := r.queue.places.Front(); e != nil; {
		p, next := placeAt(e), e.Next()
		if alive := p.until > now.ms; !alive || p.job != "" || !onlyJobs {
			if r.remove(e); alive {
				return p
			}
		}
		e = next
	}
	return nil
}

func (r *record) remove(e *list.Element) *place {
	p := placeAt(e)
	r.queue.places.Remove(e)
	delete(r.queue.byCall, p.Nonce)
	if r.queue.places.Len() == 0 {
		r.queue = nil // a record without waiters needs no queue
	}
	return p
}

func placeAt(e *list.Element) *place { return e.Value.(*place) }

// show returns p as Inspect and Line show it.
func (r *record) show(p *place) driver.Place {
	return driver.Place{
		Holder: p.Holder, Job: p.job, Since: time.UnixMicro(p.since), Until: time.UnixMilli(p.until), Ahead: r.ahead(p),
	}
}

// Line implements driver.Store. A cursor is the number of the last place of the previous page.
func (s *store) Line(ctx context.Context, req driver.LineRequest) (driver.LinePage, error) {
	var page driver.LinePage
	now, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer s.mu.Unlock()
	after, err := strconv.Atoi(req.Cursor)
	if err != nil {
		after = -1
	}
	r := s.find(now, req.Key)
	if r.queue == nil {
		return page, nil
	}
	last := after
	for e := r.queue.places.Front(); e != nil; e = e.Next() {
		p := placeAt(e)
		if p.number <= after || p.until <= now.ms {
			continue
		}
		if len(page.Places) == req.Limit {
			page.Next = strconv.Itoa(last)
			break
		}
		page.Places = append(page.Places, r.show(p))
		last = p.number
	}
	return page, nil
}
