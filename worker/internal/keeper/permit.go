package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// patience is how many periods of Config.Interval a Keeper works without an answer before it gives its permit to the
// next Keeper in line, whose connections may be better.
const patience = 2

// longestLease is the longest lease of a permit. It is short because, when the process of a working Keeper dies,
// another Keeper must wait until the lease ends, and then read the lists of all queues before it knows which tasks are
// gone.
const longestLease = 10 * time.Second

// Run waits for a permit, and checks due locks while it has the permit. It returns nil when ctx ends, joblock.ErrClosed
// if the Locker is closed, and joblock.ErrInvalid if the store has a value that is no lock at a key of the permits. Run
// must not be called concurrently.
//
// The permits bound what the checks cost: each working Keeper lists asynq's queues for itself. The claims of package
// jobs, not the permits, give each lock to one Keeper, so no check is wrong while a Keeper works on under a permit that
// it has lost.
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
			var publishing sync.WaitGroup
			publishing.Go(func() { k.publish(telling, permit) })
			defer publishing.Wait()
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

// meetQueues remembers the queues of all databases, once per Config.Interval, while the Keeper stands by, so that it
// later knows that a queue has existed even if the queue is deleted before the Keeper looks up one of its tasks.
func (k *Keeper) meetQueues(ctx context.Context) {
	wait := jitter.N(k.cfg.Interval) // because the processes of a fleet start together
	for ; sleep.For(ctx, wait) == nil; wait = k.cfg.Interval {
		if k.Stats().Working {
			continue
		}
		for _, in := range k.cfg.Inspectors {
			queues, err := in.Queues()
			if err != nil {
				k.cfg.Logger.Warn("worker: a standby keeper could not read the names of asynq's queues, and will try again", "err", err)
			}
			for _, q := range queues {
				k.databases.knows(q)
			}
		}
	}
}
