package keeper

import "maps"

// Stats has the fields of worker.KeeperStats, which explains them.
type Stats struct {
	Leading    bool
	Checked    int64
	Held       int64
	Kept       int64
	Extended   int64
	Over       int64
	Foreign    int64
	Unanswered int64
	Freed      map[string]int64
}

// Stats returns a copy of the counts.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.stats
	out.Freed = maps.Clone(out.Freed)
	return out
}

func (k *Keeper) leading(yes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Leading = yes
}

func (k *Keeper) add(n *Stats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Checked += n.Checked
	k.stats.Held += n.Held
	k.stats.Kept += n.Kept
	k.stats.Extended += n.Extended
	k.stats.Over += n.Over
	k.stats.Foreign += n.Foreign
	k.stats.Unanswered += n.Unanswered
	for reason, freed := range n.Freed {
		k.stats.Freed[reason] += freed
	}
}
