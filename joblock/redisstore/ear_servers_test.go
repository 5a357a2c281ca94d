//go:build servers

package redisstore

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// mortal makes connections that die without a word when all subscriptions do.
type mortal struct {
	mu    sync.Mutex
	conns []*mortalConn
	hung  string // an address that does not answer
	dials int    // to hung
}

type mortalConn struct {
	net.Conn
	subscribed, dead atomic.Bool
}

func (m *mortal) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	m.mu.Lock()
	hung := m.hung == addr
	if hung {
		m.dials++
	}
	m.mu.Unlock()
	if hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &mortalConn{Conn: conn}
	m.mu.Lock()
	m.conns = append(m.conns, c)
	m.mu.Unlock()
	return c, nil
}

// subscriptionsDie makes all connections silent that have subscribed to something.
func (m *mortal) subscriptionsDie() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		if c.subscribed.Load() {
			c.dead.Store(true)
			n++
		}
	}
	return n
}

func (c *mortalConn) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return len(p), nil
	}
	if bytes.Contains(p, []byte("subscribe")) {
		c.subscribed.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *mortalConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.dead.Load() {
			return n, err
		}
	}
}

// The host of a subscription is gone, and another one has its address soon after. The
// attempt to reach the old one ends long before the client's own time-out.
func TestSubscriptionGivesUpADialInTime(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	m := new(mortal)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Dialer: m.Dial, DialTimeout: time.Hour})
	heard := hear(t, rdb)
	hang := func(addr string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.hung = addr
	}
	hang(srv.Addr())
	other := srv.Client(t)
	if err := other.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	await(t, "a dial", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.dials > 0
	})
	hang("")
	await(t, "a message", func() bool {
		if err := other.Publish(t.Context(), "channel", "text").Err(); err != nil {
			t.Fatal(err)
		}
		return len(heard) > 0
	})
}

// mortalLine is a line in a cluster, by a client whose connections are mortal.
func mortalLine(t *testing.T) (*line, *mortal, *redistest.Cluster) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	m := new(mortal)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Dialer: m.Dial, DialTimeout: time.Minute})
	t.Cleanup(func() { rdb.Close() })
	return newLine(t, newKit(t, rdb)), m, cluster
}

// All subscriptions of a process in a cluster, to shard channels and to the others, come
// back after their connections have died without a word.
func TestSilentConnectionsInAClusterAreReplaced(t *testing.T) {
	t.Parallel()
	l, m, cluster := mortalLine(t)
	l.quietly(cluster, "a", "b", "c")
	if n := m.subscriptionsDie(); n < 2 {
		t.Fatalf("%d connections are dead: this proves nothing", n)
	}
	came := func(what string, push func(nonce string) error) {
		await(t, what, func() bool {
			for len(l.pushed) > 0 {
				if p := <-l.pushed; p.Nonce == what {
					return true
				}
			}
			if err := push(what); err != nil {
				t.Fatal(err)
			}
			return false
		})
	}
	came("channel", func(nonce string) error { return l.rdb.Publish(t.Context(), l.channel("inbox"), nonce).Err() })
	for _, key := range []string{"a", "b", "c"} {
		came("shard channel of "+key, func(nonce string) error {
			return l.rdb.SPublish(t.Context(), l.shardChannel(l.part(key), "inbox"), nonce).Err()
		})
	}
}

// The parts at a host that is gone are tried one after the other. The parts at the other
// hosts do not wait for them.
func TestDeadHostHoldsUpNoOtherSubscriptions(t *testing.T) {
	t.Parallel()
	l, m, cluster := mortalLine(t)
	for part := range l.Parts() { // from now on the clients know all nodes
		if _, err := l.Due(t.Context(), driver.DueRequest{Part: part, Limit: 1, Claim: long}); err != nil {
			t.Fatal(err)
		}
	}
	m.mu.Lock()
	m.hung = cluster.Addrs()[1]
	m.mu.Unlock()
	var want []int
	for part := range l.Parts() {
		l.shards.want("inbox", part, long)
		if cluster.Home(cluster.Slot(l.index(part))) != 1 {
			want = append(want, part)
		}
	}
	h := l.shards.open["inbox"][0]
	await(t, "the subscriptions at the other hosts", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !slices.ContainsFunc(want, func(part int) bool { return h.parts[part].node == nil })
	})
}

// A host that is gone closes no connection: the subscription finds out by itself. A live
// connection on which nothing comes is kept.
func TestSilentConnectionOfASubscriptionIsReplaced(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	proxy := redistest.NewProxy(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	heard := hear(t, rdb)

	const pings = 20
	pinged := proxy.Times(1<<30, redistest.Named("PING"), redistest.Pass())
	again := proxy.Times(1<<30, redistest.Named("SUBSCRIBE"), redistest.Pass())
	await(t, "pings", func() bool { return pinged.Hits() >= pings })
	if n := again.Hits(); n > pings/2 { // on a busy machine an answer may be late
		t.Errorf("after %d pings with answers there were %d new connections", pings, n)
	}

	dead := proxy.Once(redistest.Named("PING"), redistest.Swallow())
	await(t, "the connection to be dead", func() bool { return dead.Hits() == 1 })
	for len(heard) > 0 {
		<-heard
	}
	other := srv.Client(t)
	await(t, "a message", func() bool {
		if err := other.Publish(t.Context(), "channel", "text").Err(); err != nil {
			t.Fatal(err)
		}
		return len(heard) > 0
	})
}

// hear returns what comes through a subscription to "channel". The test closes rdb in the end.
func hear(t *testing.T, rdb *redis.Client) <-chan string {
	t.Helper()
	t.Cleanup(func() { rdb.Close() })
	sub := rdb.Subscribe(t.Context(), "channel")
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan string, 1000)
	var running sync.WaitGroup
	running.Go(func() {
		listen(ctx, &ear{sub: sub, every: 50 * time.Millisecond}, func(text string) { heard <- text })
	})
	t.Cleanup(func() {
		cancel()
		sub.Close()
		running.Wait()
	})
	return heard
}
