//go:build servers && unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// tally counts by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[name] += n
}

// String lists the names in their order, and the sum.
func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(c.n)) {
		parts = append(parts, fmt.Sprintf("%d %s", c.n[name], name))
		sum += c.n[name]
	}
	return fmt.Sprintf("%d (%s)", sum, strings.Join(parts, ", "))
}

// fault is one thing that can be done to T. Some are done more often than others.
type fault[T any] struct {
	name  string
	often int
	do    func(T, *rand.Rand)
}

// torment does one thing after the other to it until ctx ends, with up to rest
// between them.
func torment[T any](ctx context.Context, it T, faults []fault[T], dice *rand.Rand, rest time.Duration, count *tally) {
	all := 0
	for _, f := range faults {
		all += f.often
	}
	for pause(ctx, between(dice, 0, rest)); ctx.Err() == nil; pause(ctx, between(dice, 0, rest)) {
		n := dice.IntN(all)
		for _, f := range faults {
			if n -= f.often; n < 0 {
				f.do(it, dice)
				count.add(f.name, 1)
				break
			}
		}
	}
}

func between(dice *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(dice.Int64N(int64(to-from)+1))
}

// once arms a fault that strikes one script call.
func once(act func() redistest.Action) func(*slot, *rand.Rand) {
	return func(s *slot, dice *rand.Rand) { s.proxy(dice).Once(redistest.Named("evalsha"), act()) }
}

// heldBack arms a fault that holds several script calls in a row back: mostly within a
// lease, now and then beyond it.
func heldBack(act func(time.Duration) redistest.Action) func(*slot, *rand.Rand) {
	return func(s *slot, dice *rand.Rand) {
		d := between(dice, 0, ttl/2)
		if dice.IntN(6) == 0 {
			d *= 4
		}
		s.proxy(dice).Times(1+dice.IntN(12), redistest.Named("evalsha"), act(d))
	}
}

// forAWhile does something to the proxies that lasts for up to one and a half leases.
func forAWhile(do func(*redistest.Proxy)) func(*slot, *rand.Rand) {
	return func(s *slot, dice *rand.Rand) {
		s.each(do)
		time.Sleep(between(dice, ttl/4, 3*ttl/2))
		s.each((*redistest.Proxy).Heal)
	}
}

var slotFaults = []fault[*slot]{
	{"replies dropped", 6, once(redistest.DropReply)},
	{"requests dropped", 3, once(redistest.DropRequest)},
	{"slow replies", 8, heldBack(redistest.DelayReply)},
	{"slow requests", 6, heldBack(redistest.DelayRequest)},
	{"connections deaf", 2, once(redistest.SwallowReply)},
	{"connections dead", 2, once(redistest.Swallow)},
	{"cuts", 3, func(s *slot, _ *rand.Rand) { s.each((*redistest.Proxy).Cut) }},
	{"refusals", 1, forAWhile((*redistest.Proxy).Refuse)},
	{"black holes", 1, forAWhile((*redistest.Proxy).BlackHole)},
	{"processes stopped", 2, func(s *slot, dice *rand.Rand) { s.stopped(between(dice, ttl/4, 2*ttl)) }},
	{"processes killed", 1, func(s *slot, _ *rand.Rand) {
		s.kill()
		s.start()
	}},
}

// center is what all processes share. What it does it does one after the other.
type center struct {
	*rig
	t     *testing.T
	rec   *history.Recorder
	locks *joblock.Locker
}

// force is done here, as an unanswered ForceRelease would make a history hard to judge:
// this goes to the server directly, and not while the server is being harmed.
func (c *center) force(dice *rand.Rand) {
	key := driver.SlotKey(c.plan.Pace.lockKey(dice), 1+dice.IntN(slotsOfAKey))
	if dice.IntN(4) == 0 {
		key = fmt.Sprintf("%s%%#%d", c.plan.Pace.limitKey(dice), 1+dice.IntN(permits))
	}
	for {
		err := c.rec.Force(context.Background(), c.locks, key)
		if !errors.Is(err, joblock.ErrUnavailable) {
			return // nothing was there, or nothing is any more
		}
	}
}

// everywhere does something to each server. One that is not there has nothing to lose.
func (c *center) everywhere(do func(context.Context, *redis.Client)) {
	for _, addr := range c.servers {
		rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		do(context.Background(), rdb)
		_ = rdb.Close()
	}
}

func (c *center) flushScripts(*rand.Rand) {
	c.everywhere(func(ctx context.Context, rdb *redis.Client) { _ = rdb.ScriptFlush(ctx).Err() })
}

func (c *center) cutSubscribers(*rand.Rand) {
	c.everywhere(func(ctx context.Context, rdb *redis.Client) { _ = rdb.ClientKillByFilter(ctx, "TYPE", "pubsub").Err() })
}

// leaveBehind makes a replica miss what its master does for a moment, and then kills the
// master: with luck a client gets answers about those writes, but does not trust them.
func (c *center) leaveBehind(master, replica *redistest.Server, dice *rand.Rand) {
	replica.Stop()
	rdb := redis.NewClient(&redis.Options{Addr: master.Addr()})
	defer rdb.Close()
	// What is on its way to it would come to it all the same.
	if err := rdb.ClientKillByFilter(context.Background(), "TYPE", "replica").Err(); err != nil {
		c.t.Error(err)
	}
	time.Sleep(between(dice, ttl/4, ttl))
	master.Kill()
	replica.Cont()
}
