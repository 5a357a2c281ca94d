package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// patience is for how many periods of Config.Interval a Keeper works without an answer. Then the Keeper gives its permit
// to the next Keeper in line, whose connections may be better.
const patience = 2

// longestLease is the longest lease of a permit. When the process of a Keeper that works dies, another Keeper has to read
// the lists of all queues before it can tell which tasks are gone. So little of a lease is to be lost before.
const longestLease = 10 * time.Second

// Run waits for a permit, and checks due locks while Run has the permit. Run returns nil when ctx ends. Run returns
// joblock.ErrClosed if the Locker is closed, and joblock.ErrInvalid if a value at a key of the permits is no lock. One
// Run at a time.
//
// The permits are there for what the checks cost: each Keeper that works lists asynq's queues for itself. The claims of
// package jobs, not the permits, give each lock to one Keeper. So no check is wrong while a Keeper works on under a
// permit that it has lost.
func (k *Keeper) Run(ctx context.Context) error {
	key := keyspace.Keepers
	if k.cfg.DryRun {
		key = keyspace.DryKeepers
	}
	permits := limit.New(k.cfg.Locks, k.cfg.MaxKeepers)
	own := core.With(func(o *core.Options) { o.OwnKey, o.LongGate, o.Memo = true, true, true })
	// The Locker's own MaxRenew is for locks that a program forgets to release.
	unbounded := joblock.MaxRenew(driver.MaxPeriod)
	lease := joblock.TTL(min(longestLease, (*core.Locker)(k.cfg.Locks).Settings().TTL))
	go k.meetQueues(ctx)
	for {
		worked := false
		err := permits.Do(ctx, key, func(ctx context.Context) error {
			worked = true
			k.working(true)
			defer k.working(false)
			permit, _ := core.FromContext(ctx)
			telling, stop := context.WithCancel(ctx)
			var told sync.WaitGroup
			told.Go(func() { k.tell(telling, permit) })
			defer told.Wait()
			defer stop()
			k.work(ctx)
			return nil
		}, own, unbounded, lease)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !worked && !errors.Is(err, joblock.ErrUnavailable):
			return err
		case err != nil && sleep.For(ctx, k.nap()) != nil:
			return nil
		}
	}
}

// meetQueues remembers the queues of all databases, once per Config.Interval, while the Keeper stands by. So the
// Keeper knows a queue that was deleted, with its tasks, before the Keeper looked for one of these tasks.
func (k *Keeper) meetQueues(ctx context.Context) {
	wait := dice.N(k.cfg.Interval) // the processes of a fleet start together
	for ; sleep.For(ctx, wait) == nil; wait = k.cfg.Interval {
		if k.Stats().Working {
			continue
		}
		for _, in := range k.cfg.Inspectors {
			queues, err := in.Queues()
			if err != nil {
				k.cfg.Logger.Warn("worker: a keeper that stands by could not read the names of asynq's queues, and will try again", "err", err)
			}
			for _, q := range queues {
				k.databases.knows(q)
			}
		}
	}
}
