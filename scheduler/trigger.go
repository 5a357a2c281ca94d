package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// The first and the longest pause of TriggerAndWait between two reads of the ledger.
const firstLook, lastLook = 50 * time.Millisecond, time.Second

// Trigger executes a job once, now, even if the job is paused. The ticks of the job do not change. If this Scheduler
// has the job and Run is running, this Scheduler executes the job at once. In every other case a node that has the job
// executes the job within Config.Sync. If the job is running, the new execution follows the running one. Several
// triggers that wait at the same time lead to one execution. See Pause for errors.
func (s *Scheduler) Trigger(ctx context.Context, name string) error {
	_, err := s.changeOrder(ctx, "trigger", name, (*ledger.Order).Trigger)
	return err
}

// TriggerAndWait is Trigger, and then waits until the execution has ended. The result is that execution, whatever its
// State is, with its error and duration. If another trigger comes before the execution has begun, one execution is for
// both. TriggerAndWait waits as long as no node executes the job, so give ctx a deadline.
//
// Errors are those of Pause. If ctx ends during the wait, the error is the cause of ctx, and the trigger stays. The error
// has no sentinel if the execution is no longer in the history.
func (s *Scheduler) TriggerAndWait(ctx context.Context, name string) (Execution, error) {
	wait, err := s.follow(ctx, name)
	if err != nil {
		return Execution{}, err
	}
	return wait(ctx)
}

func init() {
	door.AnyFollow = func(ctx context.Context, s any, name string) (func(context.Context) (any, error), error) {
		wait, err := s.(*Scheduler).follow(ctx, name)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return wait(ctx) }, nil
	}
}

// The method follow triggers a job, and returns what waits for the end of the execution. After an error of wait, wait can
// be called again.
func (s *Scheduler) follow(ctx context.Context, name string) (wait func(context.Context) (Execution, error), err error) {
	o, err := s.changeOrder(ctx, "trigger", name, (*ledger.Order).Trigger)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (Execution, error) { return s.await(ctx, name, o) }, nil
}

// The method await waits for the end of the execution by the trigger in o.
func (s *Scheduler) await(ctx context.Context, name string, o ledger.Order) (Execution, error) {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if err := sleep.For(ctx, pause); err != nil {
			return Execution{}, context.Cause(ctx)
		}
		views, err := s.readJobs(ctx, []string{name})
		if err != nil {
			return Execution{}, err
		}
		l, err := ledger.Decode(views[1].Memo)
		if err != nil {
			return Execution{}, err
		}
		if l.Triggered < o.Triggered {
			continue // not begun
		}
		past, err := l.History()
		if err != nil {
			return Execution{}, err
		}
		// What was broken off and is in the history has been taken over, and may be kept for longer than what came of it.
		past = slices.DeleteFunc(past, func(x ledger.Execution) bool { return !x.Ended() })
		all := slices.Clone(l.Lanes)
		if l.Execution != nil {
			all = append(all, *l.Execution)
		}
		all = slices.DeleteFunc(append(all, past...), func(x ledger.Execution) bool {
			return x.Cause != ledger.CauseTrigger || x.At < o.TriggeredAt
		})
		if len(all) == 0 {
			if slices.ContainsFunc(l.Due, func(d ledger.Due) bool { return d.Cause == ledger.CauseTrigger }) {
				continue // not begun
			}
			return Execution{}, fmt.Errorf("scheduler: trigger %q: the execution is no longer in the history", name)
		}
		// Later ones are by later triggers.
		x := slices.MinFunc(all, func(a, b ledger.Execution) int { return cmp.Compare(a.At, b.At) })
		if x.Ended() {
			return showExecution(name, &x), nil
		}
	}
}
