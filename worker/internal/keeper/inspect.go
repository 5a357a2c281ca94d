package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// concurrency is the largest number of concurrent lookups. A lookup takes one or two round trips. Eight lookups
	// keep the link busy, but not the server.
	concurrency = 8

	// shortestRest is the shortest sleep of the method rested. Until then the rests add up.
	shortestRest = 10 * time.Millisecond

	// askGiveUp is the number of consecutive failed lookups after which inspect skips the other tasks. A failed lookup
	// may take as long as a Redis client waits for a silent server.
	askGiveUp = 2 * concurrency

	// complainEvery is the time in which the method complain logs each text at most once.
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
	rest := k.fromLists(ctx, list, at, found)
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
			if found[i], errs[i] = k.task(jobs[i]); errs[i] != nil {
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
		k.cfg.Logger.Warn("worker: the keeper could not look up one or more tasks; the keeper will check the tasks' locks again", "err", errs[i])
	}
	return nil
}

// The method called notes that calls to asynq's Redis took the time busy. Then the method rested sleeps before the next
// calls, so that calls do not take more than Config.Share of the time.
func (k *Keeper) called(busy time.Duration) {
	if now := time.Now(); k.callFrom.Before(now) {
		k.callFrom = now
	}
	k.callFrom = k.callFrom.Add(time.Duration(float64(busy) * (1/k.cfg.Share - 1)))
}

// The method rested sleeps until calls to asynq's Redis are allowed again.
func (k *Keeper) rested(ctx context.Context) error {
	if left := time.Until(k.callFrom); left >= shortestRest {
		return sleep.For(ctx, left)
	}
	return nil
}

// carries reports whether the task of c carries the current token of the lock, in an envelope with a genuine seal. The
// result halts is true if the lock is the key of a sequence that halts when the task has failed for good, or may be:
// this process cannot read what the task carries.
//
// A task without the token may be an earlier task with the same ID. Then the enqueue for which the lock was parked may
// still be under way, and asynq will refuse that enqueue.
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

// The method complain logs text as an ERROR, at most once per complainEvery.
func (k *Keeper) complain(text string, attrs ...any) {
	now := time.Now()
	if last, ok := k.complained[text]; ok && now.Sub(last) < complainEvery {
		return
	}
	k.complained[text] = now
	k.cfg.Logger.Error(text, attrs...)
}

// lineOf returns the key whose line has the jobs that wait for key. A job that has waited carries the token of that key,
// and may have got another slot.
func lineOf(key string) string {
	line, _ := driver.LineOf(key)
	return line
}

// The method task looks up the task that the parameter job names. Concurrent calls are safe.
func (k *Keeper) task(job string) (finding, error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return finding{kind: foreign}, nil
	}
	f, err := k.find(queue, id)
	if err != nil || f.kind != absent {
		return f, err
	}
	// asynq may still enqueue the aggregate of a group, as long as the members exist.
	if lead, ok := envelope.LeadOf(id); ok {
		l, err := k.find(queue, lead)
		if err != nil || l.state == asynq.TaskStateAggregating {
			return l, err
		}
	}
	return f, nil
}

// find looks up a task in each asynq database of Config.Inspectors. The result is the finding of the highest
// findingKind. If a database does not answer, find fails, unless another database says that the task is alive.
func (k *Keeper) find(queue, id string) (finding, error) {
	best := finding{kind: foreign}
	var failed error
	for _, inspector := range k.cfg.Inspectors {
		f, err := k.lookUp(inspector, queue, id)
		switch {
		case err != nil:
			failed = fmt.Errorf("task %s: %w", envelope.Job(queue, id), err)
		case f.kind == alive:
			return k.met(queue, f), nil
		case f.kind > best.kind:
			best = f
		}
	}
	if failed != nil {
		return finding{}, failed
	}
	return k.met(queue, best), nil
}

// The method knows remembers that a queue exists.
func (k *Keeper) knows(queue string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queues[queue] = true
}

// The method met returns f. If f shows that the queue exists, met remembers the queue. If f says that no database has
// the queue, and the queue existed before, the queue was deleted with all tasks. Then met returns a finding of the kind
// absent.
func (k *Keeper) met(queue string, f finding) finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case f.kind != foreign:
		k.queues[queue] = true
	case k.queues[queue]:
		return finding{kind: absent, reason: reasonNoQueue}
	default:
		k.stranger(queue)
	}
	return f
}

// lookUp looks up a task in one asynq database. Only the timeouts of the inspector's Redis client bound lookUp.
func (k *Keeper) lookUp(inspector *asynq.Inspector, queue, id string) (finding, error) {
	info, err := inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound):
		return finding{kind: foreign}, nil
	case errors.Is(err, asynq.ErrTaskNotFound):
		return finding{kind: absent, reason: reasonAbsent}, nil
	case err != nil:
		return finding{}, err
	}
	f := finding{kind: ended, state: info.State, info: info, in: inspector}
	switch info.State {
	case asynq.TaskStateArchived:
		f.reason, f.snoozed = reasonArchived, k.cfg.Snoozed(info)
	case asynq.TaskStateCompleted:
		f.reason = reasonCompleted
	default:
		f.kind, f.delay = alive, max(0, time.Until(info.NextProcessAt))
		f.waits = nextjob.Waits(envelope.MayWait(info.Headers), info)
	}
	return f, nil
}

// The function each calls f for the numbers 0 to n-1, in up to eight goroutines. When ctx ends, the function each
// returns the cause of ctx without waiting for running calls of f. After an error, f may still be running.
func each(ctx context.Context, n int, f func(i int)) error {
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(concurrency, n) {
		calls.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
