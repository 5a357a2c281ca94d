package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler"
)

// Ticks that were missed before a pause are not part of it.
func TestMissedBeforeAPause(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
		}
		ops := c.admin()
		a.start()
		until(start, 5*min)
		a.end()
		until(start, 15*min)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", ""))
		until(start, 35*min)
		wantNil(t, "Resume", ops.Resume(c.Context(), "job", ""))
		b.start()
		until(start, 42*min)
		r.wantTicks(t, start, 10*min, 40*min)
	})
}

// A trigger waits while no node is up, and other orders do not displace it.
func TestTriggerWaitsForANode(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, other runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 24h", r.fn(n, sec))
			n.add("other", "@every 24h", other.fn(n, sec))
		}
		ops := c.admin()
		a.start()
		until(start, min)
		a.end()
		wantNil(t, "Trigger", ops.Trigger(c.Context(), "job"))
		wantNil(t, "Pause", ops.Pause(c.Context(), "other", ""))
		wantNil(t, "Resume", ops.Resume(c.Context(), "other", ""))
		until(start, 2*min)
		b.start()
		until(start, 3*min)
		r.wantTicks(t, start, min)
		other.wantTicks(t, start)
	})
}

// A trigger comes from elsewhere just before an execution ends. The node that stands by
// executes it right afterwards.
func TestTriggerAtTheEndOfARun(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 2 {
			n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = hour })
			n.add("job", "@every 1h", r.fn(n, 20*sec))
			n.start()
		}
		until(start, hour+19*sec)
		wantNil(t, "Trigger", c.admin().Trigger(c.Context(), "job"))
		until(start, hour+25*sec)
		r.wantTicks(t, start, hour, hour+19*sec)
	})
}

// A trigger is found while the node settles its own execution of the job, which takes long.
func TestTriggerWhileTheNodeSettles(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = sec })
		n.add("job", "@every 1h", r.fn(n, 5*sec))
		n.start()
		ops := c.admin()
		until(start, hour+4*sec)
		n.store.Set(faultstore.Fault{}, faultstore.Renew)
		until(start, hour+6*sec) // done, and not yet on record
		wantNil(t, "Trigger", ops.Trigger(c.Context(), "job"))
		until(start, hour+9*sec)
		n.store.Clear()
		until(start, hour+12*sec)
		r.wantTicks(t, start, hour, hour+6*sec)
	})
}

// An order and a tick that are read together lead to one claim: the node does not wait for
// its own lock.
func TestOrderAndTickInOneRead(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = hour })
		n.add("job", "@every 90m", r.fn(n, 20*sec))
		n.start()
		until(start, 90*min)
		wantNil(t, "Trigger", c.admin().Trigger(c.Context(), "job"))
		until(start, 90*min+10*sec)
		st, err := testkit.One(n.locks.Status(c.Context(), "%cron:cron:job"))
		wantNil(t, "Status", err)
		if st.Waiters != 0 || len(r.all()) != 1 {
			t.Errorf("%d wait in line after %d runs", st.Waiters, len(r.all()))
		}
		until(start, 92*min)
		r.wantTicks(t, start, 90*min, 90*min)
	})
}

// The places in standbys are freed.
func TestStandbysComeAndGo(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 2 {
			n := c.node(0, func(cfg *scheduler.Config) { cfg.Concurrency = 1 })
			n.add("job", "@every 1h", r.fn(n, 20*sec))
			n.start()
		}
		for i := 1; i <= 6; i++ {
			until(start, time.Duration(i)*hour+10*sec)
			st, err := testkit.One(c.nodes[0].locks.Status(c.Context(), "%cron:cron:job"))
			wantNil(t, "Status", err)
			if st.Waiters != 1 {
				t.Fatalf("%d wait in line at the tick %d, want 1", st.Waiters, i)
			}
		}
	})
}

// The ledger keeps only the latest few IDs of RunAtStart and the beginning of an error.
func TestLedgerStaysSmall(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		for i := range 20 {
			n := c.node(0)
			n.add("job", "@every 1h", func(ctx context.Context) error { return errors.New(strings.Repeat("é", 500)) }, scheduler.RunAtStart(fmt.Sprint("v", i)))
			n.start()
			until(start, time.Duration(i+1)*sec)
			n.end()
		}
		memo := c.memo(c.nodes[0], "%cron:cron:job")
		if strings.Contains(memo, `"v11"`) || !strings.Contains(memo, `"v12"`) || len(memo) > 4500 {
			t.Errorf("the ledger has %d bytes: %s", len(memo), memo)
		}
		e, err := c.nodes[0].Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if l := len(e.Latest.Error); l < 150 || l > 203 || !utf8.ValidString(e.Latest.Error) {
			t.Errorf("an error of %d bytes: %q", l, e.Latest.Error)
		}
	})
}

// A node that starts while it cannot read the orders executes nothing: the jobs may be paused. When it can read them, it
// obeys them. A node that has read them before keeps to those.
func TestOrdersThatCannotBeRead(t *testing.T) {
	const later = `{"v":2,"jobs":{}}`
	for name, foreign := range map[string]bool{"of a later version": false, "no record": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var paused, other, third runs
				start := time.Now()
				store := &foreignStore{Store: c.mem}
				a, b, reader := c.nodeOn(store, 0), c.nodeOn(store, 0), c.admin()
				for _, n := range []*node{a, b} {
					n.add("paused", "@every 10m", paused.fn(n, sec))
					n.add("other", "@every 10m", other.fn(n, sec))
				}
				b.add("third", "@every 10m", third.fn(b, sec))
				a.start()
				until(start, 5*min)
				wantNil(t, "Pause", reader.Pause(c.Context(), "paused", ""))
				until(start, 11*min)
				other.wantTicks(t, start, 10*min)
				key := keyspace.Cron("cron")
				good := c.memo(reader, key)
				spoil := func(yes bool) {
					switch {
					case foreign && yes:
						store.setKey(key)
					case foreign:
						store.setKey("")
					case yes:
						c.write(reader, key, later)
					default:
						c.write(reader, key, good)
					}
				}
				spoil(true)
				b.start()
				until(start, 41*min) // a has read the orders
				other.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min)
				third.wantTicks(t, start)
				a.end()
				until(start, 61*min) // b has not
				other.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min)
				if n := strings.Count(c.logs.String(), "this node has read none before: it executes no"); n != 1 {
					t.Errorf("logged %d times, want once:\n%s", n, c.logs)
				}
				if n := strings.Count(c.logs.String(), "the previous ones stay in force"); n != 1 {
					t.Errorf("logged %d times that orders stay in force, want once:\n%s", n, c.logs)
				}
				if e, err := b.Entry(c.Context(), "third"); !foreign && err == nil {
					t.Errorf("the entry %+v hides that the orders cannot be read", e)
				}
				spoil(false)
				until(start, 75*min)
				third.wantTicks(t, start, 70*min)
				paused.wantTicks(t, start)
				wantNil(t, "Resume", reader.Resume(c.Context(), "paused", ""))
				until(start, 85*min)
				paused.wantTicks(t, start, 80*min)
			})
		})
	}
}
