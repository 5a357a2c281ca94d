// Package rates is the engine of package joblock/rate and of worker.RateLimit: it asks for starts of one job, or of one
// call, at several rates together.
package rates

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// Limit is rate.Limit.
type Limit struct {
	Key   string
	N     int
	Per   time.Duration
	Burst int
	Name  string
}

const (
	// MaxN is the largest Limit.N, and MaxLimits the largest number of Limits of one start.
	MaxN      = 1_000_000
	MaxLimits = 16

	// MinPer and MaxPer bound Limit.Per.
	MinPer = time.Second
	MaxPer = 31 * 24 * time.Hour

	// maxName bounds Limit.Name.
	maxName = 128
)

// pace is the part of a Limit that a store needs.
type pace struct {
	starts int
	period time.Duration
	margin time.Duration // how long after its admission a start may begin
}

// marginOf returns the margin of a rate per d. A start counts when the store admits it, and begins a little later. So
// that no more than N begin in any d, the store counts over d plus the margin.
func marginOf(d time.Duration) time.Duration { return min(d/50, time.Second) }

// burst returns how many of n starts are admitted at once, if the author wants b: a divisor of n, so that whole bursts
// make n.
func burst(n, b int) int {
	if b > 0 && n%b == 0 {
		return b
	}
	most := driver.MaxStarts
	if b > 0 { // an operator has changed n
		most = b
	}
	for d := min(n, most); d > 1; d-- {
		if n%d == 0 {
			return d
		}
	}
	return 1
}

// pace returns l as the store needs it, with the operator's N if there is one.
func (l *Limit) pace(ctx context.Context, locks *core.Locker) pace {
	n := l.N
	if l.Name != "" {
		n = max(1, locks.Controls().Limit(ctx, l.Name, n, MaxN))
	}
	b, margin := burst(n, l.Burst), marginOf(l.Per)
	total := (l.Per + margin).Microseconds() * int64(b)
	return pace{b, time.Duration((total+int64(n)-1)/int64(n)) * time.Microsecond, margin}
}

// Check returns ErrInvalid for bad limits.
func Check(locks *core.Locker, op string, limits []Limit) error {
	if len(limits) == 0 {
		return core.Invalid(op, "", "no rate limit is given")
	}
	if len(limits) > MaxLimits {
		return core.Invalid(op, "", "%d rate limits are given, at most %d are allowed", len(limits), MaxLimits)
	}
	for i := range limits {
		l := &limits[i]
		if err := CheckKey(locks, op, l.Key); err != nil {
			return err
		}
		switch {
		case l.N < 1 || l.N > MaxN:
			return core.Invalid(op, l.Key, "Limit.N is %d, must be from 1 to %d", l.N, MaxN)
		case l.Per < MinPer || l.Per > MaxPer:
			return core.Invalid(op, l.Key, "Limit.Per is %s, must be from %s to %s: give a higher rate with a larger N, such as 10 per 1s in place of 1 per 100ms", l.Per, MinPer, MaxPer)
		case l.Burst < 0 || l.Burst > min(l.N, driver.MaxStarts):
			return core.Invalid(op, l.Key, "Limit.Burst is %d, must be from 1 to %d, or 0 for the default", l.Burst, min(l.N, driver.MaxStarts))
		case l.Burst > 0 && l.N%l.Burst != 0:
			return core.Invalid(op, l.Key, "Limit.Burst is %d, must divide N, which is %d: %d does", l.Burst, l.N, burst(l.N, l.Burst))
		case len(l.Name) > maxName:
			return core.Invalid(op, l.Key, "Limit.Name has %d bytes, at most %d are allowed", len(l.Name), maxName)
		}
		for _, other := range limits[:i] {
			if other.Key == l.Key {
				return core.Invalid(op, l.Key, "two rate limits have this key: give each its own, such as joblock.Key(key, \"minute\")")
			}
		}
	}
	return nil
}

// CheckKey returns ErrInvalid for a bad key, and ErrClosed after Close of locks.
func CheckKey(locks *core.Locker, op, key string) error {
	if err := locks.Check(op, key); err != nil {
		return err
	}
	if detail := keyspace.CheckApplication(key); detail != "" {
		return core.Invalid(op, key, "%s", detail)
	}
	return nil
}
