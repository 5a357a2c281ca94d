package asynqbatch

import (
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// Postpone moves an archived task as it is, and no other.
func TestPostpone(t *testing.T) {
	eachServer(t, "default", func(e *ending) {
		t, in := e.t, asynq.NewInspectorFromRedisClient(e.rdb)
		client := asynq.NewClientFromRedisClient(e.rdb)
		opts := []asynq.Option{asynq.TaskID("c"), asynq.MaxRetry(0), asynq.Unique(time.Hour), asynq.Retention(time.Minute)}
		e.must(client.Enqueue(asynq.NewTask("job", []byte("payload")), opts...))
		e.must(nil, in.ArchiveTask("default", "c")) // without an error
		if err := e.in.Postpone("default", "c", "another error", time.Now()); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("with another error: %v, want ErrTaskNotFound", err)
		}
		before, err := in.GetTaskInfo("default", "c")
		e.must(nil, err)
		due := time.Now().Add(time.Hour).Truncate(time.Second)
		e.must(nil, e.in.Postpone("default", "c", "", due))
		after, err := in.GetTaskInfo("default", "c")
		e.must(nil, err)
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
		for _, id := range []string{"a", "b", "c", "d"} { // active, scheduled, waiting for a retry, none
			if err := e.in.Postpone("default", id, "", due.Add(time.Hour)); !errors.Is(err, asynq.ErrTaskNotFound) {
				t.Errorf("%s: %v, want ErrTaskNotFound", id, err)
			}
		}
		if again, err := in.GetTaskInfo("default", "c"); err != nil || !again.NextProcessAt.Equal(due) {
			t.Errorf("the task was moved again: %+v, %v", again, err)
		}
		e.must(nil, in.RunTask("default", "c")) // asynq finds the task where it is
	})
}
