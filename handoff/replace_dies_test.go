package handoff_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// left returns the tasks that exist, first the one whose job has the lock: the older, as a rule. A stand-in is scheduled.
func (s *sweep) left(t *testing.T) []*asynq.TaskInfo {
	t.Helper()
	tasks, err := s.direct.inspector.ListPendingTasks(s.queue)
	if err != nil {
		t.Fatal(err)
	}
	scheduled, err := s.direct.inspector.ListScheduledTasks(s.queue)
	if err != nil {
		t.Fatal(err)
	}
	tasks = append(tasks, scheduled...)
	has := wantAny(t, s.direct.locks, slotOf(s.u)).Job
	slices.SortFunc(tasks, func(a, b *asynq.TaskInfo) int {
		if envelope.Job(a.Queue, a.ID) == has {
			return -1
		}
		return 1
	})
	return tasks
}

// take gets the lock for a job as a worker does: by its token, or by acquiring it.
func (s *sweep) take(ctx context.Context, info *asynq.TaskInfo) (*joblock.Lock, error) {
	env, _, err := envelopekit.Read(info.Headers)
	if err != nil {
		return nil, err
	}
	token := env.Tokens[0]
	lock, err := s.direct.locks.Resume(ctx, token, joblock.ForJob(envelope.Job(info.Queue, info.ID)))
	switch joblock.CodeOf(err) {
	case joblock.CodeOf(joblock.ErrNotOwner), joblock.CodeOf(joblock.ErrAlreadyReleased), joblock.CodeOf(joblock.ErrNotFound):
		return s.direct.locks.TryAcquire(ctx, token.Key(), core.OwnKey, joblock.Owner(core.Token(token).Owner()))
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
			// The job may be one that stood in while the task was replaced by one with the same TaskID.
			gone := func(job string) bool {
				return !slices.ContainsFunc(tasks, func(info *asynq.TaskInfo) bool { return envelope.Job(info.Queue, info.ID) == job })
			}
			if has := wantAny(t, s.direct.locks, slotOf(s.u)).Job; has != "" && gone(has) {
				_ = jobs.Free(t.Context(), s.direct.locks, jobs.Release{Key: slotOf(s.u), Job: has, Reason: "job gone"})[0]
			}
			var err error
			if lock, err = s.take(t.Context(), info); err != nil && !joblock.Retryable(err) {
				t.Fatalf("%s of %d jobs cannot have its lock: %v", info.ID, len(tasks), err)
			}
		}
		for _, other := range tasks[i+1:] {
			if second, err := s.take(t.Context(), other); err == nil {
				t.Errorf("%s has the lock %v together with %s", other.ID, second, info.ID)
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

// dying is a go-redis hook of a process that dies: the last of its commands is applied and has no answer, and those
// after it are not sent.
type dying struct {
	armed atomic.Bool
	left  atomic.Int32
}

func (d *dying) do(apply func() error) error {
	if !d.armed.Load() {
		return apply()
	}
	left := d.left.Add(-1)
	if left > 0 {
		return apply()
	}
	if left == 0 {
		_ = apply()
	}
	return errDown
}

func (d *dying) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (d *dying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := d.do(func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

func (d *dying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := d.do(func() error { return next(ctx, cmds) })
		if errors.Is(err, errDown) {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// dyingWeb returns the web side of a process on m, with its locks there, too.
func dyingWeb(t *testing.T, m *miniredis.Miniredis, d *dying) *web {
	t.Helper()
	client := func() *redis.Client {
		rdb := redistest.MiniClient(t, m)
		rdb.AddHook(d)
		return rdb
	}
	w := &web{rdb: client(), faults: &faults{}}
	var err error
	w.locks, err = joblock.New(testkit.Must(redisstore.New(client(), nil)), &joblock.Config{TTL: 5 * time.Second, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.locks.Close(context.Background()); err != nil && !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("close the Locker: %v", err)
		}
	})
	w.connect(t, nil)
	return w
}

// The process dies after any one command: no job is lost, none runs at the same time as another, the older runs first,
// and the key is free in the end. TestReplacementThatDiesAtAnyStep does the same on a real server.
func TestReplacementThatDiesInTheModel(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	for _, u := range sweeps {
		for _, id := range []string{"second", "first"} {
			t.Run(u.Key+" by "+id, func(t *testing.T) { replaceAndDie(t, u, id) })
		}
	}
}

// replaceAndDie replaces the job "first" by the job id, in processes that die after one command, two commands and so on.
func replaceAndDie(t *testing.T, u handoff.Unique, id string) {
	t.Helper()
	const steps = 24 // more than there are commands
	failed := 0
	for n := int32(1); n <= steps; n++ {
		synctest.Test(t, func(t *testing.T) {
			m := redistest.Mini(t)
			s := &sweep{u: u, queue: "q", direct: dyingWeb(t, m, &dying{})}
			first, err := s.direct.jobs.Enqueue(t.Context(), s.u, asynq.NewTask("export", []byte("first")), asynq.Queue(s.queue), asynq.TaskID("first"))
			if err != nil {
				t.Fatal(err)
			}
			s.first = first.Task
			d := &dying{}
			w := dyingWeb(t, m, d)
			if err := (*core.Locker)(w.locks).Ring().Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.left.Store(n)
			d.armed.Store(true)
			second, err := w.jobs.Enqueue(t.Context(), s.u, asynq.NewTask("export", []byte("second")), asynq.Queue(s.queue), asynq.TaskID(id))
			s.second, s.err = second.Task, err
			if err == nil {
				s.wantReplaced(t)
				return
			}
			failed++
			if s.second != nil || n == steps {
				t.Errorf("command %d: returned %v, %v", n, s.second, err)
			}
			s.wantAllRun(t)
		})
	}
	if failed < 3 && os.Getenv(redistest.RealOnlyEnv) == "" { // which skips all that is on miniredis
		t.Errorf("only %d deaths; this test shows nothing", failed)
	}
}
