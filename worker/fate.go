package worker

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// freer finds out whether a task will run again, and frees its locks if not.
type freer struct{ *carrier }

const (
	// answerWait bounds how long fate waits until asynq has written the new state of a task whose context has ended. asynq
	// writes at once unless Redis is slow. After Worker.Close, answerWait also bounds rerun.
	answerWait = 2 * time.Second
	answerPoll = 50 * time.Millisecond

	// archivePatience is how long asynq may take to write the end of an attempt. By then asynq's lease on the task has
	// ended, and asynq no longer writes the task's state.
	archivePatience = 30 * time.Second
)

// fate asks the Inspector whether the attempt's task will run again: see verdict.FateOf. If asynq has not answered
// after answerWait, or still shows the task as active because another attempt runs, fate says that the task may run at
// once.
func (f freer) fate(ctx context.Context, archive string) verdict.Fate {
	deadline := time.Now().Add(answerWait)
	for {
		info, err := f.w.inspector.GetTaskInfo(f.queue, f.id)
		if err != nil && !verdict.NoTask(err) {
			f.log().Warn("worker: cannot look up the task of an ended attempt; its locks stay reserved", "err", err)
		}
		fate := verdict.FateOf(info, err, archive, f.tries.Last())
		if fate.Written || time.Now().After(deadline) || sleep.For(ctx, answerPoll) != nil {
			return fate
		}
	}
}

// firstLook is the pause after a lookup that shows the task as active. asynq writes at once unless its Redis is slow.
const firstLook = 2 * time.Millisecond

// writtenFate waits until asynq has written the next state of the task: see verdict.FateInOrder. It gives up after
// archivePatience: by then asynq's recoverer takes up the task.
func (f freer) writtenFate() verdict.Fate {
	patience := time.Now().Add(archivePatience)
	for pause := firstLook; ; pause = min(2*pause, time.Second) {
		info, err := f.w.batched.GetTaskInfo(f.queue, f.id)
		fate := verdict.FateInOrder(info, err, f.task.Headers()[envelope.Header])
		if fate.Written {
			return fate
		}
		if time.Now().After(patience) || sleep.For(f.w.life.Context(), pause) != nil {
			f.log().Warn("worker: asynq has not recorded the end of a job; the job keeps its key", "err", err)
			return fate
		}
	}
}

// whenWritten calls over in the background when asynq has recorded that the task will not run again, so that the next
// job starts only then. If this process dies before that, asynq delivers the task again while the job still has the
// key, and the jobs behind it wait. If the task will run again, or asynq records nothing, whenWritten calls again with
// the time until the task is due. If atOnce returns true, whenWritten calls neither: atOnce has found that asynq has
// recorded the end, and has done the work of over.
func (f freer) whenWritten(atOnce func() bool, over func(), again func(delay time.Duration)) {
	f.w.life.Go(func() {
		if sleep.AtMost(settleWait, f.ctx.Done()) && atOnce() { // asynq ends the context just after the write
			return
		}
		if fate := f.writtenFate(); fate.Over != "" {
			over()
		} else {
			again(fate.Delay)
		}
	})
}
