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
	"github.com/joblock/toolkit/joblock"
)

const (
	// concurrency bounds the lookups under way at a time. Each is a round trip or two: this
	// many keep the link busy, but not the server.
	concurrency = 8

	// askGiveUp is how many lookups in a row must fail before the other tasks are left out:
	// each may take as long as a Redis client waits for a silent server.
	askGiveUp = 2 * concurrency
)

// inspect looks up the tasks of list in asynq. An error means that no lookup was answered,
// or that ctx has ended.
func (k *Keeper) inspect(ctx context.Context, list []candidate) error {
	// A task that carries many locks is asked about once.
	var jobs []string
	at := make(map[string]int)
	for _, c := range list {
		if _, ok := at[c.Job]; !ok {
			at[c.Job] = len(jobs)
			jobs = append(jobs, c.Job)
		}
	}
	found := make([]finding, len(jobs))
	errs := make([]error, len(jobs))
	var inARow, answers atomic.Int64
	err := each(ctx, len(jobs), func(i int) {
		if inARow.Load() >= askGiveUp {
			return
		}
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
	for i := range list {
		c := &list[i]
		c.task = found[at[c.Job]]
		if c.task.kind == ended && !c.task.snoozed {
			c.task.carries = k.carries(ctx, c)
		}
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		if answers.Load() == 0 {
			return errs[i] // an outage, not a task that asynq cannot read
		}
		k.cfg.Logger.Warn("worker: the keeper could not find out about a task, and perhaps others", "err", errs[i])
	}
	return nil
}

// carries reports whether the task of c carries the current token of the lock. A task that
// does not may be an earlier one with the same ID, and asynq may be about to refuse the
// enqueue of the lock's job because of it. An envelope that cannot be verified proves
// nothing: carries is false.
func (k *Keeper) carries(ctx context.Context, c *candidate) bool {
	task := envelope.Task{Job: c.Job, Type: c.task.info.Type, Headers: c.task.info.Headers}
	env, _, err := envelope.Open(ctx, k.cfg.Ring.OpenKnown, task)
	return err == nil && slices.ContainsFunc(env.Tokens, func(t joblock.Token) bool {
		return t.Key() == c.lock.Key && t.Digest() == c.lock.Owner
	})
}

// task looks up one job's task. It is safe for concurrent use.
func (k *Keeper) task(job string) (finding, error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return finding{kind: foreign}, nil
	}
	f, err := k.find(queue, id)
	if err != nil || f.kind != absent {
		return f, err
	}
	// A group is aggregated into this task. Until it is enqueued the members exist, and
	// asynq tries again.
	if lead, ok := envelope.LeadOf(id); ok {
		l, err := k.find(queue, lead)
		if err != nil || l.state == asynq.TaskStateAggregating {
			return l, err
		}
	}
	return f, nil
}

// find asks every known asynq database, and returns the finding that keeps the lock
// longest. A task counts as ended or absent only if each of them has answered.
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

// met remembers the queues that exist. One that existed before was deleted, with its tasks.
func (k *Keeper) met(queue string, f finding) finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f.kind != foreign {
		k.queues[queue] = true
	} else if k.queues[queue] {
		return finding{kind: absent, reason: reasonNoQueue}
	}
	return f
}

// lookUp asks one asynq database. It takes as long as its Redis client does.
func (k *Keeper) lookUp(inspector *asynq.Inspector, queue, id string) (finding, error) {
	info, err := inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound):
		return finding{kind: foreign}, nil
	case errors.Is(err, asynq.ErrTaskNotFound):
		return finding{kind: absent, reason: reasonAbsent}, nil
	case err != nil:
		return finding{}, err
	case info.State == asynq.TaskStateArchived:
		return finding{
			kind: ended, state: info.State, reason: reasonArchived,
			snoozed: k.cfg.Snoozed(info), info: info, in: inspector,
		}, nil
	case info.State == asynq.TaskStateCompleted:
		return finding{kind: ended, state: info.State, reason: reasonCompleted, info: info, in: inspector}, nil
	}
	return finding{kind: alive, state: info.State, delay: max(0, time.Until(info.NextProcessAt))}, nil
}

// each calls f for the numbers below n, a few at a time. When ctx ends it returns ctx's
// cause without waiting for calls under way: what f writes must not be read then.
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
