//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// nodeCalls is how many scripts each master has run.
func nodeCalls(t *testing.T, cluster *redistest.Cluster) []int {
	t.Helper()
	var calls []int
	for i := range cluster.Addrs() {
		rdb := cluster.Node(i).Client(t)
		calls = append(calls, commandCalls(t, rdb, "evalsha")+commandCalls(t, rdb, "eval"))
		rdb.Close()
	}
	return calls
}

// What is done for one lock is one call at one node, and no node has more calls than
// others when there are many locks.
func TestLocksOfJobsAreSpreadOverACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	k := newKit(t, cluster.Client(t))
	ctx := context.Background()

	calls := func() (sum int) {
		for _, n := range nodeCalls(t, cluster) {
			sum += n
		}
		return sum
	}
	for round := range 2 * k.Parts() { // by then each node knows the scripts
		key := fmt.Sprint("once ", round)
		counted := func(what string, want int, call func() (driver.Reply, error)) {
			t.Helper()
			before := 0
			last := round == 2*k.Parts()-1
			if last {
				before = calls()
			}
			r, err := call()
			wantOutcome(t, what, r, err, driver.OutcomeOK)
			if last && calls()-before != want {
				t.Errorf("%s: %d calls at the nodes, want %d", what, calls()-before, want)
			}
		}
		term := k.acquire(key)
		park := k.park(term)
		park.Reserve = time.Millisecond
		counted("park for a job", 1, func() (driver.Reply, error) { return k.Park(ctx, park) })
		time.Sleep(2 * time.Millisecond)
		resume := driver.ResumeRequest{Key: key, Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: park.Job}
		counted("resume a lock that was lost", 2, func() (driver.Reply, error) { return k.Resume(ctx, resume) })
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: key, Owner: term.Owner})})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		take := k.taking(key)
		counted("take for a job", 1, func() (driver.Reply, error) { return k.Take(ctx, take) })
		resume = driver.ResumeRequest{Key: key, Owner: take.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: take.Job}
		counted("resume for a job", 1, func() (driver.Reply, error) { return k.Resume(ctx, resume) })
		back := driver.ResumeRequest{Key: key, Owner: take.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/2", Unpark: true, Back: "q/0"}
		r, err := k.Park(ctx, driver.ParkRequest{Term: driver.Term{Key: key, Owner: take.Owner, Grant: resume.Nonce},
			Nonce: k.nonce(), Reserve: long, Retain: long, Job: "q/2", Grace: long})
		wantOutcome(t, "park for another job", r, err, driver.OutcomeOK)
		counted("take a Park back", 1, func() (driver.Reply, error) { return k.Resume(ctx, back) })
	}

	const keys, most = 10_000, 1.3
	before := nodeCalls(t, cluster)
	for first := 0; first < keys; first += driver.MaxBatch {
		var takes []driver.TakeRequest
		for i := first; i < min(keys, first+driver.MaxBatch); i++ {
			takes = append(takes, k.taking(fmt.Sprintf("export:acct-%d", i)))
		}
		rs, err := k.store.Take(ctx, takes)
		wantOutcomes(t, "take", rs, err, len(takes), driver.OutcomeOK)
	}
	var entries int64
	for part := range k.Parts() {
		entries += k.rdb.ZCard(ctx, k.index(part)).Val()
	}
	if want := int64(keys + 3*2*k.Parts()); entries != want {
		t.Errorf("the index has %d entries, want %d", entries, want)
	}
	for i, n := range nodeCalls(t, cluster) {
		if n -= before[i]; float64(n) > most*keys/3 {
			t.Errorf("node %d has run %d scripts for %d locks, more than %.1f times the mean", i, n, keys, most)
		}
	}
	t.Logf("calls before and after %d takes for jobs: %v and %v", keys, before, nodeCalls(t, cluster))
}
