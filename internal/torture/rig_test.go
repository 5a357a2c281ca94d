//go:build servers && unix

package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/hashtag"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
)

// kind is how Redis is set up.
type kind string

const (
	single   kind = "single"
	sentinel kind = "sentinel"
	cluster  kind = "cluster"
)

// rig is a set-up, and what can be done to it.
type rig struct {
	plan    plan     // of all processes
	servers []string // that have locks, for a proxy before each
	rdb     redis.UniversalClient
	ledger  *redis.Client // not harmed
	first   []fault[*center]
	faults  []fault[*center]

	// lossy: a server that takes over has what was acknowledged, which grants, Parks and
	// renewals are. A release may be undone, and so may what was reserved.
	lossy bool
}

func newRig(t *testing.T, k kind, p pace, rdb redis.UniversalClient, entry, servers []string) *rig {
	ledger := redistest.Start(t)
	return &rig{plan: plan{Kind: k, Pace: p, Entry: entry, Ledger: ledger.Addr()}, servers: servers, rdb: rdb, ledger: ledger.Client(t)}
}

// singleRig is one server that is killed.
func singleRig(t *testing.T) *rig {
	// What the server has answered it has given to its file, so that a kill loses nothing.
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	redistest.Ran(t, server.Backend())
	r := newRig(t, single, fast, server.Client(t), []string{server.Addr()}, []string{server.Addr()})
	r.faults = []fault[*center]{
		{"locks forced", 8, (*center).force},
		{"scripts flushed", 2, (*center).flushScripts},
		{"subscribers cut", 2, (*center).cutSubscribers},
		{"server stopped", 2, func(_ *center, dice *rand.Rand) {
			server.Stop()
			time.Sleep(between(dice, 0, ttl))
			server.Cont()
		}},
		{"server killed", 1, func(*center, *rand.Rand) {
			server.Kill()
			server.Restart()
		}},
	}
	return r
}

// sentinelRig is a master and a replica that change places.
func sentinelRig(t *testing.T) *rig {
	s := redistest.StartSentinel(t)
	redistest.Ran(t, "sentinel of "+s.Master().Backend())
	r := newRig(t, sentinel, slow, s.Client(t), s.Addrs(), []string{s.Master().Addr(), s.Replica().Addr()})
	r.plan.Replicas, r.lossy = 1, true
	r.first = []fault[*center]{
		{"masters killed", 2, func(c *center, dice *rand.Rand) {
			if dice.IntN(2) == 0 {
				c.leaveBehind(s.Master(), s.Replica(), dice)
			}
			s.Failover()
			s.Replica().Restart() // an empty master, until the sentinels find it
			awaitReplica(t, s)
		}},
	}
	r.faults = append([]fault[*center]{
		{"scripts flushed", 2, (*center).flushScripts},
		{"subscribers cut", 2, (*center).cutSubscribers},
		{"replica stopped", 2, func(_ *center, dice *rand.Rand) {
			s.Replica().Stop()
			time.Sleep(between(dice, 0, 2*ttl))
			s.Replica().Cont()
		}},
		{"masters stopped and replaced", 1, func(*center, *rand.Rand) {
			s.Master().Stop()
			s.AwaitFailover()
			s.Replica().Cont() // takes itself for the master, until the sentinels find it
			awaitReplica(t, s)
		}},
	}, r.first...)
	return r
}

// awaitReplica returns when the replica has all that the master has.
func awaitReplica(t *testing.T, s *redistest.Sentinel) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Replica().Addr()})
	defer rdb.Close()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		info, err := rdb.Info(context.Background(), "replication").Result()
		if err == nil && strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up") {
			return
		}
	}
	t.Error("the former master has not become a replica")
}

// clusterRig is three masters with a replica each, among which slots move.
func clusterRig(t *testing.T) *rig {
	// Longer than necessary: on a machine that is merely busy, a shorter one
	// causes fail-overs while a slot moves.
	c := redistest.StartCluster(t, 3, 1, "--cluster-node-timeout", "2000")
	redistest.Ran(t, "cluster of "+c.Node(0).Backend())
	r := newRig(t, cluster, slow, c.Client(t), c.Addrs(), c.Addrs())
	r.plan.Replicas, r.lossy = 1, true
	moved := fault[*center]{"slots moved", 8, func(_ *center, dice *rand.Rand) { // with their parts of the index
		moveSlot(c, c.Slot(r.redisKey(r.plan.Pace.lockKey(dice))), dice)
	}}
	killed := fault[*center]{"masters killed", 2, func(it *center, dice *rand.Rand) {
		masters := c.Masters()
		i := masters[dice.IntN(len(masters))]
		if dice.IntN(2) == 0 {
			it.leaveBehind(c.Node(i), c.Node((i+3)%6), dice)
		}
		c.Failover(i)
		c.Rejoin(i)
	}}
	r.first = []fault[*center]{moved, killed}
	r.faults = append([]fault[*center]{
		{"scripts flushed", 2, (*center).flushScripts},
		{"subscribers cut", 2, (*center).cutSubscribers},
	}, r.first...)
	return r
}

// redisKey returns the name of a lock's record in Redis.
func (r *rig) redisKey(key string) string { return r.place(hashtag.Of(key)) + key }

// place returns the name of a part of the index in Redis, with which the names of the part's locks begin.
func (r *rig) place(part int) string {
	if r.plan.Kind == cluster {
		return hashtag.Place(keyspace.DefaultPrefix, part)
	}
	return keyspace.DefaultPrefix
}

// moveSlot moves a slot to another master, with pauses in which its keys are on both.
func moveSlot(c *redistest.Cluster, slot int, dice *rand.Rand) {
	to := c.Masters()
	from := c.Server(slot)
	next := to[dice.IntN(len(to))]
	for next == from {
		next = to[dice.IntN(len(to))]
	}
	m := c.BeginMove(slot, next)
	time.Sleep(between(dice, 0, ttl/2))
	m.Move(m.Keys()...)
	time.Sleep(between(dice, 0, ttl/2))
	m.Finish()
}

// String names the kind.
func (r *rig) String() string { return fmt.Sprintf("%s, replicas %d", r.plan.Kind, r.plan.Replicas) }
