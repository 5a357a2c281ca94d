package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
)

const (
	// DefaultReplicaTimeout is how long replicas are waited for.
	DefaultReplicaTimeout = 200 * time.Millisecond
	// MaxReplicaTimeout leaves a renewal time for its own round trip.
	MaxReplicaTimeout = renewTimeout / 2
	// MaxReplicas bounds Config.Replicas.
	MaxReplicas = 16

	// ackTries is how often a call is sent: a server may not know the script, and a
	// cluster may have moved the slot, each once.
	ackTries = 4
)

// oneAcknowledged is one for Stores with Config.Replicas: the same call, and a
// grant only once the replicas have it. Otherwise it is an error, and the Locker
// cleans up or tries again as after any call without an answer.
//
// The WAIT goes along in the same pipeline, for it has to be on the same connection:
// it waits for all that the server had written when that connection's last command
// ended. So it also covers the grant of an earlier call that this one finds. A refusal
// waits too, although nothing depends on it: to wait only for grants would cost them
// a second round trip.
func (s *Store) oneAcknowledged(ctx context.Context, sc *script, w *words) (joblock.Reply, error) {
	key := w.texts[0]
	for try := 1; ; try++ {
		node, err := master(ctx, s.ops, key)
		if err != nil {
			return joblock.Reply{}, err
		}
		op := w.cmd(ctx)
		if try > 1 {
			op = sc.withSource(ctx, op)
		}
		wait := s.waitCmd(ctx)
		exec(ctx, node, []*redis.Cmd{op, wait})
		a := answerOf(op)
		if try < ackTries && (isNoScript(a.err) || moved(ctx, s.ops, a.err)) {
			continue
		}
		if a.err != nil {
			return joblock.Reply{}, a.err
		}
		r, err := parseReply(sc, a.val)
		if err == nil && r.Outcome == joblock.OutcomeOK {
			err = s.enough(wait)
		}
		if err != nil {
			return joblock.Reply{}, err
		}
		return r, nil
	}
}

// renewAcknowledged is Renew for Stores with Config.Replicas: one pipeline per
// node, which ends in a WAIT. If that fails none of the node's renewals counts.
func (s *Store) renewAcknowledged(ctx context.Context, m *merger, cmds []*redis.Cmd) []answer {
	out := make([]answer, len(cmds))
	todo := make([]int, len(cmds))
	for i := range todo {
		todo[i] = i
	}
	for try := 1; len(todo) > 0; try++ {
		nodes := make(map[*redis.Client][]int)
		for _, i := range todo {
			node, err := master(ctx, m.rdb, *cmds[i].Args()[headLen-1].(*string))
			if err != nil {
				out[i] = answer{err: err}
				continue
			}
			nodes[node] = append(nodes[node], i)
		}
		todo = nil
		for node, items := range nodes {
			todo = append(todo, s.renewOn(ctx, m.rdb, node, items, cmds, out, try)...)
		}
	}
	return out
}

// renewOn sends the items of one node and returns those that have to go again.
func (s *Store) renewOn(ctx context.Context, rdb redis.UniversalClient, node *redis.Client, items []int, cmds []*redis.Cmd, out []answer, try int) (again []int) {
	batch := make([]*redis.Cmd, 0, len(items)+1)
	for _, i := range items {
		batch = append(batch, cmds[i])
	}
	wait := s.waitCmd(ctx)
	exec(ctx, node, append(batch, wait))
	short := s.enough(wait)
	for n, i := range items {
		out[i] = answerOf(batch[n])
		switch {
		case try < ackTries && isNoScript(out[i].err):
			cmds[i] = renewScript.withSource(ctx, batch[n])
			again = append(again, i)
		case try < ackTries && moved(ctx, rdb, out[i].err):
			cmds[i] = newCmd(ctx, batch[n].Args())
			again = append(again, i)
		case short != nil && granted(renewScript, out[i]):
			out[i] = answer{err: short}
		}
	}
	return again
}

// granted reports whether an answer is worth being acknowledged.
func granted(sc *script, a answer) bool {
	if a.err != nil {
		return false
	}
	r, err := parseReply(sc, a.val)
	return err == nil && r.Outcome == joblock.OutcomeOK
}

func (s *Store) waitCmd(ctx context.Context) *redis.Cmd {
	return redis.NewCmd(ctx, "wait", s.replicas, s.replicaTimeout.Milliseconds())
}

// errTooFew is the error of a call that took effect without enough replicas.
var errTooFew = errors.New("too few replicas acknowledged")

// enough returns errTooFew unless as many replicas have answered as are wanted.
func (s *Store) enough(wait *redis.Cmd) error {
	n, err := wait.Int()
	if err == nil && n < s.replicas {
		err = fmt.Errorf("redisstore: %w: %d of %d within %s", errTooFew, n, s.replicas, s.replicaTimeout)
	}
	return err
}

// master is the client of the server that has key.
func master(ctx context.Context, rdb redis.UniversalClient, key string) (*redis.Client, error) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return rdb.(*redis.Client), nil // New takes no other with Config.Replicas
}

// moved reports whether err says that the key is on another node now, and has the
// client look where. While a slot migrates (ASK) its keys that have gone already
// cannot be written to.
func moved(ctx context.Context, rdb redis.UniversalClient, err error) bool {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok || err == nil || !redis.HasErrorPrefix(err, "MOVED") {
		return false
	}
	cluster.ReloadState(ctx)
	return true
}
