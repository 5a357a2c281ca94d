package ledger

import (
	"fmt"
	"slices"
	"testing"
)

// No node misses a change, however many there are between two of its looks.
func TestSpecChanges(t *testing.T) {
	var c SpecChanges
	if c.Newest() != 0 {
		t.Errorf("newest %d", c.Newest())
	}
	changed := make(map[string]int64)
	for fence := int64(1); fence <= 60; fence++ {
		var names []string
		for i := range fence % 9 {
			name := fmt.Sprint("job", (fence*7+i*13)%200)
			names, changed[name] = append(names, name), fence
		}
		if fence == 40 {
			names = nil
			for i := range keptChanges + 50 {
				name := fmt.Sprint("many", i)
				names, changed[name] = append(names, name), fence
			}
		}
		c.Add(fence, names)
		if len(c.Jobs) > keptChanges || len(names) > 0 && c.Newest() != fence {
			t.Fatalf("%d jobs, newest %d after %d", len(c.Jobs), c.Newest(), fence)
		}
		for seen := range fence {
			got, all := c.After(seen)
			for name, at := range changed {
				if at > seen && !all && !slices.Contains(got, name) {
					t.Fatalf("after %d, seen up to %d: %s is missing", fence, seen, name)
				}
				if at <= seen && slices.Contains(got, name) {
					t.Fatalf("after %d, seen up to %d: %s is old", fence, seen, name)
				}
			}
		}
		if _, all := c.After(fence); all {
			t.Fatalf("all jobs after %d", fence)
		}
	}
}
