package demo

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// clock starts two nodes that run cron jobs; one of the jobs is paused.
func (c *company) clock() error {
	for n := range 2 {
		name := "cron-" + strconv.Itoa(n+1) + ":9"
		p, err := c.process(name)
		if err != nil {
			return err
		}
		s, err := scheduler.New(p.locks, &scheduler.Config{Scope: Scope, Node: name, Logger: quiet, Observe: p.events.ObserveCron(Scope), Sync: 2 * time.Second, Grace: time.Second})
		if err != nil {
			return err
		}
		if err := errors.Join(
			s.Func("beat", c.every(10*time.Second), func(context.Context) error { return nil }),
			s.Func("cleanup", "* * * * *", func(ctx context.Context) error { return c.takes(ctx, 15*time.Second) }),
			s.Func("rates", c.every(20*time.Second), c.rates),
			s.Func("nightly", "0 3 * * *", func(context.Context) error { return nil }),
			s.Func("newsletter", "0 9 * * 1", func(context.Context) error { return nil }),
		); err != nil {
			return err
		}
		c.happening.Go(func() { _ = s.Run(c.ctx) })
		if n == 0 {
			c.happening.Go(func() { _ = admin.Of(s).Pause(c.ctx, "newsletter", "the texts are not translated yet") })
		}
	}
	return nil
}

func (c *company) every(d time.Duration) string { return "@every " + (d / c.pace).String() }

// rates fails at every third run, starting with the first.
func (c *company) rates(ctx context.Context) error {
	if err := c.takes(ctx, 2*time.Second); err != nil {
		return err
	}
	if c.rated.Add(1)%3 == 1 {
		return errors.New("the exchange answers 503")
	}
	return nil
}
