package scheduler_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// release is nodes that have one job with one spec or another.
type release struct {
	*cluster
	runs
	store *recorder
	start time.Time
}

func newRelease(c *cluster) *release {
	return &release{cluster: c, store: &recorder{Store: c.mem, key: "%cron:cron:job"}, start: time.Now()}
}

// boot starts a node that has the job with the spec.
func (r *release) boot(spec string) *node {
	r.Helper()
	n := r.nodeOn(r.store, 0)
	n.add("job", spec, r.fn(n, sec), scheduler.CatchUpAll(24*hour, 1000))
	return n.start()
}

// wants waits until the time, and checks which spec is in force, and from which of the nodes it is.
func (r *release) wants(at time.Duration, spec string, by ...*node) admin.Entry {
	r.Helper()
	until(r.start, at)
	e, err := r.nodes[0].Entry(r.Context(), "job")
	wantNil(r, "Entry", err)
	from := false
	for _, n := range by {
		from = from || n.name == e.SpecBy
	}
	if e.Spec != spec || !from {
		r.Errorf("after %s %s of %s is in force, want %s", at, e.Spec, e.SpecBy, spec)
	}
	return e
}

// wantChanges checks how often the spec has changed, and that each tick of each spec was executed once.
func (r *release) wantChanges(n int) {
	r.Helper()
	now := time.Now()
	all := r.store.periods(r.T)
	if len(all)-1 != n {
		r.Errorf("%d changes of the spec, want %d: %v", len(all)-1, n, all)
	}
	if told := len(r.events.of(scheduler.SpecChanged)); told != n {
		r.Errorf("%d changes were reported, want %d", told, n)
	}
	want, got := ticksIn(r.T, all, now.Add(-sec)), make(map[int64]int)
	for _, call := range r.all() {
		got[call.tick.At.Unix()]++
	}
	if !maps.Equal(got, want) {
		r.Errorf("%d ticks, %d of them executed, in %v", len(want), len(got), all)
	}
}

const newSpec, oldSpec, thirdSpec = "@every 4m0s", "@every 10m0s", "@every 7m0s"

// A node of the old release starts when the deploy is over. Its spec is in force as long as it is up and has the job.
func TestALateOldNode(t *testing.T) {
	for name, tc := range map[string]struct {
		goes   func(t *testing.T, late *node)
		before time.Duration // after it has gone, its spec is in force for so long
		after  time.Duration // and no longer for so long
	}{
		"stops":           {func(t *testing.T, late *node) { late.end() }, 0, 35 * sec},
		"dies":            {func(t *testing.T, late *node) { late.cut() }, 55 * sec, 125 * sec},
		"removes the job": {func(t *testing.T, late *node) { wantNil(t, "Remove", late.Remove("job")) }, 0, 40 * sec},
		"stays":           {nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				r := newRelease(c)
				var nodes []*node
				for range 3 {
					nodes = append(nodes, r.boot(newSpec))
				}
				until(r.start, 5*min)
				late := r.boot(oldSpec)
				if e := r.wants(5*min+15*sec, oldSpec, late); len(e.OtherSpecs) != 0 || !e.DisagreeSince.IsZero() {
					c.Errorf("soon after the start nodes disagree: %+v", e)
				}
				e := r.wants(7*min, oldSpec, late)
				if len(e.OtherSpecs) != 3 || e.Contested || e.DisagreeSince.Sub(r.start.Add(5*min)) > 11*sec {
					c.Errorf("after two minutes %+v", e)
				}
				for i, o := range e.OtherSpecs {
					if o.Node != nodes[i].name || o.Spec != newSpec {
						c.Errorf("%+v is another spec", o)
					}
				}
				if e := r.wants(19*min, oldSpec, late); e.Contested {
					c.Error("contested after less than a quarter of an hour")
				}
				if e := r.wants(21*min, oldSpec, late); !e.Contested {
					c.Error("not contested after a quarter of an hour")
				}
				at, end := 31*min+7*sec, testkit.Size(hour, 3*hour)
				r.wants(at, oldSpec, late)
				if tc.goes == nil {
					r.wants(end, oldSpec, late)
					r.wantChanges(1)
					return
				}
				tc.goes(c.T, late)
				r.wants(at+tc.before, oldSpec, late)
				e = r.wants(at+tc.after, newSpec, nodes...)
				if last := e.Former[0]; last.Spec != oldSpec {
					c.Errorf("before that %+v was in force", last)
				}
				if e = r.wants(at+tc.after+2*min, newSpec, nodes...); e.Contested || len(e.OtherSpecs) > 0 {
					c.Errorf("%+v, want that the nodes agree", e)
				}
				told := c.events.of(scheduler.SpecChanged)
				if text := told[len(told)-1].Err.Error(); !strings.HasSuffix(text, "node "+late.name+", which had registered the former spec last, is not up with the job") {
					c.Errorf("reported as %q", text)
				}
				r.wants(end, newSpec, nodes...)
				r.wantChanges(2)
			})
		})
	}
}

// Of the nodes that are left, the youngest decides, and only if its spec is not in force.
func TestTheYoungestNodeDecides(t *testing.T) {
	virtual(t, func(c *cluster) {
		r := newRelease(c)
		first := r.boot(newSpec)
		until(r.start, 10*min)
		second := r.boot(thirdSpec)
		until(r.start, 20*min)
		third := r.boot(oldSpec)
		until(r.start, 30*min)
		late := r.boot(oldSpec)
		r.wants(40*min, oldSpec, third, late)
		late.end()
		r.wants(60*min, oldSpec, third, late) // the youngest has it
		third.cut()
		r.wants(63*min, thirdSpec, second)
		second.end()
		r.wants(64*min, newSpec, first)
		third.heal() // the youngest is up again
		r.wants(66*min, oldSpec, third)
		r.wants(3*hour, oldSpec, third)
		r.wantChanges(5)
	})
}

// While the node is up that was given a spec at run time, that spec stays. Then the latest of the others counts, although a
// younger node has an older registration.
func TestSpecsOfRunTimeAndTheYoungestNode(t *testing.T) {
	virtual(t, func(c *cluster) {
		r := newRelease(c)
		old, other := r.boot(oldSpec), r.boot(oldSpec)
		until(r.start, 5*min)
		young := r.boot(oldSpec)
		until(r.start, 10*min)
		wantNil(c, "SetSpec", old.SetSpec("job", newSpec))
		until(r.start, 20*min)
		wantNil(c, "SetSpec", other.SetSpec("job", newSpec))
		r.wants(2*hour, newSpec, old, other)
		wantNil(c, "SetSpec", other.SetSpec("job", thirdSpec))
		r.wants(3*hour, thirdSpec, other)
		other.end()
		r.wants(3*hour+2*min, newSpec, old) // its registration is younger than that of the youngest node
		r.wants(4*hour, newSpec, old)
		old.end()
		r.wants(4*hour+min, oldSpec, young)
		wantNil(c, "SetSpec", young.SetSpec("job", thirdSpec))
		r.wants(5*hour, thirdSpec, young)
		if n := len(r.store.periods(c.T)) - 1; n > 6 {
			c.Errorf("%d changes", n)
		}
		r.wantChanges(len(r.store.periods(c.T)) - 1)
	})
}

// The entries of a provider: a node starts late with an old file, and then its spec is in force until the node is stopped. The
// others do not get another spec from their provider.
func TestALateOldNodeOfAProvider(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		m.provider.set(nil, config("@every 4m", "job"), config("@every 1h", "other"))
		fresh := m.start()
		m.start()
		wants := func(at time.Duration, spec string) {
			t.Helper()
			until(start, at)
			all, err := admin.Of(fresh.Scheduler()).Entries(c.Context())
			if err != nil || len(all) != 2 || all[0].Spec != spec || all[1].Spec != "@every 1h0m0s" {
				t.Errorf("after %s: %+v, %v, want %s", at, all, err, spec)
			}
		}
		wants(5*min, "@every 4m0s")
		var stale provider
		stale.set(nil, config("@every 10m", "job"), config("@every 1h", "other"))
		late := m.startWith(&stale)
		wants(6*min, "@every 10m0s")
		wants(31*min, "@every 10m0s")
		late.Shutdown()
		wants(32*min, "@every 4m0s")
		m.provider.set(nil, config("@every 10m", "job"), config("@every 1h", "other"))
		wants(33*min, "@every 10m0s")
		wants(51*min, "@every 10m0s")
		want := []string{"job@10m0s", "job@20m0s", "job@30m0s", "job@32m0s", "job@40m0s", "job@4m0s", "job@50m0s"}
		got := slices.DeleteFunc(m.ids(start), func(id string) bool { return strings.HasPrefix(id, "other") })
		if !slices.Equal(got, want) {
			t.Errorf("enqueued %v, want %v", got, want)
		}
	})
}

// nodeStore can refuse the locks of the records of nodes, and the list of nodes.
type nodeStore struct {
	switchStore
	deny atomic.Bool
}

func (s *nodeStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.deny.Load() && strings.HasPrefix(req.Key, keyspace.CronNodes("cron")[:len(keyspace.CronNodes("cron"))-1]) {
		return driver.Reply{}, faultstore.Err
	}
	return s.switchStore.Acquire(ctx, req)
}

// A node decides that cannot write its record. The others take it for one that is not up, once.
func TestANodeThatNoOtherCanSee(t *testing.T) {
	virtual(t, func(c *cluster) {
		r := newRelease(c)
		r.boot(newSpec)
		until(r.start, 10*min)
		store := &nodeStore{switchStore: switchStore{Store: r.store}}
		store.deny.Store(true)
		hidden := c.nodeOn(store, 0)
		hidden.add("job", oldSpec, r.fn(hidden, sec), scheduler.CatchUpAll(24*hour, 1000))
		hidden.start()
		r.wants(10*min+10*sec, oldSpec, hidden)
		r.wants(11*min+10*sec, newSpec, r.nodes[0])
		r.wants(hour, newSpec, r.nodes[0])
		store.deny.Store(false)
		r.wants(hour+10*sec, oldSpec, hidden)
		r.wants(2*hour, oldSpec, hidden)
		r.wantChanges(3)
	})
}

// On doubt the spec in force stays: while the records cannot be read, and while the store's clock is behind them.
func TestSpecsStayOnDoubt(t *testing.T) {
	virtual(t, func(c *cluster) {
		r := newRelease(c)
		first := r.boot(newSpec)
		until(r.start, 10*min)
		late := r.boot(oldSpec)
		r.wants(20*min, oldSpec, late)
		list := c.memo(first, keyspace.CronNodes("cron"))
		c.write(first, keyspace.CronNodes("cron"), "garbage")
		late.end()
		until(r.start, 20*min+55*sec)
		if l := c.memo(first, r.store.key); !strings.Contains(l, `"spec":"`+oldSpec+`"`) { // an Entry needs the list
			t.Errorf("the ledger is %s", l)
		}
		if n := strings.Count(c.logs.String(), "the specs in force are kept, because this node cannot see which nodes are up"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		c.write(first, keyspace.CronNodes("cron"), list)
		r.wants(22*min, newSpec, first)
		r.wantChanges(2)
	})
}

// The store loses everything. All nodes are up, so the youngest one's spec is in force again, after few changes.
func TestSpecsAfterTheStoreHasLostEverything(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		store := &switchStore{Store: c.mem}
		var nodes []*node
		for i := range 4 {
			n := c.nodeOn(store, 0)
			n.add("job", map[bool]string{true: oldSpec, false: newSpec}[i == 3], func(context.Context) error { return nil })
			nodes = append(nodes, n.start())
			until(start, time.Duration(i+1)*7*min)
		}
		store.swap(memstore.New(&memstore.Config{Silent: true}))
		until(start, 2*hour)
		e, err := nodes[0].Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Spec != oldSpec || e.SpecBy != nodes[3].name {
			t.Errorf("%s of %s is in force", e.Spec, e.SpecBy)
		}
		if n := len(c.events.of(scheduler.SpecChanged)); n > 2 {
			t.Errorf("%d changes of the spec", n)
		}
	})
}

// What nodes send whose spec is not in force, and what it costs that a late node of the old release goes, with many jobs.
func TestCommandsOfALateOldNode(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		const jobs = 1000
		start := time.Now()
		boot := func(spec string) *node {
			n := c.node(0)
			for i := range jobs {
				n.add(fmt.Sprint("job", i), spec, func(context.Context) error { return nil })
			}
			return n.start()
		}
		count := func() (all, items int) {
			for _, n := range c.nodes[:2] {
				all, items = all+n.store.Calls(""), items+n.store.Items(faultstore.Inspect)
			}
			return all, items
		}
		boot("0 3 1 1 *")
		boot("0 3 1 1 *")
		until(start, 10*min)
		before, _ := count()
		until(start, 20*min)
		rest, _ := count()
		rest -= before
		late := boot("0 4 1 1 *")
		until(start, 30*min)
		before, read := count()
		until(start, 40*min)
		apart, items := count()
		apart, items = apart-before, items-read
		if more := apart - rest; more < 36 || more > 42 || items > 2*64+42 {
			t.Errorf("%d commands in ten minutes, of them reads of %d records, and %d while no node has another spec", apart, items, rest)
		}
		up, err := c.nodes[0].Entries(c.Context())
		wantNil(t, "Entries", err)
		told := 0
		for _, e := range up {
			told += len(e.OtherSpecs)
		}
		if told < 2*50 || told > 2*jobs/2 {
			t.Errorf("reported %d specs that are not in force", told)
		}
		before, _ = count()
		late.end()
		until(start, 42*min)
		after, _ := count()
		if n := len(c.events.of(scheduler.SpecChanged)); n != 2*jobs {
			t.Errorf("%d changes, want %d", n, 2*jobs)
		}
		// Acquire, memo and release of each job, by the youngest node, or by both if both look at the job at the same time.
		// And reads in batches: Config.Concurrency jobs are looked at in each, because the node has so many slots.
		if sent := after - before; sent < 3*jobs || sent > 7*jobs {
			t.Errorf("%d commands for %d jobs", sent, jobs)
		} else {
			t.Logf("at rest %d commands of two nodes in ten minutes, with another spec %d; %d for %d jobs", rest, apart, sent, jobs)
		}
	})
}

// The store's clock is set back. The nodes from before that do not take turns, and each later registration wins.
func TestSpecsWhenTheStoresClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{T: t, logs: new(testkit.Log)}
		start := time.Now()
		c.mem = memstore.New(&memstore.Config{Silent: true, Now: func() time.Time {
			if time.Since(start) >= 10*min {
				return time.Now().Add(-2 * hour)
			}
			return time.Now()
		}})
		boot := func(spec string) *node {
			n := c.node(0)
			n.add("job", spec, func(context.Context) error { return nil })
			return n.start()
		}
		boot(newSpec)
		until(start, 5*min)
		boot(oldSpec)
		until(start, 30*min)
		if n := len(c.events.of(scheduler.SpecChanged)); n != 1 {
			t.Errorf("%d changes of the spec, want that of the registration", n)
		}
		n := boot(thirdSpec)
		for _, at := range []time.Duration{30*min + 20*sec, 3 * hour, 5 * hour} {
			until(start, at)
			e, err := n.Entry(c.Context(), "job")
			wantNil(t, "Entry", err)
			if e.Spec != thirdSpec {
				t.Errorf("after %s %s is in force", at, e.Spec)
			}
		}
		if n := len(c.events.of(scheduler.SpecChanged)); n != 2 {
			t.Errorf("%d changes of the spec, want those of the registrations", n)
		}
	})
}
