package joblock

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// The defaults of Config, as TestConfigDefaults checks them.
const (
	DefaultTTL         = 30 * time.Second
	DefaultReserve     = time.Hour
	DefaultRetain      = 5 * time.Minute
	DefaultJobGrace    = 20 * time.Second
	DefaultPoll        = 4 * time.Second
	DefaultCallTimeout = 3 * time.Second
)

func WithDefaults(c *Config) *Config { return c.withDefaults() }

// NewWithClock is New with another clock than time.Now.
func NewWithClock(store driver.Store, cfg *Config, now func() time.Time) *Locker {
	return newLocker(store, cfg.withDefaults(), now)
}

// EngineAwake returns when the goroutine of the engine wakes up next. Each run of the goroutine changes that.
func EngineAwake(l *Locker) time.Time {
	l.engine.mu.Lock()
	defer l.engine.mu.Unlock()
	return l.engine.awake
}

// CheckKey is the check that every key passes before it is used.
func CheckKey(key string) error { return checkKey("test", key) }

// CheckTaken is the check that every key passes before an application takes its lock.
func CheckTaken(key string) error { return checkTaken("test", key, false) }

// What the toolkit sees of locks and tokens through package door.

func (t Token) Owner() string      { return identityOf(t).Owner }
func (t Token) Fence() int64       { return identityOf(t).Fence }
func (t Token) TTL() time.Duration { return identityOf(t).TTL }
func (k *Lock) Owner() string {
	if !k.none() {
		k.share() // the test may ask for the lock by it
	}
	return identityOf(k).Owner
}
func (k *Lock) Digest() string     { return identityOf(k).Digest() }
func (k *Lock) TTL() time.Duration { return identityOf(k).TTL }
func (k *Lock) Recovered() bool    { return !k.none() && k.recovered }

// MaxTokenBytes bounds every form of a token.
const MaxTokenBytes = maxTokenBytes

// The two ways to read the binary form of a token.
var (
	ScanToken = scanToken
	ReadToken = readToken
)
