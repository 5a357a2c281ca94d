package joblock

import (
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
)

// The defaults of Config, as TestConfigDefaults of package core checks them.
const (
	DefaultTTL         = 30 * time.Second
	DefaultReserve     = time.Hour
	DefaultRetain      = 5 * time.Minute
	DefaultJobGrace    = 20 * time.Second
	DefaultPoll        = 4 * time.Second
	DefaultCallTimeout = 3 * time.Second
)

// NewWithClock is New with a clock other than time.Now.
func NewWithClock(store driver.Store, cfg *Config, now func() time.Time) *Locker {
	full, err := cfg.core()
	if err != nil {
		panic(err)
	}
	if full == nil {
		full = &core.Config{}
	}
	full.Now = now
	l, err := core.New(store, full)
	if err != nil {
		panic(err)
	}
	return (*Locker)(l)
}

// CheckKey is the check that every key passes before it is used.
func CheckKey(key string) error { return core.CheckKey("test", key) }

// CheckTaken is the check that every key passes before an application takes its lock.
func CheckTaken(key string) error { return core.CheckTaken("test", key, false) }

// MaxTokenBytes bounds every form of a token.
const MaxTokenBytes = 2048

// Core returns the locks of package core.
func (ls Locks) Core() core.Locks { return ls.core() }

// IfJob releases the lock only while it is bound to this job, as the toolkit does.
func IfJob(job string) ReleaseOption {
	return releaseIf(func(r *core.Release) { r.Job = job })
}

// What the toolkit sees of locks and tokens.

func (t Token) Owner() string      { return core.Token(t).Owner() }
func (t Token) Fence() int64       { return core.Token(t).Fence() }
func (t Token) TTL() time.Duration { return core.Token(t).TTL() }
func (k *Lock) Owner() string {
	if !k.core().Token().IsZero() { // Token shares the owner: the test may ask for the lock by it
		return k.core().Owner()
	}
	return ""
}
func (k *Lock) Digest() string     { return k.core().Digest() }
func (k *Lock) TTL() time.Duration { return k.core().TTL() }
func (k *Lock) StopRenewing()      { k.core().StopRenewing() }
func (k *Lock) Recovered() bool    { return k.core().Recovered() }
