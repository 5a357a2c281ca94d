// Package jitter returns random pauses and orders. The source is math/rand; a test can seed it to make the results
// reproducible.
package jitter

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// seeded replaces the global source, unless it is nil.
var seeded atomic.Pointer[source]

type source struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

// N returns a random duration that is at least 0 and less than n. n must be positive.
func N(n time.Duration) time.Duration {
	if s := seeded.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Duration(s.rnd.Int64N(int64(n)))
	}
	return rand.N(n)
}

// Perm returns the numbers from 0 to n-1 in a random order.
func Perm(n int) []int {
	if s := seeded.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.rnd.Perm(n)
	}
	return rand.Perm(n)
}

// Seeded reports whether Seed is in effect.
func Seeded() bool { return seeded.Load() != nil }

// Seed makes all results deterministic, across all goroutines, until restore is called. It is for tests.
func Seed(seed uint64) (restore func()) {
	before := seeded.Swap(&source{rnd: rand.New(rand.NewPCG(seed, 0))})
	return func() { seeded.Store(before) }
}
