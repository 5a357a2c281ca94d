package testkit

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/joblock/toolkit/internal/dice"
)

// Seed makes the packages under test draw their random numbers from a source with this seed, until the test ends. Two
// goroutines that draw at the same time may still swap their numbers.
func Seed(t testing.TB, seed uint64) {
	t.Helper()
	restore := dice.Seed(seed)
	t.Cleanup(func() {
		restore()
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
