//go:build servers && unix

package torture

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

const (
	processes = 4

	// scriptsEvery makes every third process one that makes no native calls. The process that takes the place of a
	// killed one makes them if that one did not, or may stop making them: a rolling change in both directions.
	scriptsEvery = 3
)

// settings reads how long to run, and with which seed; share is a test's of the time
// that is given to all.
func settings(t *testing.T, short time.Duration, share float64) (length time.Duration, seed uint64) {
	t.Helper()
	length, seed = short, testkit.EnvSeed(t)
	if text := os.Getenv("JOBLOCK_TORTURE"); text != "" {
		all, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("JOBLOCK_TORTURE: %v", err)
		}
		length = time.Duration(share * float64(all))
	}
	return length, seed
}

func TestTorture(t *testing.T) {
	length, seed := settings(t, 3*time.Second, 0.6)
	torture(t, singleRig(t), length, seed)
}

// While fail-overs take locks away and give them back.
func TestTortureOnSentinel(t *testing.T) {
	length, seed := concurrently(t)
	torture(t, sentinelRig(t), length, seed)
}

// While slots move, and masters are killed.
func TestTortureOnCluster(t *testing.T) {
	length, seed := concurrently(t)
	torture(t, clusterRig(t), length, seed)
}

// concurrently returns the settings of the tests that mostly wait for fail-overs: in the
// short tier they run in parallel.
func concurrently(t *testing.T) (length time.Duration, seed uint64) {
	if os.Getenv("JOBLOCK_TORTURE") == "" {
		t.Parallel()
	}
	return settings(t, time.Second, 0.2)
}

// torture does to a rig first what is to be done in any case, and then anything for
// some time.
func torture(t *testing.T, r *rig, length time.Duration, seed uint64) {
	t.Logf("%v: JOBLOCK_TORTURE: %v of it", r, length)
	dir := t.TempDir()
	c := newCenter(t, r, dir)
	begun := time.Now()

	var faults tally
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var slots []*slot
	var wg sync.WaitGroup
	for i := range processes {
		s := newSlot(t, i, r, dir, seed)
		slots = append(slots, s)
		t.Cleanup(s.kill)
		wg.Go(func() {
			if s.start() {
				torment(ctx, s, slotFaults, rand.New(rand.NewPCG(seed, uint64(i))), 700*time.Millisecond, &faults)
			}
		})
	}
	c.awaitHandOver() // the processes are up, and the faults meet locks
	dice := rand.New(rand.NewPCG(seed, processes))
	end := time.Now().Add(length)
	for _, f := range r.first {
		pause(ctx, between(dice, ttl/2, ttl))
		f.do(c, dice)
		faults.add(f.name, 1)
	}
	rest, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	torment(rest, c, r.faults, dice, 500*time.Millisecond, &faults)
	if t.Failed() {
		return // the rig has
	}
	pause(ctx, r.plan.Pace.TTL/2) // of use after the last fault
	stop()
	wg.Wait()
	for _, s := range slots {
		s.each((*redistest.Proxy).Heal)
		wg.Go(s.finish)
	}
	wg.Wait()
	for _, s := range slots {
		s.each((*redistest.Proxy).Cut) // with the delayed requests, whose callers have given up
	}

	events := readAll(t, dir)
	report(t, c, events, &faults)
	checkClock(t, begun)
	checkHistory(t, c, events)
	checkLeaks(t, c)
}

// awaitHandOver returns when a resource was written to under one lock after another. The bound is a guard against
// hanging; report fails if there were no hand-overs.
func (c *center) awaitHandOver() {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		logs, err := c.ledger.Keys(c.t.Context(), guardLog+"*").Result()
		if err != nil {
			c.t.Error(err)
			return
		}
		for _, log := range logs {
			if c.ledger.LLen(c.t.Context(), log).Val() > 1 {
				return
			}
		}
	}
}

func newCenter(t *testing.T, r *rig, dir string) *center {
	t.Helper()
	file, err := os.Create(filepath.Join(dir, "center"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	patient := r.plan.Pace.config()
	patient.CallTimeout = 10 * time.Second // nothing here is held, and the machine may be busy
	locks, err := joblock.New(testkit.Must(redisstore.New(r.rdb, &redisstore.Config{Replicas: r.plan.Replicas})), patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locks.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &center{rig: r, t: t, rec: history.NewRecorder(file, "center"), locks: locks}
}

// readAll puts the histories of all processes together.
func readAll(t *testing.T, dir string) (events []history.Event) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		more, err := history.Read(f)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		events = append(events, more...)
	}
	return events
}

// report prints what has happened, and fails if that was nothing.
func report(t *testing.T, c *center, events []history.Event, faults *tally) {
	t.Helper()
	var kinds tally
	granted := make(map[string]int)
	for _, e := range events {
		kinds.add(string(e.Kind), 1)
		if e.Kind == history.Acquired || e.Kind == history.Resumed || e.Kind == history.Reclaimed {
			granted[e.Key]++
		}
	}
	handovers := 0
	for _, n := range granted {
		handovers += n - 1
	}
	count := func(name string) int {
		n, err := c.ledger.Get(t.Context(), name).Int()
		if err != nil && err != redis.Nil {
			t.Error(err)
		}
		return n
	}
	t.Logf("events: %v", &kinds)
	t.Logf("faults: %v", faults)
	t.Logf("%d hand-overs of %d keys; %d writes of former holders refused", handovers, len(granted), count(refusals))
	// This changes nothing: the key does not exist.
	if err := c.rdb.Do(t.Context(), "set", "no key", "", "ifeq", "no value", "px", 1).Err(); c.plan.Kind == single && err == redis.Nil && count(nativeCalls) == 0 {
		t.Error("the server has SET with IFEQ, and no call went without a script")
	}
	t.Logf("%d calls without a script, of processes that were not killed; %d tried so went on by script", count(nativeCalls), count(nativeRefusals))
	if handovers == 0 {
		t.Error("no lock went from one holder to another: this proves nothing")
	}
}

// checkClock fails if the machine's clock was set meanwhile, which is what events of
// several processes are compared by. That it is slewed does no harm.
func checkClock(t *testing.T, begun time.Time) {
	t.Helper()
	now := time.Now()
	step := (now.Round(0).Sub(begun.Round(0)) - now.Sub(begun)).Abs()
	if step > 5*time.Millisecond+now.Sub(begun)/1000 {
		t.Errorf("the clock of this machine was set by %v: the history proves nothing", step)
	}
}

func checkHistory(t *testing.T, c *center, events []history.Event) {
	t.Helper()
	if c.lossy {
		events = undoable(events)
	}
	found := append(history.Check(events), history.CheckLimit(events, permits)...)
	found = append(found, history.CheckLine(events)...)
	found = append(found, history.Linearizable(events, time.Minute)...)
	logs, err := c.ledger.Keys(t.Context(), guardLog+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, log := range logs {
		found = append(found, history.CheckGuard(strings.TrimPrefix(log, guardLog), writes(t, c, log))...)
	}
	for i, v := range found {
		if i == 20 {
			t.Errorf("and %d more", len(found)-i)
			break
		}
		t.Error(v)
	}
	if len(found) > 0 {
		tell(t, events, found[0].Key)
	}
}

// undoable makes of what a fail-over may have undone what may not have happened.
func undoable(events []history.Event) (out []history.Event) {
	for _, e := range events {
		switch e.Kind {
		case history.Released, history.Reserved, history.Passed: // a release without its answer is open
			continue
		case history.Freed:
			e.Kind = history.Refused // which is as open
		}
		out = append(out, e)
	}
	return out
}

// tell prints what was seen of a key, in the order of the answers.
func tell(t *testing.T, events []history.Event, key string) {
	t.Helper()
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(max(a.Call, a.At), max(b.Call, b.At)) })
	for _, e := range events {
		if e.Key == key {
			t.Logf("%+v", e)
		}
	}
}

// writes reads what the guard let pass.
func writes(t *testing.T, c *center, log string) (out []history.Write) {
	t.Helper()
	lines, err := c.ledger.LRange(t.Context(), log, 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		var w history.Write
		if _, err := fmt.Sscanf(line, "%d %s", &w.Fence, &w.Holding); err != nil {
			t.Fatalf("%s: %q: %v", log, line, err)
		}
		out = append(out, w)
	}
	return out
}
