package worker

import (
	"context"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

// mergePatience is how long Aggregate repeats failed calls. A fail-over of Redis takes less. The server's Shutdown
// waits for Aggregate.
const mergePatience = 20 * time.Second

// aggregator moves the locks of a group's members to the task that the group is aggregated into. asynq deletes the
// members without calling a middleware.
type aggregator struct {
	w    *Worker
	next asynq.GroupAggregator
}

// Aggregate implements asynq.GroupAggregator. If the locks cannot be moved within mergePatience, Aggregate returns nil.
// asynq then keeps the members, and they keep their locks. asynq returns them to the group two minutes later, but reads
// the group only when the next member comes. So mergePatience is long.
func (a aggregator) Aggregate(group string, members []*asynq.Task) *asynq.Task {
	task := a.next.Aggregate(group, members)
	if task == nil || !slices.ContainsFunc(members, carries) {
		return task
	}
	log := a.w.cfg.Logger.With("group", group, "task", task.Type())
	m, err := a.w.newMerge(group, task)
	if err != nil {
		log.Error("worker: the task of a group cannot carry the locks of the group's members and runs without locks", "err", err)
		return task
	}
	defer m.close()
	for start := time.Now(); ; time.Sleep(time.Second) {
		merged, err := m.run(context.Background(), members)
		if err == nil {
			return merged
		}
		if time.Since(start) >= mergePatience {
			log.Warn("worker: the locks of a group could not be moved; asynq will aggregate the group later", "err", err)
			return nil
		}
	}
}

func carries(task *asynq.Task) bool {
	_, yes := task.Headers()[envelope.Header]
	return yes
}
