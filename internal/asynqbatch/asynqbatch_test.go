package asynqbatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

// If this fails, asynq has changed its layout: all calls are as expensive as before until clientOf knows the new layout.
func TestClientOfThisAsynq(t *testing.T) {
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	in := asynq.NewInspectorFromRedisClient(rdb)
	if got := clientOf(in); got != redis.UniversalClient(rdb) {
		t.Errorf("the client is %v, want that of the Inspector", got)
	}
	if New(in).batcher == nil {
		t.Error("New has not found the client")
	}
}

func TestUnknownLayoutIsLeftAlone(t *testing.T) {
	type noClient struct{}
	for name, in := range map[string]any{
		"no such field": &struct{ client *noClient }{},
		"nil":           &struct{ rdb *noClient }{},
		"no client":     &struct{ rdb *noClient }{rdb: new(noClient)},
		"no pointer":    &struct{ rdb noClient }{},
	} {
		if got := clientOf(in); got != nil {
			t.Errorf("%s: the client is %v, want nil", name, got)
		}
	}
}

// seen is a hook that notes the commands, "pipeline of" a number among them. Single commands wait while the channel in
// block is open, and pipelines fail with the error in fail.
type seen struct {
	block chan struct{}
	fail  error

	mu   sync.Mutex
	what []string
}

func (*seen) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *seen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "hello" { // of a new connection
			s.note(cmd.Name())
		}
		if s.block != nil && cmd.Name() != "hello" {
			<-s.block
		}
		return next(ctx, cmd)
	}
}

func (s *seen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "hello" || cmds[0].Name() == "client" { // of a new connection
			return next(ctx, cmds)
		}
		s.note(fmt.Sprint("pipeline of ", len(cmds)))
		if s.fail != nil {
			return s.fail
		}
		return next(ctx, cmds)
	}
}

func (s *seen) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.what = append(s.what, what)
}

// taken returns what was noted since the last call.
func (s *seen) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.what = nil }()
	return strings.Join(s.what, ", ")
}

// connect returns a client of mini by way of an address: in memory the two ends of a long pipeline would wait for each
// other.
func connect(t *testing.T, mini *miniredis.Miniredis) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// queue is an asynq whose tasks t-0 to t-299 are scheduled, and an Inspector whose commands are seen.
func queue(t *testing.T) (mini *miniredis.Miniredis, in *Inspector, s *seen) {
	t.Helper()
	mini = redistest.MiniServer(t)
	client := asynq.NewClientFromRedisClient(connect(t, mini))
	for n := range 300 {
		if _, err := client.Enqueue(asynq.NewTask("job", nil), asynq.TaskID(fmt.Sprint("t-", n)), asynq.ProcessIn(1e12)); err != nil {
			t.Fatal(err)
		}
	}
	rdb := connect(t, mini)
	in, s = New(asynq.NewInspectorFromRedisClient(rdb)), new(seen)
	if _, err := in.GetTaskInfo("default", "t-0"); err != nil { // the server knows the script, and there is a connection
		t.Fatal(err)
	}
	if err := in.RunTask("default", "t-299"); err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(s)
	return mini, in, s
}

func TestACallIsOneCommand(t *testing.T) {
	_, in, s := queue(t)
	if info, err := in.GetTaskInfo("default", "t-1"); err != nil || info.State != asynq.TaskStateScheduled {
		t.Errorf("t-1 is %+v, %v", info, err)
	}
	if err := in.RunTask("default", "t-1"); err != nil {
		t.Error(err)
	}
	if info, err := in.GetTaskInfo("default", "t-1"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("t-1 is %+v, %v", info, err)
	}
	if err := in.RunTask("default", "t-1"); err == nil {
		t.Error("a pending task was run")
	}
	if got, want := s.taken(), "evalsha, evalsha, evalsha, evalsha"; got != want {
		t.Errorf("the commands are %s, want %s", got, want)
	}
	for _, queue := range []string{"default", "no such queue"} {
		if _, err := in.GetTaskInfo(queue, "none"); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("task of %s: %v, want ErrTaskNotFound", queue, err)
		}
		if err := in.RunTask(queue, "none"); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("run a task of %s: %v, want ErrTaskNotFound", queue, err)
		}
	}
}

// RunScheduled runs a scheduled task in one command, and leaves all others alone.
func TestRunScheduled(t *testing.T) {
	mini, in, s := queue(t)
	state := func(id string) string { return mini.HGet("asynq:{default}:t:"+id, "state") }
	for _, id := range []string{"t-1", "t-2", "t-3"} {
		if err := in.RunScheduled("default", id); err != nil || state(id) != "pending" {
			t.Errorf("%s is %s: %v", id, state(id), err)
		}
	}
	if got, want := s.taken(), "eval, evalsha, evalsha"; got != want { // the first call brings the text
		t.Errorf("the commands are %s, want %s", got, want)
	}
	if err := in.inner.ArchiveTask("default", "t-4"); err != nil {
		t.Fatal(err)
	}
	s.taken()
	for id, want := range map[string]string{"t-1": "pending", "t-4": "archived", "none": ""} {
		if err := in.RunScheduled("default", id); !errors.Is(err, asynq.ErrTaskNotFound) || state(id) != want {
			t.Errorf("%s is %s, want %s: %v", id, state(id), want, err)
		}
	}
	if got, want := s.taken(), "evalsha, evalsha, evalsha"; got != want {
		t.Errorf("the commands are %s, want %s", got, want)
	}
	if err := connect(t, mini).ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := in.RunScheduled("default", "t-4"); !errors.Is(err, asynq.ErrTaskNotFound) || state("t-4") != "archived" {
		t.Errorf("after a flush of the scripts, t-4 is %s: %v", state("t-4"), err)
	}
	if err := in.RunScheduled("default", "t-5"); err != nil || state("t-5") != "pending" {
		t.Errorf("after a flush of the scripts, t-5 is %s: %v", state("t-5"), err)
	}
	mini.SetError("no answer")
	if err := in.RunScheduled("default", "t-6"); err == nil || errors.Is(err, asynq.ErrTaskNotFound) {
		t.Errorf("without an answer: %v", err)
	}
}

// An asynq that runs tasks in another way than by scripts is refused by the guard.
func TestGuardOfAnotherAsynq(t *testing.T) {
	mini, in, s := queue(t)
	g := newGuard(in.batcher)
	if err := g.ZRem(t.Context(), "asynq:{default}:scheduled", "t-1").Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("a command passes the guard: %v", err)
	}
	_, err := g.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.LPush(t.Context(), "asynq:{default}:pending", "t-1")
		return nil
	})
	if !errors.Is(err, redis.ErrClosed) {
		t.Errorf("a transaction passes the guard: %v", err)
	}
	// The task is another key of the script, and keeps its state elsewhere.
	for _, key := range []string{"asynq:{default}:scheduled", "asynq:{default}:other"} {
		if n, err := g.Eval(t.Context(), "return 1", []string{key}).Int(); n == 1 {
			t.Errorf("a script about %s passes the guard: %v", key, err)
		}
	}
	if got := mini.HGet("asynq:{default}:t:t-1", "state"); got != "scheduled" {
		t.Errorf("t-1 is %s", got)
	}
	if got, want := s.taken(), "eval, eval"; got != want {
		t.Errorf("the commands are %s, want %s", got, want)
	}
}

// together makes n calls at the same time, while the first two calls have no answer. The function call gets the number of
// the call. All but the first two calls have to wait. When together returns, nothing is under way.
func together(t *testing.T, in *Inspector, s *seen, n int, call func(n int)) {
	t.Helper()
	b := in.batcher
	if n := b.entered(); n > 0 {
		t.Fatalf("%d calls are under way before the first", n)
	}
	s.block = make(chan struct{})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { call(i) })
		await(func() bool { return b.entered() > i }) // the call goes, or waits
	}
	close(s.block)
	calls.Wait()
	// A pipeline is under way for a moment after its calls have their answers.
	await(func() bool { return b.entered() == 0 })
	s.block = nil
}

// await waits until the condition holds.
func await(holds func() bool) {
	for !holds() {
		time.Sleep(50 * time.Microsecond)
	}
}

// entered returns how many calls are under way or wait.
func (b *batcher) entered() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = b.underway
	for _, p := range b.waiting {
		n += len(p.cmds)
	}
	return n
}

func TestCallsAtTheSameTimeShareAPipeline(t *testing.T) {
	mini, in, s := queue(t)
	look := func(n int) {
		id := fmt.Sprint("t-", n)
		if info, err := in.GetTaskInfo("default", id); err != nil || info.ID != id {
			t.Errorf("%s is %+v, %v", id, info, err)
		}
	}
	if err := in.RunScheduled("default", "t-298"); err != nil { // now the guarded script is known
		t.Error(err)
	}
	s.taken()
	together(t, in, s, 2+5*most+1, func(n int) {
		if n%10 != 0 {
			look(n)
		} else if err := in.RunScheduled("default", fmt.Sprint("t-", n)); err != nil {
			t.Errorf("t-%d: %v", n, err)
		}
	})
	got := strings.Split(s.taken(), ", ")
	slices.Sort(got) // the two lanes are not in step
	want := append([]string{"evalsha", "evalsha", "pipeline of 1"}, slices.Repeat([]string{fmt.Sprint("pipeline of ", most)}, 5)...)
	if !slices.Equal(got, want) {
		t.Errorf("the commands are %q, want %q", got, want)
	}
	look(0)
	if got := s.taken(); got != "evalsha" {
		t.Errorf("the commands of a single call are %s", got)
	}
	// The server has lost the scripts: each call of the pipeline sends its script.
	mini.FlushAll()
	if err := connect(t, mini).ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	together(t, in, s, 4, func(int) {
		if _, err := in.GetTaskInfo("default", "t-0"); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("after the flush: %v, want ErrTaskNotFound", err)
		}
	})
}

// A pipeline that fails before it is sent fails each of its calls.
func TestPipelineThatIsNotSent(t *testing.T) {
	_, in, s := queue(t)
	s.fail = errors.New("no connection")
	var failed sync.Map
	together(t, in, s, 4, func(n int) {
		if _, err := in.GetTaskInfo("default", "t-0"); err != nil {
			failed.Store(n, err)
		}
	})
	for n := range 4 {
		err, any := failed.Load(n)
		if any != (n > 1) || any && !strings.Contains(err.(error).Error(), "no connection") {
			t.Errorf("call %d: %v", n, err)
		}
	}
}
