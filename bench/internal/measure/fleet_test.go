package measure

import (
	"errors"
	"slices"
	"testing"
)

func TestGrantsAreMatchedWithReleases(t *testing.T) {
	acts := func(releases, grants []fleetAct) answer {
		return answer{Fleet: &fleetTold{Releases: releases, Grants: grants}}
	}
	const ms = 1_000_000
	for _, tc := range []struct {
		name string
		told []answer
		want []float64
		err  error
	}{
		{"two processes take turns", []answer{
			acts([]fleetAct{{1, 10 * ms}}, []fleetAct{{1, 33 * ms}}),
			acts([]fleetAct{{1, 30 * ms}}, []fleetAct{{1, 12 * ms}}),
		}, []float64{2, 3}, nil},
		{"the last hand-over has no grant", []answer{
			acts([]fleetAct{{1, 10 * ms}, {2, 20 * ms}}, nil),
			acts(nil, []fleetAct{{1, 250 * ms}}),
		}, []float64{240}, nil},
		{"a grant before the release", []answer{
			acts([]fleetAct{{1, 10 * ms}}, nil),
			acts(nil, []fleetAct{{1, 9 * ms}}),
		}, nil, ErrNotExclusive},
		{"two grants after a release", []answer{
			acts([]fleetAct{{1, 10 * ms}}, []fleetAct{{1, 12 * ms}}),
			acts(nil, []fleetAct{{1, 11 * ms}}),
		}, nil, ErrNotExclusive},
		{"two releases without a grant", []answer{
			acts([]fleetAct{{1, 10 * ms}, {1, 11 * ms}}, nil),
			acts(nil, []fleetAct{{1, 12 * ms}}),
		}, nil, ErrNotExclusive},
	} {
		var r oneFleet
		if err := r.match(tc.told); !errors.Is(err, tc.err) || tc.err == nil && !slices.Equal(r.latencies, tc.want) {
			t.Errorf("%s: %v ms, error %v; want %v ms, error %v", tc.name, r.latencies, err, tc.want, tc.err)
		}
	}
	var r oneFleet
	if err := r.match([]answer{acts([]fleetAct{{1, 1}}, nil)}); err == nil {
		t.Error("no error without a hand-over")
	}
}
