package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name under which the sentinels know the master.
const MasterName = "mymaster"

const (
	sentinels      = 3
	sentinelQuorum = 2
)

// Sentinel is a master with one replica, watched by three sentinels. All methods except Client may be called from any
// goroutine.
type Sentinel struct {
	t     testing.TB
	nodes []*Server // the sentinels

	mu      sync.Mutex // guards the rest
	master  *Server
	replica *Server
}

// StartSentinel starts a master, a replica and three sentinels. It returns when the replica is in step and the
// sentinels know each other. Master and replica are started as by [Start] with args.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	master := Start(t, args...)
	replica := Start(t, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(master.p.port)}, args...)...)
	s := &Sentinel{t: t, master: master, replica: replica}
	if err := poll(startTimeout, func() (bool, error) {
		info, err := ask(replica.Addr(), "INFO", "replication")
		return err == nil && infoField(info, "master_link_status") == "up", nil
	}); err != nil {
		t.Fatalf("replica does not reach its master: %v\n%s", err, replica.Log())
	}
	s.startSentinels(binary(t))
	if err := poll(startTimeout, s.agree); err != nil {
		t.Fatalf("sentinels do not agree: %v\n%s", err, s.nodes[0].Log())
	}
	return s
}

// startSentinels starts the sentinels. If a port was taken, all sentinels start again: each sentinel has the ports of
// the others in its configuration.
func (s *Sentinel) startSentinels(bin string) {
	s.t.Helper()
	for try := 1; ; try++ {
		ports := freePorts(s.t, sentinels)
		s.nodes = nil
		taken := false
		for i, port := range ports {
			p := newProcess(s.t, bin, port, "sentinel.conf", "--sentinel")
			if err := os.WriteFile(filepath.Join(p.dir, "sentinel.conf"), s.conf(i, ports), 0o600); err != nil {
				s.t.Fatal(err)
			}
			s.nodes = append(s.nodes, &Server{p})
			if err := p.run(); err != nil {
				if taken = p.portTaken(); !taken || try == startTries {
					s.t.Fatalf("start sentinel: %v", err)
				}
				break
			}
			hurry(p.addr())
		}
		if !taken {
			return
		}
		for _, n := range s.nodes {
			n.Kill()
		}
	}
}

// conf returns the configuration of sentinel me. The configuration names the replica and the other sentinels: the
// sentinel would need some seconds to find them.
func (s *Sentinel) conf(me int, ports []int) []byte {
	id := func(i int) string { return fmt.Sprintf("%040x", 0xb000+i) }
	var b strings.Builder
	fmt.Fprintf(&b, "port %d\nbind 127.0.0.1\nsentinel myid %s\n", ports[me], id(me))
	fmt.Fprintf(&b, "sentinel monitor %s 127.0.0.1 %d %d\n", MasterName, s.master.p.port, sentinelQuorum)
	fmt.Fprintf(&b, "sentinel down-after-milliseconds %s 1000\n", MasterName)
	// With a much shorter timeout, sentinels give up each fail-over before its end.
	fmt.Fprintf(&b, "sentinel failover-timeout %s 3000\n", MasterName)
	fmt.Fprintf(&b, "sentinel known-replica %s 127.0.0.1 %d\n", MasterName, s.replica.p.port)
	for i, port := range ports {
		if i != me {
			fmt.Fprintf(&b, "sentinel known-sentinel %s 127.0.0.1 %d %s\n", MasterName, port, id(i))
		}
	}
	return []byte(b.String())
}

// hurry shortens a sentinel's periods. Servers before 7.0 do not know the command and are only slower, so hurry ignores
// errors. With a ping period much below 300 ms, the sentinels take the replica for dead just when the replica is
// needed.
func hurry(addr string) {
	_, _ = ask(addr, "SENTINEL", "DEBUG", "INFO-PERIOD", "100", "PING-PERIOD", "300", "ASK-PERIOD", "50",
		"PUBLISH-PERIOD", "100", "MIN-LINK-RECONNECT-PERIOD", "500", "ELECTION-TIMEOUT", "1000")
}

// agree reports whether every sentinel sees the master, the replica and the other sentinels.
func (s *Sentinel) agree() (bool, error) {
	want := fmt.Sprintf("status=ok,address=%s,slaves=1,sentinels=%d", s.master.Addr(), sentinels)
	for _, n := range s.nodes {
		info, err := ask(n.Addr(), "INFO", "sentinel")
		if err != nil || !strings.Contains(infoField(info, "master0"), want) {
			return false, nil
		}
	}
	return true, nil
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string {
	out := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		out[i] = n.Addr()
	}
	return out
}

// Master returns the master, as of the last Failover or AwaitFailover.
func (s *Sentinel) Master() *Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.master
}

// Replica returns the server that is not the master.
func (s *Sentinel) Replica() *Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replica
}

// Client returns a client that asks the sentinels for the master, and has default settings. The client is closed at the
// end of the test.
func (s *Sentinel) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs()})
	t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Failover kills the master, and waits until the replica was promoted and all sentinels report the promotion. Replica
// then returns the killed server, which can be restarted.
func (s *Sentinel) Failover() {
	s.t.Helper()
	s.Master().Kill()
	s.AwaitFailover()
}

// AwaitFailover is Failover for a master that the test itself has killed or paused.
func (s *Sentinel) AwaitFailover() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.replica.Addr()
	err := poll(failoverTimeout, func() (bool, error) {
		info, err := ask(want, "INFO", "replication")
		if err != nil || infoField(info, "role") != "master" {
			return false, nil
		}
		for _, n := range s.nodes {
			info, err := ask(n.Addr(), "INFO", "sentinel")
			if err != nil || !strings.Contains(infoField(info, "master0"), "address="+want+",") {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		s.t.Errorf("promotion of the replica: %v", err)
		return
	}
	s.master, s.replica = s.replica, s.master
}
