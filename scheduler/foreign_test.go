package scheduler_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler"
)

// foreignStore has values that are no locks at the keys with a prefix, and at one more key.
type foreignStore struct {
	driver.Store
	mu     sync.Mutex
	prefix string // "": there are no such keys
	key    string
}

func (s *foreignStore) setKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
}

func (s *foreignStore) set(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prefix = prefix
}

func (s *foreignStore) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prefix != "" && strings.HasPrefix(key, s.prefix) || key == s.key
}

func (s *foreignStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.has(req.Key) {
		return driver.Reply{Outcome: driver.OutcomeForeign}, nil
	}
	return s.Store.Acquire(ctx, req)
}

func (s *foreignStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return unlessForeign(s, ctx, reqs, func(req driver.RenewRequest) string { return req.Key }, s.Store.Renew)
}

func (s *foreignStore) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return unlessForeign(s, ctx, reqs, func(req driver.ReleaseRequest) string { return req.Key }, s.Store.Release)
}

// unlessForeign sends the requests whose keys have no foreign values, and answers the others. A request that was sent all the
// same would end the lock that is hidden behind the value, and give it to who waits for it.
func unlessForeign[R any](
	s *foreignStore, ctx context.Context, reqs []R, keyOf func(R) string, send func(context.Context, []R) ([]driver.Reply, error),
) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	var sent []R
	var at []int
	for i, req := range reqs {
		if s.has(keyOf(req)) {
			replies[i] = driver.Reply{Outcome: driver.OutcomeForeign}
			continue
		}
		sent, at = append(sent, req), append(at, i)
	}
	if len(sent) == 0 {
		return replies, nil
	}
	got, err := send(ctx, sent)
	for i, reply := range got {
		replies[at[i]] = reply
	}
	return replies, err
}

func (s *foreignStore) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	recs, err := s.Store.Inspect(ctx, req)
	for i, key := range req.Keys {
		if s.has(key) {
			recs[i] = driver.Record{Key: key, State: driver.StateForeign} // as redisstore: without the store's time
		}
	}
	return recs, err
}

const lane = "%cron:cron:job%lane"

// A lane whose key has a foreign value is left out.
func TestLaneThatIsNoLock(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		store := &foreignStore{Store: c.mem, prefix: lane + "1"}
		n := c.nodeOn(store, 0)
		n.add("job", "@every 10m", r.fn(n, 15*min), scheduler.MaxConcurrent(2))
		n.start()
		until(start, 61*min)
		r.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min, 50*min, 60*min)
		if e, err := n.Entry(c.Context(), "job"); err != nil || e.Problem != "" {
			t.Errorf("%v, problem %q", err, e.Problem)
		}
	})
}

// If no lane can be used, or an execution's lane is overwritten, the nodes look once a minute, say why, and go on when the
// values are gone.
func TestLanesThatAreNoLocks(t *testing.T) {
	for name, tc := range map[string]struct {
		from time.Duration
		want []time.Duration
	}{
		"all lanes":         {9 * min, []time.Duration{10 * min}},
		"of the executions": {11 * min, []time.Duration{10 * min, 10 * min}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				store := &foreignStore{Store: c.mem}
				for range 2 {
					n := c.nodeOn(store, 0)
					n.add("job", "0,10 0 * * *", r.fn(n, 5*min), scheduler.MaxConcurrent(2))
					n.start()
				}
				until(start, tc.from)
				store.set(lane)
				until(start, 12*min)
				calls := func() (n int) {
					for _, on := range c.nodes[:2] {
						n += on.store.Calls(faultstore.Acquire) + on.store.Calls(faultstore.Inspect)
					}
					return n
				}
				before := calls()
				until(start, 22*min)
				if n := calls() - before; n > 500 { // 120 of them by Config.Sync
					t.Errorf("%d calls in ten minutes", n)
				}
				e, err := c.nodes[0].Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if !strings.Contains(e.Problem, "no lock") && !strings.Contains(e.Problem, "not a lock") {
					t.Errorf("problem %q", e.Problem)
				}
				store.set("")
				until(start, 30*min)
				r.wantTicks(t, start, tc.want...)
				for _, n := range c.nodes[:2] {
					if e, err := n.Entry(c.Context(), "job"); err != nil || e.Problem != "" || e.Counts.Done != 1 {
						t.Errorf("%s: %v, problem %q, counts %+v", n.name, err, e.Problem, e.Counts)
					}
				}
			})
		})
	}
}
