package demo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// people starts the processes that take locks by themselves: a deployment, a report, an import, a geocoder.
func (c *company) people() error {
	for n := range 2 {
		locks, err := c.locker("ci-" + strconv.Itoa(n+1) + ":4711 make deploy")
		if err != nil {
			return err
		}
		c.happens(func(ctx context.Context) time.Duration {
			c.under(ctx, 30*time.Second, func() (*joblock.Lock, error) { return locks.Acquire(ctx, "deploy:shop") })
			return 3 * time.Second
		})
	}
	for n := range 5 {
		locks, err := c.locker("geo-" + strconv.Itoa(n+1) + ":88 geocode.py")
		if err != nil {
			return err
		}
		permits := limit.New(locks, 3)
		c.happens(func(ctx context.Context) time.Duration {
			c.under(ctx, time.Duration(4+2*n)*time.Second, func() (*joblock.Lock, error) { return permits.Acquire(ctx, "geocoder") })
			return time.Second
		})
	}
	c.reports()
	locks, err := c.locker("batch-1:30 import.sh")
	if err != nil {
		return err
	}
	c.happens(func(ctx context.Context) time.Duration {
		if lock, err := locks.TryAcquire(ctx, "import:prices"); err == nil {
			_, _ = lock.Park(ctx, joblock.ForJob("default/import-never-enqueued"))
		}
		return 3 * time.Minute
	})
	return c.onCall()
}

// reports makes a process take a lock, renew its lease once, and then die without releasing it, as if its machine had
// failed. Every process has a number of its own.
func (c *company) reports() {
	const lease, gap = time.Minute, 20 * time.Second
	number := 11
	c.happens(func(ctx context.Context) time.Duration {
		number++
		p, die, err := c.mortal(fmt.Sprintf("batch-1:%d report.sh", number))
		if err != nil {
			return gap
		}
		defer die()
		if _, err := p.locks.TryAcquire(ctx, "report:monthly", joblock.TTL(lease/c.pace)); err != nil {
			return gap
		}
		c.pause(lease/3 + lease/20)
		return lease + gap
	})
}

// onCall makes a process hang, and an operator free its lock, as "joblock force-release" does.
func (c *company) onCall() error {
	hangs, err := c.locker("batch-2:31 reindex.sh")
	if err != nil {
		return err
	}
	p, err := c.process("eva@ops-1")
	if err != nil {
		return err
	}
	desk, err := ops.New(ops.Config{Locks: p.locks, Audit: ops.NewAudit(p.rdb, keyspace.DefaultPrefix, patience)})
	if err != nil {
		return err
	}
	const key, hung, pause = "reindex:catalog", 20 * time.Second, 100 * time.Second
	c.happens(func(ctx context.Context) time.Duration {
		lock, err := hangs.TryAcquire(ctx, key)
		if err != nil {
			return pause
		}
		c.pause(hung)
		_, _ = desk.As("eva", "ops-1").Act(ctx, ops.ForceRelease{Key: key, Fence: lock.Fence(), Reason: "hangs since the disk is full; reindexed by hand"})
		return pause
	})
	return nil
}

// under takes a lock, holds it for d, and releases it.
func (c *company) under(ctx context.Context, d time.Duration, take func() (*joblock.Lock, error)) {
	lock, err := take()
	if err != nil {
		return // the demo ends, or the user tries out what happens without Redis
	}
	select {
	case <-time.After(d / c.pace):
	case <-lock.Done():
	case <-ctx.Done():
	}
	_ = lock.Release(ctx, joblock.Reason("done"))
}
