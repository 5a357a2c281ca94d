package testkit

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/joblock/toolkit/internal/jitter"
)

// seeds are the tests that run with a seed. They all have the same one: the source of the packages under test is one for
// the process.
var seeds struct {
	mu      sync.Mutex
	tests   int
	seed    uint64
	restore func()
}

// Seed makes the packages under test draw their random numbers from a source with this seed, until the test ends. Tests
// that run in parallel share the source, and must have the same seed. Goroutines that draw at the same time, and tests in
// parallel, may still swap their numbers.
func Seed(t testing.TB, seed uint64) {
	t.Helper()
	seeds.mu.Lock()
	defer seeds.mu.Unlock()
	if seeds.tests > 0 && seeds.seed != seed {
		t.Fatalf("seed %d: a test that runs in parallel has seed %d", seed, seeds.seed)
	}
	if seeds.tests++; seeds.tests == 1 {
		seeds.seed, seeds.restore = seed, jitter.Seed(seed)
	}
	t.Cleanup(func() {
		seeds.mu.Lock()
		if seeds.tests--; seeds.tests == 0 {
			seeds.restore()
		}
		seeds.mu.Unlock()
		if t.Failed() {
			t.Logf("the seed was %d", seed)
		}
	})
}

// EnvSeed returns and logs the seed in $JOBLOCK_SEED, or a new seed if $JOBLOCK_SEED is empty.
func EnvSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("JOBLOCK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("JOBLOCK_SEED: %v", err)
		}
	}
	t.Logf("JOBLOCK_SEED=%d", seed)
	return seed
}
