package report

import (
	"cmp"
	"slices"
)

// label is a name beside the end of a line.
type label struct {
	y           float64
	name, color string
}

// apart returns the labels from top to bottom, moved down where they would
// cover each other.
func apart(labels []label) []label {
	out := slices.Clone(labels)
	slices.SortStableFunc(out, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	for i := 1; i < len(out); i++ {
		out[i].y = max(out[i].y, out[i-1].y+labelHeight)
	}
	return out
}
