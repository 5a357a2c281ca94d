package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// sweep is one replacement on a real Redis, through a proxy that strikes its
// commands from one of them on.
type sweep struct {
	u             handoff.Unique
	queue         string
	direct        *web // not through the proxy
	first, second *asynq.TaskInfo
	struck        int
	err           error
}

// replaceStruck replaces a job that waits. Of the commands for that, beginning with
// the nth, as many as times are struck.
func replaceStruck(t *testing.T, server *redistest.Server, u handoff.Unique, n, times int, action redistest.Action) *sweep {
	t.Helper()
	name := fmt.Sprintf("%s-%d-%d", u.Key, n, times)
	s := &sweep{u: u, queue: "q-" + name, direct: sweepWeb(t, server.Addr(), 0)}
	s.u.Key = name
	options := func(id string) []asynq.Option {
		return []asynq.Option{asynq.Queue(s.queue), asynq.TaskID(id + "-" + name)}
	}
	task := asynq.NewTask("export", nil)
	first, err := s.direct.jobs.EnqueueUnique(t.Context(), s.u, task, options("first")...)
	if err != nil {
		t.Fatal(err)
	}
	s.first = first.Task

	proxy := redistest.NewProxy(t, server.Addr())
	patience := time.Duration(0)
	if times < 0 { // no command is answered again
		patience = time.Second
	}
	w := sweepWeb(t, proxy.Addr(), patience)
	if err := door.Of(w.locks).Ring().Ready(t.Context()); err != nil { // connects
		t.Fatal(err)
	}
	seen := 0
	fault := proxy.Times(times, func(c redistest.Command) bool {
		if slices.Contains([]string{"HELLO", "CLIENT", "PING"}, c.Name()) {
			return false
		}
		seen++
		return seen >= n
	}, action)
	second, err := w.jobs.EnqueueUnique(t.Context(), s.u, task, options("second")...)
	s.second, s.err, s.struck = second.Task, err, fault.Hits()
	return s
}

// sweepWeb returns the web side of a process that waits for the server as long as patience; 0 for the defaults.
func sweepWeb(t *testing.T, addr string, patience time.Duration) *web {
	t.Helper()
	client := func() *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 1, ReadTimeout: patience})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	w := &web{rdb: client(), faults: &faults{}}
	var err error
	w.locks, err = joblock.New(redisstore.New(client(), nil), &joblock.Config{
		TTL: 5 * time.Second, CallTimeout: patience, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A process that has died cannot clean up after a call without an answer.
		if err := w.locks.Close(context.Background()); err != nil && !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("close the Locker: %v", err)
		}
	})
	w.connect(t, nil)
	return w
}

// wantReplaced checks that the second job alone is there and has the key.
func (s *sweep) wantReplaced(t *testing.T) {
	t.Helper()
	if s.err != nil || s.second == nil {
		t.Fatalf("%v, %v; want it to succeed", s.second, s.err)
	}
	s.direct.wantNoTask(t, s.first)
	s.direct.wantOnly(t, s.u, handoff.Enqueued{Task: s.second})
}

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
		for deadline := time.Now().Add(hang); lock == nil; time.Sleep(50 * time.Millisecond) {
			if tasks[0].ID != s.first.ID {
				_ = jobs.Free(t.Context(), s.direct.locks, jobs.Release{Key: slotOf(s.u), Job: envelope.Job(s.queue, s.first.ID), Reason: "job gone"})[0]
			}
			var err error
			if lock, err = s.take(t.Context(), info); err != nil && !joblock.Retryable(err) || time.Now().After(deadline) {
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

var sweeps = []handoff.Unique{
	{Key: "done", OnConflict: handoff.Replace},
	{Key: "last", OnConflict: handoff.KeepLast},
}

// Any one reply is lost: the command is sent again, and it is a success.
func TestReplacementWithALostReply(t *testing.T) {
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	for _, u := range sweeps {
		t.Run(u.Key, func(t *testing.T) {
			for n := 1; ; n++ {
				s := replaceStruck(t, server, u, n, 1, redistest.DropReply())
				s.wantReplaced(t)
				if s.struck == 0 {
					if n < 8 {
						t.Errorf("only %d commands; this test shows nothing", n-1)
					}
					break
				}
			}
		})
	}
}

// The process dies after, or before, any one command: no job is lost, none runs
// beside another, the older runs first, and the key is free in the end.
func TestReplacementThatDiesAtAnyStep(t *testing.T) {
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	const steps = 11 // more than there are commands
	for _, u := range sweeps {
		for n := 1; n <= steps; n++ {
			t.Run(fmt.Sprintf("%s, command %d", u.Key, n), func(t *testing.T) {
				t.Parallel()
				s := replaceStruck(t, server, u, n, -1, redistest.DropReply())
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
