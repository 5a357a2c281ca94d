//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// playPolicy is a process with a scheduler whose one job, of that name, writes down when it
// begins and when it is done.
func playPolicy(job string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	err := func() (err error) {
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: schedTTL})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, locks.Close(context.Background())) }()
		node := os.Getenv("JOBLOCK_E2E_NODE")
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "e2e", Node: node, Sync: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		switch job {
		case "fill":
			err = s.Func(job, "@every 1h", func(ctx context.Context) error { return jot(ctx, rdb, node, 40*time.Millisecond) })
		case "several":
			err = s.Func(job, "@every 1s", func(ctx context.Context) error { return crowd(ctx, rdb, node) },
				scheduler.MaxConcurrent(atOnce), scheduler.OverlapQueue(1000), scheduler.CatchUpAll(time.Hour, 1000))
		}
		if err != nil {
			return err
		}
		fmt.Println("up")
		return s.Run(ctx)
	}()
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

// jot writes a note of kind begun, waits, and writes a note of kind done.
func jot(ctx context.Context, rdb *redis.Client, node string, takes time.Duration) error {
	if err := writeNote(ctx, rdb, node, "begun", nil); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(takes):
		return writeNote(ctx, rdb, node, "done", nil)
	}
}

// atOnce is how many executions of the job "several" may run.
const atOnce = 3

// crowd is a function of which some run at the same time. Each has a field in the hash "crowd", by its tick; so an
// execution that replaces a killed one has the same field.
func crowd(ctx context.Context, rdb *redis.Client, node string) error {
	tick, _ := scheduler.TickFrom(ctx)
	if err := rdb.HSet(ctx, "crowd", tick.ID(), node).Err(); err != nil {
		return err
	}
	n, err := rdb.HLen(ctx, "crowd").Result()
	if err != nil {
		return err
	}
	if n > 1 {
		what := "together"
		if n > atOnce {
			what = "crowded"
		}
		if err := writeNote(ctx, rdb, node, what, nil); err != nil {
			return err
		}
	}
	if err := jot(ctx, rdb, node, 1700*time.Millisecond); err != nil {
		return err
	}
	return rdb.HDel(ctx, "crowd", tick.ID()).Err()
}

// Three executions at most on three processes that are killed and stopped again and again:
// each tick is done, and done twice only if its process was killed.
func TestAtOnceUnderKills(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "several")
	const kills = 4
	killed := 0
	for i := range kills {
		c.await("done", (i+1)*4)
		begun := c.notes("begun")
		victim := begun[len(begun)-1].Node
		sig := syscall.SIGKILL
		if i%2 == 1 {
			sig = syscall.SIGTERM
		}
		for _, node := range c.live() {
			if sig == syscall.SIGKILL && node == victim {
				killed++
			}
		}
		if err := c.nodes[victim].end(sig); sig == syscall.SIGTERM && err != nil {
			t.Errorf("%s ended with %v", victim, err)
		}
		delete(c.nodes, victim)
		name := fmt.Sprint("later", i)
		c.nodes[name] = startSchedRole(t, c.server, "several", name)
	}
	c.await("done", kills*4+12)
	if err := c.admin.Pause(t.Context(), "several", "the end"); err != nil {
		t.Fatal(err)
	}
	var e admin.Entry
	await(t, "the last executions", func() bool {
		var err error
		if e, err = c.admin.Entry(t.Context(), "several"); err != nil {
			t.Fatal(err)
		}
		return len(e.Running) == 0 && e.Counts.Paused > 0
	})
	if e.Counts.Missed+e.Counts.Overlapped+e.Counts.Lost+e.Counts.Failed > 0 {
		t.Errorf("counts %+v", e.Counts)
	}
	done := make(map[string]int)
	for _, n := range c.notes("done") {
		done[n.Tick]++
	}
	again := len(c.notes("done")) - len(done)
	if int64(len(done)) != e.Counts.Done || again > killed {
		t.Errorf("%d ticks were done, %d of them again; the ledger has %+v, %d executions were killed", len(done), again, e.Counts, killed)
	}
	for _, n := range c.notes("begun") {
		if done[n.Tick] == 0 {
			t.Errorf("%s has begun and was not done", n.Tick)
		}
	}
	if n := len(c.notes("crowded")); n > 0 {
		t.Errorf("more than %d ran at once, %d times", atOnce, n)
	}
	t.Logf("%d ticks, %d executions killed, %d taken over, %d done twice, %d did not run alone",
		len(done), killed, e.Counts.TakenOver, again, len(c.notes("together")))
}

// live returns the nodes of the executions that run.
func (c *schedCluster) live() []string {
	c.Helper()
	nodes, err := c.rdb.HVals(context.Background(), "crowd").Result()
	if err != nil {
		c.Fatal(err)
	}
	return nodes
}

// A backfill of 150 ticks on three processes of which the one at work is killed again and
// again: each tick is done, in order, and done twice only if its process was killed.
func TestBackfillUnderKills(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "fill")
	end := time.Now().Truncate(time.Hour)
	const ticks, kills = 150, 3
	await(t, "the job", func() bool {
		_, err := c.admin.Entry(t.Context(), "fill")
		return err == nil
	})
	n, err := c.admin.Backfill(t.Context(), "fill", end.Add(-(ticks-1)*time.Hour), end)
	if err != nil || n != ticks {
		t.Fatalf("%d ticks, %v; want %d", n, err, ticks)
	}
	for i := range kills {
		c.await("begun", (i+1)*30)
		begun := c.notes("begun")
		victim := begun[len(begun)-1].Node
		if err := c.nodes[victim].end(syscall.SIGKILL); err == nil {
			t.Errorf("%s ended well", victim)
		}
		delete(c.nodes, victim)
		name := fmt.Sprint("later", i)
		c.nodes[name] = startSchedRole(t, c.server, "fill", name)
	}
	var e admin.Entry
	await(t, "the end of the backfill", func() bool {
		if e, err = c.admin.Entry(t.Context(), "fill"); err != nil {
			t.Fatal(err)
		}
		return !e.Backfill.Ended.IsZero()
	})
	if e.Backfill.Done != ticks || e.Backfill.Ticks != ticks || e.Counts.Lost != 0 {
		t.Errorf("backfill %+v, counts %+v", e.Backfill, e.Counts)
	}
	done := make(map[string]int)
	var order []string
	again := 0
	for _, n := range c.notes("done") {
		switch {
		case !strings.Contains(n.Tick, string(scheduler.CauseBackfill)): // the hour has struck
		case done[n.Tick] > 0:
			again++
		default:
			done[n.Tick]++
			order = append(order, n.Tick)
		}
	}
	if len(done) != ticks || again > kills {
		t.Errorf("%d ticks were done, %d of them again, want %d and %d at most", len(done), again, ticks, kills)
	}
	for i, tick := range order {
		want := scheduler.Tick{Name: "fill", At: end.Add(time.Duration(i-ticks+1) * time.Hour), Cause: scheduler.CauseBackfill, Backfill: e.Backfill.Number}
		if tick != want.ID() {
			t.Fatalf("the tick %d was %s, want %s", i, tick, want.ID())
		}
	}
	t.Logf("%d ticks, %d processes killed, %d executions taken over, %d ticks done twice", ticks, kills, e.Counts.TakenOver, again)
}

// newSchedClusterOf is newSchedCluster with processes of another role.
func newSchedClusterOf(t *testing.T, role string) *schedCluster {
	t.Helper()
	server := redistest.Start(t)
	c := &schedCluster{T: t, server: server, rdb: server.Client(t), locks: newLocks(t, server.Addr(), nil), nodes: make(map[string]*schedNode)}
	var err error
	if c.admin, err = admin.New(c.locks, "e2e", ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		c.nodes[name] = startSchedRole(t, server, role, name)
	}
	return c
}
