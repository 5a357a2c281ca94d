package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/rates"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// The jobs that a pause holds back wait in a line of their own: the line of the key keyspace.Pause, whose first job has
// that key. Only the end of the pause starts these jobs: see endPauses. The keeper prolongs their places like the
// places of all waiting jobs.

// heldBack returns the error that snoozes the attempt's task if an operator has paused one of keys, or a key above one
// of them. It then also prolongs the reservations of tokens, the locks that the task carries. Otherwise heldBack
// returns nil.
func (a *attempt) heldBack(ctx context.Context, keys []string, tokens []joblock.Token) *verdict.Snooze {
	in := (*core.Locker)(a.w.locks)
	set := in.Controls().Get(ctx)
	if set.Unread != nil {
		return a.snoozeUnread(set.Unread) // a pause may be in force
	}
	for p, ok := set.Paused(keys...); ok; {
		// Take the place first, and then read the registry again: the end of a pause starts only the jobs that have a
		// place by then.
		err := a.waitBehind(ctx, p)
		if err == nil {
			set, err = in.Controls().Fresh(ctx)
		}
		if err != nil {
			return a.snoozeUnread(err)
		}
		still, covered := set.Paused(keys...)
		if covered && still.ID == p.ID {
			snoozed := a.paused(set, still)
			e := event.Event{Kind: event.HeldBack, Key: p.Key, Job: a.job, Reason: still.Note}
			if !still.Until.IsZero() {
				e.Remaining = still.Until.Sub(set.Now())
			}
			in.Emit(e)
			a.endByDeadline(snoozed)
			a.leaveRate(ctx)
			a.keepReserved(ctx, tokens, a.w.reservation(snoozed.Delay))
			return snoozed
		}
		a.w.next.Free(ctx, core.JobRelease{Key: keyspace.Pause(p.Key), Job: a.job, Reason: reasonResumed}) // or the keeper does
		p, ok = still, covered
	}
	return nil
}

// reasonResumed is the reason in the record of a job's place in the line of a pause.
const reasonResumed = "the pause has ended"

// snoozeUnread returns the error that snoozes the task because the pauses cannot be read.
func (a *attempt) snoozeUnread(err error) *verdict.Snooze {
	if snoozed := a.w.snooze(err); snoozed != nil {
		return snoozed
	}
	return &verdict.Snooze{Err: err, Delay: verdict.Jittered(a.w.cfg.Snooze)}
}

// leaveRate gives up the job's place in the line of a rate limit: if that line called a job that is held back, the job
// would waste an opening.
func (a *attempt) leaveRate(ctx context.Context) {
	info, err := a.w.batched.GetTaskInfo(a.queue, a.id)
	if err != nil {
		return
	}
	if key, _, ok := jobline.RateOf(info.LastErr); ok {
		_ = rates.Leave(ctx, (*core.Locker)(a.w.locks), opRate, a.job, key) // else it keeps the opening for five seconds
		a.w.rates.passOn(a.w, key)
	}
}

// waitBehind gives the job a place in the line of the jobs that p holds back, unless it has one.
func (a *attempt) waitBehind(ctx context.Context, p controls.Pause) error {
	if !canLineUp(a) {
		return nil // the job comes back by itself
	}
	taken := (*core.Locker)(a.w.locks).Take(ctx, "pause", []core.Take{behind(p, a.job)})[0]
	if taken.Err != nil && verdict.IsBusy(taken.Err) {
		return nil // the job is the first in line
	}
	return taken.Err
}

// behind returns the core.Take that gives job a place in the line of the jobs that p holds back.
func behind(p controls.Pause, job string) core.Take {
	key := keyspace.Pause(p.Key)
	return core.Take{Key: key, Job: job, Reserve: envelope.Patience, Patience: envelope.Patience, Call: core.Call{Owner: ownerInLine(key, job)}}
}

// paused returns the error that snoozes the task because of p.
func (a *attempt) paused(set *controls.Set, p controls.Pause) *verdict.Snooze {
	tries, left, until := a.tries, time.Duration(0), ""
	if !p.Until.IsZero() {
		left = max(time.Millisecond, p.Until.Sub(set.Now()))
		until = " until " + p.Until.UTC().Format(time.RFC3339)
	}
	if a.canSnooze(); !canLineUp(a) {
		tries.Configured = false // it asks again after Config.Snooze
	}
	text := fmt.Sprintf("the key %q, paused by %s%s", p.Key, p.By, until)
	if p.Note != "" {
		text += ": " + p.Note
	}
	return tries.Paused(text, left, a.w.cfg.Snooze)
}

// keepReserved prolongs the locks and places of the job for the time reserve. If that fails, the keeper does it;
// without a keeper, the job may find a lock gone when it runs.
func (a *attempt) keepReserved(ctx context.Context, tokens []joblock.Token, reserve time.Duration) {
	all := make([]core.Reservation, len(tokens))
	for i, token := range tokens {
		all[i] = core.Reservation{Key: token.Key(), Job: a.job, For: reserve}
	}
	a.w.next.Reserve(ctx, all...)
}
