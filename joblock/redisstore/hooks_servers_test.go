//go:build servers

package redisstore

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// With Config.Replicas calls go in pipelines of their own.
func TestHooksSeeAcknowledgedCalls(t *testing.T) {
	master, _ := withReplica(t)
	redistest.Ran(t, master.Backend())
	rdb := master.Client(t)
	hook := &tracer{}
	rdb.AddHook(hook)
	store := must(newStore(rdb, &Config{Replicas: 1}))
	t.Cleanup(func() { store.Close() })
	beForgiving(store)
	k := &kit{store: store, t: t, rdb: rdb}
	term := k.acquire("a")
	if seen := hook.take(); !slices.Contains(seen, "wait") {
		t.Errorf("of Acquire the hook saw %v", seen)
	}
	rs, err := k.Renew(t.Context(), []driver.RenewRequest{k.renewal(term)})
	wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
	if seen := hook.take(); !slices.Contains(seen, "wait") {
		t.Errorf("of Renew the hook saw %v", seen)
	}
}

// The hooks of a ClusterClient cannot be had, those of its nodes can.
func TestHooksOfTheNodesSeeTheCalls(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	hook := &tracer{}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), NewClient: func(opt *redis.Options) *redis.Client {
		node := redis.NewClient(opt)
		node.AddHook(hook)
		return node
	}})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	hook.take()
	k.acquire("a")
	if seen := hook.take(); !slices.Contains(seen, "evalsha") {
		t.Errorf("of Acquire the hook of the nodes saw %v", seen)
	}
}
