//go:build servers

package redisstore

import (
	"context"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// A slot's old or new master is killed at each step of the slot's move, and the move goes
// on. All locks are there before and after its end: held, parked with their entries of the
// index, and waited for. The waiters learn of their grants by asking.
func TestMastersDieAtEachStepOfAMove(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1, "--cluster-node-timeout", "2000")
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: 2 * patience})
	t.Cleanup(func() { _ = rdb.Close() })
	store := must(newStore(rdb, &Config{Replicas: 1}))
	beForgiving(store)
	t.Cleanup(func() { _ = store.Close() })
	m := newMovedLocks(t, cluster, &kit{store: store, t: t, rdb: rdb})
	m.asks = true
	index := m.index(0)
	slot := cluster.Slot(index)

	steps := []struct {
		name string
		keys func(all []string) []string // that have moved by then
	}{
		{"begun", func([]string) []string { return nil }},
		{"the index has moved", func([]string) []string { return []string{index} }},
		{"half of the locks have moved", func(all []string) []string {
			locks := slices.DeleteFunc(all, func(name string) bool { return name == index })
			return locks[:len(locks)/2]
		}},
		{"all has moved", func(all []string) []string { return all }},
	}
	for _, victim := range []string{"old master", "new master"} {
		t.Run(victim, func(t *testing.T) {
			for _, step := range steps {
				t.Run(step.name, func(t *testing.T) {
					m.t, m.kit.t = t, t
					from, masters := cluster.Server(slot), cluster.Masters()
					to := masters[(slices.Index(masters, from)+1)%len(masters)]
					move := cluster.BeginMove(slot, to)
					move.Move(step.keys(move.Keys())...)
					m.everything(t.Name())
					dead := from
					if victim == "new master" {
						dead = to
					}
					move = move.Failover(dead)
					cluster.Rejoin(dead)
					m.reached()
					m.everything(t.Name() + ", killed")
					move.Finish()
					m.everything(t.Name() + ", moved")
				})
			}
		})
	}
	m.t, m.kit.t = t, t
	m.end()
}

// reached returns once every part can be reached, by both clients: those of dead
// connections have learned of that by then.
func (m *movedLocks) reached() {
	m.t.Helper()
	for part := range m.Parts() {
		await(m.t, "the master of a part", func() bool {
			_, err := m.Due(context.Background(), driver.DueRequest{Part: part, Limit: 1, Claim: 1})
			return err == nil
		})
	}
	for _, term := range m.held {
		await(m.t, "a renewal", func() bool {
			_, err := m.Renew(context.Background(), []driver.RenewRequest{m.renewal(term)})
			return err == nil
		})
	}
}
