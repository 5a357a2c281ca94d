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

// Defaults and bounds of Config.
const (
	DefaultRuns  = 100
	DefaultGrace = 30 * time.Second
	DefaultSync  = 10 * time.Second

	MinSync = time.Second
	MaxSync = time.Hour
)

// Config configures a Scheduler. Scope must be set. The zero value of each other field
// means its default; negative values are refused.
type Config struct {
	// Scope names the application whose jobs these are, like "shop". Schedulers of one
	// scope on one store run each tick of a job once between them, and a job is known by
	// its name; those of different scopes know nothing of each other. It has no default,
	// for two applications that leave it out would share their jobs of one name, and each
	// would run some ticks of the other's. The key of a job's lock is "%cron:" and
	// joblock.Key(Scope, name). At most 32 bytes.
	Scope string

	// Zone is the time zone of specs that name none, unless the job has In. Default UTC.
	Zone *time.Location

	// Node is what the ledger, the events and the status of the locks call this node.
	// Default "host:pid".
	Node string

	// Runs is how many functions run on this node at the same time. Above it ticks are
	// left to other nodes, or come late. Default 100.
	Runs int

	// Grace is how long Run waits, once its context has ended, for functions to return.
	// A function that has not returned by then loses its lock at the end of its lease.
	// Default 30 s.
	Grace time.Duration

	// Sync is how often a node at rest asks the store for its clock and for triggers:
	// what finding out about them takes at the most. From 1 s to 1 h. Default 10 s.
	Sync time.Duration

	// Observe, if set, is told of everything that happens to the jobs on this node; see
	// Event. It is called from several goroutines, and what it waits for, runs wait for.
	Observe func(Event)

	// Logger hears of failed, missed and interrupted runs. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns a copy of c, which may be nil, with every zero field
// replaced by its default.
func (c *Config) WithDefaults() *Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.Runs = cmp.Or(out.Runs, DefaultRuns)
	out.Grace = cmp.Or(out.Grace, DefaultGrace)
	out.Sync = cmp.Or(out.Sync, DefaultSync)
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
	const op = "new scheduler"
	switch {
	case c.Scope == "":
		return invalid(op, "", "Config.Scope is empty, must name the application, like \"shop\": schedulers of one scope share jobs of one name")
	case len(c.Scope) > maxScopeBytes:
		return invalid(op, "", "Config.Scope has %d bytes, at most %d are allowed", len(c.Scope), maxScopeBytes)
	case !utf8.ValidString(c.Scope):
		return invalid(op, "", "Config.Scope is not valid UTF-8")
	case len(c.Node) > driver.MaxLabelBytes:
		return invalid(op, "", "Config.Node has %d bytes, at most %d are allowed", len(c.Node), driver.MaxLabelBytes)
	case !utf8.ValidString(c.Node) || strings.ContainsFunc(c.Node, unicode.IsControl):
		return invalid(op, "", "Config.Node is not valid UTF-8, or has a control character in it")
	case c.Runs < 0:
		return invalid(op, "", "Config.Runs is %d, must be at least 1", c.Runs)
	case c.Grace < 0:
		return invalid(op, "", "Config.Grace is %s, must not be negative", c.Grace)
	case c.Sync < MinSync || c.Sync > MaxSync:
		return invalid(op, "", "Config.Sync is %s, must be from %s to %s", c.Sync, MinSync, MaxSync)
	}
	return nil
}
