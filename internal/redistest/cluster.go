package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// failoverTimeout bounds how long a promotion may take. A promotion usually takes 2 to 3 s.
const failoverTimeout = time.Minute

// Cluster is a Redis Cluster. All methods except Client may be called from any goroutine.
type Cluster struct {
	t       testing.TB
	masters int
	nodes   []*Server // the masters first, then the replicas, in rounds
}

// StartCluster starts a cluster, and returns when every node serves its slots and every replica has its data. That
// takes about two seconds: Redis makes a master wait that long after its start. Each node is started as by [Start] with
// args.
func StartCluster(t testing.TB, masters, replicasPer int, args ...string) *Cluster {
	t.Helper()
	return startCluster(t, masters, replicasPer, shardIDs(t), args)
}

// StartUpgradedCluster starts a cluster whose nodes read a nodes.conf of Redis 7.0. Without replicas, and on a server
// from 7.2 on, each SPUBLISH ends a node, until the node is started once more.
func StartUpgradedCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	return startCluster(t, masters, 0, false, nil)
}

func startCluster(t testing.TB, masters, replicasPer int, shardIDs bool, args []string) *Cluster {
	t.Helper()
	bin := binary(t)
	for try := 1; ; try++ {
		c := prepareCluster(t, bin, masters, replicasPer, shardIDs, args)
		err := c.run()
		if err == nil {
			err = c.await(startTimeout, c.nodes)
		}
		if err == nil {
			return c
		}
		c.killAll()
		if try == startTries || !errors.Is(err, errPortTaken) {
			t.Fatalf("start cluster: %v", err)
		}
	}
}

var errPortTaken = errors.New("a port was taken")

// prepareCluster writes the nodes' files. Each node finds the finished topology in its nodes.conf, so the nodes need
// not join by MEET and gossip, which takes seconds and has races.
func prepareCluster(t testing.TB, bin string, masters, replicasPer int, shardIDs bool, args []string) *Cluster {
	t.Helper()
	n := masters * (1 + replicasPer)
	ports, buses := freePorts(t, n), freePorts(t, n)
	// The timeout is short if there are replicas to promote. Without replicas, a machine that is merely busy must not
	// bring the cluster down.
	nodeTimeout := 15 * time.Second
	if replicasPer > 0 {
		nodeTimeout = time.Second
	}
	c := &Cluster{t: t, masters: masters}
	for i := range n {
		extra := append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(buses[i]),
			"--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
			"--cluster-replica-validity-factor", "0", // a replica may always take over
		}, args...)
		p := newProcess(t, bin, ports[i], serverArgs(ports[i], extra)...)
		if err := os.WriteFile(filepath.Join(p.dir, "nodes.conf"), nodesConf(i, masters, ports, buses, shardIDs), 0o600); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, &Server{p})
	}
	return c
}

// shardIDs reports whether the server knows shards: from 7.2 on.
func shardIDs(t testing.TB) bool {
	t.Helper()
	text, err := exec.Command(binary(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return !strings.Contains(string(text), " v=7.0.") && !strings.Contains(string(text), " v=6.")
}

// nodesConf returns the nodes.conf of the node with the number me.
func nodesConf(me, masters int, ports, buses []int, shardIDs bool) []byte {
	var b strings.Builder
	for i := range ports {
		of := i % masters
		flags, master, served := "slave", nodeID(of), ""
		if i < masters {
			flags, master = "master", "-"
			served = fmt.Sprintf(" %d-%d", i*slots/masters, (i+1)*slots/masters-1)
		}
		if i == me {
			flags = "myself," + flags
		}
		shard := ""
		if shardIDs {
			shard = ",,shard-id=" + nodeID(of)
		}
		fmt.Fprintf(&b, "%s 127.0.0.1:%d@%d%s %s %s 0 0 %d connected%s\n", nodeID(i), ports[i], buses[i], shard, flags, master, of+1, served)
	}
	fmt.Fprintf(&b, "vars currentEpoch %d lastVoteEpoch 0\n", masters)
	return []byte(b.String())
}

// run starts all nodes at the same time.
func (c *Cluster) run() error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, s := range c.nodes {
		wg.Go(func() {
			if errs[i] = s.p.run(); errs[i] != nil && s.p.portTaken() {
				errs[i] = fmt.Errorf("%w: %w", errPortTaken, errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) killAll() {
	for _, s := range c.nodes {
		s.Kill()
	}
}

// await waits until every one of the nodes sees a whole cluster, and every replica among the nodes is in step.
func (c *Cluster) await(timeout time.Duration, nodes []*Server) error {
	err := poll(timeout, func() (bool, error) {
		for _, s := range nodes {
			if info, err := ask(s.Addr(), "CLUSTER", "INFO"); err != nil || infoField(info, "cluster_state") != "ok" {
				return false, nil
			}
			info, err := ask(s.Addr(), "INFO", "replication")
			if err != nil || infoField(info, "role") == "slave" && infoField(info, "master_link_status") != "up" {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("cluster of %d nodes: %w", len(c.nodes), err)
	}
	return nil
}

// Addrs returns the addresses of all nodes. The nodes that were started as masters come first.
func (c *Cluster) Addrs() []string {
	out := make([]string, len(c.nodes))
	for i, s := range c.nodes {
		out[i] = s.Addr()
	}
	return out
}

// Node returns node i in the order of Addrs, so that a test can kill, pause or restart the node. Node masters+i is a
// replica of node i.
func (c *Cluster) Node(i int) *Server { return c.nodes[i] }

// Client returns a client of the cluster with default settings. The client is closed at the end of the test.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Owner returns the number of the node that was started as the master of key's slot.
func (c *Cluster) Owner(key string) int {
	c.t.Helper()
	return c.Home(c.Slot(key))
}

// Home returns the number of the node that was started as the master of slot.
func (c *Cluster) Home(slot int) int {
	for i := range c.masters {
		if slot < (i+1)*slots/c.masters {
			return i
		}
	}
	return 0 // there are no more slots
}

// Failover kills node i, which must be a master. Failover returns the node that was promoted in its place, when all
// nodes but node i agree on the promotion. All other nodes must be running.
func (c *Cluster) Failover(i int) *Server {
	c.t.Helper()
	c.nodes[i].Kill()
	return c.AwaitFailover(i)
}

// AwaitFailover is Failover for a master that the test itself has killed or paused.
func (c *Cluster) AwaitFailover(i int) *Server {
	c.t.Helper()
	promoted := c.promoted(i)
	if err := c.await(failoverTimeout, c.allBut(i)); err != nil {
		c.t.Errorf("after the promotion for node %d: %v", i, err)
	}
	return c.nodes[promoted]
}

// promoted waits for a replica to take the place of node i, and returns the number of that replica, or i after an
// error.
func (c *Cluster) promoted(i int) int {
	c.t.Helper()
	found := i
	err := poll(failoverTimeout, func() (bool, error) {
		for r := i % c.masters; r < len(c.nodes); r += c.masters {
			if r == i {
				continue
			}
			info, err := ask(c.nodes[r].Addr(), "INFO", "replication")
			if err == nil && infoField(info, "role") == "master" {
				found = r
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		c.t.Errorf("promotion of a replica of node %d: %v", i, err)
	}
	return found
}

func (c *Cluster) allBut(i int) []*Server {
	return append(slices.Clone(c.nodes[:i]), c.nodes[i+1:]...)
}

// Rejoin starts node i again after a fail-over, and returns when node i is a replica in step with the node that took
// its place.
func (c *Cluster) Rejoin(i int) {
	c.t.Helper()
	c.nodes[i].Restart()
	err := poll(failoverTimeout, func() (bool, error) {
		info, err := ask(c.nodes[i].Addr(), "INFO", "replication")
		return err == nil && infoField(info, "role") == "slave" && infoField(info, "master_link_status") == "up", nil
	})
	if err == nil {
		err = c.await(failoverTimeout, c.nodes)
	}
	if err != nil {
		c.t.Errorf("node %d as a replica: %v", i, err)
	}
}
