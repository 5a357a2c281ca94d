package keeper

import (
	"context"
	"maps"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/internal/workerstats"
)

// publish writes the figures of k into the memo of its permit, once per workerstats.KeeperPeriod, until ctx ends, so that
// operators can read the figures without asking this process. The write renews the lease of the permit, which is due
// every few seconds anyway. Figures that could not be written are written the next time.
func (k *Keeper) publish(ctx context.Context, permit *core.Lock) {
	// asOf is what the store's clock showed at the time granted, or a little earlier.
	granted, asOf := time.Now(), permit.AsOf()
	storeTime := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return asOf.Add(t.Sub(granted)).UTC()
	}
	for {
		text := k.figures(granted, storeTime).Encode()
		if err := permit.WriteMemo(ctx, text); err != nil && ctx.Err() == nil {
			k.cfg.Logger.Debug("worker: the keeper could not write its stats, which are for display only", "err", err)
		}
		if sleep.For(ctx, workerstats.KeeperPeriod) != nil {
			return
		}
	}
}

// figures returns the current figures of a Keeper that began to work at began. storeTime converts to the store's clock.
func (k *Keeper) figures(began time.Time, storeTime func(time.Time) time.Time) workerstats.Keeper {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.stats
	f := workerstats.Keeper{
		At: storeTime(now), Began: storeTime(began), Asked: storeTime(s.Asked), Behind: s.Behind, Late: k.latest.Milliseconds(),
		Every: k.cfg.Interval.Milliseconds(), Reserve: k.cfg.Reserve.Milliseconds(), Share: k.cfg.MaxLoad, Keepers: k.cfg.MaxKeepers,
		Databases: len(k.cfg.Inspectors), DryRun: k.cfg.DryRun,
		Checked: s.Checked, Held: s.Held, Kept: s.Kept, Listed: s.Listed, Extended: s.Extended, Over: s.Over,
		Foreign: s.Foreign, Unanswered: s.Unanswered, Freed: maps.Clone(s.Freed),
	}
	k.latest = 0
	f.Strangers = k.databases.unknown(now)
	return f
}
