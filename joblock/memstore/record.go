package memstore

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// instant is one reading of the store's clock: milliseconds for deadlines,
// microseconds for fences.
type instant struct{ ms, us int64 }

func at(t time.Time) instant { return instant{ms: t.UnixMilli(), us: t.UnixMicro()} }

func (now instant) time() time.Time { return time.UnixMicro(now.us) }

// after is the deadline d from now. now.ms is rounded down, so without the extra
// millisecond a lease could be too short by up to one.
func (now instant) after(d time.Duration) int64 { return now.ms + 1 + d.Milliseconds() }

// record is what the Store knows of a key. Fence 0 means that the key is unknown.
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

// named reports whether t names the present term.
func (r record) named(t driver.Term) bool {
	return t.Fence != 0 && t.Fence == r.fence || t.Grant != "" && t.Grant == r.nonce
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
		Lease: r.leaseLeft(now), Waiters: r.waiters(), Now: now.time(),
	}
	if r.live(now) {
		out.Reserved = time.Duration(r.until-now.ms) * time.Millisecond
	}
	return out
}
