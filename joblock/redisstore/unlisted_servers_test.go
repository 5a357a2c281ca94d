//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// parkers park locks for jobs all the time, and end every other one. They know of each
// lock that is parked.
type parkers struct {
	*kit
	cluster *redistest.Cluster

	quiet sync.RWMutex // held for reading during the life of a lock

	mu     sync.Mutex
	parked map[string]driver.Term
	calls  int
}

// answered makes a call again until there is an answer, as the Locker does.
func (p *parkers) answered(what string, call func(context.Context) (driver.Reply, error)) driver.Reply {
	var last error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		r, err := call(ctx)
		cancel()
		p.mu.Lock()
		p.calls++
		p.mu.Unlock()
		if last = err; err == nil {
			return r
		}
	}
	p.t.Errorf("%s: no answer: %v", what, last)
	return driver.Reply{}
}

func (p *parkers) live(key string, end bool) {
	p.quiet.RLock()
	defer p.quiet.RUnlock()
	term := driver.Term{Key: key, Owner: "owner of " + key}
	acquire := driver.AcquireRequest{Key: key, Owner: term.Owner, Nonce: p.nonce(), TTL: long, Retain: long}
	r := p.answered("acquire", func(ctx context.Context) (driver.Reply, error) { return p.Acquire(ctx, acquire) })
	term.Fence = r.Fence
	park := p.park(term)
	park.Job, park.Grace, park.Reserve = "q/"+key, 0, time.Hour
	r = p.answered("park", func(ctx context.Context) (driver.Reply, error) { return p.Park(ctx, park) })
	if r.Outcome != driver.OutcomeOK {
		p.t.Errorf("%s: parked with outcome %d", key, r.Outcome)
	}
	term.Fence = r.Fence
	if end {
		p.release(term)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parked[key] = term
}

func (p *parkers) release(term driver.Term) {
	req := p.kit.release(term)
	r := p.answered("release", func(ctx context.Context) (driver.Reply, error) {
		return first(p.Release(ctx, []driver.ReleaseRequest{req}))
	})
	if r.Outcome != driver.OutcomeOK {
		p.t.Errorf("%s: released with outcome %d", term.Key, r.Outcome)
	}
}

// check makes the parkers pause, and fails if a lock is lost or has no entry of the index.
func (p *parkers) check(when string) {
	p.t.Helper()
	p.quiet.Lock()
	defer p.quiet.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	lost, unlisted := 0, 0
	for key, term := range p.parked {
		var rec driver.Record
		p.mu.Unlock()
		p.answered("inspect", func(ctx context.Context) (driver.Reply, error) {
			recs, err := p.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
			rec = recs[0]
			return driver.Reply{}, err
		})
		if rec.State != driver.StateParked || rec.Owner != term.Owner || rec.Job != "q/"+key {
			lost++
		}
		p.answered("entry", func(ctx context.Context) (driver.Reply, error) {
			err := p.rdb.ZScore(ctx, p.index(p.part(key)), "q/"+key+"\n"+key).Err()
			if err == redis.Nil {
				unlisted++
				err = nil
			}
			return driver.Reply{}, err
		})
		p.mu.Lock()
	}
	p.t.Logf("%s: %d locks are parked, %d calls so far", when, len(p.parked), p.calls)
	if lost > 0 || unlisted > 0 {
		p.t.Errorf("%s: of %d parked locks %d are lost, %d are not in the index", when, len(p.parked), lost, unlisted)
	}
}

// While a slot moves, at each step of the move, and after the SIGKILL of a master, no
// parked lock is lost or missing in the index; and no entry stays forever.
func TestNoLockIsUnlistedWhenSlotsMoveAndMastersDie(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1, "--cluster-node-timeout", "2000")
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ClusterStateReloadInterval: 500 * time.Millisecond})
	t.Cleanup(func() { _ = rdb.Close() })
	store := must(newStore(rdb, &Config{Replicas: 1}))
	t.Cleanup(func() { _ = store.Close() })
	p := &parkers{kit: &kit{store: store, t: t, rdb: rdb}, cluster: cluster, parked: make(map[string]driver.Term)}

	const part = 0
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i, n := 0, 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("fault %d %d", g, i)
				if p.part(key) != part && i%256 != 0 { // most are in the slot that moves
					continue
				}
				p.live(key, n%2 == 0)
				n++
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	slot := cluster.Slot(p.index(part))
	for turn := range 3 {
		masters := cluster.Masters()
		from := cluster.Server(slot)
		others := slices.DeleteFunc(slices.Clone(masters), func(i int) bool { return i == from })
		to, third := others[turn%2], others[1-turn%2]
		move := cluster.BeginMove(slot, to)
		p.check("begun")
		keys := move.Keys()
		if turn%2 == 1 {
			slices.Reverse(keys) // the index last
		}
		move.Move(keys[:len(keys)/2]...)
		p.check("half")
		if turn == 1 {
			cluster.Failover(third)
			cluster.Rejoin(third) // without a replica the other locks would wait for one
			p.check("another master killed")
		}
		move.Move(keys...)
		p.check("all but announced")
		move.Finish()
		p.check("done")
		if turn != 1 {
			cluster.Failover(to)
			cluster.Rejoin(to)
			p.check("the new master killed")
		}
	}
	stop()
	all.Wait()
	p.check("at the end")
	for _, term := range p.parked {
		p.release(term)
	}
	for part := range p.Parts() {
		for {
			var due driver.DueReply
			p.answered("due", func(ctx context.Context) (r driver.Reply, err error) {
				due, err = p.Due(ctx, driver.DueRequest{Part: part, Limit: driver.MaxBatch, Claim: time.Second})
				return r, err
			})
			if len(due.Entries) == 0 {
				break
			}
			p.answered("settle", func(ctx context.Context) (driver.Reply, error) {
				return driver.Reply{}, removeFrom(ctx, p.store, due.Entries)
			})
		}
		if left := p.rdb.ZRange(t.Context(), p.index(part), 0, -1).Val(); len(left) > 0 {
			t.Errorf("part %d of the index still has %q", part, left)
		}
	}
}
