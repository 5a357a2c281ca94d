package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// migrateTimeout bounds how long the move of one key to its new node may take.
const migrateTimeout = 10 * time.Second

// Slot returns the hash slot of key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	for _, s := range c.nodes {
		answer, err := ask(s.Addr(), "CLUSTER", "KEYSLOT", key)
		if err != nil {
			continue // killed or paused; any node knows
		}
		if slot, err := strconv.Atoi(answer); err == nil {
			return slot
		}
		break
	}
	c.t.Errorf("no node of the cluster has the slot of %q", key)
	return 0
}

// Server returns the number of the node that serves slot now, according to that node. The answer is also correct if
// slots were moved or masters replaced. [Cluster.Home] has the node that served slot at the start.
func (c *Cluster) Server(slot int) int {
	c.t.Helper()
	found := -1
	err := poll(failoverTimeout, func() (bool, error) {
		var claim []int // two nodes while a killed master does not know its successor yet
		for i, s := range c.nodes {
			if nodes, err := ask(s.Addr(), "CLUSTER", "NODES"); err == nil && servedBy(nodes, slot) == nodeID(i) {
				claim = append(claim, i)
			}
		}
		if len(claim) == 1 {
			found = claim[0]
		}
		return found >= 0, nil
	})
	if err != nil {
		c.t.Errorf("which node serves slot %d: %v", slot, err)
		return 0
	}
	return found
}

// Masters returns the numbers of the nodes that are masters at present.
func (c *Cluster) Masters() (out []int) {
	c.t.Helper()
	for i, s := range c.nodes {
		if info, err := ask(s.Addr(), "INFO", "replication"); err == nil && infoField(info, "role") == "master" {
			out = append(out, i)
		}
	}
	return out
}

func nodeID(i int) string { return fmt.Sprintf("%040x", 0xa000+i) }

// servedBy returns the id of the node that serves slot according to nodes, the answer of CLUSTER NODES. servedBy
// returns "" if no node does.
func servedBy(nodes string, slot int) string {
	for line := range strings.Lines(nodes) {
		words := strings.Fields(line)
		if len(words) < 9 {
			continue
		}
		for _, served := range words[8:] {
			first, last, isRange := strings.Cut(served, "-")
			if !isRange {
				last = first
			}
			from, ferr := strconv.Atoi(first) // an error for [slot->-node]
			to, terr := strconv.Atoi(last)
			if ferr == nil && terr == nil && from <= slot && slot <= to {
				return words[0]
			}
		}
	}
	return ""
}

// SlotMove is a slot on its way from one master to another. Until Finish, the old master serves the keys that it still
// has, and answers ASK for all other keys. Any goroutine may call the methods, but only one at a time.
type SlotMove struct {
	c        *Cluster
	slot     int
	from, to int
}

// BeginMove begins to move slot to the node with the number to, a master that does not serve slot. The test must call
// Finish.
func (c *Cluster) BeginMove(slot, to int) *SlotMove {
	c.t.Helper()
	m := &SlotMove{c: c, slot: slot, from: c.Server(slot), to: to}
	m.set(m.to, "IMPORTING", nodeID(m.from))
	m.set(m.from, "MIGRATING", nodeID(m.to))
	return m
}

// From returns the number of the node that the slot comes from.
func (m *SlotMove) From() int { return m.from }

func (m *SlotMove) set(node int, args ...string) {
	m.c.t.Helper()
	if _, err := ask(m.c.nodes[node].Addr(), append([]string{"CLUSTER", "SETSLOT", strconv.Itoa(m.slot)}, args...)...); err != nil {
		m.c.t.Errorf("slot %d, node %d, %q: %v", m.slot, node, args, err)
	}
}

// Keys returns the keys that are still to be moved, sorted.
func (m *SlotMove) Keys() []string {
	m.c.t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: m.c.nodes[m.from].Addr()})
	defer rdb.Close()
	keys, err := rdb.ClusterGetKeysInSlot(context.Background(), m.slot, 1<<20).Result()
	if err != nil {
		m.c.t.Errorf("keys of slot %d: %v", m.slot, err)
	}
	slices.Sort(keys)
	return keys
}

// Move moves keys. A key that does not exist any more is no error.
func (m *SlotMove) Move(keys ...string) {
	m.c.t.Helper()
	if len(keys) == 0 {
		return
	}
	rdb := redis.NewClient(&redis.Options{Addr: m.c.nodes[m.from].Addr(), ReadTimeout: 2 * migrateTimeout, MaxRetries: -1})
	defer rdb.Close()
	host, port, _ := strings.Cut(m.c.nodes[m.to].Addr(), ":")
	for _, key := range keys {
		// REPLACE: if an earlier move broke off, the new node's copy of the key is older.
		err := rdb.Do(context.Background(), "MIGRATE", host, port, key, 0, migrateTimeout.Milliseconds(), "REPLACE").Err()
		if err != nil {
			m.c.t.Errorf("move %q: %v", key, err)
		}
	}
}

// Finish moves the remaining keys. It returns when all nodes that answer know the slot's new master, and the replicas
// of the new master have all keys.
func (m *SlotMove) Finish() {
	m.c.t.Helper()
	for keys := m.Keys(); len(keys) > 0 && !m.c.t.Failed(); keys = m.Keys() {
		m.Move(keys...)
	}
	m.set(m.to, "NODE", nodeID(m.to)) // the new master first: the old master still sends clients there
	m.set(m.from, "NODE", nodeID(m.to))
	err := poll(failoverTimeout, func() (bool, error) {
		for _, s := range m.c.nodes {
			nodes, err := ask(s.Addr(), "CLUSTER", "NODES")
			if err == nil && servedBy(nodes, m.slot) != nodeID(m.to) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		m.c.t.Errorf("slot %d at node %d: %v", m.slot, m.to, err)
	}
	m.awaitReplicas(m.to)
}

// Failover kills node i, the old or the new master of the slot, waits for the node's replica to take over, and sets the
// move up again as an operator has to. The test goes on with the result. Before the kill the replicas have all keys.
//
// Redis 7 does not inform replicas of a move, so the promoted node does not know of the move. And while a slot's old
// master is dead, the node that imports the slot serves nothing at all.
func (m *SlotMove) Failover(i int) *SlotMove {
	m.c.t.Helper()
	m.awaitReplicas(m.from)
	m.awaitReplicas(m.to)
	m.c.nodes[i].Kill()
	promoted, to := m.c.promoted(i), m.to
	if i == m.to {
		to = promoted
	}
	for _, node := range m.c.Masters() {
		m.set(node, "STABLE")
	}
	if err := m.c.await(failoverTimeout, m.c.allBut(i)); err != nil {
		m.c.t.Errorf("after the promotion for node %d: %v", i, err)
	}
	return m.c.BeginMove(m.slot, to)
}

// awaitReplicas returns when the replicas of a master have what the master has.
func (m *SlotMove) awaitReplicas(node int) {
	rdb := redis.NewClient(&redis.Options{Addr: m.c.nodes[node].Addr(), ReadTimeout: 2 * migrateTimeout})
	defer rdb.Close()
	replicas := len(m.c.nodes)/m.c.masters - 1
	if replicas == 0 {
		return
	}
	ctx := context.Background()
	pipe := rdb.Pipeline()
	pipe.Ping(ctx) // WAIT is about what was written before the connection's last command
	wait := pipe.Do(ctx, "WAIT", replicas, migrateTimeout.Milliseconds())
	_, err := pipe.Exec(ctx)
	if have, _ := wait.Int(); have < replicas {
		m.c.t.Errorf("slot %d: %d of %d replicas have it, %v", m.slot, have, replicas, err)
	}
}
