// Package dice is where pauses and orders come from that are to differ from one another:
// math/rand, which tests can make repeat itself.
package dice

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// seeded is the source in place of the global one, if there is one.
var seeded atomic.Pointer[source]

type source struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

// N returns a duration from 0 to below n, which must be positive.
func N(n time.Duration) time.Duration {
	if s := seeded.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Duration(s.rnd.Int64N(int64(n)))
	}
	return rand.N(n)
}

// Perm returns the numbers from 0 to below n in some order.
func Perm(n int) []int {
	if s := seeded.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.rnd.Perm(n)
	}
	return rand.Perm(n)
}

// Seeded reports whether there is a seed.
func Seeded() bool { return seeded.Load() != nil }

// Seed makes all that is drawn from now on, by whomever, a sequence of the seed, until
// restore is called. For tests.
func Seed(seed uint64) (restore func()) {
	before := seeded.Swap(&source{rnd: rand.New(rand.NewPCG(seed, 0))})
	return func() { seeded.Store(before) }
}
