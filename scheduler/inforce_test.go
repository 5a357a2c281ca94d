package scheduler_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/spec"
)

// recorder is a store that keeps the memos that nodes write, in order.
type recorder struct {
	driver.Store
	key string

	mu    sync.Mutex
	memos [][]byte
}

func (r *recorder) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	replies, err := r.Store.Renew(ctx, reqs)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, req := range reqs {
		if req.Key == r.key && req.Memo != nil && replies[i].Outcome == driver.OutcomeOK {
			r.memos = append(r.memos, req.Memo)
		}
	}
	return replies, err
}

// period is the time in which a spec was in force.
type period struct {
	spec  string
	from  time.Time
	until time.Time // zero: still in force
}

// periods returns which specs were in force, as the ledgers say.
func (r *recorder) periods(t *testing.T) (all []period) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, memo := range r.memos {
		l, err := ledger.Decode(memo)
		if err != nil {
			t.Fatal(err)
		}
		n := len(all)
		if n > 0 && all[n-1].spec == l.Spec && all[n-1].from.UnixMilli() == l.From {
			continue
		}
		from := time.UnixMilli(l.From)
		if n > 0 {
			all[n-1].until = from
		}
		all = append(all, period{spec: l.Spec, from: from})
	}
	return all
}

// ticksIn returns the ticks of the periods, up to the time end.
func ticksIn(t *testing.T, all []period, end time.Time) map[int64]int {
	t.Helper()
	want := make(map[int64]int)
	for _, p := range all {
		s, err := spec.Parse(p.spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p.until.IsZero() {
			p.until = end
		}
		for tick := range s.Ticks(p.from, p.until) {
			want[tick.Unix()]++
		}
	}
	return want
}

// The node that has registered a job last decides, also if the job runs while the nodes start: none of them can look at the
// spec in force before the run is over, and then they all look at about the same time.
func TestLastRegistrationDuringARunDecides(t *testing.T) {
	for _, release := range []string{"old", "new"} {
		t.Run("the last is "+release, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				boot := func(spec string) *node {
					n := c.node(0)
					n.add("job", spec, r.fn(n, 50*min))
					return n.start()
				}
				others, last := "@every 1h0m0s", "@every 2h0m0s"
				if release == "old" {
					others, last = last, others
				}
				boot("@every 1h0m0s")
				until(start, 65*min)
				for range 5 { // the job runs from 60 to 110
					boot(others)
					time.Sleep(5 * min)
				}
				decides := boot(last)
				for _, at := range []time.Duration{112 * min, 118 * min} {
					until(start, at)
					if e, err := decides.Entry(c.Context(), "job"); err != nil || e.Spec != last || e.SpecBy != decides.name {
						t.Errorf("after %s %s of %s is in force, want %s of %s: %v", at, e.Spec, e.SpecBy, last, decides.name, err)
					}
				}
			})
		})
	}
}

// Half an hour on three nodes: a deploy of another spec, node by node, while nodes die and start again with the release
// that they had. When all nodes have the new release, a node of the old one starts late, and dies or is stopped. Each tick of
// the spec in force is executed, and once unless its node died.
func TestRollingChangeOfASpec(t *testing.T) {
	for _, specs := range [][2]string{
		{"@every 10s", "@every 15s"}, {"* * * * *", "*/7 * * * * *"}, {"@every 20s", "0 3 * * *"}, {"0 3 * * *", "@every 20s"},
	} {
		t.Run(specs[0]+" to "+specs[1], func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				dice := rand.New(rand.NewPCG(1, uint64(len(specs[0]))))
				start := time.Now()
				store := &recorder{Store: c.mem, key: "%cron:cron:job"}
				boot := func(release int) *node {
					n := c.nodeOn(store, 0)
					n.add("job", specs[release], func(ctx context.Context) error {
						r.note(ctx, n)
						if len(r.all())%7 == 0 && time.Since(start) < 25*min {
							n.cut() // in the middle
							<-ctx.Done()
						}
						return ctx.Err()
					}, scheduler.CatchUpAll(24*hour, 1000))
					return n.start()
				}
				nodes := []*node{boot(0), boot(0), boot(0)}
				releases := make([]int, 3)
				deaths := 0
				for time.Since(start) < 25*min {
					time.Sleep(time.Duration(dice.IntN(20_000)) * time.Millisecond)
					if up := int(time.Since(start)/(4*min)) - 2; up >= 0 && up < 3 && releases[up] == 0 {
						releases[up] = 1
						nodes[up].end()
						nodes[up] = boot(1)
						continue
					}
					for i, n := range nodes {
						if n.dead() || dice.IntN(6) == 0 {
							deaths++
							n.cut()
							n.stop() // killed
							if dice.IntN(2) == 0 {
								time.Sleep(time.Duration(dice.IntN(20_000)) * time.Millisecond)
							}
							nodes[i] = boot(releases[i])
						}
					}
				}
				for i := range nodes { // whatever died
					nodes[i] = boot(1)
				}
				until(start, 27*min)
				late := boot(0)
				until(start, 28*min+30*sec)
				if e, err := late.Entry(c.Context(), "job"); err != nil || e.SpecBy != late.name {
					t.Errorf("%+v, %v: the late node has not decided", e, err)
				}
				if len(specs[0])%2 == 0 {
					late.cut()
				} else {
					late.end()
				}
				until(start, 31*min)
				all := store.periods(t)
				if last := all[len(all)-1]; !strings.HasSuffix(last.spec, specs[1]) {
					t.Errorf("in the end %s is in force, want %s", last.spec, specs[1])
				}
				if len(all) < 2 {
					t.Errorf("the spec has not changed: %v", all)
				}
				want, got := ticksIn(t, all, start.Add(31*min-sec)), make(map[int64]int)
				for _, call := range r.all() {
					if call.tick.Broken == 0 {
						got[call.tick.At.Unix()]++
					}
				}
				if !maps.Equal(got, want) {
					t.Errorf("%d ticks, %d of them executed, in the periods", len(want), len(got))
					for _, p := range all {
						t.Errorf("%s from %s", p.spec, p.from.Sub(start))
					}
					for tick, n := range want {
						if got[tick] != n {
							t.Errorf("tick %s: executed %d times", time.Unix(tick, 0).Sub(start), got[tick])
						}
					}
				}
				t.Logf("%d ticks, %d executions, %d deaths, %d changes", len(want), len(r.all()), deaths, len(all)-1)
				if told := c.events.of(scheduler.SpecChanged); len(told) > len(all)-1 || len(told) == 0 {
					t.Errorf("%d changes reported of %d", len(told), len(all)-1)
				}
			})
		})
	}
}

// The last node of the new release dies. The old nodes go on with the new spec until they know that it is dead.
func TestOldNodesFollowTheNewSpec(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		with := func(spec string) *node {
			n := c.node(0)
			n.add("job", spec, r.fn(n, sec))
			return n
		}
		boot := func(spec string) *node { return with(spec).start() }
		old, ops := boot("@every 10m"), c.admin()
		wants := func(spec string, next time.Duration) {
			t.Helper()
			for _, n := range []*node{old, ops} {
				e, err := n.Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if e.Spec != spec || !e.Next.Equal(start.Add(next)) {
					t.Errorf("entry %+v, want the spec in force", e)
				}
			}
		}
		until(start, 12*min)
		unheard := with("@every 20s")
		unheard.cut()
		unheard.start()
		until(start, 13*min)
		next := boot("@every 20s")
		until(start, 13*min+50*sec)
		next.cut()
		until(start, 14*min+50*sec)
		ticks := []time.Duration{10 * min, 13*min + 20*sec, 13*min + 40*sec, 14 * min, 14*min + 20*sec, 14*min + 40*sec}
		r.wantTicks(t, start, ticks...)
		for _, call := range r.all()[3:] {
			if call.on != old.name {
				t.Errorf("executed on %s, want the old node", call.on)
			}
		}
		wants("@every 20s", 15*min)
		until(start, 16*min)
		wants("@every 10m0s", 20*min)
		n := len(r.all()) // none or few since
		until(start, 31*min)
		for _, call := range r.all()[n:] {
			ticks = append(ticks, call.tick.At.Sub(start))
		}
		if last := fmt.Sprint(ticks[6:]); last != "[20m0s 30m0s]" {
			t.Errorf("ran for %s with the old spec", last)
		}
		boot("@every 15m") // and another release
		until(start, 46*min)
		if n := len(r.all()) - n; n != 3 {
			t.Errorf("%d executions, want a third at 45 min", n)
		}
	})
}

// The only node of the new release dies long before the old spec's next tick.
func TestOldNodesReadTheNewSpecInTime(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, other runs
		start := time.Now()
		for range 2 {
			n := c.node(0)
			n.add("job", "0 3 * * *", r.fn(n, sec))
			n.add("other", "0 3 * * *", other.fn(n, sec))
			n.start()
		}
		until(start, 5*min)
		n := c.node(0)
		n.add("job", "@every 20s", r.fn(n, sec))
		for i := range 150 { // more than one write can tell
			n.add(fmt.Sprint("job", i), "0 3 * * *", r.fn(n, sec))
		}
		n.start()
		until(start, 5*min+sec)
		n.cut()
		until(start, 6*min+25*sec) // not long enough for the others to know that it is dead
		r.wantTicks(t, start, 5*min+20*sec, 5*min+40*sec, 6*min, 6*min+20*sec)
		for _, call := range r.all() {
			if late := call.begun.Sub(call.tick.At); late > sec || call.on == n.name {
				t.Errorf("%s was executed %s late on %s", call.tick.At.Sub(start), late, call.on)
			}
		}
		if n := len(other.all()); n > 0 {
			t.Errorf("another job was executed %d times", n)
		}
	})
}

// ordersStore can refuse to write the record of the orders.
type ordersStore struct {
	driver.Store
	deny atomic.Bool
}

func (s *ordersStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.deny.Load() && req.Key == "%cron:cron" {
		return driver.Reply{}, faultstore.Err
	}
	return s.Store.Acquire(ctx, req)
}

// While a node cannot tell the others of a new spec, the node says so once, and keeps a bounded list. Then all nodes learn
// of all changes.
func TestChangesThatCannotBeSent(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		const jobs = 150
		start := time.Now()
		store := &ordersStore{Store: c.mem}
		a, b := c.nodeOn(store, 0), c.node(0)
		for _, n := range c.nodes {
			for i := range jobs {
				n.add(fmt.Sprint("job", i), "0 3 * * *", r.fn(n, 10*time.Millisecond))
			}
			n.start()
		}
		until(start, min)
		store.deny.Store(true)
		for i := range jobs {
			for range 3 {
				wantNil(t, "SetSpec", a.SetSpec(fmt.Sprint("job", i), "@every 1h"))
				until(start, time.Since(start)+sec)
				wantNil(t, "SetSpec", a.SetSpec(fmt.Sprint("job", i), "@every 30m"))
				until(start, time.Since(start)+sec)
			}
		}
		if n := a.Unsent(); n != 101 {
			t.Errorf("%d names are to be sent, want 101 to stand for all", n)
		}
		if n := strings.Count(c.logs.String(), "other nodes do not know yet that the specs of jobs have changed"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		store.deny.Store(false)
		until(start, 29*min+30*sec)
		a.cut()
		until(start, 30*min+20*sec)
		if n := len(r.all()); n != jobs {
			t.Errorf("%d executions, want %d", n, jobs)
		}
		for _, call := range r.all() {
			if late := call.begun.Sub(start.Add(30 * min)); late < 0 || late > sec || call.on != b.name {
				t.Fatalf("%s was executed %s late on %s", call.tick.Name, late, call.on)
			}
		}
	})
}

// A node learns of a new spec while it is busy with the job, after it has read the job's ledger for the last time.
func TestNewSpecWhileTheNodeIsBusy(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		old := c.node(0)
		old.add("job", "0 3 * * *", r.fn(old, sec))
		old.start()
		until(start, min)
		wantNil(t, "Trigger", old.Trigger(c.Context(), "job"))
		until(start, min+500*time.Millisecond)
		old.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 30 * sec}, faultstore.Release)
		until(start, min+2*sec) // the lock is free, but the node does not know
		next := c.node(0)
		next.add("job", "@every 20s", r.fn(next, sec))
		next.start()
		until(start, min+5*sec)
		next.cut()
		until(start, 2*min+25*sec) // not long enough for the others to know that it is dead
		r.wantTicks(t, start, min, min+20*sec, min+40*sec, 2*min, 2*min+20*sec)
	})
}

// A node that cannot parse the spec in force leaves the job to others, and says why.
func TestSpecThatAnOlderNodeCannotParse(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10m", r.fn(n, sec))
		n.start()
		until(start, 20*min-sec)
		c.write(c.admin(), "%cron:cron:job", fmt.Sprintf(`{"v":1,"spec":"@moon","since":%d,"last":0,"counts":{}}`, time.Now().UnixMilli()))
		until(start, 25*min)
		r.wantTicks(t, start, 10*min)
		e, err := n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if !strings.Contains(e.Problem, "newer nodes execute the job, by a spec that this node cannot parse") {
			t.Errorf("problem %q", e.Problem)
		}
	})
}
