//go:build servers

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// The sequences of a tenant are paused and resumed again and again while their jobs run in two processes, one of which is killed now
// and then. By the ledger, the jobs of each sequence ran in the order of their enqueues, one at a time; none was lost, and only a
// job whose worker was killed ran again. JOBLOCK_PAUSES is the number of pauses, 100 by default.
func TestPausesWhileJobsFlow(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	pauses, sequences := 100, 8
	if n, err := strconv.Atoi(os.Getenv("JOBLOCK_PAUSES")); err == nil {
		pauses = n
	}
	r := newLineRig(t, true)
	pool := r.pool(t, lineRole{Work: 20 * time.Millisecond, Short: true}, 2)
	in := (*core.Locker)(r.locks)
	change := func(f func(set *controls.Set, fence int64, now time.Time)) {
		t.Helper()
		if err := in.ChangeControls(context.Background(), "alice", func(set *controls.Set, fence int64, now time.Time) error {
			f(set, fence, now)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	counts := map[string]int{}
	for i := range pauses {
		var items []handoff.Item
		for n := range sequences {
			key := fmt.Sprintf("tenant:%04d", n)
			items = append(items, handoff.Item{Task: lineTask(key, counts[key]), How: handoff.Sequence{Key: key}})
			counts[key]++
		}
		r.enqueue(t, items)
		change(func(set *controls.Set, fence int64, now time.Time) {
			p := controls.Pause{ID: fence, Key: "tenant", By: "alice", Since: now}
			if i%3 == 0 {
				p.Until = now.Add(50 * time.Millisecond)
			}
			set.Remove(p.Key)
			set.Pauses = append(set.Pauses, p)
		})
		time.Sleep(jitter.N(100 * time.Millisecond))
		if i%25 == 24 {
			pool.kill(t, i/25%2)
		}
		change(func(set *controls.Set, _ int64, now time.Time) {
			if p := set.Find("tenant"); p != nil {
				p.Resumed = now
			}
		})
		time.Sleep(jitter.N(100 * time.Millisecond))
	}
	last := time.Now()
	r.untilAllAreDone(t, 5*time.Minute)
	t.Logf("%d pauses, %d kills; all jobs done %s after the last", pauses, pool.kills, time.Since(last).Round(100*time.Millisecond))
	await(t, "no pause to be left", func() bool {
		set, err := in.Controls().Fresh(context.Background())
		return err == nil && len(set.Pauses) == 0
	})
	pool.stop(t)
	v := judge(readLedger(t, r.path), counts)
	t.Log(v)
	if len(v.complaints) > 0 || v.kills != pool.kills {
		t.Errorf("broken are the rules %q; the ledger has %d kills, there were %d", v.rules(), v.kills, pool.kills)
	}
	await(t, "no lock to be left", func() bool { return len(left(t, r.locks)) == 0 })
}

// A pause reaches another process by a push: the process tells of it before it would read the registry again.
func TestPauseIsPushed(t *testing.T) {
	t.Parallel()
	r := newLineRig(t, true)
	one, other := (*core.Locker)(r.locks), (*core.Locker)(newLocks(t, r.server.Addr(), nil))
	heard := make(chan struct{}, 1)
	stop, err := jobs.Listen(t.Context(), (*joblock.Locker)(other), func(g jobs.Granted) {
		if g.Key != keyspace.ControlsChanged {
			return
		}
		select {
		case heard <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := one.ChangeControls(t.Context(), "alice", func(set *controls.Set, fence int64, now time.Time) error {
		set.Pauses = append(set.Pauses, controls.Pause{ID: fence, Key: "k", By: "alice", Since: now})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	<-heard
	set, err := other.Controls().Fresh(t.Context())
	if _, paused := set.Paused("k:1"); err != nil || !paused {
		t.Errorf("the other process reads %+v, %v", set, err)
	}
}
