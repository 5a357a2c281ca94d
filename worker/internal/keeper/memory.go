package keeper

import (
	"hash/maphash"
	"time"

	"github.com/joblock/toolkit/joblock/jobs"
)

// readings is how often, at least, each lock is read per Config.Reserve.
const readings = 4

// memory has the reservations of locks that a Keeper has read, so that it need not read a lock again in each round
// while the lock's task waits in a list. Only Park and Resume shorten a reservation. A Park is noticed because the
// index says that the entry was written; a Resume is noticed when the attempt ends, by its Park or because the task has
// left the list. To be safe, each lock is also read from time to time. A lock takes 20 to 40 bytes in each of the maps
// until and last, and is in one of them or in both.
type memory struct {
	seed        maphash.Seed // a new seed for each memory, so that two locks do not collide forever
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

// note remembers that a lock is reserved for the time left.
func (m *memory) note(e jobs.Entry, now time.Time, left time.Duration) {
	m.until[m.hash(e)] = now.Add(left).UnixMilli()
}

// forget forgets a lock.
func (m *memory) forget(e jobs.Entry) {
	h := m.hash(e)
	delete(m.until, h)
	delete(m.last, h)
}

// left returns how long a lock is still reserved as far as m knows. ok is false if m does not know the lock.
func (m *memory) left(e jobs.Entry, now time.Time) (left time.Duration, ok bool) {
	h := m.hash(e)
	until, ok := m.until[h]
	if !ok {
		until, ok = m.last[h]
	}
	return max(0, time.Duration(until-now.UnixMilli())*time.Millisecond), ok
}

// age forgets the locks that were not read for the time after, or for up to twice as long.
func (m *memory) age(now time.Time, after time.Duration) {
	if now.Sub(m.began) > after {
		m.until, m.last, m.began = make(map[uint64]int64, len(m.until)), m.until, now
	}
}
