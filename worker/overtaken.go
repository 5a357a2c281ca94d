package worker

import (
	"context"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// When jobs replace each other, an older job must not run after a newer one. An enqueue that dies halfway can leave
// behind an older job that nothing replaces any more. Each job carries the fence with which its enqueue took the lock
// on the key (with handoff.KeepLast: on keyspace.Next of the key), so the newer job is the one with the larger fence.
//
// The record at keyspace.Last has the largest fence of the jobs that have started. Only a job that has the lock it runs
// under writes the record, so no other job of the key starts between the read and the write. A keeper or an operator
// who ends the lock on the key does not touch the record. A job that has not started is not in the record, so no job is
// skipped for the sake of one that never runs.
//
// Jobs with handoff.Unique.UntilStarted are not compared: an interrupted job has to run again, even after newer ones.

// startsOf is the content of the record at keyspace.Last.
type startsOf struct {
	key   string // of the lock with which the jobs were enqueued
	fence int64
	job   string // may be cut
}

// news returns what the job writes to the records when it starts.
func (c *carrier) news() (all []startsOf) {
	for _, token := range c.newest {
		if fence := core.Token(token).Fence(); fence > 0 {
			all = append(all, startsOf{token.Key(), fence, c.job})
		}
	}
	return all
}

// overtaken returns a *verdict.Superseded if a newer job than this one has started, and otherwise what noteStart must
// write. A job that has run before may run again: this is its retry, or an operator has run it again. The aggregated
// task of a group runs too, because it stands for several jobs. Any other error snoozes the task.
func (c *carrier) overtaken(ctx context.Context) (news []startsOf, err error) {
	own := c.news()
	if len(own) == 0 {
		return nil, nil
	}
	keys := make([]string, len(own))
	for i, o := range own {
		keys[i] = keyspace.Last(o.key)
	}
	sts, err := c.w.locks.Status(ctx, keys...)
	if err != nil {
		return nil, c.notKnown(own[0].key, err)
	}
	for i, o := range own {
		last := parseStarts(o.key, sts[i].Holder)
		if last.fence < o.fence {
			news = append(news, o)
		}
		if last.fence <= o.fence || c.members > 1 {
			continue
		}
		info, err := c.w.inspector.GetTaskInfo(c.queue, c.id)
		ran, err := verdict.HasRun(o.key, info, err)
		switch {
		case err != nil:
			return nil, c.notKnown(o.key, err)
		case !ran:
			c.log().Info("worker: skipped a task, because the newer task that replaces it has started", "key", o.key, "newer", last.job)
			return nil, &verdict.Superseded{By: last.job}
		}
	}
	return news, nil
}

// noteStart writes that the job starts.
func (c *carrier) noteStart(ctx context.Context, news []startsOf) error {
	for _, n := range news {
		if err := c.w.writeStart(ctx, n); err != nil {
			return c.notKnown(n.key, err)
		}
	}
	return nil
}

// notKnown returns an error that snoozes the task, because the record about key could not be read or written. An error
// that a later attempt would meet again is logged, and notKnown returns nil.
func (c *carrier) notKnown(key string, err error) error {
	if snoozed := c.w.snooze(err); snoozed != nil {
		return snoozed
	}
	c.log().Warn("worker: it is not known whether a newer job of the key has started", "key", key, "err", err)
	return nil
}

// writeStart writes n, as the holder label of a lock whose lease ends at once: that takes one call and no release. The
// store keeps the record for Config.Reserve. An older job that waits has an attempt within that time, unless it is due
// later.
func (w *tools) writeStart(ctx context.Context, n startsOf) error {
	const op = "acquire"
	key, once := keyspace.Last(n.key), uuid.NewString()
	var reply driver.Reply
	for tries := 0; ; tries++ {
		err := (*core.Locker)(w.locks).Call(ctx, op, key, func(ctx context.Context, store driver.Store) (err error) {
			reply, err = store.Acquire(ctx, driver.AcquireRequest{
				Key: key, Owner: once, Nonce: once, TTL: driver.MinPeriod, Retain: w.cfg.Reserve, Holder: n.String(),
			})
			return err
		})
		if err != nil {
			return err
		}
		// The lease of the job that started before may not have run out yet.
		if reply.Outcome != driver.OutcomeHeld || tries == startTries || sleep.For(ctx, driver.MinPeriod) != nil {
			return core.Refusal(op, key, reply)
		}
	}
}

const startTries = 20

// String returns the label. It cuts the job's ID if the label would be too long.
func (s startsOf) String() string {
	text := strconv.FormatInt(s.fence, 10) + " " + s.job
	return strings.ToValidUTF8(text[:min(len(text), driver.MaxLabelBytes)], "")
}

// parseStarts reverses startsOf.String. The fence is 0 if there is no record.
func parseStarts(key, label string) startsOf {
	fence, job, _ := strings.Cut(label, " ")
	n, _ := strconv.ParseInt(fence, 10, 64)
	return startsOf{key, n, job}
}
