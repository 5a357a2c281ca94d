package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/hashtag"
)

const (
	// shardTimeout bounds each attempt to subscribe at a node.
	shardTimeout = time.Second

	// shardPause is the least time between two attempts to subscribe to a part. A client takes about that long to
	// notice a moved slot or a new master.
	shardPause = 200 * time.Millisecond

	// shardLinger is how long the subscription to a part outlasts the last wait there. An idle subscription costs next
	// to nothing. The first push to a new one may come before the subscription exists, and then goes to all nodes.
	shardLinger = 10 * time.Minute

	// shardAvoid is how long the Store does not subscribe at a node whose shard channels must not be used.
	shardAvoid = time.Minute
)

// shards is the part of a subscription that only a cluster has: the subscriptions to the shard channels of one
// inbox. The server hands a message on a shard channel only to the node that has the channel's slot. Without shard
// channels, each push goes to all nodes.
//
// There is a shard channel for each part of the locks. A shards is subscribed to the channels of those parts in which
// this process waits for a key, through one connection for each node. No call waits for the subscription. A push that
// no subscriber of the shard channel has got is published to all nodes: see the stage write in record.lua. So no push
// is lost because a slot moves, or because the shard channel is not subscribed to yet.
type shards struct {
	cluster *redis.ClusterClient
	channel func(part int) string
	deliver func(text string)

	ctx  context.Context // ends with stop
	end  context.CancelFunc
	wake chan struct{} // holds at most one value: parts has changed
	work sync.WaitGroup

	avoid map[*redis.Client]time.Time // until when; only the goroutine of run uses it

	mu    sync.Mutex // guards the fields below
	parts map[int]*shardPart
	nodes map[*redis.Client]*shardNode
	off   bool // the server has no shard channels, or this user may not use them
}

// shardPart is a part of the locks that has a lock for which this process waits.
type shardPart struct {
	until time.Time  // when the last place ends that this process has taken in a queue of the part, plus shardLinger
	node  *shardNode // where the part's channel is subscribed to, or nil
	sure  bool       // the node has confirmed the subscription
	again time.Time  // when the next attempt may begin
}

// shardNode is the connection to one node.
type shardNode struct {
	client *redis.Client
	sub    *redis.PubSub
}

func newShards(cluster *redis.ClusterClient, channel func(part int) string, deliver func(text string)) *shards {
	h := &shards{
		cluster: cluster, channel: channel, deliver: deliver, wake: make(chan struct{}, 1),
		parts: make(map[int]*shardPart), nodes: make(map[*redis.Client]*shardNode), avoid: make(map[*redis.Client]time.Time),
	}
	h.ctx, h.end = context.WithCancel(context.Background())
	h.work.Go(h.run)
	return h
}

// stop ends all subscriptions, and waits for a call of deliver that has begun.
func (h *shards) stop() {
	h.end()
	h.mu.Lock()
	for _, node := range h.nodes {
		_ = node.sub.Close() // the subscription is over either way
	}
	h.mu.Unlock()
	h.work.Wait()
}

// want notes that this process waits in part, for at most patience from now. sure reports whether the part's channel is
// subscribed to.
func (h *shards) want(part int, patience time.Duration) (sure bool) {
	until := time.Now().Add(patience + shardLinger)
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.parts[part]
	if p == nil && h.off {
		return false
	}
	if p == nil {
		p = &shardPart{}
		h.parts[part] = p
		h.awake()
	}
	if until.After(p.until) {
		p.until = until
	}
	return p.sure
}

func (h *shards) awake() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run subscribes to the channels that are wanted, and gives up those that are no longer wanted.
func (h *shards) run() {
	timer := time.NewTimer(pingEvery)
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.wake:
		case <-timer.C:
		}
		pause := pingEvery
		if !h.settle() {
			pause = shardPause
		}
		timer.Reset(pause)
	}
}

// settle makes one attempt for each part, and reports whether all parts are subscribed to.
func (h *shards) settle() (all bool) {
	now := time.Now()
	all = true
	var missing []int
	over := make(map[int]*shardNode)
	h.mu.Lock()
	for part, p := range h.parts {
		switch {
		case h.off || now.After(p.until):
			delete(h.parts, part)
			if p.node != nil {
				over[part] = p.node
			}
		case p.node == nil && now.Before(p.again):
			all = all && p.again.Sub(now) > shardPause
		case p.node == nil:
			p.again = now.Add(shardPause)
			missing = append(missing, part)
		}
	}
	h.mu.Unlock()
	for part, node := range over {
		h.tell(node, node.sub.SUnsubscribe, part)
	}
	dead := make(map[*redis.Client]bool)
	for _, part := range missing {
		all = h.subscribe(part, dead) && all
	}
	return all
}

// subscribe subscribes to the channel of a part, at the node that has the slot as far as the client knows.
// dead has the nodes that did not answer before: such a node would hold up the other parts once more.
func (h *shards) subscribe(part int, dead map[*redis.Client]bool) bool {
	ctx, cancel := context.WithTimeout(h.ctx, shardTimeout)
	client, err := h.cluster.MasterForKey(ctx, h.channel(part))
	cancel()
	if err != nil || dead[client] {
		return false
	}
	h.mu.Lock()
	node, known := h.nodes[client]
	p := h.parts[part]
	if again := h.avoid[client]; !known && p != nil && time.Now().Before(again) {
		p.again = again
		p = nil
	}
	if p == nil || h.ctx.Err() != nil {
		h.mu.Unlock()
		return true
	}
	if !known {
		node = &shardNode{client: client, sub: client.SSubscribe(h.ctx)} // without a channel, this only makes the PubSub
		h.nodes[client] = node
	}
	p.node, p.sure = node, false
	h.mu.Unlock()
	if !known && !h.able(node) || !h.tell(node, node.sub.SSubscribe, part) {
		dead[client] = true
		return false
	}
	if !known {
		h.work.Go(func() { h.receive(node) })
	}
	return true
}

// able reports whether shard channels may be used at a node, and gives up a node where they may not.
//
// A server from 7.2 on that has read a nodes.conf of an older server is not in its own list of shards, until its next
// start (github.com/redis/redis/pull/14495). A SPUBLISH from any client crashes such a server. able asks when the
// connection of the subscription exists: the server cannot restart in between without breaking that connection.
func (h *shards) able(node *shardNode) bool {
	ctx, cancel := context.WithTimeout(h.ctx, shardTimeout)
	defer cancel()
	err := node.sub.Ping(ctx)
	listed := false
	if err == nil {
		listed, err = inOwnShards(ctx, node.client)
	}
	switch {
	case err == nil && listed:
		return true
	case err == nil:
		h.avoid[node.client] = time.Now().Add(shardAvoid)
	case denied(err):
		h.mu.Lock()
		h.off = true
		h.mu.Unlock()
	}
	h.lose(node)
	return false
}

// inOwnShards reports whether a node of a cluster is in its own list of shards.
func inOwnShards(ctx context.Context, node *redis.Client) (bool, error) {
	id, err := node.Do(ctx, "cluster", "myid").Text()
	if err != nil {
		return false, err
	}
	shards, err := node.ClusterShards(ctx).Result()
	return slices.ContainsFunc(shards, func(s redis.ClusterShard) bool {
		return slices.ContainsFunc(s.Nodes, func(n redis.Node) bool { return n.ID == id })
	}), err
}

// tell sends one command about the channel of a part. If that fails, tell gives up the node.
func (h *shards) tell(node *shardNode, command func(context.Context, ...string) error, part int) bool {
	ctx, cancel := context.WithTimeout(h.ctx, shardTimeout)
	defer cancel()
	err := command(ctx, h.channel(part))
	if err != nil {
		h.lose(node)
	}
	return err == nil
}

// lose gives up a node's connection. The parts that were subscribed to there need a new subscription.
func (h *shards) lose(node *shardNode) {
	_ = node.sub.Close() // the connection may be broken
	h.cluster.ReloadState(h.ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nodes[node.client] == node {
		delete(h.nodes, node.client)
	}
	for _, p := range h.parts {
		if p.node == node {
			p.node, p.sure = nil, false
		}
	}
	h.awake()
}

// moved notes that node no longer has the subscriptions of those parts for which match returns true.
func (h *shards) moved(node *shardNode, match func(part int) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for part, p := range h.parts {
		if p.node == node && match(part) {
			p.node, p.sure = nil, false
			h.cluster.ReloadState(h.ctx)
			h.awake()
		}
	}
}

// receive reads what a node sends, until the connection breaks.
func (h *shards) receive(node *shardNode) {
	defer h.lose(node)
	from := &ear{sub: node.sub, every: pingEvery}
	for {
		// go-redis reconnects, but then names all channels in one command, which the server refuses.
		// So receive gives the connection up.
		got, err := from.next(h.ctx)
		var refused redis.Error
		switch {
		case h.ctx.Err() != nil:
			return
		case errors.As(err, &refused):
			if !h.refused(node, refused) {
				return
			}
			continue
		case err != nil:
			return
		}
		switch got := got.(type) {
		case *redis.Message:
			h.deliver(got.Payload)
		case *redis.Subscription:
			switch got.Kind {
			case "ssubscribe":
				h.confirmed(node, got.Channel)
			case "sunsubscribe":
				h.moved(node, func(part int) bool { return h.channel(part) == got.Channel })
			}
		}
	}
}

// confirmed records that node has confirmed the subscription to a channel.
func (h *shards) confirmed(node *shardNode, channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for part, p := range h.parts {
		if p.node == node && h.channel(part) == channel {
			p.sure = true
		}
	}
}

// refused handles an error that a node has answered, and reports whether the connection can still be used.
func (h *shards) refused(node *shardNode, err redis.Error) bool {
	if words := strings.Fields(err.Error()); len(words) == 3 && words[0] == "MOVED" {
		slot, serr := strconv.Atoi(words[1])
		h.moved(node, func(part int) bool { return part == hashtag.OfSlot(slot) })
		return serr == nil
	}
	if denied(err) {
		h.mu.Lock()
		h.off = true
		h.mu.Unlock()
		h.awake()
	}
	return false
}

// shardInboxes has the shards of each inbox that a Store is subscribed to.
type shardInboxes struct {
	mu   sync.RWMutex
	open map[string][]*shards
}

func (i *shardInboxes) add(inbox string, h *shards) (stop func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.open == nil {
		i.open = make(map[string][]*shards)
	}
	i.open[inbox] = append(i.open[inbox], h)
	return func() {
		i.mu.Lock()
		i.open[inbox] = slices.DeleteFunc(i.open[inbox], func(of *shards) bool { return of == h })
		if len(i.open[inbox]) == 0 {
			delete(i.open, inbox)
		}
		i.mu.Unlock()
		h.stop()
	}
}

// want notes that an Acquire with this inbox is about to wait. sure reports whether the inbox is subscribed to at the
// node of the part.
func (i *shardInboxes) want(inbox string, part int, patience time.Duration) (sure bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	for _, h := range i.open[inbox] {
		sure = h.want(part, patience) || sure
	}
	return sure
}
