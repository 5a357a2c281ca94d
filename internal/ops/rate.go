package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/rates"
)

// rate describes the rate of a key (see package joblock/rate) in sentences. It returns "" if the key has no rate or the
// store does not answer. It sends one command to the store.
func (d *Desk) rate(ctx context.Context, key string) string {
	r, err := rates.Look(ctx, d.in, "status", "", key)
	if err != nil || r.Period == 0 && r.Until.IsZero() {
		return ""
	}
	text := fmt.Sprintf("Starts with this key have a rate: %d of %d in %s are used", r.Used, r.Starts, length(r.Period))
	if r.Period == 0 {
		text = "Starts with this key have a rate, which is not in use"
	}
	if n := r.Waiting + r.Claims; n > 0 {
		text += fmt.Sprintf(", and %d wait", n)
	}
	switch {
	case !r.Until.IsZero():
		text += fmt.Sprintf(". The key was pushed back: nothing starts for another %s.", length(r.Until.Sub(r.Now)))
	case r.Wait > 0:
		text += fmt.Sprintf(". A newcomer could start in %s.", length(r.Wait))
	default:
		text += ". A newcomer could start at once."
	}
	return text
}

// JobName returns the name of a job for display. The job of a lock that cools down is no job of asynq.
func JobName(job string) string {
	if after, cools := envelope.ParseCooling(job); cools {
		return "none: cools down after " + after
	}
	return job
}

// rateWait returns a sentence if the task waits for the rate of a key, with what ends the wait, or "".
func (s *story) rateWait() string {
	key, until, ok := jobline.RateOf(s.task.LastError)
	if !ok {
		return ""
	}
	if s.now.Sub(until) > time.Minute {
		return fmt.Sprintf("In asynq its task %s has waited for the rate of the key %s until %s; asynq runs it at %s at the latest.",
			visible(s.task.Type), quote(key), s.clock(until), s.clock(s.task.NextAt.Time))
	}
	return fmt.Sprintf("In asynq its task %s waits for the rate of the key %s, until %s (%s) as far as known. "+
		"A worker runs it then; if none does, asynq runs it at %s. No retry is charged.",
		visible(s.task.Type), quote(key), s.clock(until), s.until(until), s.clock(s.task.NextAt.Time))
}
