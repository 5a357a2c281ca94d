package worker

import (
	"context"
	"time"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// archive archives, in the background, a task that will not run again although asynq has retries left for it, and then
// frees the locks of f.tokens for reason. With verdict.ReasonFailed, it archives the task only if its last attempt has
// failed, or if its Deadline passes before the next one. It waits until asynq shows the task in the state retry with a
// last error equal to text. If the task leaves the state active in any other way, archive does nothing.
func (f freer) archive(ctx context.Context, text, reason string) {
	mayRetry := !f.tries.Last() && reason == verdict.ReasonFailed
	f.w.life.Go(func() {
		over := time.Now().Add(archivePatience)
		for pause := answerPoll; ; pause = min(2*pause, time.Second) {
			info, err := f.w.inspector.GetTaskInfo(f.queue, f.id)
			switch verdict.ArchiveNow(info, err, text, mayRetry) {
			case verdict.GiveUp:
				return
			case verdict.Now:
				if err = f.w.inspector.ArchiveTask(f.queue, f.id); err != nil {
					break
				}
				if mayRetry {
					f.log().Warn("worker: the deadline of a job has passed, or passes before its next attempt: its task is archived, and its retries are not used",
						"deadline", info.Deadline, "retried", info.Retried, "max_retry", f.tries.Budget)
				}
				f.free(ctx, f.tokens, reason)
				return
			}
			if time.Now().After(over) {
				f.log().Warn("worker: could not archive a task that will not run again", "err", err)
				return
			}
			time.Sleep(pause)
		}
	})
}
