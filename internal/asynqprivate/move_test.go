package asynqprivate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

// If this fails, asynq has other scripts: a job of a sequence costs a command more, and tasks are snoozed in the archive,
// until the new scripts were read and the moves found still right.
func TestScriptsOfThisAsynq(t *testing.T) {
	t.Parallel()
	if movesOnce() == nil {
		t.Error("asynq's scripts are not those that the moves are for")
	}
}

// connect returns a client of mini by way of an address.
func connect(t *testing.T, mini *miniredis.Miniredis) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// tasks is an asynq that a test of moves talks to.
type tasks struct {
	t     *testing.T
	rdb   *redis.Client
	inner *asynq.Inspector
	in    *Inspector
	queue string
}

// eachServer calls f with an empty asynq.
func eachServer(t *testing.T, queue string, f func(s *tasks)) {
	t.Parallel()
	for name, client := range map[string]func(*testing.T) *redis.Client{
		"miniredis": func(t *testing.T) *redis.Client { return connect(t, redistest.MiniServer(t)) },
		"redis":     func(t *testing.T) *redis.Client { return redistest.Shared(t).Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := client(t)
			inner := asynq.NewInspectorFromRedisClient(rdb)
			f(&tasks{t, rdb, inner, New(inner), queue})
		})
	}
}

func (s *tasks) must(_ any, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *tasks) enqueue(id string, opts ...asynq.Option) {
	s.t.Helper()
	opts = append(opts, asynq.TaskID(id), asynq.Queue(s.queue))
	s.must(asynq.NewClientFromRedisClient(s.rdb).Enqueue(asynq.NewTask("job", []byte("payload")), opts...))
}

func (s *tasks) want(id string, state asynq.TaskState) {
	s.t.Helper()
	if info, err := s.inner.GetTaskInfo(s.queue, id); err != nil || info.State != state {
		s.t.Errorf("%s is %+v, %v; want %s", id, info, err, state)
	}
}

// RunScheduled runs a scheduled task, and leaves all others alone.
func TestRunScheduled(t *testing.T) {
	for _, queue := range []string{"default", `it's [a] "queue"\n.*`} {
		t.Run(queue, func(t *testing.T) {
			eachServer(t, queue, func(s *tasks) {
				for _, id := range []string{"a", "b", "c", "d"} {
					s.enqueue(id, asynq.ProcessIn(time.Hour))
				}
				for _, id := range []string{"a", "b"} {
					if err := s.in.RunScheduled(queue, id); err != nil {
						s.t.Errorf("run %s: %v", id, err)
					}
					s.want(id, asynq.TaskStatePending)
				}
				s.must(nil, s.inner.ArchiveTask(queue, "c"))
				for id, state := range map[string]asynq.TaskState{"a": asynq.TaskStatePending, "c": asynq.TaskStateArchived, "none": 0} {
					if err := s.in.RunScheduled(queue, id); !errors.Is(err, asynq.ErrTaskNotFound) {
						s.t.Errorf("run %s: %v, want ErrTaskNotFound", id, err)
					}
					if state != 0 {
						s.want(id, state)
					}
				}
				if list, err := s.inner.ListPendingTasks(queue); err != nil || len(list) != 2 {
					s.t.Errorf("pending are %v, %v; want a and b", list, err)
				}
				s.must(s.rdb.HSet(context.Background(), s.in.moves.of(queue, "d")(s.in.moves.task), "state", "active").Result())
				if err := s.in.RunScheduled(queue, "d"); !errors.Is(err, asynq.ErrTaskNotFound) {
					s.t.Errorf("run an active task: %v, want ErrTaskNotFound", err)
				}
			})
		})
	}
}

func TestRunScheduledWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	mini := redistest.MiniServer(t)
	in := New(asynq.NewInspectorFromRedisClient(connect(t, mini)))
	mini.SetError("no answer")
	if err := in.RunScheduled("default", "a"); err == nil || errors.Is(err, asynq.ErrTaskNotFound) {
		t.Errorf("without an answer: %v", err)
	}
}

// Postpone moves an archived task as it is, and no other.
func TestPostpone(t *testing.T) {
	eachServer(t, "default", func(s *tasks) {
		t, in := s.t, s.inner
		s.enqueue("active")
		s.must(s.rdb.HSet(context.Background(), "asynq:{default}:t:active", "state", "active").Result())
		s.enqueue("scheduled", asynq.ProcessIn(time.Hour))
		s.enqueue("c", asynq.MaxRetry(0), asynq.Unique(time.Hour), asynq.Retention(time.Minute))
		s.must(nil, in.ArchiveTask("default", "c")) // without an error
		if err := s.in.Postpone("default", "c", "another error", time.Now()); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("with another error: %v, want ErrTaskNotFound", err)
		}
		before, err := in.GetTaskInfo("default", "c")
		s.must(nil, err)
		due := time.Now().Add(time.Hour).Truncate(time.Second)
		s.must(nil, s.in.Postpone("default", "c", "", due))
		after, err := in.GetTaskInfo("default", "c")
		s.must(nil, err)
		if after.State != asynq.TaskStateRetry || !after.NextProcessAt.Equal(due) || after.Retention != before.Retention ||
			string(after.Payload) != "payload" || after.MaxRetry != 0 || after.Retried != 0 {
			t.Errorf("the task is %+v, was %+v", after, before)
		}
		if list, err := in.ListRetryTasks("default"); err != nil || len(list) != 1 {
			t.Errorf("waiting for a retry are %v, %v", list, err)
		}
		if list, err := in.ListArchivedTasks("default"); err != nil || len(list) != 0 {
			t.Errorf("archived are %v, %v", list, err)
		}
		for _, id := range []string{"active", "scheduled", "c", "none"} {
			if err := s.in.Postpone("default", id, "", due.Add(time.Hour)); !errors.Is(err, asynq.ErrTaskNotFound) {
				t.Errorf("%s: %v, want ErrTaskNotFound", id, err)
			}
		}
		if again, err := in.GetTaskInfo("default", "c"); err != nil || !again.NextProcessAt.Equal(due) {
			t.Errorf("the task was moved again: %+v, %v", again, err)
		}
		s.must(nil, in.RunTask("default", "c")) // asynq finds the task where it is
	})
}

// Reschedule moves a task that waits as it is, in whatever list it is, and no other.
func TestReschedule(t *testing.T) {
	eachServer(t, `it's [a] "queue"\n.*`, func(s *tasks) {
		t, in, due := s.t, s.inner, time.Now().Add(time.Hour).Truncate(time.Second)
		s.enqueue("active")
		s.must(s.rdb.HSet(context.Background(), s.in.moves.of(s.queue, "active")(s.in.moves.task), "state", "active").Result())
		s.enqueue("archived", asynq.ProcessIn(time.Hour))
		s.must(nil, in.ArchiveTask(s.queue, "archived"))
		for _, id := range []string{"active", "archived", "none"} {
			for _, at := range []time.Time{due, {}} {
				if err := s.in.Reschedule(s.queue, id, at); !errors.Is(err, asynq.ErrTaskNotFound) {
					t.Errorf("%s: %v, want ErrTaskNotFound", id, err)
				}
			}
		}
		s.enqueue("pending", asynq.Retention(time.Minute))
		s.enqueue("scheduled", asynq.ProcessIn(2*time.Hour), asynq.Retention(time.Minute))
		s.enqueue("retry", asynq.Retention(time.Minute))
		s.must(nil, in.ArchiveTask(s.queue, "retry"))
		s.must(nil, s.in.Postpone(s.queue, "retry", "", due.Add(time.Hour)))
		want := map[string]asynq.TaskState{"pending": asynq.TaskStateScheduled, "scheduled": asynq.TaskStateScheduled, "retry": asynq.TaskStateScheduled}
		for id, state := range want {
			s.must(nil, s.in.Reschedule(s.queue, id, due))
			if got, err := in.GetTaskInfo(s.queue, id); err != nil || got.State != state || !got.NextProcessAt.Equal(due) || got.Retention != time.Minute || string(got.Payload) != "payload" {
				t.Errorf("%s is %+v, %v", id, got, err)
			}
		}
		if q, err := in.GetQueueInfo(s.queue); err != nil || q.Pending != 1 || q.Scheduled != 3 || q.Retry != 0 || q.Archived != 1 {
			t.Errorf("the queue is %+v, %v", q, err)
		}
		for range 2 { // the second time they are pending
			for id := range want {
				s.must(nil, s.in.Reschedule(s.queue, id, time.Time{}))
				s.want(id, asynq.TaskStatePending)
			}
		}
		if q, err := in.GetQueueInfo(s.queue); err != nil || q.Pending != 4 || q.Scheduled != 0 || q.Retry != 0 {
			t.Errorf("the queue is %+v, %v", q, err)
		}
	})
}

func TestRescheduleInAnUnknownAsynq(t *testing.T) {
	t.Parallel()
	if err := (&Inspector{}).Reschedule("default", "a", time.Time{}); !errors.Is(err, errUnknownScripts) {
		t.Errorf("%v, want errUnknownScripts", err)
	}
}
