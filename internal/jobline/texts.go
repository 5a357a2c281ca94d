package jobline

import (
	"strings"

	"github.com/hibiken/asynq"
)

// These texts are parts of the errors with which package worker ends attempts. asynq keeps the text of a task's last
// error, and other processes, including other versions, read from it what has happened to the task. So the texts are a
// format and must never change. To replace one, write a new text and keep reading both.
const (
	// WaitText is in the last error of a task that was snoozed because its turn had not come. The text says that the
	// task has not run since.
	WaitText = "the job waits for its turn"

	// EarlyText is in the last error of a task that was snoozed because its turn came before its time.
	EarlyText = "the job's turn has come before its time"

	// PauseText is in the last error of a task that was snoozed because an operator has paused one of its keys.
	PauseText = "an operator has paused the job"

	// ArchiveText is in the last error of each task that was snoozed by way of asynq's archive. Another middleware may
	// put text in front. The keeper leaves an archived task without ArchiveText in the archive, and frees its locks: the
	// task has failed.
	ArchiveText = "worker: snoozed without charge, by way of the archive: "

	// SpentText begins the last error of a task that was archived after the spare retry had been charged. A rerun keeps
	// the count of retries; SpentText lets a worker recognise the rerun, which must run.
	SpentText = "worker: no retries left: "
)

// InArchive reports whether the task of info is in the archive only for the pause of a snooze.
func InArchive(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, ArchiveText)
}
