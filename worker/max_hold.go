package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// heldTooLong is the error of a job that is not retried because of Config.MaxHold. It wraps the error of the latest
// attempt.
type heldTooLong struct {
	text string
	err  error
}

func (e *heldTooLong) Error() string { return "worker: " + e.text + ": " + e.err.Error() }

// Unwrap makes asynq archive the task.
func (e *heldTooLong) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }

// tooLong returns an error if a further attempt, which begins after the time in delay, would be beyond Config.MaxHold.
// Otherwise, and if the store does not answer, the result is nil. err is the error of the attempt that has
// ended. The result is also logged.
func (a *attempt) tooLong(ctx context.Context, tokens []joblock.Token, delay time.Duration, err error) *heldTooLong {
	if a.w.cfg.MaxHold == 0 {
		return nil
	}
	key, held := a.heldFor(ctx, tokens)
	if key == "" || held+delay <= a.w.cfg.MaxHold {
		return nil
	}
	a.log().Error("worker: job failed for good: it would have its key for longer than Config.MaxHold",
		"key", key, "held", held.Round(time.Millisecond), "next_attempt_in", delay, "max_hold", a.w.cfg.MaxHold, "err", err)
	return &heldTooLong{fmt.Sprintf("the job has had the key %q for %s, and the next attempt is due in %s: Config.MaxHold is %s",
		key, held.Round(time.Second), delay.Round(time.Second), a.w.cfg.MaxHold), err}
}

// heldFor returns for how long the job has had the key that it has had longest, by the store's clock, and that key. The
// key is "" if the job has no key of tokens, or if the store does not answer, which is logged.
func (a *attempt) heldFor(ctx context.Context, tokens []joblock.Token) (key string, held time.Duration) {
	if len(tokens) == 0 {
		return "", 0
	}
	keys := make([]string, len(tokens))
	for i, token := range tokens {
		keys[i] = token.Key()
	}
	all, err := a.w.locks.Status(context.WithoutCancel(ctx), keys...)
	if err != nil {
		a.log().Warn("worker: cannot look up how long a job has had its keys; Config.MaxHold is applied at its next attempt", "err", err)
	}
	for _, st := range all {
		if st.Locked() && st.Job == a.job && (key == "" || st.Age > held) {
			key, held = st.Key, st.Age
		}
	}
	return key, held
}

// tooLongAfterCrash returns an error if the previous attempt has crashed, and Config.MaxHold is over: no process has
// decided at the end of that attempt. The task is then archived without a call of the handler.
func (a *attempt) tooLongAfterCrash() error {
	if a.w.cfg.MaxHold == 0 || a.retried == 0 {
		return nil
	}
	if _, held := a.heldFor(a.ctx, a.tokens); held <= a.w.cfg.MaxHold || a.lastErr() != asynq.ErrLeaseExpired.Error() {
		return nil
	}
	late := a.tooLong(a.ctx, a.tokens, 0, asynq.ErrLeaseExpired)
	if late == nil {
		return nil
	}
	return late
}

// archiveTooLong archives the task after an attempt that asynq has ended by itself, by a timeout or a panic, if a further
// attempt would be beyond Config.MaxHold, and reports whether it does. If the handler has returned err, settle has
// decided.
func (a *attempt) archiveTooLong(ctx context.Context, tokens []joblock.Token, err error) bool {
	if _, settled := as[*retryError](err); settled || a.w.cfg.MaxHold == 0 || a.tooLong(ctx, tokens, a.w.retryDelay(a.retried, err, a.task), err) == nil {
		return false
	}
	a.archive(ctx, err.Error(), tokens, reasonHeld)
	return true
}

// isFailed reports whether reason is that of a job that has failed for good.
func isFailed(reason string) bool { return reason == reasonFailed || reason == reasonHeld }

// failedReason returns the reason for the release of the locks of a job that has failed for good with err.
func failedReason(err error) string {
	var late *heldTooLong
	if errors.As(err, &late) {
		return reasonHeld
	}
	return reasonFailed
}
