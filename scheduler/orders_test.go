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
		admin := c.admin()
		a.start()
		until(start, 5*min)
		a.end()
		until(start, 15*min)
		wantNil(t, "Pause", admin.Pause(c.Context(), "job", ""))
		until(start, 35*min)
		wantNil(t, "Resume", admin.Resume(c.Context(), "job", ""))
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
		admin := c.admin()
		a.start()
		until(start, min)
		a.end()
		wantNil(t, "Trigger", admin.Trigger(c.Context(), "job"))
		wantNil(t, "Pause", admin.Pause(c.Context(), "other", ""))
		wantNil(t, "Resume", admin.Resume(c.Context(), "other", ""))
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
		admin := c.admin()
		until(start, hour+4*sec)
		n.store.Set(faultstore.Fault{}, faultstore.Renew)
		until(start, hour+6*sec) // done, and not yet on record
		wantNil(t, "Trigger", admin.Trigger(c.Context(), "job"))
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
