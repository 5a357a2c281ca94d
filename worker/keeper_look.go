package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// lookers bounds the questions and the releases under way at a time. Each is a
// round trip or two, so that this many keep the link busy, and not the server.
const lookers = 8

// suspect is a lock that nobody runs under, and what was found out about its task.
type suspect struct {
	driver.JobLock
	lock joblock.Status // read before the task was asked about
	fate fate
}

// look decides about each of due and acts on it. An error means that some were left
// alone for want of an answer.
func (k *keeper) look(ctx context.Context, due []driver.JobLock) error {
	if len(due) == 0 {
		return nil
	}
	n := KeeperStats{Looks: int64(len(due)), Freed: make(map[string]int64)}
	defer k.add(&n)
	over, idle, err := k.read(ctx, due, &n)
	if err != nil {
		return err
	}
	asked := k.ask(ctx, idle)
	if ctx.Err() != nil {
		return context.Cause(ctx) // before anything is written
	}
	var dead []suspect
	var short []joblock.JobReservation
	var unmarked error
	for _, s := range idle {
		if s.Key == keyspace.Again(s.Job) {
			unmarked = errors.Join(unmarked, k.again(&s))
		}
		switch s.fate.kind {
		case unanswered:
			n.Unanswered++
		case foreign:
			n.Foreign++
		case young:
			n.Kept++
		case alive:
			n.Kept++
			if r := k.reservation(s); s.lock.Reserved <= r.Hold-k.w.cfg.Hold/2 {
				short = append(short, r)
			}
		case absent, ended:
			if s.lock.Locked() {
				dead = append(dead, s)
			} else {
				over = append(over, s.JobLock)
			}
		}
	}
	freed, unfreed := k.free(ctx, dead, &n)
	n.Over = int64(len(over))
	return errors.Join(asked, unmarked, unfreed, k.reserve(ctx, short, &n), k.forget(ctx, append(over, freed...)))
}

// read tells the entries whose lock has ended, or is another job's, from those of
// locks that nobody runs under. Of the others, whoever holds the lock renews it.
func (k *keeper) read(ctx context.Context, due []driver.JobLock, n *KeeperStats) (over []driver.JobLock, idle []suspect, err error) {
	keys := make([]string, len(due))
	for i, d := range due {
		keys[i] = d.Key
	}
	locks, err := k.w.locks.StatusOf(ctx, keys)
	if err != nil {
		n.Unanswered += int64(len(due))
		return nil, nil, err
	}
	for i, lock := range locks {
		switch {
		case lock.Job != due[i].Job, !lock.Locked() && lock.Ended != joblock.EndedLapsed:
			over = append(over, due[i])
		case lock.State == joblock.StateHeld:
			n.Held++
		default:
			idle = append(idle, suspect{JobLock: due[i], lock: lock})
		}
	}
	return over, idle, nil
}

// again runs a task again that is in asynq's archive because it was put back by a
// process that has died since: s is the mark that that one has left. It makes s that of a
// mark that is to go, or to stay for another look.
func (k *keeper) again(s *suspect) error {
	switch {
	case s.fate.kind == unanswered || s.fate.kind == foreign:
		return nil
	case s.fate.again == nil && s.fate.state == asynq.TaskStateActive && standing(s.lock) < enqueueGrace:
		s.fate.kind = young // on its way to the archive, for all that is known
		return nil
	case s.fate.again != nil && !k.w.cfg.DryRun:
		queue, id, _ := envelope.ParseJob(s.Job)
		if err := s.fate.again.RunTask(queue, id); err != nil {
			s.fate.kind = unanswered
			return fmt.Errorf("run task %s again: %w", s.Job, err)
		}
		k.w.cfg.Logger.Info("worker: the keeper has run a task again that was put back", "job", s.Job)
	}
	s.fate.kind, s.fate.reason = ended, reasonAgain
	return nil
}

// reservation is what a task that lives is to have.
func (k *keeper) reservation(s suspect) joblock.JobReservation {
	return joblock.JobReservation{Key: s.Key, Job: s.Job, Hold: k.w.hold(s.fate.delay)}
}

// reserve prolongs reservations.
func (k *keeper) reserve(ctx context.Context, short []joblock.JobReservation, n *KeeperStats) (failed error) {
	if k.w.cfg.DryRun {
		n.Extended = int64(len(short))
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, err := range k.w.locks.ReserveForJob(ctx, short) {
		switch joblock.CodeOf(err) {
		case "":
			n.Extended++
		case joblock.CodeNotOwner, joblock.CodeNotFound, joblock.CodeAlreadyReleased:
			// It has ended since it was read.
		default:
			n.Unanswered++
			failed = err
		}
	}
	return failed
}

// free frees the locks of the dead. It returns those that are free now.
func (k *keeper) free(ctx context.Context, dead []suspect, n *KeeperStats) (freed []driver.JobLock, failed error) {
	errs := make([]error, len(dead))
	if !k.w.cfg.DryRun {
		err := each(ctx, len(dead), func(i int) {
			s := dead[i]
			errs[i] = k.w.locks.ReleaseForJob(ctx, s.Key, s.Job, s.lock.Fence, s.fate.reason)
		})
		if err != nil {
			return nil, err
		}
	}
	for i, s := range dead {
		switch joblock.CodeOf(errs[i]) {
		case "":
			n.Freed[s.fate.reason]++
			freed = append(freed, s.JobLock)
			k.w.cfg.Logger.Info("worker: the keeper has freed the lock of a task",
				"job", s.Job, "key", s.Key, "fence", s.lock.Fence, "reason", s.fate.reason, "dry_run", k.w.cfg.DryRun)
			k.w.neverResumed(s)
		case joblock.CodeBusy, joblock.CodeNotOwner, joblock.CodeNotFound:
			// It was taken up, or has ended, since it was read.
		default:
			n.Unanswered++
			failed = errs[i]
		}
	}
	return freed, failed
}

func (k *keeper) forget(ctx context.Context, entries []driver.JobLock) error {
	if k.w.cfg.DryRun || len(entries) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return k.w.locks.ForgetJobs(ctx, entries)
}

// each calls f for the numbers below n, lookers at a time. When ctx ends it begins
// no further calls and returns ctx's cause, without waiting for those under way:
// nothing that f writes may be read then.
func each(ctx context.Context, n int, f func(i int)) error {
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(lookers, n) {
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
