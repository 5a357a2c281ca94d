//go:build servers

package e2e

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// Four processes with six waiters each share three permits.
func TestLimitAcrossProcesses(t *testing.T) {
	t.Parallel()
	const procs, waiters, rounds, limit = 4, 6, 10, 3
	server := redistest.Start(t)
	plan := queuePlan{Addr: server.Addr(), Key: "k", Waiters: waiters, Rounds: rounds, Limit: limit,
		Hold: time.Millisecond, Together: limit, Config: neverDue}
	start := time.Now()
	var ps []*proc
	for range procs {
		ps = append(ps, startQueue(t, plan))
	}
	for _, p := range ps {
		p.finish(t)
	}
	all := stays(t, server.Client(t))
	t.Logf("%d permits given in %v", len(all), time.Since(start))
	if len(all) != procs*waiters*rounds {
		t.Errorf("%d stays, want %d", len(all), procs*waiters*rounds)
	}
	var most int64
	for _, e := range all {
		most = max(most, e.Inside)
	}
	if most != limit {
		t.Errorf("at most %d were inside at once, want %d", most, limit)
	}
}

// The processes of the one that waits at the head of the line and of a holder are
// killed: the permit goes to the next in line.
func TestPermitMovesOnWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	const permits = 2
	server := redistest.Start(t)
	locks := newLocks(t, server.Addr(), &waitConfig)
	ctx := t.Context()
	two := limit.New(locks, permits)
	mine, err := two.TryAcquire(ctx, "k", joblock.TTL(time.Hour)) // outlasts the test
	if err != nil {
		t.Fatal(err)
	}
	plan := queuePlan{Addr: server.Addr(), Key: "k", Waiters: 1, Rounds: 1, Limit: permits, Hold: -1, Config: waitConfig}
	holder := startQueue(t, plan)
	holder.got(t)
	waiting := func(n int) {
		t.Helper()
		await(t, "the line", func() bool {
			st, err := two.Status(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			return st.Waiters == n
		})
	}
	head := startQueue(t, plan)
	waiting(1)
	got := make(chan *joblock.Lock, 1)
	go func() {
		lock, err := two.Acquire(ctx, "k", joblock.MaxWait(time.Minute), joblock.TTL(time.Hour))
		if err != nil {
			t.Error(err)
		}
		got <- lock
	}()
	waiting(2)
	head.kill()
	holder.kill()
	start := time.Now()
	lock := <-got
	t.Logf("granted %v after the kills, TTL %v, poll %v", time.Since(start), waitConfig.TTL, waitConfig.Poll)
	if mine.Err() != nil || lock.Err() != nil || lock.Key() == mine.Key() {
		t.Errorf("the permits are %v (%v) and %v (%v)", mine, mine.Err(), lock, lock.Err())
	}
}
