package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
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
