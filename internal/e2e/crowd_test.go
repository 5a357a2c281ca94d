//go:build servers

package e2e

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

// scriptCalls is how many scripts the server has run.
func scriptCalls(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, m := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// A crowd, ten times as large as in the other tests and in several processes, waits for
// one key that is then let go: all are served, each once, in the order in which they
// came, and none asks in between.
func TestCrowdIsServedInOrderWithoutAStorm(t *testing.T) {
	t.Parallel()
	const procs, waiters = 4, 80
	server := redistest.Start(t)
	rdb := server.Client(t)
	// Nothing is due for hours but what the hand-overs themselves take.
	locks := newLocks(t, server.Addr(), &neverDue)
	holder, err := locks.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	var ps []*proc
	for range procs {
		ps = append(ps, startQueue(t, queuePlan{Addr: server.Addr(), Key: "k", Waiters: waiters, Rounds: 1, Config: neverDue}))
	}
	awaitWaiters(t, locks, "k", procs*waiters)
	before := scriptCalls(t, rdb)
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		p.finish(t)
	}
	// One call for each release, and one with which the next one gets its grant; here and
	// there one more, where a process is slow enough to repeat itself.
	calls := scriptCalls(t, rdb) - before
	if most := 2*procs*waiters + procs*waiters/10; calls > most {
		t.Errorf("%d calls for %d hand-overs, want %d at most", calls, procs*waiters, most)
	}
	t.Logf("%d calls for %d hand-overs", calls, procs*waiters)
	all := entries(t, rdb)
	if len(all) != procs*waiters {
		t.Errorf("%d entries, want %d", len(all), procs*waiters)
	}
	last := int64(0)
	for i, e := range all {
		if e.Joined == 0 || e.Joined < last {
			t.Errorf("entry %d joined at %d, the one before at %d", i, e.Joined, last)
		}
		last = e.Joined
	}
}
