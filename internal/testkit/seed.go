package testkit

import (
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
