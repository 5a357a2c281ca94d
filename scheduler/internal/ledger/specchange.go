package ledger

import "slices"

// keptChanges bounds the names in SpecChanges, which take at most some 20 KiB.
const keptChanges = 100

// SpecChanges says for which jobs another spec has been put into force lately. A node with the former spec would otherwise
// not look at the ledger before the former spec's next tick.
type SpecChanges struct {
	Jobs []SpecChange `json:"jobs,omitempty"` // the newest first
	Gone int64        `json:"gone,omitempty"` // the greatest fence that Jobs had and no longer has
}

// SpecChange is the name of a job and the fence of the write.
type SpecChange struct {
	Name  string `json:"j"`
	Fence int64  `json:"f"`
}

// Newest returns the fence of the latest change, or 0.
func (c SpecChanges) Newest() int64 {
	if len(c.Jobs) == 0 {
		return c.Gone
	}
	return c.Jobs[0].Fence
}

// AddName adds a name to a list for Add, unless the list has the name. If the list has more names than SpecChanges keeps,
// AddName drops the name: Add then makes nodes look at all jobs.
func AddName(names []string, name string) []string {
	if len(names) > keptChanges || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// Add adds the jobs of one write.
func (c *SpecChanges) Add(fence int64, names []string) {
	all := make([]SpecChange, 0, len(names)+len(c.Jobs))
	for _, name := range names {
		all = append(all, SpecChange{name, fence})
	}
	for _, old := range c.Jobs {
		if !slices.Contains(names, old.Name) {
			all = append(all, old)
		}
	}
	for len(all) > keptChanges {
		last := len(all) - 1
		c.Gone = max(c.Gone, all[last].Fence)
		all = all[:last]
	}
	c.Jobs = all
}

// After returns the jobs whose spec has changed in writes with a greater fence. If all is true, any job's may have.
func (c SpecChanges) After(fence int64) (names []string, all bool) {
	for _, change := range c.Jobs {
		if change.Fence > fence {
			names = append(names, change.Name)
		}
	}
	return names, c.Gone > fence
}
