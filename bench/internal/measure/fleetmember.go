package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// fleetPart says what one process of a fleet has to do. Key i is held by process i modulo the
// number of processes, and waited for in the next process.
type fleetPart struct {
	Addrs   []string      `json:"addrs"`
	Cluster bool          `json:"cluster"` // of the servers; otherwise each server has every so many keys
	Prefix  string        `json:"prefix"`  // of the locks, and name of the connections
	Keys    int           `json:"keys"`    // of the whole fleet
	Rate    float64       `json:"rate"`    // hand-overs per second in this process, in its turns
	Turn    time.Duration `json:"turn"`
}

// fleetTTL is so long that no renewal comes into the measurement. The locks are taken all at
// once, so they would also be renewed all at once.
const fleetTTL = 10 * time.Minute

// fleetPoll is three times the default: three fleets wait at the same time.
const fleetPoll = 12 * time.Second

// orderHand is an order for members of a fleet: hand over for a turn.
const orderHand = "hand"

// fleetTold is what a member of a fleet tells of itself.
type fleetTold struct {
	Goroutines int        `json:"goroutines"`
	Releases   []fleetAct `json:"releases,omitempty"` // with the answer to orderStop
	Grants     []fleetAct `json:"grants,omitempty"`   // likewise
}

// fleetAct is a release, at the moment before the call, or a grant, at the moment after it.
type fleetAct struct {
	Key int   `json:"key"`
	At  int64 `json:"at"`
}

// fleetMember is one process of a fleet.
type fleetMember struct {
	assignment
	wire  rig.Wire
	locks []*joblock.Locker // one for a cluster, otherwise one for each server

	mu     sync.Mutex // guards what follows
	held   []fleetLock
	told   fleetTold
	failed error
}

// fleetLock is a lock that this process holds.
type fleetLock struct {
	key  int
	lock *joblock.Lock
}

// sail is the whole life of a member of a fleet.
func sail(a assignment, in io.Reader, out *json.Encoder) (err error) {
	m := &fleetMember{assignment: a}
	for _, rdb := range m.clients() {
		defer func() { err = errors.Join(err, rdb.Close()) }()
		locks, err := joblock.New(redisstore.New(rdb, &redisstore.Config{Prefix: m.Fleet.Prefix}), &joblock.Config{
			TTL: fleetTTL, Poll: fleetPoll, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			err = errors.Join(err, locks.Close(ctx))
		}()
		m.locks = append(m.locks, locks)
	}
	return m.obey(in, out)
}

func (m *fleetMember) clients() (all []redis.UniversalClient) {
	if m.Fleet.Cluster {
		return append(all, redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Fleet.Addrs, ClientName: m.Fleet.Prefix, Dialer: m.wire.Dial}))
	}
	for _, addr := range m.Fleet.Addrs {
		all = append(all, redis.NewClient(&redis.Options{Addr: addr, ClientName: m.Fleet.Prefix, Dialer: m.wire.Dial}))
	}
	return all
}

func (m *fleetMember) locker(key int) *joblock.Locker { return m.locks[key%len(m.locks)] }

// obey takes the keys of this process, and works until it was told to stop.
func (m *fleetMember) obey(in io.Reader, out *json.Encoder) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.takeAll(ctx); err != nil {
		return err
	}
	if err := out.Encode(m.state()); err != nil {
		return err
	}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		a := answer{}
		switch order := lines.Text(); order {
		case orderWait:
			for key := range m.Fleet.Keys {
				if key%m.Seats == (m.Seat+m.Seats-1)%m.Seats {
					waiting.Go(func() { m.wait(ctx, key) })
				}
			}
		case orderMark:
			a = m.state()
		case orderHand:
			m.hand(ctx, &waiting)
		case orderStop:
			a.Sent = m.wire.Count()
			cancel()
			waiting.Wait()
			a.Fleet = &m.told
			if m.failed != nil {
				a.Err = m.failed.Error()
			}
			return out.Encode(a)
		default:
			return fmt.Errorf("unknown order %q", order)
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (m *fleetMember) state() answer {
	return answer{
		Sent: m.wire.Count(), Memory: rig.Memory(),
		Fleet: &fleetTold{Goroutines: runtime.NumGoroutine()},
	}
}

// takeAll takes the keys of this process. They are handed over in an order of chance.
func (m *fleetMember) takeAll(ctx context.Context) error {
	var keys []int
	for key := m.Seat; key < m.Fleet.Keys; key += m.Seats {
		keys = append(keys, key)
	}
	rand.New(rand.NewPCG(1, uint64(m.Seat))).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	m.held = make([]fleetLock, len(keys))
	return parallel(ctx, 16, len(keys), func(ctx context.Context, _, i int) error {
		lock, err := m.locker(keys[i]).TryAcquire(ctx, fleetKey(keys[i]))
		m.held[i] = fleetLock{keys[i], lock}
		return err
	})
}

func fleetKey(key int) string { return fmt.Sprintf("fleet:%d", key) }

// wait waits for a key once.
func (m *fleetMember) wait(ctx context.Context, key int) {
	lock, err := m.locker(key).Acquire(ctx, fleetKey(key))
	at := now()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.told.Grants = append(m.told.Grants, fleetAct{key, at})
		m.held = append(m.held, fleetLock{key, lock})
	case ctx.Err() == nil:
		m.failed = errors.Join(m.failed, err)
	}
}

// hand releases the locks that this process has held for longest, one after the other at an
// even rate, and waits for each again.
func (m *fleetMember) hand(ctx context.Context, waiting *sync.WaitGroup) {
	every := time.Duration(float64(time.Second) / m.Fleet.Rate)
	end := time.Now().Add(m.Fleet.Turn)
	pause(ctx, every*time.Duration(m.Seat)/time.Duration(m.Seats)) // so that the processes take turns
	for ; time.Now().Before(end) && ctx.Err() == nil; pause(ctx, every) {
		m.mu.Lock()
		next := m.held[0]
		m.held = m.held[1:]
		m.mu.Unlock()
		at := now()
		err := next.lock.Release(context.WithoutCancel(ctx))
		m.mu.Lock()
		m.told.Releases = append(m.told.Releases, fleetAct{next.key, at})
		m.failed = errors.Join(m.failed, err)
		m.mu.Unlock()
		if err != nil {
			return
		}
		waiting.Go(func() { m.wait(ctx, next.key) })
	}
}
