//go:build servers

package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/hashtag"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// clusterCalls are what BenchmarkCluster measures, by name.
var clusterCalls = map[string]func(context.Context, *clusterKit, string) error{
	"acquire,release": func(ctx context.Context, k *clusterKit, key string) error {
		lock, err := k.holders.TryAcquire(ctx, key)
		if err == nil {
			err = lock.Release(ctx)
		}
		return err
	},
	"park,resume,renew,release": func(ctx context.Context, k *clusterKit, key string) error {
		job := joblock.ForJob("bench/" + key)
		lock, err := k.holders.TryAcquire(ctx, key)
		if err != nil {
			return err
		}
		token, err := lock.Park(ctx, job)
		if err == nil {
			lock, err = k.holders.Resume(ctx, token, job)
		}
		if err == nil {
			err = lock.Renew(ctx)
		}
		if err == nil {
			err = lock.Release(ctx)
		}
		return err
	},
	"handover": func(ctx context.Context, k *clusterKit, key string) error {
		lock, err := k.holders.TryAcquire(ctx, key)
		if err != nil {
			return err
		}
		granted := make(chan error, 1)
		go func() {
			lock, err := k.waiters.Acquire(ctx, key)
			if err == nil {
				err = lock.Release(ctx)
			}
			granted <- err
		}()
		select {
		case <-k.contended:
		case err := <-granted:
			return errors.Join(errors.New("the waiter did not wait"), err)
		}
		return errors.Join(lock.Release(ctx), <-granted)
	},
}

// BenchmarkCluster makes calls in clusters of masters without replicas, one call at a time. All masters share this
// machine, so counts and processor times mean something, latencies do not. The keys are in the order of their masters,
// so that each finds its caches as on a machine of its own. Pushes are messages from master to master. Busiest is the
// busiest master's number of scripts to the mean.
func BenchmarkCluster(b *testing.B) {
	sizes := []int{3, 6, 12}
	if testing.Short() {
		sizes = []int{3, 4}
	}
	for _, masters := range inAnyOrder(sizes...) {
		k := newClusterKit(b, masters)
		keys := keysOf("export:acct", 10_000)
		slices.SortFunc(keys, func(a, b string) int { return hashtag.Of(a) - hashtag.Of(b) })
		for name, call := range clusterCalls {
			warm := 20 // keys after which the masters know the scripts and the waiters have subscribed
			if testing.Short() {
				warm = 200
			}
			for i := 0; i < len(keys); i += warm {
				if err := call(b.Context(), k, keys[i]); err != nil {
					b.Fatal(err)
				}
			}
			b.Run(fmt.Sprintf("call=%s/masters=%d", name, masters), func(b *testing.B) {
				ctx := bounded(b)
				m := newMeter(b, &k.wire, k.nodes...)
				pushes := k.pushes(b)
				m.start()
				for i := range b.N {
					if err := call(ctx, k, keys[i*len(keys)/b.N%len(keys)]); err != nil {
						b.Fatal(err)
					}
				}
				calls := m.stop(b.N)
				var all int64
				for _, n := range calls {
					all += n
				}
				b.ReportMetric(float64(slices.Max(calls))*float64(masters)/float64(all), "busiest")
				b.ReportMetric(float64(k.pushes(b)-pushes)/float64(b.N), "pushes/op")
			})
		}
	}
}

// clusterKit is a cluster, and two Lockers with stores of their own, so that each grant is pushed through the server.
type clusterKit struct {
	nodes            []*redis.Client
	wire             wire
	holders, waiters *joblock.Locker
	contended        chan struct{} // a waiter has its place
}

func newClusterKit(b *testing.B, masters int) *clusterKit {
	b.Helper()
	cluster := redistest.StartCluster(b, masters, 0)
	k := &clusterKit{contended: make(chan struct{}, 1)}
	for i := range masters {
		k.nodes = append(k.nodes, cluster.Node(i).Client(b))
	}
	locker := func(o event.Observer) *joblock.Locker {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Dialer: k.wire.Dial})
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{
			TTL: leaseTTL, Observer: o, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			ctx, cancel := closing()
			defer cancel()
			if err := errors.Join(locks.Close(ctx), rdb.Close()); err != nil {
				b.Error(err)
			}
		})
		return locks
	}
	k.holders = locker(nil)
	k.waiters = locker(func(e event.Event) {
		if e.Kind == event.Contended {
			k.contended <- struct{}{}
		}
	})
	return k
}

// pushes returns how many messages of clients the masters have passed on to each other.
func (k *clusterKit) pushes(b *testing.B) (sum int64) {
	b.Helper()
	for _, node := range k.nodes {
		text, err := node.ClusterInfo(b.Context()).Result()
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name == "cluster_stats_messages_publish_sent" || name == "cluster_stats_messages_publishshard_sent" {
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}
