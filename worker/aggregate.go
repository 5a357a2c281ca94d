package worker

import (
	"context"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

// mergePatience is how long to wait for Redis: a fail-over takes less. The server's
// Shutdown waits for it.
const mergePatience = 20 * time.Second

// aggregator moves the locks of a group's members to the task that the group is aggregated
// into. asynq deletes the members without running anything.
type aggregator struct {
	w    *Worker
	next asynq.GroupAggregator
}

// Aggregate implements asynq.GroupAggregator. If Redis does not answer for mergePatience it
// returns nil, which asynq refuses to enqueue: the members and their locks stay as they are.
// asynq returns them to the group two minutes later, but reads the group only when the next
// member comes; hence the patience.
func (a aggregator) Aggregate(group string, members []*asynq.Task) *asynq.Task {
	task := a.next.Aggregate(group, members)
	if task == nil || !slices.ContainsFunc(members, carries) {
		return task
	}
	log := a.w.cfg.Logger.With("group", group, "task", task.Type())
	m, err := a.w.newMerge(group, task)
	if err != nil {
		log.Error("worker: a group's task cannot carry the locks of its members and runs without them", "err", err)
		return task
	}
	defer m.close()
	for start := time.Now(); ; time.Sleep(time.Second) {
		merged, err := m.run(context.Background(), members)
		if err == nil {
			return merged
		}
		if time.Since(start) >= mergePatience {
			log.Warn("worker: the locks of a group could not be moved, it is to be aggregated later", "err", err)
			return nil
		}
	}
}

func carries(task *asynq.Task) bool {
	_, yes := task.Headers()[envelope.Header]
	return yes
}
