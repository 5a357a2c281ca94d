package measure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The subjects of the section on walks.
const (
	noWalk     = "no walk"
	usualWalk  = "List"
	nodeByNode = "List, node after node"
)

// Titles of columns that Aims names.
const (
	columnPing99 = "PING p99 µs"
	columnFirst  = "first lock ms"
	columnWalk   = "walk s"
)

const (
	// walkMasters is how many masters the cluster of the section on walks has.
	walkMasters = 3

	// walkPatience bounds one round, filling the server included.
	walkPatience = 10 * time.Minute
)

// walkShares are the values of ListOptions.Share; 0 is the default.
var walkShares = []float64{0, 0.5, 1}

func walkCase(w Walk, share float64) string {
	c := fmt.Sprintf("%d locks, %d other keys", w.Locks, w.Others)
	if share > 0 {
		c += fmt.Sprintf(", Share %v", share)
	}
	return c
}

func clusterWalkCase(w Walk) string {
	return fmt.Sprintf("%d locks on %d masters", w.Locks, walkMasters)
}

func (b *Bench) walks(ctx context.Context) (s *report.Section, err error) {
	s = &report.Section{
		Name:  "walks",
		Title: "Walks over all locks",
		Note: "joblock only. A client sends PING every millisecond while a list of all locks walks over a server with many other keys. " +
			"The walk stands still half of the time: the PINGs in that time are those without a walk. The server and the client of the PINGs share one core, and the walk has another one. " +
			fmt.Sprintf("In a cluster: the list as it is, and with one node after the other. Rounds: %d.", b.Scale.Fewest()),
		Base: noWalk,
		Columns: []report.Column{
			{Title: "PING p50 µs", Ratio: true},
			{Title: columnPing99, Ratio: true},
			{Title: columnFirst, Digits: 1},
			{Title: columnWalk, Digits: 2},
			{Title: "page µs"},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, walkPatience)
	defer cancel()
	if err := b.walkAmongOthers(ctx, s); err != nil {
		return nil, err
	}
	return s, b.walkCluster(ctx, s)
}

// walkAmongOthers measures walks on one server that has many other keys. The server is one of
// its own: to remove so many keys takes seconds.
func (b *Bench) walkAmongOthers(ctx context.Context, s *report.Section) (err error) {
	b.say("%s, %s", s.Name, walkCase(b.Scale.Walk, 0))
	server, err := rig.Start(ctx, b.Program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := fillOthers(ctx, server, b.Scale.Walk.Others); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	store := redisstore.New(rdb, nil)
	if err := parkMany(ctx, store, b.Scale.Walk.Locks); err != nil {
		return err
	}
	w, err := newWalker(store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for round := range b.Scale.Fewest() {
		for i := range walkShares {
			share := walkShares[(i+round)%len(walkShares)]
			var r walkResult
			w.slice = b.Scale.Walk.Slice
			without, with, err := pingDuring(ctx, server, &w.walking, func() (err error) {
				r, err = w.walk(ctx, b.Scale.Walk.Locks, share)
				return err
			})
			if err != nil {
				return err
			}
			c := walkCase(b.Scale.Walk, share)
			s.Add(c, noWalk, report.Quantile(without, 0.5), report.Quantile(without, 0.99), 0, 0, 0)
			s.Add(c, usualWalk, report.Quantile(with, 0.5), report.Quantile(with, 0.99), r.first*1000, r.all, r.page)
		}
	}
	return nil
}

// walkCluster measures how long walks over a cluster take.
func (b *Bench) walkCluster(ctx context.Context, s *report.Section) (err error) {
	c := clusterWalkCase(b.Scale.Walk)
	b.say("%s, %s", s.Name, c)
	cluster, err := rig.StartCluster(ctx, b.Program, walkMasters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	if err := parkMany(ctx, redisstore.New(rdb, nil), b.Scale.Walk.Locks); err != nil {
		return err
	}
	subjects := []string{usualWalk, nodeByNode}
	for round := range b.Scale.Fewest() {
		for i := range subjects {
			subject := subjects[(i+round)%len(subjects)]
			var store driver.Store = redisstore.New(rdb, nil)
			if subject == nodeByNode {
				store = &oneByOne{Store: store}
			}
			w, err := newWalker(store)
			if err != nil {
				return err
			}
			r, err := w.walk(ctx, b.Scale.Walk.Locks, 0)
			if err := errors.Join(err, w.close()); err != nil {
				return err
			}
			s.Add(c, subject, 0, 0, r.first*1000, r.all, r.page)
		}
	}
	return nil
}

// fillOthers writes keys that are no locks.
func fillOthers(ctx context.Context, server *rig.Server, keys int) error {
	const script = "for i = ARGV[1], ARGV[2] do redis.call('SET', 'user:session:' .. i, string.rep('x', 60)) end return 0"
	const batch = 10_000
	for from := 1; from <= keys; from += batch {
		if err := server.Client().Eval(ctx, script, nil, from, min(keys, from+batch-1)).Err(); err != nil {
			return err
		}
	}
	return nil
}

// parkMany makes locks that wait for jobs. Nobody has to renew these locks.
func parkMany(ctx context.Context, store driver.Store, locks int) error {
	for from := 0; from < locks; from += driver.MaxBatch {
		reqs := make([]driver.TakeRequest, min(driver.MaxBatch, locks-from))
		for i := range reqs {
			name := fmt.Sprintf("%013d", from+i)
			reqs[i] = driver.TakeRequest{
				Key: "export:acct-" + name, Owner: "owner-" + name, Nonce: name, Holder: "bench", Job: "exports/" + name,
				Reserve: time.Hour, Retain: time.Hour, Grace: time.Hour,
			}
		}
		replies, err := store.Take(ctx, reqs)
		if err != nil {
			return err
		}
		for i, r := range replies {
			if r.Outcome != driver.OutcomeOK {
				return fmt.Errorf("lock %s was not parked: %s", reqs[i].Key, r.Outcome)
			}
		}
	}
	return nil
}

// walker lists all locks of a store.
type walker struct {
	pages   *pageTimes
	locks   *joblock.Locker
	slice   time.Duration // how long a walk goes on, and then stands still; 0 for a walk without stops
	walking stretches
}

func newWalker(store driver.Store) (*walker, error) {
	w := &walker{pages: &pageTimes{Store: store}}
	var err error
	w.locks, err = joblock.New(w.pages, &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	return w, err
}

func (w *walker) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return w.locks.Close(ctx)
}

// walkResult is how long a walk took, in seconds, and the median time of its pages, in µs.
type walkResult struct{ first, all, page float64 }

// walk lists all locks and counts them.
func (w *walker) walk(ctx context.Context, locks int, share float64) (r walkResult, err error) {
	w.pages.took = nil
	w.walking.begin()
	defer w.walking.end()
	start := time.Now()
	stop, stood := start.Add(w.slice), time.Duration(0)
	n := 0
	for _, err := range w.locks.List(ctx, joblock.ListOptions{Share: share}) {
		if err != nil {
			return r, err
		}
		if n++; n == 1 {
			r.first = time.Since(start).Seconds()
		}
		if w.slice > 0 && !time.Now().Before(stop) {
			w.walking.end()
			pause(ctx, w.slice)
			w.walking.begin()
			stood += w.slice
			stop = time.Now().Add(w.slice)
		}
	}
	r.all = (time.Since(start) - stood).Seconds()
	if n < locks {
		return r, fmt.Errorf("%d of %d locks were listed", n, locks)
	}
	r.page = report.Quantile(w.pages.took, 0.5)
	return r, nil
}

// pageTimes notes how long each page of a list takes.
type pageTimes struct {
	driver.Store
	mu   sync.Mutex
	took []float64 // in µs
}

func (p *pageTimes) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	start := time.Now()
	page, err := p.Store.List(ctx, req)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took = append(p.took, micros(time.Since(start)))
	return page, err
}

// oneByOne makes one part of all parts of a list, so that one node is read after the other.
type oneByOne struct {
	driver.Store
	waiting []string // the beginnings of parts not yet read
}

func (o *oneByOne) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	page, err := o.Store.List(ctx, req)
	if len(page.Next) > 1 {
		page.Next, o.waiting = page.Next[:1], page.Next[1:]
	} else if len(page.Next) == 0 && len(o.waiting) > 0 {
		page.Next, o.waiting = o.waiting[:1:1], o.waiting[1:]
	}
	return page, err
}
