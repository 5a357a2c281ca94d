package keeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// turn says when work queries a part of the index.
type turn struct {
	at    time.Time
	pause time.Duration // after the next failure; grows in an outage
}

// work checks due locks until ctx ends, the Locker is closed, or there was no answer for patience.
func (k *Keeper) work(ctx context.Context) {
	turns := make([]turn, max(1, jobs.Parts(k.cfg.Locks)))
	nap, poll := k.nap(), k.poll(len(turns))
	for i := range turns {
		turns[i] = turn{at: time.Now(), pause: nap}
		if len(turns) > 1 {
			turns[i].at = turns[i].at.Add(rand.N(nap)) // the order of the parts is random
		}
	}
	k.lists = &lists{
		pacer: k.pacer, databases: k.databases, demand: make(map[string]*queue), read: make(map[string]*queue),
		fetched: make(chan batchOfPages, 1),
	}
	k.known, k.began = newMemory(), time.Now()
	defer func() { k.lists, k.known = nil, nil }() // a Keeper that stands by needs no listing
	defer k.listen(ctx)()
	var unanswered outage
	for {
		part := 0
		for i := range turns {
			if turns[i].at.Before(turns[part].at) {
				part = i
			}
		}
		wake := turns[part].at
		q, at := k.lists.due()
		if q != nil && at.Before(wake) {
			wake = at
		}
		got, arrived, err := k.sleep(ctx, wake)
		switch {
		case err != nil:
			return
		case arrived:
			k.lists.arrived(got)
			continue
		case q != nil && wake == at:
			k.lists.readOn(ctx, q)
			continue
		}
		t, asked := &turns[part], time.Now()
		k.lag(asked.Sub(t.at))
		n, next, err := k.ask(ctx, part)
		k.lag(time.Since(asked)) // some locks may have become due meanwhile
		if n > 0 && err == nil {
			unanswered = outage{} // with n == 0 asynq was not called, so it has not answered
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, joblock.ErrClosed):
			return
		case err != nil && unanswered.failed(asked, patience*k.cfg.Interval):
			k.cfg.Logger.Warn("worker: the keeper got no answer for too long; a keeper in another process may take over", "err", err)
			return
		case err != nil:
			t.pause = min(2*t.pause, k.cfg.Interval)
			t.at = time.Now().Add(t.pause)
			k.cfg.Logger.Warn("worker: the keeper got no answer and leaves some locks for a later check", "err", err, "pause", t.pause)
			continue
		case next > 0:
			next = min(max(next, nap), poll)
			next -= rand.N(nap/10 + 1) // so that keepers that began together drift apart
		}
		*t = turn{at: time.Now().Add(next), pause: nap}
	}
}

// listen starts the tasks of jobs that got their turn from a caller that starts no tasks. The check of a lock finds the
// tasks that listen misses.
func (k *Keeper) listen(ctx context.Context) (stop func()) {
	if k.cfg.DryRun {
		return func() {}
	}
	stop, err := jobs.Listen(ctx, k.cfg.Locks, func(g jobs.Granted) { k.cfg.Next.Pushed(g.Key, g.Job) })
	if err != nil && ctx.Err() != nil {
		return func() {} // Run is about to return
	}
	if err != nil {
		k.cfg.Logger.Warn("worker: the keeper cannot listen for jobs whose turn in line has come; it finds them when it checks their locks", "err", err)
		return func() {}
	}
	return stop
}

// sleep sleeps until wake, or until pages arrive. If ctx ends first, sleep returns the cause of ctx.
func (k *Keeper) sleep(ctx context.Context, wake time.Time) (got batchOfPages, arrived bool, err error) {
	select {
	case got = <-k.lists.fetched: // even if the time has come
		return got, true, nil
	default:
	}
	timer := time.NewTimer(time.Until(wake))
	defer timer.Stop()
	select {
	case got = <-k.lists.fetched:
		return got, true, nil
	case <-timer.C:
		return got, false, context.Cause(ctx)
	case <-ctx.Done():
		return got, false, context.Cause(ctx)
	}
}

// ask claims a batch of due locks and checks them. n is the number of claimed locks. next is the time until the first
// other lock of the part is due. After an error, the locks without an answer are due again when their claim ends, or
// earlier.
func (k *Keeper) ask(ctx context.Context, part int) (n int, next time.Duration, err error) {
	began, hold := time.Now(), claim
	if k.cfg.DryRun {
		hold = k.again() // and reconcile settles nothing
	}
	due, err := jobs.Due(ctx, k.cfg.Locks, jobs.DueRequest{Part: part, Limit: batch, Claim: hold})
	if err != nil {
		return 0, 0, err
	}
	k.behind = due.Next == 0
	k.mu.Lock()
	k.stats.Asked, k.stats.Behind = began, k.behind || began.Before(k.late)
	k.mu.Unlock()
	return len(due.Entries), due.Next, k.reconcile(ctx, began, due.Entries)
}
