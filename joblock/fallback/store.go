package fallback

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// localStore keeps the local locks. It refuses the calls that make no sense for a lock of one process: such a lock
// cannot be handed over to another process, and no other process could read its memo.
type localStore struct{ driver.Store }

// newLocalStore returns a localStore whose clock starts in 1970 at this call. A memstore makes fences from the clock in
// microseconds, as redisstore does, so every local fence is smaller than a fence of redisstore.
func newLocalStore() *localStore {
	start := time.Now()
	return &localStore{memstore.New(&memstore.Config{
		Silent: true, // package fallback reports a fall-back
		Now:    func() time.Time { return time.Unix(1, 0).Add(time.Since(start)) },
	})}
}

// Park refuses every request. The holder keeps its lock.
func (*localStore) Park(_ context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	return nil, core.Invalid("park", reqs[0].Key, "the lock is local to this process, because the store did not answer; "+
		"a local lock cannot be handed over")
}

// Renew refuses a request with a memo.
func (s *localStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	for _, req := range reqs {
		if req.Memo != nil { // only a call for one lock has a memo, so no other renewal fails
			return nil, core.Invalid("write memo", req.Key, "the lock is local to this process, because the store did not answer; "+
				"a local lock keeps no memo")
		}
	}
	return s.Store.Renew(ctx, reqs)
}
