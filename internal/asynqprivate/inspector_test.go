package asynqprivate

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

// If this fails, asynq has changed its layout: all calls are those of an asynq.Inspector until clientOf knows the new layout.
func TestClientOfThisAsynq(t *testing.T) {
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	in := asynq.NewInspectorFromRedisClient(rdb)
	if got := clientOf(in); got != redis.UniversalClient(rdb) {
		t.Errorf("the client is %v, want that of the Inspector", got)
	}
	if New(in).client == nil {
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

// seen is a hook that notes the commands.
type seen struct {
	mu   sync.Mutex
	what []string
}

func (*seen) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *seen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.mu.Lock()
		s.what = append(s.what, cmd.Name())
		s.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (*seen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// taken returns what was noted since the last call.
func (s *seen) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.what = nil }()
	return strings.Join(s.what, ", ")
}

func TestACallIsOneCommand(t *testing.T) {
	rdb := connect(t, redistest.MiniServer(t))
	client := asynq.NewClientFromRedisClient(rdb)
	for _, id := range []string{"a", "b", "c", "d"} {
		if _, err := client.Enqueue(asynq.NewTask("job", nil), asynq.TaskID(id), asynq.ProcessIn(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	in, s := New(asynq.NewInspectorFromRedisClient(rdb)), new(seen)
	if _, err := in.GetTaskInfo("default", "a"); err != nil { // the server knows the scripts, and there is a connection
		t.Fatal(err)
	}
	if err := errors.Join(in.RunTask("default", "a"), in.RunScheduled("default", "b")); err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(s)
	if info, err := in.GetTaskInfo("default", "c"); err != nil || info.State != asynq.TaskStateScheduled {
		t.Errorf("c is %+v, %v", info, err)
	}
	if err := errors.Join(in.RunTask("default", "c"), in.RunScheduled("default", "d")); err != nil {
		t.Error(err)
	}
	if info, err := in.GetTaskInfo("default", "c"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("c is %+v, %v", info, err)
	}
	if err := in.RunTask("default", "c"); err == nil {
		t.Error("a pending task was run")
	}
	if got, want := s.taken(), "evalsha, evalsha, evalsha, evalsha, evalsha"; got != want {
		t.Errorf("the commands are %s, want %s", got, want)
	}
	for _, queue := range []string{"default", "no such queue"} {
		if _, err := in.GetTaskInfo(queue, "none"); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("task of %s: %v, want ErrTaskNotFound", queue, err)
		}
		for _, run := range []func(queue, id string) error{in.RunTask, in.RunScheduled} {
			if err := run(queue, "none"); !errors.Is(err, asynq.ErrTaskNotFound) {
				t.Errorf("run a task of %s: %v, want ErrTaskNotFound", queue, err)
			}
		}
	}
}
