package scheduler

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	defaultConcurrency = 100
	defaultGrace       = 30 * time.Second
	defaultSync        = 10 * time.Second
	minSync            = time.Second
	maxSync            = time.Hour
	maxScopeBytes      = 32 // escaped, it needs three times as much in a key
)

// Config configures a Scheduler. Scope must be set. For every other field the zero value
// means the default; negative values are refused.
type Config struct {
	// Scope names the application, like "shop": 1 to 32 bytes of UTF-8. On one store,
	// schedulers with the same scope share jobs of the same name; schedulers with different
	// scopes share nothing. There is no default: two applications without a Scope would
	// execute each other's ticks. The key of a job's lock is "%cron:" + joblock.Key(Scope, name).
	Scope string

	// Zone is the time zone of specs that name none, unless the job has In. Default UTC.
	Zone *time.Location

	// Node is the name of this node in the ledger, in events and in the status of locks:
	// at most 256 bytes of UTF-8 without control characters. Default "host:pid".
	Node string

	// Concurrency is how many functions this node runs at the same time. Further ticks are
	// left to other nodes or come late. Default 100.
	Concurrency int

	// Grace is how long Run waits for running functions after Run's ctx has ended. A
	// function that takes longer loses its lock at the end of the lease. Default 30 s.
	Grace time.Duration

	// Sync is how often a node at rest asks the store for its clock and for new triggers.
	// From 1 s to 1 h. Default 10 s.
	Sync time.Duration

	// Observe, if set, is called for everything that happens to the jobs on this node; see
	// Event. It is called from several goroutines. Executions wait until it returns.
	Observe func(Event)

	// Logger gets a record of every Event, and of every problem that holds up jobs on this
	// node. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a copy of c, which may be nil, with its defaults.
func (c *Config) withDefaults() *Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.Concurrency = cmp.Or(out.Concurrency, defaultConcurrency)
	out.Grace = cmp.Or(out.Grace, defaultGrace)
	out.Sync = cmp.Or(out.Sync, defaultSync)
	if out.Zone == nil {
		out.Zone = time.UTC
	}
	if out.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		out.Node = fmt.Sprintf("%.200s:%d", host, os.Getpid())
	}
	if out.Observe == nil {
		out.Observe = func(Event) {}
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return &out
}

// validate checks a Config that has its defaults.
func (c *Config) validate() error {
	const op = "new"
	switch {
	case c.Scope == "":
		return invalid(op, "", "Config.Scope is empty, must name the application, like \"shop\": schedulers with the same scope share jobs of the same name")
	case len(c.Scope) > maxScopeBytes:
		return invalid(op, "", "Config.Scope has %d bytes, at most %d are allowed", len(c.Scope), maxScopeBytes)
	case !utf8.ValidString(c.Scope):
		return invalid(op, "", "Config.Scope is not valid UTF-8")
	case len(c.Node) > driver.MaxLabelBytes:
		return invalid(op, "", "Config.Node has %d bytes, at most %d are allowed", len(c.Node), driver.MaxLabelBytes)
	case !utf8.ValidString(c.Node) || strings.ContainsFunc(c.Node, unicode.IsControl):
		return invalid(op, "", "Config.Node is not valid UTF-8 or contains a control character")
	case c.Concurrency < 0:
		return invalid(op, "", "Config.Concurrency is %d, must be at least 1", c.Concurrency)
	case c.Grace < 0:
		return invalid(op, "", "Config.Grace is %s, must not be negative", c.Grace)
	case c.Sync < minSync || c.Sync > maxSync:
		return invalid(op, "", "Config.Sync is %s, must be from %s to %s", c.Sync, minSync, maxSync)
	}
	return nil
}
