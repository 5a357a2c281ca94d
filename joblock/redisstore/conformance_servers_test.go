//go:build servers

package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/storetest"
)

func TestConformanceOnCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	rdb := cluster.Client(t)
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		h := harness(t, rdb, fmt.Sprintf("test %d:", n.Add(1)))
		h.Advance = time.Sleep
		h.Deaf = true // a server of a cluster knows only its own subscribers: see TestClusterKnowsOfWaitersThatHaveDied
		return h
	})
}

func BenchmarkStore(b *testing.B) {
	srv := redistest.Start(b)
	rdb := srv.Client(b)
	var n atomic.Int64
	storetest.Benchmark(b, func(b *testing.B) *storetest.Harness {
		return harness(b, rdb, fmt.Sprintf("bench %d:", n.Add(1)))
	})
}

func TestConformanceOnMiniredis(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	storetest.Run(t, miniHarness)
}
