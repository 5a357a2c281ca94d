package keeper

import (
	"hash/maphash"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// readings is how often each lock is read in a Config.Reserve, at least.
const readings = 4

// memory has the reservations of locks that a Keeper has read, so that the Keeper need not read a lock again in each
// round while the lock's task waits in a list. Nothing but Park and Resume shortens a reservation. A Park shows: the
// index says that the entry was written. A Resume shows when the attempt ends: by a Park, or because the task has left
// the list. For the rest, each lock is read from time to time. A lock takes 20 to 40 bytes in each of the maps until and
// last, and is in one of them or in both.
type memory struct {
	seed        maphash.Seed // another seed for each memory: two locks with one hash do not have one hash for ever
	until, last map[uint64]int64
	began       time.Time // of until; before then, reservations were noted in last
}

func newMemory() *memory {
	return &memory{seed: maphash.MakeSeed(), until: make(map[uint64]int64), began: time.Now()}
}

func (m *memory) hash(e jobs.Entry) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	_, _ = h.WriteString(e.Job)
	_ = h.WriteByte('\n')
	_, _ = h.WriteString(e.Key)
	return h.Sum64()
}

// The method note remembers that a lock is reserved for the time left.
func (m *memory) note(e jobs.Entry, now time.Time, left time.Duration) {
	m.until[m.hash(e)] = now.Add(left).UnixMilli()
}

// The method forget forgets a lock.
func (m *memory) forget(e jobs.Entry) {
	h := m.hash(e)
	delete(m.until, h)
	delete(m.last, h)
}

// The method left returns for how long a lock is still reserved as far as m knows. The result ok is false if m does not
// know the lock.
func (m *memory) left(e jobs.Entry, now time.Time) (left time.Duration, ok bool) {
	h := m.hash(e)
	until, ok := m.until[h]
	if !ok {
		until, ok = m.last[h]
	}
	return max(0, time.Duration(until-now.UnixMilli())*time.Millisecond), ok
}

// The method age forgets the locks that were not read for the given time, or somewhat longer.
func (m *memory) age(now time.Time, after time.Duration) {
	if now.Sub(m.began) > after {
		m.until, m.last, m.began = make(map[uint64]int64, len(m.until)), m.until, now
	}
}

// The method toRead reports whether a lock is to be read that was last checked at most the given time ago. Each lock is
// read once per period of a Reserve/readings. The clock and the lock alone decide when. So a lock is read in time even if
// each of its keepers dies before it has worked for that long.
func (k *Keeper) toRead(e jobs.Entry, now time.Time, ago time.Duration) bool {
	period := k.cfg.Reserve / readings
	hash := uint64(14695981039346656037) // FNV-1a: the same in each process
	for _, text := range [2]string{e.Job, e.Key} {
		for i := range len(text) {
			hash = (hash ^ uint64(text[i])) * 1099511628211
		}
	}
	phase := time.Duration(hash>>1) % period
	return (time.Duration(now.UnixNano())-phase)%period < ago
}

// unread is a lock that need not be read.
type unread struct {
	jobs.Entry
	again time.Time // when the lock is due again
	later bool      // the lists have not shown the task so far
}

// The method sort returns those entries whose locks need not be read, and the others. A lock need not be read if a list
// shows that the lock's task waits, and the reservation is long enough: this Keeper has read the lock, or another Keeper
// has settled the entry with Settled. Where the task may wait for its job's turn in line, the lock is read: the turn
// comes without a sign in the index.
func (k *Keeper) sort(now time.Time, due []jobs.Entry) (known []unread, others []jobs.Entry) {
	k.known.age(now, 2*k.cfg.Reserve/readings)
	for _, e := range due {
		var f finding
		name, id, ok := envelope.ParseJob(e.Job)
		q := k.demand[name]
		if !ok || !e.Settled || e.Key == keyspace.Again(e.Job) || q == nil || !k.shown(q, now, id, &f) || f.waits {
			others = append(others, e)
			continue
		}
		left, read := k.known.left(e, now)
		ago := 2 * max(k.cfg.Every, q.round)
		if !read {
			ago += driver.SettledFor // another Keeper was the last to check the lock
		}
		if k.toRead(e, now, ago) || read && f.kind == alive && judgeAlive(left, f, k.cfg.Reserve).action != keep {
			others = append(others, e)
			continue
		}
		q.roll(now, k.cfg.Every)
		q.wanted++
		known = append(known, unread{Entry: e, again: f.again, later: f.kind == later})
	}
	return known, others
}
