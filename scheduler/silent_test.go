package scheduler_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// silentStore has no answer for one key, as a cluster with a node that is down.
type silentStore struct {
	driver.Store
	key    string
	silent atomic.Bool
}

func (s *silentStore) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	recs, err := s.Store.Inspect(ctx, req)
	for i, key := range req.Keys {
		if err == nil && key == s.key && s.silent.Load() {
			recs[i], err = driver.Record{Key: key}, faultstore.Err
		}
	}
	return recs, err
}

// While one node of a cluster is down, the jobs whose ledgers are on the others run.
func TestOneLedgerWithoutAnAnswer(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, silent runs
		start := time.Now()
		store := &silentStore{Store: c.mem, key: "%cron:cron:silent"}
		n := c.nodeOn(store, 0)
		n.add("job", "@every 10m", r.fn(n, 0))
		n.add("silent", "@every 10m", silent.fn(n, 0))
		n.start()
		until(start, 11*min)
		store.silent.Store(true)
		until(start, 31*min)
		r.wantTicks(t, start, 10*min, 20*min, 30*min)
		silent.wantTicks(t, start, 10*min)
	})
}

// If the node of a cluster that has the pauses is down when a scheduler starts, the scheduler executes nothing and says so,
// because jobs may be paused. Schedulers that have read the pauses before go on.
func TestNoAnswerForThePausesAtTheStart(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var paused, job, late runs
		start := time.Now()
		store := &silentStore{Store: c.mem, key: keyspace.Cron("cron")}
		a, b := c.nodeOn(store, 0), c.nodeOn(store, 0)
		for _, n := range []*node{a, b} {
			n.add("paused", "@every 10m", paused.fn(n, 0))
		}
		a.add("job", "@every 10m", job.fn(a, 0))
		b.add("late", "@every 10m", late.fn(b, 0))
		a.start()
		until(start, 5*min)
		wantNil(t, "Pause", c.admin().Pause(c.Context(), "paused", ""))
		until(start, 6*min)
		store.silent.Store(true)
		b.start()
		until(start, 31*min)
		job.wantTicks(t, start, 10*min, 20*min, 30*min)
		late.wantTicks(t, start)
		if !strings.Contains(c.logs.String(), "the store does not answer") {
			t.Errorf("no record says so:\n%s", c.logs)
		}
		store.silent.Store(false)
		until(start, 41*min)
		late.wantTicks(t, start, 40*min)
		paused.wantTicks(t, start)
	})
}
