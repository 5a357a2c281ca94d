//go:build servers

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// What the processes of TestChangesReachAllProcesses watch: the pause of watchedKey, as 0 or 1; the limit planLimit, which is 2 in
// the code; and the rate watchedRate, which is watchedN in the code.
const (
	watchedKey  = "tenant"
	watchedRate = "rate"
	watchedN    = 50

	applied verb = "applied" // the process now applies the value, the number of the job, of the control with this key
)

// watchControls writes in the ledger which values of the controls a Worker of this process applies.
func watchControls(ctx context.Context, locks *joblock.Locker, process string, book *ledger) {
	in, last := (*core.Locker)(locks).Controls(), map[string]int{}
	for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		set := in.Get(ctx)
		if set.Unread != nil {
			continue // no job starts
		}
		isPaused := 0
		if _, ok := set.Paused(watchedKey + ":0001"); ok {
			isPaused = 1
		}
		for name, value := range map[string]int{
			watchedKey: isPaused, planLimit: in.Limit(ctx, planLimit, 2, 256), watchedRate: in.Limit(ctx, watchedRate, watchedN, 1000),
		} {
			if before, known := last[name]; !known || before != value {
				last[name] = value
				if err := book.write(ledgerEntry{verb: applied, process: process, key: name, job: value}); err != nil {
					fmt.Println("failed", err)
					os.Exit(1)
				}
			}
		}
	}
}

// changeRig sets controls, and waits until all processes of a pool apply them.
type changeRig struct {
	*lineRig
	pool *linePool
	took []time.Duration // of each change and process
}

// set makes a change and waits for it.
func (r *changeRig) set(t *testing.T, name string, value int) {
	t.Helper()
	begin := time.Now()
	if err := (*core.Locker)(r.locks).ChangeControls(t.Context(), "alice", func(set *controls.Set, fence int64, now time.Time) error {
		switch {
		case name != watchedKey:
			set.Clear(name)
			set.Limits = append(set.Limits, controls.Limit{Name: name, Value: value, By: "alice", Since: now})
		case value == 1:
			set.Remove(name)
			set.Pauses = append(set.Pauses, controls.Pause{ID: fence, Key: name, By: "alice", Since: now})
		default:
			if p := set.Find(name); p != nil {
				p.Resumed = now
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.await(t, name, value, begin)
}

// await waits until all processes apply the value.
func (r *changeRig) await(t *testing.T, name string, value int, since time.Time) {
	t.Helper()
	var when map[string]time.Time
	await(t, fmt.Sprintf("%s %d in all processes", name, value), func() bool {
		when = map[string]time.Time{}
		for _, e := range readLedger(t, r.path) {
			switch {
			case e.verb != applied || e.key != name:
			case e.job == value:
				when[e.process] = e.at
			default:
				delete(when, e.process)
			}
		}
		return !slices.ContainsFunc(r.pool.procs, func(p *workerProc) bool { return when[p.name].IsZero() })
	})
	if !since.IsZero() {
		for _, p := range r.pool.procs {
			r.took = append(r.took, max(0, when[p.name].Sub(since)))
		}
	}
}

// Named limits, rates and pauses that are set while jobs run reach each of four processes. By a ledger the test logs how long that
// takes from the beginning of the change. Then the workers are killed, and so is Redis, which has an append-only file. All values are in
// force in the new processes from the start: no job of the paused tenant starts, and after the end of the pause the jobs keep
// to the limit and the rate. JOBLOCK_CHANGES is the number of changes, 30 by default.
func TestChangesReachAllProcesses(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	changes := 30
	if text := os.Getenv("JOBLOCK_CHANGES"); text != "" {
		changes = testkit.Must(strconv.Atoi(text))
	}
	const procs, keys, batch = 4, 4, 5
	rig := newLineRig(t, true, "--appendonly", "yes", "--appendfsync", "always")
	r := &changeRig{lineRig: rig, pool: rig.pool(t, lineRole{Work: 20 * time.Millisecond, Short: true, Watched: true}, procs)}
	counts := map[string]int{}
	feed := func() {
		t.Helper()
		var items []handoff.Item
		for range batch {
			for _, key := range keysOf(watchedKey+":%04d", keys) {
				items = append(items, handoff.Item{Task: lineTask(key, counts[key]), How: handoff.Sequence{Key: key, Limit: 2, LimitName: planLimit}})
				counts[key]++
			}
		}
		r.enqueue(t, items)
	}
	r.await(t, watchedKey, 0, time.Time{})
	isPaused := 0
	for i := range changes {
		if i%3 == 0 {
			feed()
		}
		switch i % 3 {
		case 0:
			r.set(t, planLimit, 1+i%250)
		case 1:
			r.set(t, watchedRate, 20+i%250)
		case 2:
			isPaused = 1 - isPaused
			r.set(t, watchedKey, isPaused)
		}
		time.Sleep(jitter.N(300 * time.Millisecond))
	}
	slices.Sort(r.took)
	t.Logf("%d changes in %d processes: p50 %s, p99 %s, the longest %s", changes, procs, r.took[len(r.took)/2], r.took[len(r.took)*99/100], r.took[len(r.took)-1])

	// The last values. A job that has its slot would keep it, so there is none.
	r.set(t, watchedKey, 0)
	r.untilAllAreDone(t, time.Minute)
	r.set(t, watchedRate, 3)
	r.set(t, planLimit, 1)
	r.set(t, watchedKey, 1)
	starts := func() (n int) {
		for _, e := range readLedger(t, r.path) {
			if e.verb == started {
				n++
			}
		}
		return n
	}
	before := starts()
	feed()
	for i := range r.pool.procs {
		r.pool.kill(t, i)
	}
	rig.server.Kill()
	rig.server.Restart()
	for name, value := range map[string]int{watchedKey: 1, planLimit: 1, watchedRate: 3} {
		r.await(t, name, value, time.Time{})
	}
	feed()
	for i := range r.pool.procs {
		r.pool.kill(t, i)
	}
	for name, value := range map[string]int{watchedKey: 1, planLimit: 1, watchedRate: 3} {
		r.await(t, name, value, time.Time{})
	}
	time.Sleep(3 * time.Second)
	if n := starts() - before; n > 0 {
		t.Errorf("%d jobs of the paused tenant have started", n)
	}
	r.set(t, watchedKey, 0)
	r.untilAllAreDone(t, 5*time.Minute)
	r.pool.stop(t)

	entries := readLedger(t, r.path)
	wantVerdict(t, "jobs", entries, counts, ruleOrder, ruleSingle, ruleFence)
	first := slices.IndexFunc(entries, func(e ledgerEntry) bool { return e.verb == killing })
	most, atOnce := mostIn(admittedAt(entries[first:]), time.Second), mostAtOnce(entries[first:])
	t.Logf("after the restarts at most %d starts were admitted within a second, and at most %d jobs of a key ran at a time", most, atOnce)
	if most > 3 || atOnce > 1 {
		t.Errorf("after the restarts %d starts were admitted within a second, and %d jobs of a key ran at a time; want at most 3 and 1", most, atOnce)
	}
	for _, e := range entries[first:] {
		if want := map[string][]int{watchedKey: {0, 1}, planLimit: {1}, watchedRate: {3}}[e.key]; e.verb == applied && !slices.Contains(want, e.job) {
			t.Errorf("after the restarts: %+v", e)
		}
	}
}
