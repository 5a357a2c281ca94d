package measure

import (
	"slices"
	"testing"
	"time"
)

func TestFollow(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, tc := range []struct {
		name       string
		grants     []grant // in ms, converted below
		latencies  []float64
		overtakes  int
		violations int
	}{
		{name: "in the order of asking",
			grants:    []grant{{0, 101, 110}, {50, 112, 120}},
			latencies: []float64{1, 2}},
		{name: "sorted by grant, not by process",
			grants:    []grant{{50, 112, 120}, {0, 101, 110}},
			latencies: []float64{1, 2}},
		{name: "a later one first",
			grants:    []grant{{0, 112, 120}, {50, 101, 110}},
			latencies: []float64{1, 2}, overtakes: 1},
		{name: "asked too close to each other to tell",
			grants:    []grant{{0, 112, 120}, {5, 101, 110}},
			latencies: []float64{1, 2}},
		{name: "asked again after the one who waits had asked",
			grants:    []grant{{0, 101, 110}, {110, 113, 115}, {50, 117, 120}},
			latencies: []float64{1, 3, 2}, overtakes: 1},
		{name: "granted before it was released",
			grants:    []grant{{0, 101, 110}, {50, 109, 120}},
			latencies: []float64{1, -1}, violations: 1},
		{name: "nobody"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i, g := range tc.grants {
				tc.grants[i] = grant{g.Asked * ms, g.Granted * ms, g.Released * ms}
			}
			got := follow(100*ms, tc.grants)
			if !slices.Equal(got.latencies, tc.latencies) || got.overtakes != tc.overtakes || got.violations != tc.violations {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestInOrder(t *testing.T) {
	for _, tc := range []struct {
		name              string
		all               []place
		waited, overtaken int
	}{
		{"sorted by fence, not by process", []place{{3, 30}, {1, 10}, {2, 20}}, 3, 0},
		{"who found it free overtakes nobody", []place{{1, 10}, {2, 0}, {3, 20}}, 2, 0},
		{"one came before two who had joined earlier", []place{{1, 30}, {2, 10}, {3, 20}, {4, 40}}, 4, 2},
		{"nobody", nil, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if waited, overtaken := inOrder(tc.all); waited != tc.waited || overtaken != tc.overtaken {
				t.Errorf("%d waited, %d overtaken", waited, overtaken)
			}
		})
	}
}

func TestGrantsAfterTheStopDoNotCount(t *testing.T) {
	early, late := grant{Asked: 1, Granted: 5, Released: 20}, grant{Asked: 1, Granted: 11, Released: 12}
	got := before(10, []answer{{Grants: []grant{late, early}}, {}, {Grants: []grant{late}}})
	if !slices.Equal(got, []grant{early}) {
		t.Errorf("got %+v", got)
	}
}
