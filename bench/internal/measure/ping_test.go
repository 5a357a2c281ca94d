package measure

import (
	"slices"
	"testing"
)

func TestStretchesSplitPings(t *testing.T) {
	s := &stretches{turns: []int64{10_000, 20_000, 30_000}}
	sent := []sentPing{
		{1_000, 2_000},   // before
		{9_000, 10_000},  // under way when it began
		{10_000, 13_000}, // while it went on
		{18_000, 21_000}, // under way when it ended
		{22_000, 26_000}, // between
		{22_000, 33_000}, // under way when it began again
		{35_000, 40_000}, // while it went on again
	}
	without, with := s.split(sent)
	if !slices.Equal(without, []float64{1, 4}) || !slices.Equal(with, []float64{3, 5}) {
		t.Errorf("without %v, with %v", without, with)
	}
}

func TestStretchesBeginOnce(t *testing.T) {
	s := new(stretches)
	s.end()
	s.begin()
	s.begin()
	s.end()
	s.end()
	if len(s.turns) != 2 {
		t.Errorf("%d turns, want 2", len(s.turns))
	}
}
