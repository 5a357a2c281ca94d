//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// published is how many messages the nodes have sent each other for pushes, to all nodes
// and to those of a shard.
func published(t testing.TB, cluster *redistest.Cluster, dead ...int) (all, shard int64) {
	t.Helper()
	for i := range cluster.Addrs() {
		if slices.Contains(dead, i) {
			continue
		}
		rdb := cluster.Node(i).Client(t)
		text, err := rdb.ClusterInfo(context.Background()).Result()
		if err != nil {
			t.Fatal(err)
		}
		rdb.Close()
		info := parseInfo(text)
		all += info.num("cluster_stats_messages_publish_sent")
		shard += info.num("cluster_stats_messages_publishshard_sent")
	}
	return all, shard
}

// line is one key after the other that is handed from waiter to waiter.
type line struct {
	*kit
	pushed chan driver.Push
}

func newLine(t *testing.T, k *kit) *line {
	l := &line{k, make(chan driver.Push, 100)}
	stop, err := k.Subscribe(t.Context(), "inbox", func(p driver.Push) { l.pushed <- p })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return l
}

// handOver has one call wait for key, and another process release it. It returns once the push is there.
func (l *line) handOver(key string) {
	l.t.Helper()
	ctx := l.t.Context()
	term := l.acquire(key)
	wait := driver.AcquireRequest{Key: key, Owner: "waiter", Nonce: l.nonce(), TTL: long, Retain: long, Inbox: "inbox", Patience: long}
	r, err := l.Acquire(ctx, wait)
	wantOutcome(l.t, "wait", r, err, driver.OutcomeHeld)
	other := must(newStore(l.rdb, nil)) // to which the inbox does not belong
	defer other.Close()
	rs, err := other.Release(ctx, []driver.ReleaseRequest{l.release(term)})
	wantOutcomes(l.t, "release", rs, err, 1, driver.OutcomeOK)
	select {
	case p := <-l.pushed:
		if p.Nonce != wait.Nonce {
			l.t.Errorf("%s: pushed to %q, want %q", key, p.Nonce, wait.Nonce)
		}
	case <-time.After(patience):
		l.t.Fatalf("%s: nothing was pushed", key)
	}
	rs, err = l.Release(ctx, []driver.ReleaseRequest{l.release(driver.Term{Key: key, Owner: "waiter"})})
	wantOutcomes(l.t, "release", rs, err, 1, driver.OutcomeOK)
}

// subscribed returns once the master of key's slot has so many subscribers of the shard channel, or more; with 0, none.
func (l *line) subscribed(cluster *redistest.Cluster, key string, want int64) {
	l.t.Helper()
	channel := l.shardChannel(l.part(key), "inbox")
	rdb := cluster.Node(cluster.Server(cluster.Slot(channel))).Client(l.t)
	defer rdb.Close()
	await(l.t, fmt.Sprintf("%d subscribers of %s", want, channel), func() bool {
		have, err := rdb.PubSubShardNumSub(l.t.Context(), channel).Result()
		return err == nil && (have[channel] == want || have[channel] > want && want > 0)
	})
}

// quietly makes the hand-overs, and fails if the nodes tell each other of them.
func (l *line) quietly(cluster *redistest.Cluster, keys ...string) {
	l.t.Helper()
	for _, key := range keys {
		l.shards.want("inbox", l.part(key), long)
	}
	for _, key := range keys {
		l.subscribed(cluster, key, 1)
	}
	all, shard := published(l.t, cluster)
	for _, key := range keys {
		l.handOver(key)
	}
	if nowAll, nowShard := published(l.t, cluster); nowAll != all || nowShard != shard {
		l.t.Errorf("for %d hand-overs the nodes sent each other %d messages, and %d within shards, want none", len(keys), nowAll-all, nowShard-shard)
	}
}

// What a hand-over costs does not grow with the cluster: only the node with the key and
// the process that waits have to do with it.
func TestHandOversInAClusterArePublishedToOneNode(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	l := newLine(t, newKit(t, cluster.Client(t)))
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprint("key ", i))
	}
	l.quietly(cluster, keys...)

	// A part without a waiter for long is given up, and one with a new waiter is not.
	l.shards.open["inbox"][0].mu.Lock()
	for part, p := range l.shards.open["inbox"][0].parts {
		if left := time.Until(p.until); left < shardLinger {
			l.t.Errorf("the subscription to part %d ends in %s", part, left)
		}
		if part != l.part(keys[0]) {
			p.until = time.Now()
		}
	}
	l.shards.open["inbox"][0].awake()
	l.shards.open["inbox"][0].mu.Unlock()
	l.subscribed(cluster, keys[1], 0)
	l.subscribed(cluster, keys[0], 1)
	l.quietly(cluster, keys...)
}

// Each push arrives, at once, wherever the slot is: no call of this test asks a second time.
func TestPushesFollowSlotsAndMasters(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 1)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	l := newLine(t, newKit(t, cluster.Client(t)))
	const key = "a"
	l.handOver(key) // before anybody has subscribed to the shard channel
	slot := cluster.Slot(l.name(key))
	for _, what := range []string{"away", "on", "back"} {
		move := cluster.BeginMove(slot, (cluster.Server(slot)+1)%3)
		l.handOver(key)
		move.Move(move.Keys()...)
		l.handOver(key)
		l.shards.want("inbox", l.part(key), long)
		l.handOver(key)
		move.Finish()
		l.handOver(key)
		l.t.Log("moved " + what)
	}
	l.subscribed(cluster, key, 1)
	master := cluster.Server(slot)
	cluster.Failover(master)
	await(t, "the new master", func() bool {
		_, err := l.Inspect(t.Context(), driver.InspectRequest{Keys: []string{key}})
		return err == nil
	})
	l.subscribed(cluster, key, 1) // until then both subscriptions may be broken
	before, _ := published(t, cluster, master)
	l.handOver(key)
	if after, _ := published(t, cluster, master); after != before {
		t.Errorf("after the fail-over the nodes sent each other %d messages for a hand-over, want none", after-before)
	}
}

// A user that may not use shard channels has the other channels.
func TestPushesWithoutShardChannels(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	for i := range 3 {
		cluster.Node(i).SetUser(t, "locks", rules(append(slices.Clone(onOne), clusterRights)...)...)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "locks", Password: redistest.Password})
	t.Cleanup(func() { rdb.Close() })
	l := newLine(t, newKit(t, rdb))
	for i := range 6 {
		l.handOver(fmt.Sprint("key ", i))
	}
	await(t, "the shard channels to be given up", func() bool {
		h := l.shards.open["inbox"][0]
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.off && len(h.parts) == 0 && len(h.nodes) == 0
	})
	l.handOver("key")
}

// In a cluster a server knows of a waiter that has died if the waiter's process was subscribed at that server.
func TestClusterKnowsOfWaitersThatHaveDied(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	t.Run("the fast stages", func(t *testing.T) { deadInCluster(t, cluster, "key 1", fastName) })
	t.Run("the general stages", func(t *testing.T) { deadInCluster(t, cluster, "key 2", func(name string) string { return name }) })
}

func deadInCluster(t *testing.T, cluster *redistest.Cluster, key string, name func(string) string) {
	ctx := t.Context()
	k := newKit(t, cluster.Client(t))
	l := &line{k, make(chan driver.Push, 100)}
	inbox := "inbox of " + key // a push of the other test may be late
	stop, err := k.Subscribe(ctx, inbox, func(p driver.Push) { l.pushed <- p })
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	other := must(newStore(l.rdb, nil)) // to which the inbox does not belong
	t.Cleanup(func() { other.Close() })
	// joins has two calls wait for the key: one with the inbox, and one that is new, or whose process the server does not
	// know.
	type waits struct {
		term   driver.Term
		req    driver.AcquireRequest
		behind driver.AcquireRequest
	}
	joins := func() waits {
		r, err := l.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "holder", Nonce: name(l.nonce()), TTL: long, Retain: long})
		wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		w := waits{term: driver.Term{Key: key, Owner: "holder", Fence: r.Fence}}
		w.req = driver.AcquireRequest{Key: key, Owner: "waiter", Nonce: name(l.nonce()), TTL: 3 * long, Retain: long, Inbox: inbox, Patience: long}
		w.behind = w.req
		w.behind.Owner, w.behind.Nonce, w.behind.Inbox = "behind", name(l.nonce()), "unheard"
		for _, req := range []driver.AcquireRequest{w.req, w.behind} {
			r, err := l.Acquire(ctx, req)
			wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
		}
		return w
	}
	// lease releases the key, and returns the lease of the next owner.
	lease := func(term driver.Term, owner string) time.Duration {
		t.Helper()
		release := l.release(term)
		release.Nonce = name(release.Nonce)
		rs, err := other.Release(ctx, []driver.ReleaseRequest{release})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		recs, err := l.Inspect(ctx, driver.InspectRequest{Keys: []string{term.Key}})
		if err != nil || recs[0].Owner != owner || recs[0].State != driver.StateHeld {
			t.Fatalf("after the release: %+v, %v", recs, err)
		}
		return recs[0].Lease
	}
	free := func(owner string) {
		t.Helper()
		release := l.release(driver.Term{Key: key, Owner: owner})
		release.Nonce = name(release.Nonce)
		rs, err := l.Release(ctx, []driver.ReleaseRequest{release})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	}
	first, err := l.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "first", Nonce: name(l.nonce()), TTL: long, Retain: long})
	wantOutcome(t, "acquire", first, err, driver.OutcomeOK)
	free("first") // the fast stages need a record that was released before
	await(t, "the subscription", func() bool { return l.shards.want(inbox, l.part(key), long) })

	alive := joins()
	if d := lease(alive.term, "waiter"); d <= 2*long {
		t.Errorf("the waiter that lives has a lease of %s, want %s", d, alive.req.TTL)
	}
	if p := <-l.pushed; p.Nonce != alive.req.Nonce {
		t.Errorf("pushed %+v", p)
	}
	// Of who is behind the server has never known.
	recs, err := l.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
	if err != nil {
		t.Fatal(err)
	}
	if d := lease(driver.Term{Key: key, Owner: "waiter", Fence: recs[0].Fence}, "behind"); d <= 2*long {
		t.Errorf("the waiter that may be new has a lease of %s, want %s", d, alive.behind.TTL)
	}
	free("behind")

	dead := joins()
	stop()
	l.subscribed(cluster, key, 0)
	if d := lease(dead.term, "waiter"); d > long+time.Millisecond {
		t.Errorf("the waiter that has died has a lease of %s, want no more than its place, %s", d, long)
	}
	r, err := l.Acquire(ctx, dead.req)
	wantOutcome(t, "ask", r, err, driver.OutcomeOK)
	if r.Lease <= 2*long {
		t.Errorf("the waiter that asks has a lease of %s, want %s", r.Lease, dead.req.TTL)
	}
}
