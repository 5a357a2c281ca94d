package ops

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// The attempt of a task is the one that runs, or that ran last. The attempt with which a task has failed for good is not
// counted as a retry, and a task that was archived between two attempts has had no such attempt.
func TestAttemptOfATask(t *testing.T) {
	t.Parallel()
	failed := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		info asynq.TaskInfo
		want int
	}{
		"the first one runs":              {asynq.TaskInfo{State: asynq.TaskStateActive, MaxRetry: 25}, 1},
		"it waits for the third":          {asynq.TaskInfo{State: asynq.TaskStateRetry, MaxRetry: 25, Retried: 2, LastFailedAt: failed}, 2},
		"archived before the third":       {asynq.TaskInfo{State: asynq.TaskStateArchived, MaxRetry: 25, Retried: 2, LastFailedAt: failed, LastErr: "no disk"}, 2},
		"archived before the first":       {asynq.TaskInfo{State: asynq.TaskStateArchived, MaxRetry: 25}, 0},
		"it never had a retry":            {asynq.TaskInfo{State: asynq.TaskStateArchived}, 0},
		"the last one has failed":         {asynq.TaskInfo{State: asynq.TaskStateArchived, MaxRetry: 2, Retried: 2, LastFailedAt: failed, LastErr: "no disk"}, 3},
		"the only one has failed":         {asynq.TaskInfo{State: asynq.TaskStateArchived, LastFailedAt: failed, LastErr: "no disk"}, 1},
		"the first wants no retry":        {asynq.TaskInfo{State: asynq.TaskStateArchived, MaxRetry: 25, LastFailedAt: failed, LastErr: "gone"}, 1},
		"the third wants no retry":        {asynq.TaskInfo{State: asynq.TaskStateArchived, MaxRetry: 25, Retried: 2, LastFailedAt: failed, LastErr: "gone: skip retry for the task"}, 3},
		"the second has ended well":       {asynq.TaskInfo{State: asynq.TaskStateCompleted, MaxRetry: 25, Retried: 1}, 2},
		"it has used its spare retry too": {asynq.TaskInfo{State: asynq.TaskStateArchived, MaxRetry: 2, Retried: 3, LastFailedAt: failed}, 3},
	} {
		c.info.Queue, c.info.ID = "q", "1"
		if got := taskOf(Database{Name: "jobs"}, &c.info); got.Attempt != c.want {
			t.Errorf("%s: attempt %d, want %d", name, got.Attempt, c.want)
		}
	}
}
