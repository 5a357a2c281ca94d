package memstore

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// instant is one reading of the store's clock, with the subscribers at that moment. Deadlines are in milliseconds,
// fences in microseconds.
type instant struct {
	ms, us  int64
	inboxes map[string][]*listener // store.inboxes: an inbox without a subscriber is not in the map
}

func (now instant) time() time.Time { return time.UnixMicro(now.us) }

// after returns the deadline that is d from now. It adds a millisecond, because the clock's milliseconds are rounded
// down and no lease may end early.
func (now instant) after(d time.Duration) int64 { return now.ms + 1 + d.Milliseconds() }

// left returns the time until a deadline, or 0 if the deadline has passed.
func (now instant) left(deadline int64) time.Duration {
	return time.Duration(max(0, deadline-now.ms)) * time.Millisecond
}

// record is the state of a key in the store. Fence 0 means that the key has no record. Times are in milliseconds.
type record struct {
	owner   string // stays after the end, because the rows "another owner" and "ended" need the owner
	fence   int64  // of the present term; only grows
	nonce   string // of the call that began the present term, or that ended it
	last    string // nonce of the last call that ended an ownership; later grants keep this nonce
	lease   int64  // when the lease ends; 0 without a lease
	renewed int64  // when the lease began, if there is one
	until   int64  // when the reservation ends; 0 if a release ended the ownership in time
	first   int64  // fence with which the ownership began
	since   int64  // when the ownership began
	changed int64  // when the record was last granted, parked, taken back, resumed or ended
	holder  string
	job     string
	prior   driver.Ended // how the previous ownership ended
	ended   driver.Ended // how a release ended the ownership; endedBy derives EndedLapsed from record.until
	reason  string
	memo    []byte
	expires int64  // when the store forgets the record
	queue   *queue // nil without waiters; copies of the record share the queue
}

func (r record) exists() bool            { return r.fence != 0 }
func (r record) live(now instant) bool   { return r.ended == driver.EndedNone && r.until > now.ms }
func (r record) leased(now instant) bool { return r.live(now) && r.lease > now.ms }
func (r record) parked(now instant) bool { return r.live(now) && r.lease == 0 }

func (r record) state(now instant) driver.State {
	switch {
	case !r.live(now):
		return driver.StateFree
	case r.leased(now):
		return driver.StateHeld
	case r.parked(now):
		return driver.StateParked
	}
	return driver.StateOrphaned
}

// endedBy returns how the last ownership ended.
func (r record) endedBy(now instant) driver.Ended {
	if r.exists() && r.ended == driver.EndedNone && !r.live(now) {
		return driver.EndedLapsed
	}
	return r.ended
}

// named reports whether t names the present term.
func (r record) named(t driver.Term) bool {
	return t.Fence != 0 && t.Fence == r.fence || t.Grant != "" && t.Grant == r.nonce
}

// read returns the record as Inspect and List show it, without its memo.
func (r record) read(now instant, key string) driver.Record {
	if !r.exists() {
		return driver.Record{Key: key}
	}
	out := driver.Record{
		Key: key, State: r.state(now), Owner: r.owner, Fence: r.fence, First: r.first, Lease: now.left(r.lease),
		Since: time.UnixMilli(r.since), Changed: time.UnixMilli(r.changed), Holder: r.holder, Job: r.job,
		Ended: r.endedBy(now), Reason: r.reason, Now: now.time(),
	}
	switch {
	case r.live(now):
		out.Reserved = now.left(r.until)
	case r.ended == driver.EndedNone:
		out.EndedAt = time.UnixMilli(r.until)
	default:
		out.EndedAt = out.Changed
	}
	if r.lease != 0 {
		out.Renewed, out.TTL = time.UnixMilli(r.renewed), time.Duration(r.lease-r.renewed-1)*time.Millisecond // see after
	}
	out.Waiters = r.waiters()
	return out
}
