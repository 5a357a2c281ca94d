package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// enlist puts a name onto its page, as a node with the job does.
func (c *cluster) enlist(n *node, name string) {
	c.Helper()
	key := fmt.Sprintf("%%cron:cron%%names%d", roster.Page(name))
	page, err := roster.DecodeNames([]byte(c.memo(n, key)))
	wantNil(c, "DecodeNames", err)
	page.Add([]string{name}, time.Now().Unix()/86400)
	c.write(n, key, string(page.Encode()))
}

// nodesOf returns which nodes have the job, as AllEntries says. The second result is whether AllEntries has the job.
func (c *cluster) nodesOf(on *node, job string) (string, bool) {
	c.Helper()
	all, err := on.Entries(c.Context())
	wantNil(c, "AllEntries", err)
	for _, e := range all {
		if e.Name == job {
			if one, err := on.Entry(c.Context(), job); err != nil || !slices.Equal(one.Nodes, e.Nodes) {
				c.Errorf("Entry says %v, %v; AllEntries %v", one.Nodes, err, e.Nodes)
			}
			return fmt.Sprint(e.Nodes), true
		}
	}
	return "", false
}

// Which nodes are up and which jobs they have is seen from anywhere, also after deaths, stops and removals.
func TestNodesAreSeenFromAnywhere(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		fn := func(context.Context) error { return nil }
		for i := range 4 {
			n := c.node(0)
			n.Of("shop")
			n.add("all", "@every 1h", fn)
			n.add(fmt.Sprint("own", i), "@every 1h", fn)
			if i < 2 {
				n.add("two", "@every 1h", fn)
			}
			n.start()
		}
		ops := c.admin()
		want := func(at time.Duration, jobs map[string]string, nodes ...string) {
			t.Helper()
			until(start, at)
			for job, want := range jobs {
				if got, ok := c.nodesOf(ops, job); !ok || got != want {
					t.Errorf("after %s %s has %s, want %s", at, job, got, want)
				}
			}
			up, err := ops.Nodes(c.Context())
			wantNil(t, "Nodes", err)
			var names []string
			for _, n := range up {
				names = append(names, n.Name)
				if n.Program != "shop" || n.Jobs < 1 || n.Started.Sub(start) > 2*sec {
					t.Errorf("node %+v", n)
				}
			}
			if !slices.Equal(names, nodes) {
				t.Errorf("after %s the nodes %v are up, want %v", at, names, nodes)
			}
		}
		want(sec, map[string]string{"all": "[node0 node1 node2 node3]", "two": "[node0 node1]", "own2": "[node2]"}, "node0", "node1", "node2", "node3")
		c.nodes[0].cut()
		c.nodes[1].end()
		want(min, map[string]string{"all": "[node0 node2 node3]", "two": "[node0]", "own1": "[]"}, "node0", "node2", "node3")
		want(2*min, map[string]string{"all": "[node2 node3]", "two": "[]", "own0": "[]"}, "node2", "node3")
		wantNil(t, "Remove", c.nodes[2].Remove("all"))
		want(2*min+10*sec, map[string]string{"all": "[node3]"}, "node2", "node3")
		c.nodes[2].add("two", "@every 1h", fn)
		want(2*min+20*sec, map[string]string{"all": "[node3]", "two": "[node2]"}, "node2", "node3")
		c.nodes[0].heal()
		want(8*min, map[string]string{"all": "[node0 node3]", "two": "[node0 node2]", "own1": "[]"}, "node0", "node2", "node3")
	})
}

// A program for operators finds the scopes, also one whose nodes are all gone. The scopes come back after the store has
// lost everything.
func TestScopesAreSeenFromAnywhere(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		store := &switchStore{Store: c.mem}
		of := func(scope string) *node {
			n := c.nodeOn(store, 0, func(cfg *scheduler.Config) { cfg.Scope = scope })
			n.add("job", "@every 1h", func(context.Context) error { return nil })
			n.start()
			return n
		}
		ops := c.nodeOn(store, 0)
		c.Cleanup(func() { wantNil(c, "Close", ops.locks.Close(context.Background())) })
		want := func(at time.Duration, scopes ...string) {
			t.Helper()
			until(start, at)
			if got, err := admin.Scopes(c.Context(), ops.locks); err != nil || !slices.Equal(got, scopes) {
				t.Errorf("after %s: Scopes %q, %v, want %q", at, got, err, scopes)
			}
		}
		want(0)
		of("shop")
		gone := of("a:b")
		want(10*sec, "a:b", "shop")
		gone.end()
		want(10*min, "a:b", "shop")
		store.swap(memstore.New(&memstore.Config{Silent: true}))
		want(20*min, "shop")
		if _, err := admin.Scopes(c.Context(), nil); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("Scopes without a Locker: %v", err)
		}
	})
}

// A list costs the records of its own jobs, and does not walk over the store.
func TestAListReadsItsOwnJobsOnly(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		fn := func(context.Context) error { return nil }
		n := c.node(0)
		n.add("job", "@every 1h", fn)
		n.start()
		other := c.node(0, func(cfg *scheduler.Config) { cfg.Scope = "other" })
		for i := range 500 {
			other.add(fmt.Sprint("job", i), "@every 1h", fn)
		}
		other.start()
		until(start, min)
		ops := c.admin()
		before, items := ops.store.Calls(""), ops.store.Items(faultstore.Inspect)
		all, err := ops.Entries(c.Context())
		wantNil(t, "AllEntries", err)
		calls, read := ops.store.Calls("")-before, ops.store.Items(faultstore.Inspect)-items
		if len(all) != 1 || calls != 4 || read != roster.Pages+1+1+2 {
			t.Errorf("%d entries with %d calls that read %d records", len(all), calls, read)
		}
	})
}

// rosterStore can refuse the locks of the scope's lists.
type rosterStore struct {
	switchStore
	deny atomic.Bool
}

func (s *rosterStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.deny.Load() && strings.HasPrefix(req.Key, "%cron:cron%") {
		return driver.Reply{}, faultstore.Err
	}
	return s.switchStore.Acquire(ctx, req)
}

// The store loses everything. Nodes and jobs are seen again after some minutes.
func TestTheRosterComesBack(t *testing.T) {
	for name, deny := range map[string]bool{"lost": false, "refused at first": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				store := &rosterStore{switchStore: switchStore{Store: c.mem}}
				n := c.nodeOn(store, 0)
				n.add("job", "@every 10m", r.fn(n, sec))
				store.deny.Store(deny)
				n.start()
				until(start, 11*min)
				store.deny.Store(false)
				if !deny {
					store.swap(memstore.New(&memstore.Config{Silent: true}))
				}
				until(start, 21*min)
				r.wantTicks(t, start, 10*min, 20*min)
				if on, ok := c.nodesOf(n, "job"); !ok || on != "[node0]" {
					t.Errorf("listed: %v on %s", ok, on)
				}
			})
		})
	}
}

// The store loses everything, and no job is due for a day. Nodes and jobs are seen again, from anywhere, after a renewal.
func TestALostRosterComesBackSoon(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		store := &switchStore{Store: c.mem}
		for range 2 {
			n := c.nodeOn(store, 0)
			n.add("job", "0 3 2 * *", func(context.Context) error { return nil })
			n.start()
		}
		ops := c.nodeOn(store, 0)
		defer func() { wantNil(t, "Close", ops.locks.Close(context.Background())) }()
		until(start, 11*min)
		store.swap(memstore.New(&memstore.Config{Silent: true}))
		if on, ok := c.nodesOf(ops, "job"); ok {
			t.Errorf("still listed on %s", on)
		}
		until(start, 11*min+40*sec)
		if on, ok := c.nodesOf(ops, "job"); !ok || on != "[node0 node1]" {
			t.Errorf("listed: %v on %s, want both nodes", ok, on)
		}
		c.nodes[0].cut() // for longer than its record lasts
		until(start, 14*min)
		if on, _ := c.nodesOf(ops, "job"); on != "[node1]" {
			t.Errorf("listed on %s, want node1", on)
		}
		c.nodes[0].heal()
		until(start, 14*min+10*sec)
		if on, _ := c.nodesOf(ops, "job"); on != "[node0 node1]" {
			t.Errorf("listed on %s, want both nodes", on)
		}
	})
}

// A job that no node has any more can be forgotten, and only such a job.
func TestForget(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, again runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, 5*sec), scheduler.CatchUpAll(24*hour, 100))
			n.start()
		}
		ops := c.admin()
		until(start, 11*min)
		wantErr(t, ops.Forget(c.Context(), "job"), joblock.ErrHeld)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", ""))
		until(start, 12*min)
		wantNil(t, "Resume", ops.Resume(c.Context(), "job", ""))
		wantNil(t, "Remove", a.Remove("job"))
		until(start, 20*min+sec)
		wantErr(t, ops.Forget(c.Context(), "job"), joblock.ErrHeld)
		wantNil(t, "Remove", b.Remove("job"))
		wantErr(t, ops.Forget(c.Context(), "job"), joblock.ErrHeld) // being executed
		until(start, 21*min)
		wantNil(t, "Forget", ops.Forget(c.Context(), "job"))
		wantErr(t, ops.Forget(c.Context(), "job"), joblock.ErrNotFound)
		wantErr(t, ops.Forget(c.Context(), "never"), joblock.ErrNotFound)
		_, err := ops.Entry(c.Context(), "job")
		wantErr(t, err, joblock.ErrNotFound)
		if _, ok := c.nodesOf(ops, "job"); ok {
			t.Error("still listed")
		}
		until(start, 45*min)
		a.add("job", "@every 10m", again.fn(a, sec), scheduler.CatchUpAll(24*hour, 100))
		until(start, 61*min)
		r.wantTicks(t, start, 10*min, 20*min)
		again.wantTicks(t, start, 50*min, 60*min) // a new job: nothing was missed
		e, err := ops.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Counts != (admin.Counts{Done: 2}) || len(e.History) != 1 || fmt.Sprint(e.Nodes) != "[node0]" {
			t.Errorf("entry %+v, want that of a new job", e)
		}
		if _, ok := c.nodesOf(ops, "job"); !ok {
			t.Error("not listed")
		}
	})
}

// A node that still has a forgotten job, but has not said so in time, does not execute a tick again.
func TestForgottenTicksAreNotRepeated(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, 10*time.Millisecond))
			n.start()
		}
		until(start, 15*min)
		b.store.Set(faultstore.Fault{}, faultstore.Inspect, faultstore.Acquire, faultstore.Renew)
		wantNil(t, "Remove", a.Remove("job"))
		until(start, 20*min-sec)
		a.add("job", "@every 10m", r.fn(a, 10*time.Millisecond))
		until(start, 20*min+100*time.Millisecond)
		wantNil(t, "Remove", a.Remove("job"))
		until(start, 20*min+10*sec)
		wantNil(t, "Forget", c.admin().Forget(c.Context(), "job"))
		b.store.Clear()
		until(start, 31*min)
		r.wantTicks(t, start, 10*min, 20*min, 30*min)
	})
}

// failingStore refuses all writes of memos but the first few.
type failingStore struct {
	driver.Store
	left atomic.Int64 // writes until the first that fails; negative: none fails
}

func (s *failingStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	if slices.ContainsFunc(reqs, func(req driver.RenewRequest) bool { return req.Memo != nil }) && s.left.Load() >= 0 && s.left.Add(-1) < 0 {
		s.left.Store(0)
		return nil, faultstore.Err
	}
	return s.Store.Renew(ctx, reqs)
}

// Forget fails between two of its writes. The job is then registered again: a trigger and a backfill of the old job are not
// executed, wherever Forget has failed, and Forget can be repeated.
func TestForgetThatFailsHalfway(t *testing.T) {
	for writes := range int64(4) {
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r, again runs
				start := time.Now()
				n := c.node(0)
				n.add("job", "@every 1h", r.fn(n, sec))
				n.start()
				until(start, 10*min)
				_, err := n.Backfill(c.Context(), "job", start.Add(-hour), start)
				wantNil(t, "Backfill", err)
				wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
				until(start, 12*min)
				if len(r.all()) != 3 {
					t.Fatalf("%d executions, want three", len(r.all()))
				}
				wantNil(t, "Remove", n.Remove("job"))
				until(start, 13*min)
				store := &failingStore{Store: c.mem}
				ops := c.nodeOn(store, 0)
				defer func() { wantNil(t, "Close", ops.locks.Close(context.Background())) }()
				store.left.Store(writes)
				if err := ops.Forget(c.Context(), "job"); (err == nil) != (writes == 3) {
					t.Errorf("after %d writes: %v", writes, err)
				}
				store.left.Store(-1)
				until(start, 14*min)
				n.add("job", "@every 1h", again.fn(n, sec))
				until(start, 15*min)
				if on, ok := c.nodesOf(ops, "job"); !ok || on != "[node0]" {
					t.Errorf("listed: %v on %s, want the new job", ok, on)
				}
				until(start, 50*min)
				again.wantTicks(t, start)
				wantNil(t, "Remove", n.Remove("job"))
				until(start, 51*min)
				wantNil(t, "Forget", ops.Forget(c.Context(), "job"))
				if _, ok := c.nodesOf(ops, "job"); ok {
					t.Error("still listed")
				}
			})
		})
	}
}

// One unreadable page of names hides neither the node nor its jobs.
func TestNodeIsSeenDespiteABrokenPage(t *testing.T) {
	virtual(t, func(c *cluster) {
		start := time.Now()
		a := c.admin()
		c.write(a, keyspace.CronNames("cron", 3), "garbage")
		n := c.node(0)
		for i := range 200 {
			n.add(fmt.Sprint("job", i), "@every 10m", func(context.Context) error { return nil })
		}
		n.start()
		until(start, 2*min)
		if up, err := a.Nodes(c.Context()); err != nil || len(up) != 1 {
			c.Errorf("nodes are %v, %v; want one", up, err)
		}
		if err := a.Forget(c.Context(), "job1"); err == nil {
			c.Error("a job of a node that is up was forgotten")
		}
	})
}
