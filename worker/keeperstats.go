package worker

import "maps"

// KeeperStats counts what Run has done in this process. A lock that is looked at
// again is counted again; every look but those at locks that could not be read
// counts in one of Held, Kept, Over, Foreign and Unanswered, or is in Freed.
type KeeperStats struct {
	// Leading tells that this Worker's Run is the one that works at present.
	Leading bool

	Looks      int64            // at locks that were due
	Held       int64            // somebody runs under it
	Kept       int64            // its task lives, or may still be on its way
	Extended   int64            // of Kept: the reservation was prolonged
	Over       int64            // it had ended, or become another job's, by itself
	Foreign    int64            // left alone: no task of the asynq databases that Run knows
	Unanswered int64            // left alone: one of the two sides did not answer
	Freed      map[string]int64 // by the reason that Status shows; with Config.DryRun what would have been
}

// KeeperStats returns a snapshot. A nil Worker has counted nothing.
func (w *Worker) KeeperStats() KeeperStats {
	if w == nil {
		return KeeperStats{}
	}
	k := w.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.stats
	out.Freed = maps.Clone(out.Freed)
	return out
}

func (k *keeper) leading(yes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Leading = yes
}

// add adds the counts of one batch.
func (k *keeper) add(n *KeeperStats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Looks += n.Looks
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
