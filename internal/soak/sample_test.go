package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What is measured while the load runs.
const (
	heap = iota
	goroutines
	keys
	dataset
	clients
	entries
	kinds
)

// measures says how much of each may grow by the last third of a run, over what it was
// in the first: by the factor, because the load goes faster once the machine is left
// alone, and by the slack. The least of the last third is compared with the most of the
// first, so that no peak counts as growth; what leaks, grows with every call.
var measures = [kinds]struct {
	name   string
	factor float64
	slack  int64
}{
	heap:       {"bytes of heap in use", 1.5, 8 << 20},
	goroutines: {"goroutines", 1.5, 200},
	keys:       {"keys in Redis", 2.5, 2000},
	dataset:    {"bytes of data in Redis", 2.5, 4 << 20},
	clients:    {"connections", 1.2, 30},
	entries:    {"entries of the index", 2.5, 2000},
}

type sample [kinds]int64

// growth returns a sentence for each thing that is more in the last third than it may be.
func growth(taken []sample) (grown []string) {
	first, last := taken[:(len(taken)+2)/3], taken[len(taken)*2/3:]
	for kind, m := range measures {
		by := func(a, b sample) int { return int(a[kind] - b[kind]) }
		before, after := slices.SortedFunc(slices.Values(first), by)[len(first)/2][kind], slices.MinFunc(last, by)[kind]
		if after > int64(m.factor*float64(before))+m.slack {
			grown = append(grown, fmt.Sprintf("%s: at least %d in the last third, half the time %d in the first", m.name, after, before))
		}
	}
	return grown
}

// report shows at most ten of the samples.
func report(taken []sample) string {
	var b strings.Builder
	for kind, m := range measures {
		fmt.Fprintf(&b, "\n%s:", m.name)
		for i := 0; i < len(taken); i += max(1, len(taken)/10) {
			fmt.Fprintf(&b, " %d", taken[i][kind])
		}
		by := func(a, b sample) int { return int(a[kind] - b[kind]) }
		fmt.Fprintf(&b, "; %d at the peak", slices.MaxFunc(taken, by)[kind])
	}
	return b.String()
}

func TestGrowthIsFound(t *testing.T) {
	flat := slices.Repeat([]sample{{40 << 20, 3000, 5000, 9 << 20, 90, 3000}}, 30)
	flat[12][heap] *= 10 // a peak
	if grown := growth(flat); len(grown) != 0 {
		t.Errorf("of what is flat is said: %q", grown)
	}
	for kind, m := range measures {
		grown := slices.Clone(flat)
		for i := range grown {
			grown[i][kind] += int64(i) * grown[0][kind] / 3
		}
		if got := growth(grown); len(got) != 1 || !strings.HasPrefix(got[0], m.name) {
			t.Errorf("of growing %s is said: %q", m.name, got)
		}
	}
	if got := growth(flat[:1]); len(got) != 0 {
		t.Errorf("of a single sample is said: %q", got)
	}
}
