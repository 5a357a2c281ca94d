package keeper

import (
	"hash/maphash"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/jobs"
)

// memoryAge is the fraction of Config.Reserve for which a Keeper remembers reservations.
const memoryAge = 4

// memory has the reservations of locks that a Keeper has read, so that the Keeper need not read a lock again in each
// round while the lock's task waits in a list. Nothing but Park and Resume shortens a reservation. A Park shows: the
// index says that the entry was written. A Resume shows when the attempt ends: by a Park, or because the task has left
// the list. For the rest, a memory is soon forgotten. A remembered lock takes some 20 bytes.
type memory struct {
	seed  maphash.Seed // another seed for each memory: two locks with one hash do not have one hash for ever
	until map[uint64]int64
	began time.Time
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
func (m *memory) forget(e jobs.Entry) { delete(m.until, m.hash(e)) }

// The method left returns for how long a lock is still reserved as far as m knows, or 0.
func (m *memory) left(e jobs.Entry, now time.Time) time.Duration {
	return max(0, time.Duration(m.until[m.hash(e)]-now.UnixMilli())*time.Millisecond)
}

// The method unread returns those entries whose locks need not be read, and the others. A lock need not be read if a
// list shows that the lock's task waits, and the remembered reservation is long enough. Where the task may wait for its
// job's turn in line, the lock is read: the turn comes without a sign in the index. The result again says when the locks
// that need not be read are due again.
func (k *Keeper) unread(now time.Time, due []jobs.Entry) (known, others []jobs.Entry, again []time.Time) {
	if now.Sub(k.known.began) > k.cfg.Reserve/memoryAge {
		k.known = newMemory()
	}
	for _, e := range due {
		var f finding
		name, id, ok := envelope.ParseJob(e.Job)
		if q := k.demand[name]; ok && e.Settled && e.Key != keyspace.Again(e.Job) && q != nil && k.shown(q, now, id, &f) && f.kind == alive && !f.waits &&
			judgeAlive(k.known.left(e, now), f, k.cfg.Reserve).action == keep {
			q.roll(now, k.cfg.Every)
			q.wanted++
			known, again = append(known, e), append(again, f.again)
			continue
		}
		others = append(others, e)
	}
	return known, others, again
}
