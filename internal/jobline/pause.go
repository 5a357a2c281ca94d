package jobline

import (
	"errors"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

// Unpause starts the task of a job that a pause has held back. done is false if the task is active, as it may be for a
// moment until asynq has snoozed it. If asynq does not answer, done is false too, and err says why. If the task is in
// any other state, or does not exist, nothing is left to do.
func (s *Starter) Unpause(job string) (done bool, err error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return true, nil // not a job of asynq
	}
	for _, in := range s.Inspectors {
		info, err := in.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			continue
		case err != nil:
			return false, err
		case info.State == asynq.TaskStateActive:
			return false, nil
		case !strings.Contains(info.LastErr, PauseText):
			return true, nil
		case info.State == asynq.TaskStateRetry, InArchive(info):
			err := in.RunTask(queue, id)
			return err == nil, err
		}
		return true, nil
	}
	return true, nil
}
