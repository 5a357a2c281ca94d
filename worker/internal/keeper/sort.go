package keeper

import (
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// toRead reports whether to read a lock that was last checked at most the time ago before now. Each lock is read once
// per Config.Reserve/readings. Only the clock and the lock decide when, so a lock is read in time even if each of its
// keepers dies before it has worked for that long.
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

// sort returns those entries whose locks need not be read, and the others. A lock need not be read if a list shows that
// the lock's task waits, and the reservation is known to be long enough, because this Keeper has read the lock, or
// another Keeper has settled the entry with Settled. Where the task may wait for its job's turn in line, the lock is
// read, because the index does not show the turn.
func (k *Keeper) sort(now time.Time, due []jobs.Entry) (known []unread, others []jobs.Entry) {
	k.known.age(now, 2*k.cfg.Reserve/readings)
	for _, e := range due {
		var f finding
		name, id, ok := envelope.ParseJob(e.Job)
		q := k.lists.demand[name]
		if !ok || !e.Settled || e.Key == keyspace.Again(e.Job) || q == nil || !k.lists.shown(q, now, id, &f) || f.waits {
			others = append(others, e)
			continue
		}
		left, read := k.known.left(e, now)
		ago := 2 * max(k.cfg.Interval, q.round)
		if !read {
			ago += driver.SettledFor // another Keeper was the last to check the lock
		}
		if k.toRead(e, now, ago) || read && f.kind == alive && judgeAlive(left, f, k.cfg.Reserve).action != keep {
			others = append(others, e)
			continue
		}
		q.roll(now, k.cfg.Interval)
		q.wanted++
		known = append(known, unread{Entry: e, again: f.again, later: f.kind == later})
	}
	return known, others
}
