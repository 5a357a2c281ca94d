//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

// What a look costs goes by what is due, not by what there is.
func BenchmarkDue(b *testing.B) {
	for _, there := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("100of%d", there), func(b *testing.B) {
			k := newOwnKit(b)
			ctx := context.Background()
			later := float64(time.Now().Add(time.Hour).UnixMicro())
			for first := 0; first < there; first += 1000 {
				entries := make([]redis.Z, 1000)
				for i := range entries {
					entries[i] = redis.Z{Score: later, Member: fmt.Sprintf("default/%036d\nexport:acct-%d", first+i, first+i)}
				}
				k.rdb.ZAdd(ctx, k.index(0), entries...)
			}
			for i := range 100 {
				k.rdb.ZAdd(ctx, k.index(0), redis.Z{Score: 1, Member: fmt.Sprintf("default/%036d\nexport:acct-%d", i, i)})
			}
			for b.Loop() {
				due, err := dueOf(ctx, k.store, 100, time.Microsecond)
				if err != nil || len(due) != 100 {
					b.Fatalf("%d due, %v", len(due), err)
				}
			}
			b.ReportMetric(float64(k.rdb.MemoryUsage(ctx, k.index(0), 0).Val())/float64(there), "bytes/entry")
		})
	}
}

func TestFlushedScriptsOfTheIndexAreSentAgain(t *testing.T) {
	onBothWaysOf(t, redistest.Start(t).Client, func(t *testing.T, k *kit) {
		ctx := context.Background()
		for range 2 { // every script is unknown once, between two that are not
			if err := k.rdb.ScriptFlush(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			walkThroughTheIndex(t, k, k.acquire(k.nonce()))
		}
	})
}

// A proxy in front of several servers looks like one server, and refuses two keys in different
// slots, as a cluster of one node does. The Store tries once.
func TestIndexBehindAProxyOfManyServers(t *testing.T) {
	cluster := redistest.StartCluster(t, 1, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	k := newKit(t, cluster.Node(0).Client(t))
	for i := range 3 {
		walkThroughTheIndex(t, k, k.acquire(fmt.Sprint("key-", i)))
	}
	refused := cluster.Node(0).Client(t).Info(context.Background(), "errorstats").Val()
	if !strings.Contains(refused, "errorstat_CROSSSLOT:count=1\r") {
		t.Errorf("want one script refused, not %q", refused)
	}
}
