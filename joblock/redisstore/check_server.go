package redisstore

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// minVersion is the oldest Redis that the tests run on.
const minVersion = "7.0"

// fullAt is the share of maxmemory above which a server counts as full.
const fullAt = 0.9

// checkedServer is one server as Check sees it.
type checkedServer struct {
	*check
	addr string
	info info
}

func (n *checkedServer) find(s Severity, subject, found, means, fix string) {
	n.add(Finding{s, n.addr, subject, found, means, fix})
}

// unread adds the Finding that this user may not run the given command.
func (n *checkedServer) unread(command string) {
	n.find(Note, "permissions", "this user may not run "+command,
		"what that command would show was not checked", "run Check as a user with +info +config|get, or ask the operator of the server")
}

// config returns a setting. ok is false if this user may not read the setting.
func (n *checkedServer) config(ctx context.Context, rdb *redis.Client, name string) (val string, ok bool) {
	all, err := rdb.ConfigGet(ctx, name).Result()
	val, ok = all[name]
	return val, err == nil && ok
}

// wellUnless adds a Finding that subject is well, unless there is a Finding about subject already, or found is "".
func (n *checkedServer) wellUnless(subject, found string) {
	n.mu.Lock()
	bad := slices.ContainsFunc(n.report, func(f Finding) bool { return f.Subject == subject && f.Node == n.addr })
	n.mu.Unlock()
	if !bad && found != "" {
		n.well(n.addr, subject, found)
	}
}

func (n *checkedServer) version() {
	defer n.wellUnless("version", n.info["redis_version"])
	if v := n.info["redis_version"]; olderThan(v, minVersion) {
		n.find(Warning, "version", "Redis "+v, "it is not known whether locks are safe there: they are tested from "+minVersion+" on", "upgrade the server")
	}
	if bits := n.info["arch_bits"]; bits != "" && bits != "64" {
		n.find(Fault, "version", "a "+bits+"-bit server", "fences do not fit into its integers", "use a 64-bit build")
	}
}

// olderThan reports whether version v is older than version than. Only the major and minor numbers count. If v is not a
// version, olderThan returns false.
func olderThan(v, than string) bool {
	var have, want [2]int
	for i, p := range strings.SplitN(v, ".", 3)[:min(2, strings.Count(v, ".")+1)] {
		n, err := strconv.Atoi(p)
		if err != nil {
			return false
		}
		have[i] = n
	}
	for i, p := range strings.SplitN(than, ".", 2) {
		want[i], _ = strconv.Atoi(p) // than is a constant
	}
	return have[0] < want[0] || have[0] == want[0] && have[1] < want[1]
}

func (n *checkedServer) cluster(client redis.UniversalClient) {
	in := n.info["cluster_enabled"]
	if _, ok := client.(*redis.Client); ok && in == "1" {
		n.find(Fault, "client", "a client for one server, but the server is part of a cluster",
			"neither locks in the slots of other servers nor locks of processes with a *redis.ClusterClient can be reached",
			"use redis.NewClusterClient")
	}
	if _, ok := client.(*redis.ClusterClient); ok && in == "0" {
		n.find(Fault, "client", "a client for a cluster, but the server is not in a cluster",
			"locks have the names of a cluster, which processes with a *redis.Client do not see",
			"use redis.NewClient, or with Sentinel redis.NewFailoverClient")
	}
}

// native adds a Finding about the calls that need no script. Its command changes nothing, because no record has the
// text that the command compares.
func (n *checkedServer) native(ctx context.Context, rdb *redis.Client) {
	if n.s.native.off {
		return
	}
	err := rdb.Do(ctx, "set", n.s.name("joblock-check"), "", "ifeq", "no record", "px", 1).Err()
	switch {
	case err == redis.Nil:
		n.well(n.addr, "scripts", "a lock without waiters is taken and released without one")
	case err != nil && strings.HasPrefix(err.Error(), "ERR "):
		n.well(n.addr, "scripts", "each call runs a script; Redis 8.4 and Valkey 8.1 or later need none for most calls")
	}
}

// shardsFrom is the oldest Redis with sharded Pub/Sub.
const shardsFrom = "7.0"

func (n *checkedServer) shards(ctx context.Context, rdb *redis.Client) {
	if !n.s.sharded {
		return
	}
	if v := n.info["redis_version"]; olderThan(v, shardsFrom) {
		n.find(Note, shardRights.subject, "Redis "+v+" has no shard channels", shardRights.means, "upgrade the server")
		return
	}
	if listed, err := inOwnShards(ctx, rdb); err == nil && !listed {
		n.find(Warning, shardRights.subject, "this server is not in its own list of shards (CLUSTER SHARDS)",
			shardRights.means+"; a SPUBLISH from any client would crash the server",
			"restart the server: it has read a nodes.conf written by a server before 7.2")
	}
}

func (n *checkedServer) role() {
	if n.info["role"] == "slave" {
		n.find(Fault, "role", "this server is a replica of "+n.info["master_host"]+":"+n.info["master_port"],
			"it refuses writes, and its data may be out of date", "connect to the master, or through Sentinel (redis.NewFailoverClient)")
	}
	n.wellUnless("role", n.info["role"])
}

func (n *checkedServer) memory() {
	limit, policy := n.info.num("maxmemory"), n.info["maxmemory_policy"]
	if policy != "" && policy != "noeviction" {
		const fix = "CONFIG SET maxmemory-policy noeviction, and in redis.conf; or give locks a Redis of their own"
		if limit > 0 {
			n.find(Fault, "maxmemory-policy", fmt.Sprintf("%s with maxmemory %d", policy, limit),
				"when memory is short, the server drops records: locks that are held become free, and fences are forgotten", fix)
		} else {
			n.find(Note, "maxmemory-policy", policy+" without a maxmemory",
				"nothing is dropped until a maxmemory is set; then locks are", fix)
		}
	}
	if used := n.info.num("used_memory"); limit > 0 && float64(used) > fullAt*float64(limit) {
		n.find(Warning, "maxmemory", fmt.Sprintf("%d of %d bytes are used", used, limit),
			"a full server refuses new locks with an OOM error; existing locks can still be renewed and released",
			"raise maxmemory, or find what fills it")
	}
	n.wellUnless("maxmemory-policy", policy)
	if n.info["maxmemory"] != "" {
		room := "no limit"
		if limit > 0 {
			room = fmt.Sprintf("%d %% of it is used", 100*n.info.num("used_memory")/limit)
		}
		n.wellUnless("maxmemory", room)
	}
}

func (n *checkedServer) persistence(config func(name string) (string, bool)) {
	const means = "a crash of the server loses the held locks: until their leases end, a key may have two holders; the fences of the new holders are larger"
	const fixDisk = "CONFIG SET appendonly yes, and in redis.conf"
	switch n.info["aof_enabled"] {
	case "":
		n.find(Note, "persistence", "the server does not say whether it keeps anything on disk", "if it keeps nothing, "+means, "ask the operator of the server")
	case "1":
		fsync, known := config("appendfsync")
		if known && fsync != "always" {
			n.find(Note, "appendfsync", fsync, "a crash of the machine loses the locks of the last second or more",
				"CONFIG SET appendfsync always, and in redis.conf, if that matters more than speed")
		}
		n.wellUnless("appendonly", "yes")
		if known {
			n.wellUnless("appendfsync", fsync)
		}
	default:
		if save, known := config("save"); known && save == "" {
			n.find(Warning, "persistence", "volatile: nothing is kept on disk, neither an append-only file nor snapshots",
				"a restart or "+means, fixDisk)
			return
		}
		n.find(Warning, "appendonly", "no", means, fixDisk)
	}
}

func (n *checkedServer) replication(minReplicas string, known bool) {
	replicas := n.info.num("connected_slaves")
	if replicas == 0 {
		if n.info["connected_slaves"] != "" {
			n.wellUnless("replication", "no replica, so no fail-over loses locks")
		}
		return
	}
	many := fmt.Sprintf("%d replicas", replicas)
	if replicas == 1 {
		many = "1 replica"
	}
	if late := n.late(replicas); len(late) > 0 {
		severity := Note
		if int64(len(late)) == replicas {
			severity = Warning
		}
		n.find(severity, "replica lag", strings.Join(late, ", "),
			"a fail-over to that replica loses the locks of that time; the fences of the new holders are larger",
			"look at the log of the replica, and at the network between the two servers")
	}
	if n.s.replicas == 0 {
		n.find(Note, "replication", many+"; a write is acknowledged before it is replicated",
			"a fail-over can lose the latest locks; the fences of the new holders are larger",
			"set Config.Replicas, or have the resources that locks protect refuse smaller fences")
	}
	if known && minReplicas == "0" {
		n.find(Warning, "min-replicas-to-write", minReplicas,
			"a master that is cut off from its replicas still grants locks after another master has taken over",
			"CONFIG SET min-replicas-to-write 1, and min-replicas-max-lag below the shortest lease")
	}
	n.wellUnless("replication", fmt.Sprintf("%s, and each write waits for %d", many, n.s.replicas))
	if known {
		n.wellUnless("min-replicas-to-write", minReplicas)
	}
}

// lateReplica is the silence after which a replica counts as late. A healthy replica reports its progress to its master
// every second, and Redis' own min-replicas-max-lag has the same default.
const lateReplica = 10 // seconds

// late describes the replicas that may lack recent writes of this server.
func (n *checkedServer) late(replicas int64) (all []string) {
	for i := range replicas {
		of := make(map[string]string)
		for _, pair := range strings.Split(n.info[fmt.Sprintf("slave%d", i)], ",") {
			name, val, _ := strings.Cut(pair, "=")
			of[name] = val
		}
		lag, _ := strconv.Atoi(of["lag"]) // a value that is not a number counts as missing
		switch where := net.JoinHostPort(of["ip"], of["port"]); {
		case of["state"] == "":
		case of["state"] != "online":
			all = append(all, where+" is not in sync yet ("+of["state"]+")")
		case lag > lateReplica:
			all = append(all, fmt.Sprintf("%s has reported nothing for %d s", where, lag))
		}
	}
	return all
}
