package internal_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
)

func draws() string {
	var all []any
	for range 20 {
		all = append(all, jitter.N(time.Hour), jitter.Perm(5))
	}
	return fmt.Sprint(all...)
}

func TestSeedRepeatsTheDraws(t *testing.T) {
	drawn := make(map[string]int)
	for _, seed := range []uint64{1, 2, 1} {
		restore := jitter.Seed(seed)
		drawn[draws()]++
		restore()
	}
	drawn[draws()]++
	drawn[draws()]++
	if len(drawn) != 4 {
		t.Errorf("%d different draws of two seeds, one of them twice, and two without a seed, want 4", len(drawn))
	}
}

func TestDrawsHaveBounds(t *testing.T) {
	for _, seed := range []bool{false, true} {
		if seed {
			defer jitter.Seed(1)()
		}
		for range 1000 {
			if d := jitter.N(3); d < 0 || d >= 3 {
				t.Fatalf("drew %d of 3", d)
			}
		}
	}
}
