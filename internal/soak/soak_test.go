//go:build servers

package soak

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// guard is how long anything at the end may take that takes a moment as a rule.
const guard = 3 * time.Minute

// Nothing grows while everything that there is goes on at full speed, and nothing is
// left when it has ended.
func TestSoak(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	plan := planOf(t)
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	rdb := server.Client(t)
	own := measure(t, rdb) // with the connection that this opens

	// Two Lockers, as two processes have them: what one frees the other waits for.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	feeding, stopFeeding := context.WithCancel(ctx)
	defer stopFeeding()
	l := &load{t: t, ctx: ctx, feeding: feeding, queues: plan.waiters / 10}
	for range 2 {
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{
			TTL: ttl, Poll: poll, Retain: retain, JobGrace: grace, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		l.lockers = append(l.lockers, locks)
	}
	j := startJobs(t, l, server.Addr(), plan.inFlight)
	l.run(plan.held, l.hold)
	l.run(plan.waiters, l.queue)
	l.run(plan.others, l.limit)
	l.run(plan.others, l.flight)
	l.run(plan.others, l.park)
	l.feed(plan.others, j.enqueue)

	time.Sleep(plan.warmUp)
	taken := watch(t, rdb, plan.length)
	stopFeeding()
	l.feeders.Wait()
	j.stop(func() int64 { return index(t, rdb) })
	stop()
	l.wg.Wait()
	for _, locks := range l.lockers {
		bounded, cancel := context.WithTimeout(context.Background(), guard)
		if err := locks.Close(bounded); err != nil {
			t.Errorf("close: %v", err)
		}
		cancel()
	}
	wantNoWaiters(t, rdb)
	t.Logf("in %s, the first %s of which are not measured: %s%s", plan.warmUp+plan.length, plan.warmUp, l, report(taken))
	for _, sentence := range growth(taken) {
		t.Errorf("it grows: %s", sentence)
	}
	for name, n := range map[string]int64{
		"held": l.held.Load(), "waited": l.waits.Load(), "gave up": l.gaveUp.Load(), "permits": l.permits.Load(),
		"flights": l.flights.Load(), "parks": l.parks.Load(), "jobs": l.done.Load(),
	} {
		if n == 0 {
			t.Errorf("%s: none; the load is not what it should be", name)
		}
	}
	await(t, "the keys to be gone", func() (bool, string) {
		// The number of a limit's permits is remembered for a day after its last use.
		left := slices.DeleteFunc(names(t, rdb), func(name string) bool { return strings.HasSuffix(name, "%#size") })
		return len(left) == 0, fmt.Sprintf("left are %d: %q", len(left), left[:min(len(left), 10)])
	})
	await(t, "the connections to be closed", func() (bool, string) {
		n := info(t, rdb, "clients", "connected_clients")
		return n <= own[clients], fmt.Sprintf("%d, had %d", n, own[clients])
	})
	await(t, "the goroutines to end", func() (bool, string) {
		n := int64(runtime.NumGoroutine())
		return n <= own[goroutines], fmt.Sprintf("%d, had %d", n, own[goroutines])
	})
}

// wantNoWaiters fails the test if any record has a place in its queue. The records of the keys that were waited for
// would run out, but not soon: wantNoWaiters deletes them.
func wantNoWaiters(t *testing.T, rdb *redis.Client) {
	t.Helper()
	looked, left := 0, 0
	for _, name := range names(t, rdb) {
		fields, err := redistest.QueueFields(context.Background(), rdb, name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, keyspace.DefaultPrefix+joblock.Key("queue")+":") {
			if life, err := rdb.PTTL(context.Background(), name).Result(); err != nil || life <= 0 || life > queueRetain {
				t.Errorf("%s runs out in %s, %v", name, life, err)
			}
			if err := rdb.Del(context.Background(), name).Err(); err != nil {
				t.Fatal(err)
			}
			looked++
		}
		if len(fields) == 0 {
			continue
		}
		if left++; left <= 3 {
			t.Errorf("%s has waiters: %q", name, fields[:min(len(fields), 10)])
		}
	}
	if left > 0 {
		t.Errorf("%d records have waiters, want none: all waits have ended", left)
	}
	if looked == 0 {
		t.Error("no record of a key that was waited for was there to be looked at")
	}
}

// names returns the names in Redis of all records, and of the index.
func names(t *testing.T, rdb *redis.Client) (all []string) {
	t.Helper()
	ctx := context.Background()
	it := rdb.Scan(ctx, 0, keyspace.DefaultPrefix+"*", 10_000).Iterator()
	for it.Next(ctx) {
		if it.Val() != keyspace.DefaultPrefix+"%seal" { // it stays
			all = append(all, it.Val())
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// await waits until ok, or fails with what ok has to say.
func await(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	for end := time.Now().Add(guard); ; time.Sleep(20 * time.Millisecond) {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatal("gave up waiting for " + what + ": " + state)
		}
	}
}

func measure(t *testing.T, rdb *redis.Client) (s sample) {
	t.Helper()
	ctx := context.Background()
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s[heap], s[goroutines] = int64(mem.HeapAlloc), int64(runtime.NumGoroutine())
	var err error
	if s[keys], err = rdb.DBSize(ctx).Result(); err != nil {
		t.Fatal(err)
	}
	s[dataset], s[clients] = info(t, rdb, "memory", "used_memory_dataset"), info(t, rdb, "clients", "connected_clients")
	s[entries] = index(t, rdb)
	return s
}

func index(t *testing.T, rdb *redis.Client) int64 {
	t.Helper()
	n, err := rdb.ZCard(context.Background(), keyspace.DefaultPrefix).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func info(t *testing.T, rdb *redis.Client, section, field string) int64 {
	t.Helper()
	text, err := rdb.Info(context.Background(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("INFO %s has no %s", section, field)
	return 0
}

// watch measures for so long.
func watch(t *testing.T, rdb *redis.Client, length time.Duration) (taken []sample) {
	t.Helper()
	tick := time.NewTicker(length / 30)
	defer tick.Stop()
	for end := time.Now().Add(length); time.Now().Before(end); <-tick.C {
		taken = append(taken, measure(t, rdb))
	}
	return taken
}
