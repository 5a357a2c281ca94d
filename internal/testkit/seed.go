package testkit

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/joblock/toolkit/internal/dice"
)

// Seed makes what the packages under test draw at random a sequence of the seed until the
// test ends. Goroutines that draw at the same time may still swap what they get.
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

// EnvSeed is the seed to repeat something by, that of $JOBLOCK_SEED, else a new one. It is
// logged.
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
