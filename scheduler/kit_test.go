package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

var wantErr, wantNil = testkit.WantErr, testkit.WantNil

const ttl = 10 * time.Second // of the locks in virtual time

// cluster is nodes on one store, in a bubble. The store's clock is the bubble's.
type cluster struct {
	*testing.T
	mem    driver.Store
	logs   *testkit.Log
	nodes  []*node
	events log
}

// node is a process of the cluster.
type node struct {
	*scheduler.Scheduler
	*admin.Admin // of the Scheduler
	c            *cluster
	name         string
	store        *faultstore.Store
	locks        *joblock.Locker
	stop         context.CancelFunc // as SIGTERM
	done         chan error         // what Run returned
	mu           sync.Mutex
	cutAt        time.Time // when it was cut off or died; zero if it is well
}

func virtual(t *testing.T, f func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		testkit.Seed(t, 1)
		f(&cluster{T: t, logs: new(testkit.Log), mem: memstore.New(&memstore.Config{Silent: true})})
	})
}

// node makes a node whose clock is wrong by skew. set changes its Config.
func (c *cluster) node(skew time.Duration, set ...func(*scheduler.Config)) *node {
	c.Helper()
	return c.nodeOn(c.mem, skew, set...)
}

// nodeOn is node with another store.
func (c *cluster) nodeOn(store driver.Store, skew time.Duration, set ...func(*scheduler.Config)) *node {
	c.Helper()
	n := &node{c: c, name: fmt.Sprintf("node%d", len(c.nodes)), store: faultstore.New(store)}
	logger := c.logs.Text()
	var err error
	n.locks, err = joblock.New(n.store, &joblock.Config{TTL: ttl, Holder: n.name, Logger: logger})
	if err != nil {
		c.Fatal(err)
	}
	cfg := &scheduler.Config{Scope: "cron", Node: n.name, Logger: logger, Observe: func(e scheduler.Event) { c.events.add(n, e) }}
	for _, f := range set {
		f(cfg)
	}
	n.Scheduler, err = scheduler.NewAt(n.locks, cfg, func() time.Time { return time.Now().Add(skew) })
	if err != nil {
		c.Fatal(err)
	}
	n.Admin = admin.Of(n.Scheduler)
	c.nodes = append(c.nodes, n)
	return n
}

// Trigger is Admin.Trigger without a wait.
func (n *node) Trigger(ctx context.Context, name string) error {
	_, err := n.Admin.Trigger(ctx, name)
	return err
}

// TriggerAndWait is Admin.Trigger with a wait.
func (n *node) TriggerAndWait(ctx context.Context, name string) (admin.Execution, error) {
	wait, err := n.Admin.Trigger(ctx, name)
	if err != nil {
		return admin.Execution{}, err
	}
	return wait(ctx)
}

// start runs the node until stop or the end of the test.
func (n *node) start() *node {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.done = cancel, make(chan error, 1)
	go func() { n.done <- n.Run(ctx) }()
	n.c.Cleanup(func() {
		cancel()
		n.heal()
		if err := <-n.done; err != nil && !n.dead() {
			n.c.Errorf("%s: Run returned %v", n.name, err)
		}
		n.done <- nil
		if err := n.locks.Close(context.Background()); err != nil && !errors.Is(err, joblock.ErrClosed) {
			n.c.Error(err)
		}
	})
	return n
}

// end stops the node as SIGTERM does, and waits until Run has returned.
func (n *node) end() {
	n.c.Helper()
	n.stop()
	if err := <-n.done; err != nil {
		n.c.Errorf("%s: Run returned %v", n.name, err)
	}
	n.done <- nil
}

// cut takes the store away from the node. For the others it is as if it had died.
func (n *node) cut() {
	n.mu.Lock()
	n.cutAt = time.Now()
	n.mu.Unlock()
	n.store.Set(faultstore.Fault{}, faultstore.Acquire, faultstore.Renew, faultstore.Release, faultstore.Inspect, faultstore.Listen, faultstore.Push)
}

func (n *node) heal() {
	n.store.Clear()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutAt = time.Time{}
}

func (n *node) dead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cutAt.IsZero()
}

func (n *node) add(name, spec string, fn func(context.Context) error, opts ...scheduler.Option) {
	n.c.Helper()
	if err := n.Func(name, spec, fn, opts...); err != nil {
		n.c.Fatal(err)
	}
}

// log collects events.
type log struct {
	mu   sync.Mutex
	list []event
}

type event struct {
	scheduler.Event
	on *node
	at time.Time
}

func (l *log) add(n *node, e scheduler.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, event{e, n, time.Now()})
}

// of returns the events of that kind.
func (l *log) of(kind scheduler.Kind) (out []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.list {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// runs records for which ticks a job's function was called.
type runs struct {
	mu   sync.Mutex
	list []call
}

type call struct {
	tick  scheduler.Tick
	on    string
	fence int64
	begun time.Time
}

// fn returns a function for node n. It takes as long as given, or until its context ends.
func (r *runs) fn(n *node, takes time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		r.note(ctx, n)
		select {
		case <-time.After(takes):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *runs) note(ctx context.Context, n *node) {
	tick, ok := scheduler.TickFrom(ctx)
	lock, held := joblock.FromContext(ctx)
	if !ok || !held {
		n.c.Error("the context has no tick, or no lock")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, call{tick, n.name, lock.Fence(), time.Now()})
}

func (r *runs) all() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.list...)
}

// wantTicks checks that the function was called for exactly these ticks, in this order. They
// are given as durations since start.
func (r *runs) wantTicks(t testing.TB, start time.Time, want ...time.Duration) {
	t.Helper()
	var got []time.Duration
	for _, c := range r.all() {
		got = append(got, c.tick.At.Sub(start))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("ran for %v, want %v", got, want)
	}
}

// until sleeps until d after start, by the bubble's clock, and waits for what happens then.
func until(start time.Time, d time.Duration) {
	time.Sleep(time.Until(start.Add(d)))
	synctest.Wait()
}

// switchStore can be replaced by another store, like a server that comes back empty.
type switchStore struct {
	mu sync.Mutex
	driver.Store
}

func (s *switchStore) swap(other driver.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Store = other
}

func (s *switchStore) now() driver.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Store
}

func (s *switchStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return s.now().Acquire(ctx, req)
}

func (s *switchStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return s.now().Renew(ctx, reqs)
}

func (s *switchStore) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return s.now().Release(ctx, reqs)
}

func (s *switchStore) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	return s.now().Inspect(ctx, req)
}
