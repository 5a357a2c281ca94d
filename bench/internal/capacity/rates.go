package capacity

import (
	"math"
	"time"
)

// Tags is how many hash tags the locks of a cluster have. The tags' slots lie at even distances.
const Tags = 256

const (
	mostInBatch = 100 // leases that are renewed in one pipeline
	mostRenewed = 4   // connections for renewals
	brief       = 6 * time.Second

	leasePolls = 6  // polls in a lease, at least
	nearLine   = 32 // waiters behind so many others poll less often

	wakeups    = 10 // questions of a keeper per Every
	longestNap = time.Second

	mostClaimed = 500 // locks that a keeper claims at a time

	spare = 0.1 // of Every: what a round of a keeper takes less

	sync = 10 * time.Second // scheduler.Config.Sync

	// clusterReload is how often each client of a cluster reads the topology. Each Store has two clients.
	clusterReload = 2 * time.Second
)

// PollsPerSecond returns how often a waiter asks: with so many waiters for the same lock ahead of it.
func PollsPerSecond(ttl, poll time.Duration, ahead int) float64 {
	d := ttl / leasePolls
	if far := min(time.Duration(ahead/nearLine), 1000); far > 0 && d < poll {
		d += min(d*far, poll)
	}
	return 1 / min(d, poll).Seconds()
}

// RenewalsPerSecond returns how often a lease is renewed.
func RenewalsPerSecond(ttl time.Duration) float64 { return 3 / ttl.Seconds() }

// RenewalsOfJob returns how often the lease of a job is renewed that runs so long.
func RenewalsOfJob(ttl, work time.Duration) float64 {
	return math.Floor(3 * work.Seconds() / ttl.Seconds())
}

// RenewalBatch returns how many leases a process renews in one pipeline if it holds so many locks, taken at random times.
func RenewalBatch(ttl time.Duration, held float64) float64 {
	return min(max(1, dueTogether(ttl, held)), mostInBatch)
}

// RenewalLinks returns how many connections such a process has for renewals. After a stall of the process all its locks
// may be due.
func RenewalLinks(held float64) float64 { return min(math.Ceil(held/mostInBatch), mostRenewed) }

// dueTogether returns how many leases a process renews when it wakes up.
func dueTogether(ttl time.Duration, held float64) float64 {
	slack := min(ttl/30, 100*time.Millisecond)
	return held * slack.Seconds() * 3 / ttl.Seconds()
}

// NapsPerSecond returns how often a keeper asks each part of the index which locks are due. In each part so many locks
// become due a second, one by one. An index with one part is asked all the time.
func NapsPerSecond(every time.Duration, parts int, due float64) float64 {
	most := 1 / min(every/wakeups, longestNap).Seconds()
	if parts > 1 {
		return min(most, 3/every.Seconds()+due)
	}
	return most
}

// checkCommands returns the commands per check if so many locks of listed tasks are checked together: a question and an
// answer.
func checkCommands(together float64) float64 { return 2 / min(max(1, together), mostClaimed) }

// Largest returns the share of the locks that the master has which has most tags.
func Largest(masters int) float64 {
	return math.Ceil(float64(Tags)/float64(masters)) / Tags
}

// Nodes returns to how many of the masters a batch goes, on average.
func Nodes(masters int, batch float64) float64 {
	m := float64(masters)
	return m * (1 - math.Pow(1-1/m, max(1, batch)))
}

// Undisturbed returns the part of periodic calls that are still made if the period begins anew with each hand-over:
// handovers is how many come per period, at random times.
func Undisturbed(handovers float64) float64 {
	if handovers < 1e-9 {
		return 1
	}
	return handovers / math.Expm1(handovers)
}
