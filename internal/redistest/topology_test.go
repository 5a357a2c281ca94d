//go:build servers

package redistest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// setAndWait sets a key and waits until a replica has it, on one connection: from Redis
// 7.2 on WAIT knows of no other's writes.
func setAndWait(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	conn := rdb.Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(t.Context(), 1, hang).Result(); n != 1 || err != nil {
		t.Fatalf("replicas that have the write: %d, %v, want 1", n, err)
	}
}

func TestClusterServesAllSlots(t *testing.T) {
	c := StartCluster(t, 3, 0)
	rdb := c.Client(t)
	used := map[int]bool{}
	for i := range 50 {
		key := fmt.Sprint("key", i)
		if err := rdb.Set(t.Context(), key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
		owner := c.Owner(key)
		used[owner] = true
		if n, err := c.Node(owner).Client(t).Exists(t.Context(), key).Result(); n != 1 || err != nil {
			t.Errorf("%s is not on node %d, which Owner names: %v", key, owner, err)
		}
	}
	if len(used) != 3 {
		t.Errorf("50 keys on %d nodes, want 3", len(used))
	}
}

func TestClusterFailsOver(t *testing.T) {
	c := StartCluster(t, 3, 1)
	const key = "k"
	owner := c.Owner(key)
	direct := c.Node(owner).Client(t)
	setAndWait(t, direct, key)
	now := c.Failover(owner)
	if now != c.Node(owner+3) {
		t.Fatalf("promoted is %s, want node %d", now.Addr(), owner+3)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = rdb.Close() })
	eventually(t, func(ctx context.Context) error { return rdb.Get(ctx, key).Err() })

	c.Rejoin(owner)
	if got := c.Server(c.Slot(key)); got != owner+3 {
		t.Errorf("the slot is served by node %d, want %d", got, owner+3)
	}
	if masters := c.Masters(); len(masters) != 3 || !slices.Contains(masters, owner+3) {
		t.Errorf("masters are %v", masters)
	}
	if again := c.Failover(owner + 3); again != c.Node(owner) {
		t.Errorf("promoted is %s, want node %d again", again.Addr(), owner)
	}
}

func TestClusterMovesSlots(t *testing.T) {
	c := StartCluster(t, 3, 1)
	rdb := c.Client(t)
	ctx := t.Context()
	for _, key := range []string{"{a}1", "{a}2"} {
		if err := rdb.Set(ctx, key, key, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	slot := c.Slot("{a}1")
	from := c.Owner("{a}1")
	to := (from + 1) % 3
	m := c.BeginMove(slot, to)
	if m.From() != from || c.Server(slot) != from {
		t.Errorf("the slot moves from node %d and is served by %d, want %d", m.From(), c.Server(slot), from)
	}
	if keys := m.Keys(); !slices.Equal(keys, []string{"{a}1", "{a}2"}) {
		t.Errorf("keys %q", keys)
	}
	m.Move("{a}1", "{a}gone")
	for key, want := range map[string]string{"{a}1": "ASK ", "{a}2": "", "{a}new": "ASK "} {
		_, err := ask(c.Node(from).Addr(), "EXISTS", key)
		if err == nil && want != "" || err != nil && (want == "" || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s at the old master: %v, want %q", key, err, want)
		}
	}
	m.Finish()
	if c.Server(slot) != to {
		t.Errorf("the slot is served by node %d, want %d", c.Server(slot), to)
	}
	if _, err := ask(c.Node(from).Addr(), "EXISTS", "{a}1"); err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
		t.Errorf("at the old master: %v", err)
	}
	c.Failover(to) // what was moved is on the replica
	eventually(t, func(ctx context.Context) error {
		n, err := rdb.Exists(ctx, "{a}1", "{a}2").Result()
		if err == nil && n != 2 {
			t.Fatalf("%d keys are left", n)
		}
		return err
	})
}

func TestSentinelFailsOver(t *testing.T) {
	s := StartSentinel(t)
	rdb := s.Client(t)
	old := s.Master()
	setAndWait(t, old.Client(t), "k")
	s.Failover()
	if s.Master() == old || s.Replica() != old {
		t.Error("Master and Replica did not change places")
	}
	eventually(t, func(ctx context.Context) error { return rdb.Set(ctx, "k2", "v", 0).Err() })
	if n, err := s.Master().Client(t).Exists(t.Context(), "k", "k2").Result(); n != 2 || err != nil {
		t.Errorf("keys on the new master: %d, %v, want 2", n, err)
	}
}

func TestSentinelFailsOverFromAPausedMaster(t *testing.T) {
	s := StartSentinel(t)
	zombie := s.Master()
	zombie.Stop()
	s.AwaitFailover()
	zombie.Cont()
	// The zombie still takes writes until the sentinels reach it: what the tests of
	// fencing need. In the end it becomes a replica.
	eventually(t, func(ctx context.Context) error {
		info, err := ask(zombie.Addr(), "INFO", "replication")
		if err == nil && infoField(info, "role") != "slave" {
			err = fmt.Errorf("the zombie is a %q", infoField(info, "role"))
		}
		return err
	})
}

func TestTopologiesEndWithTheirTest(t *testing.T) {
	var pids []int
	t.Run("inner", func(t *testing.T) {
		c := StartCluster(t, 1, 1)
		s := StartSentinel(t)
		for _, n := range append(append([]*Server{s.Master(), s.Replica()}, c.nodes...), s.nodes...) {
			pids = append(pids, n.Pid())
		}
	})
	if len(pids) != 7 {
		t.Errorf("%d processes, want 7", len(pids))
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d outlived its test", pid)
		}
	}
}

func TestFreePortsAreDistinct(t *testing.T) {
	seen := map[int]bool{}
	for _, port := range freePorts(t, 50) {
		if seen[port] {
			t.Errorf("port %d twice", port)
		}
		seen[port] = true
	}
}

// A server that was killed must find its port still free, even if other tests look for a port meanwhile.
func TestPortsAreClaimed(t *testing.T) {
	port := freePort(t)
	t.Run("another test", func(t *testing.T) {
		if claim(t, port) {
			if l, err := net.Listen("tcp", "127.0.0.2:0"); err == nil {
				_ = l.Close()
				t.Errorf("port %d was given out although it is taken", port)
			}
		}
	})
	var other int
	t.Run("a test that has ended", func(t *testing.T) { other = freePort(t) })
	if !claim(t, other) {
		t.Errorf("port %d is not given back", other)
	}
}

func TestPollGivesUp(t *testing.T) {
	start := time.Now()
	if err := poll(20*time.Millisecond, func() (bool, error) { return false, nil }); err == nil {
		t.Error("poll() = nil, want an error")
	}
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("gave up after %s, want 20 ms", took)
	}
}

// eventually repeats f, which a fail-over may interrupt, until it succeeds.
func eventually(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), failoverTimeout)
	defer cancel()
	var last error
	if err := poll(failoverTimeout, func() (bool, error) {
		last = f(ctx)
		return last == nil, ctx.Err()
	}); err != nil {
		t.Fatalf("%v; last error: %v", err, last)
	}
}
