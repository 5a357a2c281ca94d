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
	for id, want := range map[string]bool{"t-0": true, "t-1": false, "none": false} {
		if got := in.Scheduled("default", id); got != want {
			t.Errorf("Scheduled(%s) is %t", id, got)
		}
	}
	if got, want := s.taken(), "evalsha, evalsha, evalsha, evalsha, zscore, zscore, zscore"; got != want {
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

// together makes n calls at the same time, while the first two calls have no answer. The function call gets the number of
// the call. All but the first two calls have to wait.
func together(in *Inspector, s *seen, n int, call func(n int)) {
	b := in.batcher
	s.block = make(chan struct{})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { call(i) })
		for b.entered() <= i {
			time.Sleep(50 * time.Microsecond)
		}
	}
	close(s.block)
	calls.Wait()
	s.block = nil
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
	together(in, s, 2+5*most+1, func(n int) {
		if n%10 != 0 {
			look(n)
		} else if !in.Scheduled("default", fmt.Sprint("t-", n)) {
			t.Errorf("t-%d is not scheduled", n)
		}
	})
	got := strings.Split(s.taken(), ", ")
	slices.Sort(got) // the two lanes are not in step
	want := append([]string{"evalsha", "pipeline of 1"}, slices.Repeat([]string{fmt.Sprint("pipeline of ", most)}, 5)...)
	if want = append(want, "zscore"); !slices.Equal(got, want) {
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
	together(in, s, 4, func(int) {
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
	together(in, s, 5, func(n int) {
		if n == 4 && in.Scheduled("default", "t-0") {
			t.Error("a task is scheduled although nobody has answered")
		}
		if _, err := in.GetTaskInfo("default", "t-0"); err != nil {
			failed.Store(n, err)
		}
	})
	for n := range 5 {
		err, any := failed.Load(n)
		if any != (n == 2 || n == 3) && n < 4 || any && !strings.Contains(err.(error).Error(), "no connection") {
			t.Errorf("call %d: %v", n, err)
		}
	}
}
