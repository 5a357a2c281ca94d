package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// long is a lease that does not run out during a test.
const long = time.Minute

// stateLines are the lines of the state in a record.
var stateLines = []string{"fence", "lease", "until", "first", "since", "changed", "ended", "owner", "nonce", "last", "prior", "holder", "job", "reason"}

// onBoth runs a test on miniredis and on a redis-server.
func onBoth(t *testing.T, test func(t *testing.T, k *kit)) {
	t.Run("miniredis", func(t *testing.T) {
		redistest.Ran(t, redistest.MiniBackend())
		rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
		t.Cleanup(func() { rdb.Close() })
		test(t, newKit(t, rdb))
	})
	t.Run("redis", func(t *testing.T) {
		test(t, newRealKit(t))
	})
}

// kit is a store, and a client of the same server for looking behind it.
type kit struct {
	*Store
	t   testing.TB
	rdb redis.UniversalClient
	n   atomic.Int64
}

func newKit(t testing.TB, rdb redis.UniversalClient) *kit {
	s := New(rdb, nil)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &kit{Store: s, t: t, rdb: rdb}
}

func newRealKit(t testing.TB) *kit {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	return newKit(t, srv.Client(t))
}

// nonce returns a new one for each call.
func (k *kit) nonce() string { return fmt.Sprintf("nonce-%d", k.n.Add(1)) }

// acquire takes a key for an owner that is named after it.
func (k *kit) acquire(key string) driver.Term {
	k.t.Helper()
	owner := "owner of " + key
	r, err := k.Acquire(context.Background(), driver.AcquireRequest{
		Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Holder: "a host",
	})
	wantOutcome(k.t, "acquire", r, err, driver.OutcomeOK)
	return driver.Term{Key: key, Owner: owner, Fence: r.Fence}
}

// Take, Resume and Park are those of the Store for a single request.

func (k *kit) Take(ctx context.Context, req driver.TakeRequest) (driver.Reply, error) {
	return first(k.Store.Take(ctx, []driver.TakeRequest{req}))
}

func (k *kit) Resume(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
	return first(k.Store.Resume(ctx, []driver.ResumeRequest{req}))
}

func (k *kit) Park(ctx context.Context, req driver.ParkRequest) (driver.Reply, error) {
	return first(k.Store.Park(ctx, []driver.ParkRequest{req}))
}

func first(replies []driver.Reply, err error) (driver.Reply, error) {
	if len(replies) == 0 {
		return driver.Reply{}, err
	}
	return replies[0], err
}

func (k *kit) taking(key string) driver.TakeRequest {
	return driver.TakeRequest{
		Key: key, Owner: "owner of " + key, Nonce: k.nonce(), Holder: "a host", Job: "q/1", Reserve: long, Retain: long, Grace: long,
	}
}

func (k *kit) renewal(t driver.Term) driver.RenewRequest {
	return driver.RenewRequest{Term: t, TTL: long, Retain: long}
}

func (k *kit) release(t driver.Term) driver.ReleaseRequest {
	return driver.ReleaseRequest{Term: t, Nonce: k.nonce(), Retain: long, Reason: "done"}
}

func (k *kit) park(t driver.Term) driver.ParkRequest {
	return driver.ParkRequest{Term: t, Nonce: k.nonce(), Reserve: long, Retain: long, Job: "q/1", Grace: long}
}

func wantOutcome(t testing.TB, what string, r driver.Reply, err error, want driver.Outcome) {
	t.Helper()
	if err != nil || r.Outcome != want {
		t.Fatalf("%s: outcome %d, error %v; want outcome %d", what, r.Outcome, err, want)
	}
}

func wantOutcomes(t testing.TB, what string, rs []driver.Reply, err error, n int, want driver.Outcome) {
	t.Helper()
	if err != nil || len(rs) != n {
		t.Fatalf("%s: %d replies, error %v; want %d", what, len(rs), err, n)
	}
	for i, r := range rs {
		if r.Outcome != want {
			t.Fatalf("%s: item %d has outcome %d, want %d", what, i, r.Outcome, want)
		}
	}
}
