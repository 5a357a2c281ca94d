package joblock

import (
	"github.com/joblock/toolkit/joblock/driver"
	"time"
)

// NewWithClock is New with another clock than time.Now.
func NewWithClock(store driver.Store, cfg *Config, now func() time.Time) *Locker {
	return newLocker(store, cfg.WithDefaults(), now)
}

// CheckKey is the check that every key passes before it is used.
func CheckKey(key string) error { return checkKey("test", key) }

// CheckTaken is the check that every key passes before an application takes its lock.
func CheckTaken(key string) error { return checkTaken("test", key, false) }
