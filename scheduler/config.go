package scheduler

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/records"
)

const (
	minSync = time.Second
	maxSync = time.Hour
)

// Config configures a Scheduler. Scope must be set. For every other field the zero value means the default. New refuses
// negative values.
type Config struct {
	// Scope names the application, like "shop": 1 to 32 bytes of UTF-8. On one store, schedulers with the same scope share
	// jobs of the same name. Schedulers with different scopes share nothing. There is no default: two applications without
	// a Scope would execute each other's ticks. The key of a job's lock is "%cron:" + joblock.Key(Scope, name).
	Scope string

	// Zone is the time zone of a spec that names no zone, as "CRON_TZ=Europe/Berlin 0 3 * * *" does. Default UTC.
	Zone *time.Location

	// Node is the name of this node in the ledger, in events and in the status of locks: at most 256 bytes of UTF-8
	// without control characters. Default "host:pid".
	Node string

	// Concurrency is how many functions this node runs at the same time. A tick that comes while that many functions run
	// is executed by another node, or late by this node. Default 100.
	Concurrency int

	// Grace is how long Run waits for running functions after the ctx of Run has ended. A function that takes longer
	// loses its lock at the end of the lease. Default 30 s.
	Grace time.Duration

	// Sync is the pause between two requests of an idle node. A request gets the store's time and new triggers. From 1 s
	// to 1 h. Default 10 s.
	Sync time.Duration

	// Observe, if set, gets every Event of this node. It is called concurrently, and an execution waits until it returns.
	Observe func(Event)

	// Logger gets a record of every Event, and of every problem that keeps this node from executing a job. Default
	// slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a copy of c with the defaults, except that of Node. c may be nil.
func (c *Config) withDefaults() *Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.Zone = cmp.Or(out.Zone, time.UTC)
	out.Concurrency = cmp.Or(out.Concurrency, 100)
	out.Grace = cmp.Or(out.Grace, 30*time.Second)
	out.Sync = cmp.Or(out.Sync, 10*time.Second)
	out.Logger = cmp.Or(out.Logger, slog.Default())
	if out.Observe == nil {
		out.Observe = func(Event) {}
	}
	return &out
}

// validate checks a Config after withDefaults, except Scope and Node.
func (c *Config) validate(op string) error {
	switch {
	case c.Concurrency < 0:
		return records.Invalid(op, "", "Config.Concurrency is %d, must be at least 1", c.Concurrency)
	case c.Grace < 0:
		return records.Invalid(op, "", "Config.Grace is %s, must not be negative", c.Grace)
	case c.Sync < minSync || c.Sync > maxSync:
		return records.Invalid(op, "", "Config.Sync is %s, must be from %s to %s", c.Sync, minSync, maxSync)
	}
	return nil
}
