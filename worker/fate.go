package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

const (
	// enqueueGrace is how long a lock must have been parked before it counts that
	// its task does not exist: between the two lies an enqueue. By default go-redis
	// gives up on a silent server after some twenty seconds, and a server that was
	// frozen applies what it has received before it answers a later question.
	enqueueGrace = time.Minute

	// askGiveUp is after how many failures in a row the other tasks are not asked
	// about: each may take as long as a Redis client waits for a silent server.
	askGiveUp = 2 * lookers
)

// Reasons that the keeper leaves in the records of locks it frees.
const (
	reasonArchived  = "keeper: the task is archived"
	reasonCompleted = "keeper: the task is completed"
	reasonAbsent    = "keeper: the task does not exist"
	reasonNoQueue   = "keeper: the queue was deleted"
	reasonAgain     = "keeper: the task is back from the archive"
)

// fate is what follows for a lock from what asynq says about its task.
type fate struct {
	kind   fateKind
	reason string          // of ended and absent
	state  asynq.TaskState // of alive and ended
	delay  time.Duration   // of alive: until it is due

	// Of ended: what says whether it carries a lock.
	taskType string
	headers  map[string]string
	again    *asynq.Inspector // who is to run it again; nil if nobody is
}

type fateKind uint8

const (
	unanswered fateKind = iota // nothing is known
	foreign                    // no task of the asynq databases that are known here
	young                      // there is no such task, and it may still be on its way
	absent                     // there is no such task
	ended                      // it will not run again by itself
	alive                      // it runs, or will
)

// ask finds out about the tasks of idle; it reads each one's lock in idle to judge
// it by. The error says that nobody answers. When ctx has ended idle must not be
// touched again.
func (k *keeper) ask(ctx context.Context, idle []suspect) error {
	// A task that carries many locks is asked about once.
	var jobs []string
	at := make(map[string]int)
	for _, s := range idle {
		if _, ok := at[s.Job]; !ok {
			at[s.Job] = len(jobs)
			jobs = append(jobs, s.Job)
		}
	}
	fates := make([]fate, len(jobs))
	errs := make([]error, len(jobs))
	var inARow, answers atomic.Int64
	err := each(ctx, len(jobs), func(i int) {
		if inARow.Load() >= askGiveUp {
			return
		}
		if fates[i], errs[i] = k.fateOf(jobs[i]); errs[i] != nil {
			inARow.Add(1)
			return
		}
		inARow.Store(0)
		answers.Add(1)
	})
	if err != nil {
		return err
	}
	for i := range idle {
		s := &idle[i]
		s.fate = fates[at[s.Job]]
		// What is not there, or is not what the lock was parked for, says nothing while
		// the enqueue may still be on its way; nor does the archive about a task that is
		// only put back by way of it.
		if (s.fate.kind == absent || s.fate.kind == ended && (s.fate.again != nil || !k.carried(ctx, s))) &&
			s.lock.Locked() && standing(s.lock) < enqueueGrace {
			s.fate.kind = young
		}
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		if answers.Load() == 0 {
			return errs[i] // an outage, not a task that asynq cannot read
		}
		k.w.cfg.Logger.Warn("worker: the keeper could not find out about a task, and perhaps others", "err", errs[i])
	}
	return nil
}

// carried reports whether the task of s carries the lock, as it is now. One that has
// ended may be an earlier task under an ID for which an enqueue is about to be refused.
// What cannot be verified is no proof.
func (k *keeper) carried(ctx context.Context, s *suspect) bool {
	task := envelope.Task{Job: s.Job, Type: s.fate.taskType, Headers: s.fate.headers}
	env, _, err := envelope.Open(ctx, k.w.ring.OpenKnown, task)
	return err == nil && slices.ContainsFunc(env.Tokens, func(t joblock.Token) bool {
		return t.Key() == s.lock.Key && t.Digest() == s.lock.Owner
	})
}

// standing tells for how long a lock has been as it is, since it was parked or
// resumed last: a fence is the store's clock of that moment in µs.
func standing(lock joblock.Status) time.Duration {
	now := lock.Since.Add(lock.Age) // by the same clock
	return now.Sub(time.UnixMicro(lock.Fence))
}

// fateOf asks about one task. It may be called by several goroutines at a time.
func (k *keeper) fateOf(job string) (fate, error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return fate{kind: foreign}, nil
	}
	f, err := k.find(queue, id)
	if err != nil || f.kind != absent {
		return f, err
	}
	// The task that a group is to become. While its enqueue has not come about the
	// group stands, and asynq tries again.
	if lead, ok := envelope.LeadOf(id); ok {
		l, err := k.find(queue, lead)
		if err != nil || l.state == asynq.TaskStateAggregating {
			return l, err
		}
	}
	return f, nil
}

// find looks for a task in every asynq database known here, and returns what speaks
// for keeping its lock the longest. Only where each of them has answered a task is
// taken for ended or absent.
func (k *keeper) find(queue, id string) (fate, error) {
	best := fate{kind: foreign}
	var failed error
	for _, inspector := range k.inspectors {
		f, err := lookUp(inspector, queue, id)
		switch {
		case err != nil:
			failed = fmt.Errorf("task %s: %w", envelope.Job(queue, id), err)
		case f.kind == alive:
			best, failed = f, nil
		case f.kind > best.kind:
			best = f
		}
		if best.kind == alive {
			break
		}
	}
	if failed != nil {
		return fate{}, failed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if best.kind != foreign {
		k.queues[queue] = true
	} else if k.queues[queue] {
		best = fate{kind: absent, reason: reasonNoQueue}
	}
	return best, nil
}

// lookUp asks one asynq database. It takes as long as its Redis client does.
func lookUp(inspector *asynq.Inspector, queue, id string) (fate, error) {
	info, err := inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound):
		return fate{kind: foreign}, nil
	case errors.Is(err, asynq.ErrTaskNotFound):
		return fate{kind: absent, reason: reasonAbsent}, nil
	case err != nil:
		return fate{}, err
	case info.State == asynq.TaskStateArchived:
		f := fate{kind: ended, reason: reasonArchived, state: info.State, taskType: info.Type, headers: info.Headers}
		if toRunAgain(info) {
			f.again = inspector
		}
		return f, nil
	case info.State == asynq.TaskStateCompleted:
		return fate{kind: ended, reason: reasonCompleted, state: info.State, taskType: info.Type, headers: info.Headers}, nil
	}
	return fate{kind: alive, state: info.State, delay: max(0, time.Until(info.NextProcessAt))}, nil
}
