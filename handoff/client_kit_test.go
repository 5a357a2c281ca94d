package handoff_test

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

// web is the web side of an application: locks in memory, tasks in a Redis.
type web struct {
	store     *faultstore.Store
	locks     *joblock.Locker
	rdb       *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
	jobs      *handoff.Client
	log       testkit.Log
	faults    *faults
}

// newWeb returns a web side on rdb.
func newWeb(t testing.TB, rdb *redis.Client, cfg *handoff.Config) *web {
	t.Helper()
	w := &web{store: newStore(), rdb: rdb, faults: &faults{}}
	w.locks = newLocker(t, w.store)
	w.connect(t, cfg)
	return w
}

// connect makes the web side's Client, of its Locker and its Redis.
func (w *web) connect(t testing.TB, cfg *handoff.Config) {
	t.Helper()
	rdb := w.rdb
	rdb.AddHook(w.faults)
	w.client = asynq.NewClientFromRedisClient(rdb)
	w.inspector = asynq.NewInspectorFromRedisClient(rdb)
	if cfg == nil {
		cfg = &handoff.Config{}
	}
	cfg.Logger = w.log.JSON()
	var err error
	if w.jobs, err = handoff.NewClient(w.locks, w.client, w.inspector, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := w.jobs.Close(ctx); err != nil {
			t.Errorf("close the Client: %v", err)
		}
	})
}

// newMiniWeb returns one on a miniredis, which also works in a synctest bubble.
func newMiniWeb(t testing.TB) *web {
	t.Helper()
	redistest.Ran(t, redistest.MiniBackend())
	return newWeb(t, redistest.MiniClient(t, redistest.Mini(t)), nil)
}

// task returns what is stored of a task.
func (w *web) task(t testing.TB, queue, id string) *asynq.TaskInfo {
	t.Helper()
	info, err := w.inspector.GetTaskInfo(queue, id)
	if err != nil {
		t.Fatalf("task %s in %s: %v", id, queue, err)
	}
	return info
}

// tasks returns how many tasks there are in the default queue.
func (w *web) tasks(t testing.TB) int {
	t.Helper()
	infos, err := w.inspector.ListPendingTasks("default")
	if errors.Is(err, asynq.ErrQueueNotFound) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(infos)
}

// wantWithJob checks that the job alone has the lock: the handle can do nothing,
// the key is parked for the task, and its token resumes for it and for no other.
func (w *web) wantWithJob(t testing.TB, lock *joblock.Lock, info *asynq.TaskInfo) {
	t.Helper()
	if err := lock.Release(context.Background()); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("Release of the handle: %v, want ErrNotOwner", err)
	}
	job := envelope.Job(info.Queue, info.ID)
	if st := wantState(t, w.locks, lock.Key(), joblock.StateParked); st.Job != job {
		t.Errorf("%s is parked for %q, want %q", lock.Key(), st.Job, job)
	}
	env, ok, err := envelopekit.Read(w.task(t, info.Queue, info.ID).Headers)
	if !ok || err != nil {
		t.Fatalf("the task carries no tokens: %v", err)
	}
	for _, token := range env.Tokens {
		if token.Key() != lock.Key() {
			continue
		}
		if _, err := w.locks.Resume(context.Background(), token, joblock.ForJob("default/other")); !errors.Is(err, joblock.ErrNotOwner) {
			t.Errorf("another task resumed the lock: %v", err)
		}
		resumed, err := w.locks.Resume(context.Background(), token, joblock.ForJob(job))
		if err != nil {
			t.Errorf("the job cannot resume its lock: %v", err)
			return
		}
		if err := resumed.Release(context.Background()); err != nil {
			t.Error(err)
		}
		return
	}
	t.Errorf("the task carries no token of %s", lock.Key())
}

// wantParked checks that neither the caller nor anybody else has the lock.
func (w *web) wantParked(t testing.TB, lock *joblock.Lock) {
	t.Helper()
	if err := lock.Release(context.Background()); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("Release of the handle: %v, want ErrNotOwner", err)
	}
	wantState(t, w.locks, lock.Key(), joblock.StateParked)
}

// wantWithCaller checks that the caller alone has the lock, as if nothing had been.
func (w *web) wantWithCaller(t testing.TB, lock *joblock.Lock) {
	t.Helper()
	if err := lock.Err(); err != nil {
		t.Errorf("the caller has lost %s: %v", lock.Key(), err)
	}
	if err := lock.Renew(context.Background()); err != nil {
		t.Errorf("the caller cannot renew %s: %v", lock.Key(), err)
	}
	wantState(t, w.locks, lock.Key(), joblock.StateHeld)
	if err := lock.Release(context.Background()); err != nil {
		t.Errorf("the caller cannot release %s: %v", lock.Key(), err)
	}
	wantState(t, w.locks, lock.Key(), joblock.StateFree)
}

// faults is a go-redis hook: what it is set to do instead happens to the scripts
// that write a task.
type faults struct {
	mu      sync.Mutex    // guards what follows
	down    error         // of every command
	hang    chan struct{} // every command waits for it
	enqueue func(ctx context.Context, apply func() error) error
	each    bool // enqueue is for every script that writes a task, not only for the next
	del     func(ctx context.Context, apply func() error) error
}

func (f *faults) setDown(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

func (f *faults) setHang(until chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang = until
}

// onEnqueue has do called in place of the next script that writes a task; apply
// sends it.
func (f *faults) onEnqueue(do func(ctx context.Context, apply func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueue = do
}

// onEach has do called in place of every script that writes a task. n counts them from 1.
func (f *faults) onEach(do func(n int32, apply func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n atomic.Int32
	f.each, f.enqueue = true, func(_ context.Context, apply func() error) error { return do(n.Add(1), apply) }
}

// onDelete has do called in place of every script that deletes a task.
func (f *faults) onDelete(do func(ctx context.Context, apply func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.del = do
}

// sealedHeader is in each call that writes a task with locks: the seal, and the first word of what is sealed.
var sealedHeader = regexp.MustCompile(`\.[\w-]{43}\.-?\d+ `)

func (f *faults) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (f *faults) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *faults) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f.mu.Lock()
		down, hang, do := f.down, f.hang, f.enqueue
		writes := len(cmd.Args()) > 4 && strings.HasPrefix(cmd.Name(), "eval") && sealedHeader.MatchString(cmd.String())
		if writes && !f.each {
			f.enqueue = nil
		}
		if f.del != nil && strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(cmd.String(), "asynq:{default}:groups") {
			do, writes = f.del, true
		}
		f.mu.Unlock()
		if hang != nil {
			<-hang
		}
		if down != nil {
			cmd.SetErr(down)
			return down
		}
		if !writes || do == nil {
			return next(ctx, cmd)
		}
		var answered atomic.Bool
		err := do(ctx, func() error {
			ctx := context.WithoutCancel(ctx)
			if answered.Load() { // asynq may be reading the reply in cmd
				return next(ctx, redis.NewCmd(ctx, cmd.Args()...))
			}
			return next(ctx, cmd)
		})
		answered.Store(true)
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// warm has asynq's scripts loaded, so that the first script that writes a task
// under test is not answered by NOSCRIPT.
func (w *web) warm(t testing.TB) {
	t.Helper()
	for _, opts := range [][]asynq.Option{nil, {asynq.Unique(hang)}} {
		info, err := w.client.Enqueue(asynq.NewTask("warm", nil), opts...)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.inspector.DeleteTask(info.Queue, info.ID); err != nil {
			t.Fatal(err)
		}
	}
}
