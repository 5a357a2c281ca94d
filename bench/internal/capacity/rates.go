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
	burst       = 100 // waiters or cron entries of a process, from which on its calls come in bursts
	brief       = 6 * time.Second

	leasePolls = 6  // polls in a lease, at least
	nearLine   = 32 // waiters behind so many others poll less often

	wakeups    = 10 // questions of a keeper per Every
	longestNap = time.Second

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

// RenewalLinks returns how many connections such a process needs for renewals. The renewals of a process that has
// bursts of work pile up. Otherwise twice as many as usual are due after a pause of the process.
func RenewalLinks(ttl time.Duration, held float64, bursts bool) float64 {
	switch {
	case held <= 0:
		return 0
	case bursts && held > 1:
		return mostRenewed
	}
	return min(max(1, math.Ceil(2*dueTogether(ttl, held)/mostInBatch)), mostRenewed)
}

// dueTogether returns how many leases a process renews when it wakes up.
func dueTogether(ttl time.Duration, held float64) float64 {
	slack := min(ttl/30, 100*time.Millisecond)
	return held * slack.Seconds() * 3 / ttl.Seconds()
}

// NapsPerSecond returns how often a keeper asks each part of the index which locks are due.
func NapsPerSecond(every time.Duration, parts int) float64 {
	if parts > 1 {
		return 3 / every.Seconds()
	}
	return 1 / min(every/wakeups, longestNap).Seconds()
}

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
