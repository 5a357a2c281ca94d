package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// defaultReplicaTimeout is how long a call waits for the replicas.
	defaultReplicaTimeout = 200 * time.Millisecond
	// maxReplicaTimeout leaves a renewal as much time for its own round trip as for the replicas.
	maxReplicaTimeout = renewTimeout / 2
	// maxReplicas bounds Config.Replicas.
	maxReplicas = 16

	// ackTries is how often a call is sent to the master of a slot. A call is sent again if the server does not know
	// the script, or if the slot moves while a redirected call is on its way.
	ackTries = 4

	// ackHops is how many further redirections of one try are followed. Since the client read the topology, a slot may
	// have moved twice, and be moving again.
	ackHops = 2
)

// acknowledged is runAll for Stores with Config.Replicas. Each node gets one pipeline, with a WAIT at the
// end. If the WAIT fails, no grant, Park or renewal in that pipeline counts: each of these calls has an error, and the
// Locker cleans up or tries again.
//
// The WAIT is in the same pipeline because the WAIT has to be on the same connection as the calls: from Redis 7.2 on,
// WAIT waits only for the last write of its own connection. For the same reason a script that answers with a grant
// always writes, even if an earlier run of the call made the grant. Refusals need no WAIT, but a WAIT that is sent only
// after grants would take a second round trip.
func (s *store) acknowledged(ctx context.Context, m *merger, sc *script, cmds []*redis.Cmd) []answer {
	out := make([]answer, len(cmds))
	todo := make([]int, len(cmds))
	for i := range todo {
		todo[i] = i
	}
	for try := 1; len(todo) > 0; try++ {
		nodes := make(map[sender][]int)
		for _, i := range todo {
			node, err := m.master(ctx, *cmds[i].Args()[keyAt].(*string))
			if err != nil {
				out[i] = answer{err: err}
				continue
			}
			nodes[node] = append(nodes[node], i)
		}
		todo = nil
		for node, items := range nodes {
			todo = append(todo, s.acknowledgedOn(ctx, m.rdb, node, sc, items, cmds, out, try)...)
		}
	}
	return out
}

// acknowledgedOn sends items to the node that has their keys, and returns the items that have to be sent again.
func (s *store) acknowledgedOn(
	ctx context.Context, rdb redis.UniversalClient, node sender, sc *script, items []int, cmds []*redis.Cmd, out []answer, try int,
) (again []int) {
	batch := make([]*redis.Cmd, 0, len(items)+1)
	for _, i := range items {
		batch = append(batch, cmds[i])
	}
	wait := s.waitCmd(ctx)
	exec(ctx, node, append(batch, wait))
	short := s.enough(wait)
	elsewhere := make(map[string][]int) // by address
	for n, i := range items {
		out[i] = answerOf(batch[n])
		addr, on := redirected(ctx, rdb, out[i].err)
		switch {
		case on:
			cmds[i] = newCmd(ctx, batch[n].Args())
			elsewhere[addr] = append(elsewhere[addr], i)
		case try < ackTries && isNoScript(out[i].err):
			cmds[i] = sc.withSource(ctx, batch[n])
			again = append(again, i)
		case short != nil && granted(sc, out[i]):
			out[i] = answer{err: short}
		}
	}
	for addr, items := range elsewhere {
		again = append(again, s.acknowledgedAt(ctx, rdb, node, addr, sc, items, cmds, out, try, ackHops)...)
	}
	return again
}

// acknowledgedAt sends items to addr, to which the node from has redirected them. If the node at addr redirects an item
// too, acknowledgedAt follows, at most hops times: to begin again would not help, because the cluster client may still
// name the first node. again has the items that have to be sent again.
func (s *store) acknowledgedAt(
	ctx context.Context, rdb redis.UniversalClient, from sender, addr string, sc *script, items []int, cmds []*redis.Cmd, out []answer, try, hops int,
) (again []int) {
	batch := make([]*redis.Cmd, 0, len(items))
	for _, i := range items {
		batch = append(batch, cmds[i])
	}
	as, short := s.follow(ctx, from, addr, sc, batch)
	elsewhere := make(map[string][]int) // by address
	for n, i := range items {
		out[i] = as[n]
		next, on := redirected(ctx, rdb, out[i].err)
		switch {
		case on && hops > 0:
			cmds[i] = newCmd(ctx, cmds[i].Args())
			elsewhere[next] = append(elsewhere[next], i)
		case on && try < ackTries:
			cmds[i] = newCmd(ctx, cmds[i].Args())
			again = append(again, i)
		case short != nil && granted(sc, out[i]):
			out[i] = answer{err: short}
		}
	}
	for next, items := range elsewhere {
		again = append(again, s.acknowledgedAt(ctx, rdb, from, next, sc, items, cmds, out, try, hops-1)...)
	}
	return again
}

// follow sends cmds and a WAIT to addr, to which the node from has redirected them. The error is from enough.
//
// follow makes a new connection. go-redis follows redirections too, but does not say on which connection. And the
// cluster client may not know the node at addr yet.
func (s *store) follow(ctx context.Context, from sender, addr string, sc *script, cmds []*redis.Cmd) ([]answer, error) {
	opt := cloneOptions(from.(*redis.Client).Options()) // only nodes of a cluster redirect
	if strings.HasPrefix(addr, ":") {                   // a node that does not know its own address means its host
		host, _, _ := net.SplitHostPort(opt.Addr)
		addr = host + addr
	}
	opt.Addr = addr
	// The node's client changes its own setting when it finds that the server has no such notifications, perhaps at
	// this moment. So the new client must not share the setting.
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	rdb := redis.NewClient(opt)
	defer rdb.Close()
	batch := slices.Clone(cmds) // an item is nil once it has an answer
	out := make([]answer, len(cmds))
	var short error // the first error of enough
	for try := 1; ; try++ {
		var pipe []*redis.Cmd
		for _, cmd := range batch {
			if cmd != nil { // after MOVED the ASKING is not needed, and does no harm
				pipe = append(pipe, redis.NewCmd(ctx, "asking"), cmd)
			}
		}
		wait := s.waitCmd(ctx)
		exec(ctx, rdb, append(pipe, wait))
		unknown := false
		for i, cmd := range batch {
			if cmd == nil {
				continue
			}
			out[i], batch[i] = answerOf(cmd), nil
			if try == 1 && isNoScript(out[i].err) {
				batch[i], unknown = sc.withSource(ctx, cmd), true
			} else if short == nil {
				// The next pipeline may take another connection. Then its WAIT would say nothing about the writes of
				// this one.
				short = s.enough(wait)
			}
		}
		if !unknown {
			return out, short
		}
	}
}

// granted reports whether an answer needs the replicas' acknowledgement.
func granted(sc *script, a answer) bool {
	if a.err != nil {
		return false
	}
	r, err := parseReply(sc, a.val)
	return err == nil && (r.Outcome == driver.OutcomeOK || !r.Since.IsZero())
}

func (s *store) waitCmd(ctx context.Context) *redis.Cmd {
	return redis.NewCmd(ctx, "wait", s.replicas, s.replicaTimeout.Milliseconds())
}

// errTooFew is the error of a call that took effect, but on too few replicas.
var errTooFew = errors.New("too few replicas acknowledged")

// enough returns the error of wait, a WAIT, or errTooFew if fewer than Config.Replicas have acknowledged.
func (s *store) enough(wait *redis.Cmd) error {
	n, err := wait.Int()
	if err == nil && n < s.replicas {
		err = fmt.Errorf("redisstore: %w: %d of %d within %s", errTooFew, n, s.replicas, s.replicaTimeout)
	}
	return err
}

// master returns the sender for the server that has key.
func (m *merger) master(ctx context.Context, key string) (sender, error) {
	if cluster, ok := m.rdb.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return m.via, nil
}

// redirected returns the address of the node to ask instead, if err is a redirection: the node that answered has lost
// the key's slot (MOVED), or has lost the key while the slot migrates (ASK). After MOVED the client reads the topology
// again, but not at once. Until then the client asks the old node.
func redirected(ctx context.Context, rdb redis.UniversalClient, err error) (addr string, on bool) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok || err == nil {
		return "", false
	}
	if addr, on = redis.IsMovedError(err); on {
		cluster.ReloadState(ctx)
		return addr, true
	}
	return redis.IsAskError(err)
}
