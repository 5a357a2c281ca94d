package keeper

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// askGiveUp is the number of consecutive failed lookups after which inspect skips the other tasks. A failed lookup
	// may take as long as a Redis client waits for a silent server.
	askGiveUp = 2 * concurrency

	// complainEvery is the time in which complain logs each text at most once.
	complainEvery = 10 * time.Minute

	// burst is how many lookups come between two rests.
	burst = 8 * concurrency
)

// inspect looks up the task of each candidate in asynq and sets the field task. inspect fails if ctx has ended, or if
// all lookups failed. A candidate whose lookup failed or was skipped gets a finding of the kind unanswered.
func (k *Keeper) inspect(ctx context.Context, list []candidate) error {
	var jobs []string          // one lookup for a task that carries many locks
	at := make(map[string]int) // by job: the index in jobs
	for i := range list {
		c := &list[i]
		if _, ok := at[c.Job]; !ok {
			at[c.Job] = len(jobs)
			jobs = append(jobs, c.Job)
		}
	}
	found := make([]finding, len(jobs))
	errs := make([]error, len(jobs))
	var inARow, answers atomic.Int64
	rest := k.lists.fromLists(ctx, list, at, found)
	if len(rest) < len(jobs) {
		answers.Add(1)
	}
	for part := range slices.Chunk(rest, burst) {
		if err := k.rested(ctx); err != nil {
			return err
		}
		start, before := time.Now(), answers.Load()
		err := each(ctx, len(part), func(n int) {
			if inARow.Load() >= askGiveUp {
				return
			}
			i := part[n]
			if found[i], errs[i] = k.databases.task(jobs[i]); errs[i] != nil {
				inARow.Add(1)
				return
			}
			inARow.Store(0)
			answers.Add(1)
		})
		if err != nil {
			return err
		}
		if answers.Load() > before {
			k.called(time.Since(start))
		}
	}
	for i := range list {
		c := &list[i]
		c.task = found[at[c.Job]]
		if c.task.kind == ended && !c.task.snoozed {
			c.task.carries, c.task.halts = k.carries(ctx, c)
		}
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		if answers.Load() == 0 {
			return errs[i] // an outage; a single error may come from one broken task
		}
		k.cfg.Logger.Warn("worker: the keeper could not look up one or more tasks; it will check their locks again", "err", errs[i])
	}
	return nil
}

// carries reports whether the task of c carries the current token of the lock, in an envelope with a genuine seal.
// halts is true if the lock is the key of a sequence that the failed task halts, or if it may be, because this process
// cannot read what the task carries.
//
// A task without the token may be an earlier task with the same ID: the enqueue for which the lock was parked may still
// be under way, and asynq will refuse it.
func (k *Keeper) carries(ctx context.Context, c *candidate) (carries, halts bool) {
	task := envelope.Task{Job: c.Job, Type: c.task.info.Type, Headers: c.task.info.Headers}
	env, _, err := envelope.Open(ctx, k.cfg.Ring.OpenKnown, task)
	if unreadable := (*envelope.Unreadable)(nil); errors.As(err, &unreadable) {
		if c.task.state != asynq.TaskStateArchived {
			return false, false
		}
		k.complain("worker: the keeper cannot read which locks an archived task carries. The task may halt a sequence, so its lock "+
			"stays locked until a keeper that can read it works, or the task is deleted or run again",
			"job", c.Job, "key", c.Key, "err", err)
		return false, true
	}
	carries = err == nil && slices.ContainsFunc(env.Tokens, func(t joblock.Token) bool {
		return lineOf(t.Key()) == lineOf(c.lock.Key) && t.Digest() == c.lock.Owner
	})
	halts = carries && env.Sequence != nil && env.Sequence.Halt && env.Sequence.Token.Key() == c.lock.Key &&
		c.task.state == asynq.TaskStateArchived
	return carries, halts
}

// complain logs text as an ERROR, at most once per complainEvery.
func (k *Keeper) complain(text string, attrs ...any) {
	now := time.Now()
	if last, ok := k.complained[text]; ok && now.Sub(last) < complainEvery {
		return
	}
	k.complained[text] = now
	k.cfg.Logger.Error(text, attrs...)
}

// lineOf returns the key in whose line the jobs for key wait. A job that has waited carries the token of that key, and
// may have got another slot.
func lineOf(key string) string {
	line, _ := driver.LineOf(key)
	return line
}
