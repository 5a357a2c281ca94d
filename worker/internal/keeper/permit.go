package keeper

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// patience is for how many periods of Config.Every a Keeper works without an answer. Then the Keeper gives its permit
// to the next Keeper in line, whose connections may be better.
const patience = 2

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
	permits := limit.New(k.cfg.Locks, k.cfg.Keepers)
	own := door.Use[joblock.AcquireOption](door.Option{OwnKey: true, LongGate: true})
	// The Locker's own MaxRenew is for locks that a program forgets to release.
	unbounded := joblock.MaxRenew(driver.MaxPeriod)
	for {
		worked := false
		err := permits.Do(ctx, key, func(ctx context.Context) error {
			worked = true
			k.working(true)
			defer k.working(false)
			k.work(ctx)
			return nil
		}, own, unbounded)
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

// silence is a row of rounds without an answer.
type silence struct{ began, last time.Time }

// The method failed notes that a round, which began at the time asked, has failed. The result reports whether the row of
// failures is at least as long as most. A failure begins a new row if the previous failure was longer than most before
// asked.
func (s *silence) failed(asked time.Time, most time.Duration) bool {
	if s.last.IsZero() || asked.Sub(s.last) > most {
		s.began = asked
	}
	s.last = time.Now()
	return s.last.Sub(s.began) >= most
}
