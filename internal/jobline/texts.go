package jobline

import (
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// These texts are parts of the errors with which package worker ends attempts. asynq keeps the text of a task's last
// error, and other processes, including other versions, read from it what has happened to the task. So the texts are a
// format and must never change. To replace one, write a new text and keep reading both.
const (
	// WaitText is in the last error of a task that was snoozed because its turn had not come. The text says that the
	// task has not run since.
	WaitText = "the job waits for its turn"

	// RateText begins the last error of a task that was snoozed because the rate of a key was used up. RateWait has the
	// format, and RateOf reads it.
	RateText = "the job waits for the rate of key "

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

// rateUntil stands between the key and the time in a RateWait.
const rateUntil = ", until "

// RateWait returns the text for a job that waits for the rate of key until at, as far as known.
func RateWait(key string, at time.Time) string {
	return RateText + strconv.Quote(key) + rateUntil + at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// RateOf returns the key and the time in lastErr, if it contains a RateWait.
func RateOf(lastErr string) (key string, until time.Time, ok bool) {
	_, rest, ok := strings.Cut(lastErr, RateText)
	if !ok {
		return "", until, false
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return "", until, false
	}
	key, _ = strconv.Unquote(quoted)
	at, ok := strings.CutPrefix(rest[len(quoted):], rateUntil)
	if !ok {
		return "", until, false
	}
	at, _, _ = strings.Cut(at, ";") // followed by the error of rate.RetryAfter
	until, err = time.Parse(time.RFC3339, at)
	return key, until, err == nil
}

// InArchive reports whether the task of info is in the archive only because it is being snoozed by way of the archive.
func InArchive(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, ArchiveText)
}
