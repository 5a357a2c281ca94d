//go:build servers

package handoff_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// left returns the tasks that exist, the older first.
func (s *sweep) left(t *testing.T) []*asynq.TaskInfo {
	t.Helper()
	tasks, err := s.direct.inspector.ListPendingTasks(s.queue)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(tasks, func(a, b *asynq.TaskInfo) int {
		if a.ID == s.first.ID {
			return -1
		}
		return 1
	})
	return tasks
}

// take gets the lock for a job as a worker does: by its token, or anew.
func (s *sweep) take(ctx context.Context, info *asynq.TaskInfo) (*joblock.Lock, error) {
	env, _, err := envelopekit.Read(info.Headers)
	if err != nil {
		return nil, err
	}
	token := env.Tokens[0]
	lock, err := s.direct.locks.Resume(ctx, token, joblock.ForJob(envelope.Job(info.Queue, info.ID)))
	switch joblock.CodeOf(err) {
	case joblock.CodeOf(joblock.ErrNotOwner), joblock.CodeOf(joblock.ErrAlreadyReleased), joblock.CodeOf(joblock.ErrNotFound):
		return s.direct.locks.TryAcquire(ctx, token.Key(), door.OwnKey[joblock.Option](), joblock.Owner(door.IdentityOf(token).Owner))
	}
	return lock, err
}

// wantAllRun has the jobs that are left take their lock, one after the other, the
// older first; the keeper frees it of jobs that do not exist.
func (s *sweep) wantAllRun(t *testing.T) {
	t.Helper()
	tasks := s.left(t)
	if len(tasks) == 0 {
		t.Fatal("both jobs are lost")
	}
	for i, info := range tasks {
		var lock *joblock.Lock
		for ; lock == nil; time.Sleep(50 * time.Millisecond) {
			if tasks[0].ID != s.first.ID {
				_ = jobs.Free(t.Context(), s.direct.locks, jobs.Release{Key: slotOf(s.u), Job: envelope.Job(s.queue, s.first.ID), Reason: "job gone"})[0]
			}
			var err error
			if lock, err = s.take(t.Context(), info); err != nil && !joblock.Retryable(err) {
				t.Fatalf("%s of %d jobs cannot have its lock: %v", info.ID, len(tasks), err)
			}
		}
		for _, other := range tasks[i+1:] {
			if second, err := s.take(t.Context(), other); err == nil {
				t.Errorf("%s has the lock %v beside %s", other.ID, second, info.ID)
			}
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.direct.inspector.DeleteTask(info.Queue, info.ID); err != nil {
			t.Error(err)
		}
	}
	wantState(t, s.direct.locks, slotOf(s.u), joblock.StateFree)
}

// The process dies after, or before, any one command: no job is lost, none runs
// beside another, the older runs first, and the key is free in the end.
func TestReplacementThatDiesAtAnyStep(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	const steps = 11 // more than there are commands
	for _, u := range sweeps {
		for n := 1; n <= steps; n++ {
			t.Run(fmt.Sprintf("%s, command %d", u.Key, n), func(t *testing.T) {
				t.Parallel()
				s := replaceStruck(t, db, u, n, -1, redistest.DropReply())
				if s.err == nil {
					s.wantReplaced(t)
					return
				}
				if s.second != nil || s.struck == 0 {
					t.Errorf("returned %v, %v", s.second, s.err)
				}
				t.Logf("%d tasks are left, error %v", len(s.left(t)), s.err)
				s.wantAllRun(t)
			})
		}
	}
}
