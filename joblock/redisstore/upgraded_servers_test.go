//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// A server from 7.2 on that has read the nodes.conf of an older server ends at its first
// SPUBLISH. No store sends that, the pushes arrive by the other channels, and Check reports
// it. Once the servers have been started again, hand-overs are published to one node.
func TestPushesInAnUpgradedCluster(t *testing.T) {
	cluster := redistest.StartUpgradedCluster(t, 3)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	rdb := cluster.Client(t)
	l := newLine(t, newKit(t, rdb))
	for part := range l.Parts() {
		l.shards.want("inbox", part, long)
	}
	h := l.shards.open["inbox"][0]
	await(t, "an attempt to subscribe to each part", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, p := range h.parts {
			if p.again.IsZero() {
				return false
			}
		}
		return true
	})
	var keys []string
	for i := range 6 {
		keys = append(keys, fmt.Sprint("key ", i))
		l.handOver(keys[i])
	}
	_, err := l.Inspect(t.Context(), driver.InspectRequest{Keys: keys})
	if err != nil {
		t.Errorf("a server has ended: %v", err)
	}

	node := cluster.Node(0).Client(t)
	listed, err := inOwnShards(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	found := (&check{s: l.store})
	(&checkedServer{check: found, info: info{"redis_version": "8.0.2"}}).shards(t.Context(), node)
	if told := len(found.report) == 1 && found.report[0].Severity == Warning; told == listed {
		t.Errorf("in the list of shards: %v, found %v", listed, found.report)
	}

	for i := range 3 {
		cluster.Node(i).Restart()
	}
	await(t, "the cluster", func() bool {
		for i := range 3 {
			rdb := cluster.Node(i).Client(t)
			text, err := rdb.ClusterInfo(context.Background()).Result()
			rdb.Close()
			if err != nil || parseInfo(text)["cluster_state"] != "ok" {
				return false
			}
		}
		return true
	})
	newLine(t, newKit(t, rdb)).quietly(cluster, keys...)
}
