package rig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// clusterSlots is the number of hash slots of a Redis Cluster.
const clusterSlots = 16384

// Cluster is a Redis Cluster of masters, without replicas and persistence.
type Cluster struct {
	nodes []*Server
}

// StartCluster starts so many masters, each of which is a process of program, and returns when
// every master sees all slots served. The caller stops the cluster.
func StartCluster(ctx context.Context, program string, masters int) (*Cluster, error) {
	var err error
	for range startTries {
		var c *Cluster
		if c, err = startCluster(ctx, program, masters); err == nil {
			return c, nil
		}
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("start a cluster of %d masters: %w", masters, err)
}

// startCluster has each node find the finished cluster in its nodes.conf, so that nobody need meet.
func startCluster(ctx context.Context, program string, masters int) (*Cluster, error) {
	ports, err := freePorts(2 * masters)
	if err != nil {
		return nil, err
	}
	c, errs := &Cluster{nodes: make([]*Server, masters)}, make([]error, masters)
	var starting sync.WaitGroup
	for i := range masters {
		starting.Go(func() { c.nodes[i], errs[i] = startNode(ctx, program, i, ports) })
	}
	starting.Wait()
	if err = errors.Join(errs...); err == nil {
		err = c.awaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// startNode starts the node with the number me. ports are those for clients, then those for the other nodes.
func startNode(ctx context.Context, program string, me int, ports []int) (*Server, error) {
	dir, err := os.MkdirTemp("", "joblock-bench-")
	if err != nil {
		return nil, err
	}
	masters := len(ports) / 2
	version, err := exec.Command(program, "--version").Output()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	old := strings.Contains(string(version), " v=7.0.") // and does not know shards
	var conf strings.Builder
	for i := range masters {
		flags := "master"
		if i == me {
			flags = "myself,master"
		}
		shard := fmt.Sprintf(",,shard-id=%040x", i+1)
		if old {
			shard = ""
		}
		fmt.Fprintf(&conf, "%040x 127.0.0.1:%d@%d%s %s - 0 0 %d connected %d-%d\n",
			i+1, ports[i], ports[masters+i], shard, flags, i+1, i*clusterSlots/masters, (i+1)*clusterSlots/masters-1)
	}
	fmt.Fprintf(&conf, "vars currentEpoch %d lastVoteEpoch 0\n", masters)
	if err := os.WriteFile(filepath.Join(dir, "nodes.conf"), []byte(conf.String()), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return startIn(ctx, program, dir, ports[me],
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[masters+me]), "--cluster-config-file", "nodes.conf")
}

// awaitReady waits until every master sees all slots served.
func (c *Cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, s := range c.nodes {
		for {
			info, err := s.clusterInfo(ctx)
			if err != nil {
				return err
			}
			if info["cluster_state"] == "ok" && info["cluster_slots_ok"] == strconv.Itoa(clusterSlots) {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// Nodes returns the masters, in the order of Addrs.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Addrs returns the addresses of the masters.
func (c *Cluster) Addrs() (addrs []string) {
	for _, s := range c.nodes {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Stop kills the masters. A Cluster is stopped once.
func (c *Cluster) Stop() (err error) {
	for _, s := range c.nodes {
		if s != nil {
			err = errors.Join(err, s.Stop())
		}
	}
	return err
}

// NodeUsage is what a master has done since its start.
type NodeUsage struct {
	Usage
	Pushes int64 // messages to other nodes that carry what a client has published
}

// Usage asks each master, in the order of Addrs.
func (c *Cluster) Usage(ctx context.Context) ([]NodeUsage, error) {
	all := make([]NodeUsage, len(c.nodes))
	for i, s := range c.nodes {
		info, err := s.clusterInfo(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"cluster_stats_messages_publish_sent", "cluster_stats_messages_publishshard_sent"} {
			n, _ := strconv.ParseInt(info[name], 10, 64) // a count of 0 is not told
			all[i].Pushes += n
		}
		if all[i].Usage, err = s.Usage(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Server) clusterInfo(ctx context.Context) (map[string]string, error) {
	text, err := s.rdb.ClusterInfo(ctx).Result()
	return parseInfo(text), err
}
