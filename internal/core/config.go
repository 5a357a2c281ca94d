package core

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Config is joblock.Config: see the comments there.
type Config struct {
	TTL         time.Duration
	MaxTTL      time.Duration
	Margin      time.Duration
	MaxRenew    time.Duration
	Reserve     time.Duration
	Retain      time.Duration
	JobGrace    time.Duration
	Poll        time.Duration
	WatchForced bool
	CallTimeout time.Duration
	Holder      string
	Logger      *slog.Logger
	Secrets     [][]byte // nil stands for the secret that the store keeps with the locks; default: that secret alone
	Observer    event.Observer
	Tracer      event.Tracer

	Now func() time.Time // default time.Now; another clock is for tests
}

// withDefaults returns a copy of c in which every zero field has its default. c may be nil.
func (c *Config) withDefaults() *Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.TTL = cmp.Or(out.TTL, 30*time.Second)
	out.MaxTTL = cmp.Or(out.MaxTTL, max(24*time.Hour, out.TTL))
	out.Reserve = cmp.Or(out.Reserve, time.Hour)
	out.Retain = cmp.Or(out.Retain, 5*time.Minute)
	out.JobGrace = cmp.Or(out.JobGrace, 20*time.Second)
	out.Poll = cmp.Or(out.Poll, 4*time.Second)
	out.CallTimeout = cmp.Or(out.CallTimeout, 3*time.Second)
	if len(out.Secrets) == 0 {
		out.Secrets = [][]byte{nil}
	}
	if out.Now == nil {
		out.Now = time.Now
	}
	if out.Holder == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		out.Holder = shorten(fmt.Sprintf("%s:%d", host, os.Getpid()), driver.MaxLabelBytes-8)
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return &out
}

func (c *Config) validate() error {
	const op = "new"
	if err := checkDurations(op, "",
		duration{"Config.TTL", c.TTL, driver.MinPeriod, c.MaxTTL},
		duration{"Config.MaxTTL", c.MaxTTL, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.Margin", c.Margin, 0, c.TTL / 2},
		duration{"Config.MaxRenew", c.MaxRenew, 0, driver.MaxPeriod},
		duration{"Config.Reserve", c.Reserve, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.Retain", c.Retain, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.JobGrace", c.JobGrace, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.Poll", c.Poll, driver.MinPeriod, time.Hour},
		duration{"Config.CallTimeout", c.CallTimeout, driver.MinPeriod, time.Hour},
	); err != nil {
		return err
	}
	return CheckText(op, "", "Config.Holder", c.Holder, 1, driver.MaxLabelBytes)
}

// margin returns the time between the trust deadline and the end of a lease: Config.Margin or its default, but at most
// half of ttl, the length of the lease.
func (c *Config) margin(ttl time.Duration) time.Duration {
	if c.Margin > 0 {
		return min(c.Margin, ttl/2)
	}
	return min(ttl/20, time.Second)
}

// brief returns how long the store remembers the end of a lock about which no other caller can ask. The store can
// forget the fence of such a lock, because the store's clock has passed the fence. But a client without an answer may
// repeat its release, and the answer must be that the first release succeeded. Repeats come for CallTimeout, and those
// of calls under way for as long again.
func (c *Config) brief() time.Duration { return max(2*c.CallTimeout, minBrief) }

// minBrief is how far back the store's clock may be set while new fences are still larger than forgotten fences.
const minBrief = 5 * time.Second

// duration is the value of a setting or an option, with the name for errors, and with two inclusive bounds.
type duration struct {
	name        string
	val, lo, hi time.Duration
}

// checkDurations returns an ErrInvalid for the first duration out of bounds, and nil if there is none.
func checkDurations(op, key string, all ...duration) error {
	for _, d := range all {
		if d.val < d.lo {
			return Invalid(op, key, "%s is %s, must be at least %s", d.name, d.val, d.lo)
		}
		if d.val > d.hi {
			return Invalid(op, key, "%s is %s, must be at most %s", d.name, d.val, d.hi)
		}
	}
	return nil
}
