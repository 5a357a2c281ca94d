package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// pingEvery is how often a subscription's connection is tested by a write. After a write that fails, the connection
	// is replaced. If the connection has died in silence, writes fail only when the operating system gives up, which
	// may take minutes. Until then waiters find their grants by asking.
	pingEvery = 3 * time.Second

	// pingTimeout bounds a test, which may have to make a new connection.
	pingTimeout = 5 * time.Second

	// listenPause lies between two attempts to listen, while the server cannot be reached.
	listenPause = 100 * time.Millisecond
)

// The method channel returns the Redis channel for the grants to an inbox. The channel's name begins with the prefix,
// so that keys and channels have the same ACL pattern.
func (s *Store) channel(inbox string) string { return s.prefix + "inbox:" + inbox }

// shardChannel returns the shard channel for the grants to an inbox of the keys of one part. Shard channels are for a
// cluster: the shard channel is in the slot of these keys.
func (s *Store) shardChannel(part int, inbox string) string { return s.index(part) + "inbox:" + inbox }

// The method address returns what scripts are told about the channels of an inbox: the channel. In a cluster the
// address has two tabs more, and the method inPart writes a hash tag between the tabs. Without the tabs this is the
// shard channel, and without what lies between the tabs it is the channel.
func (s *Store) address(inbox string) string {
	if s.sharded {
		return s.prefix + "\t\tinbox:" + inbox
	}
	return s.channel(inbox)
}

// The method inPart completes a text that begins with an address, for a call for key.
func (s *Store) inPart(key, text string) string {
	if s.sharded {
		return strings.Replace(text, "\t\t", "\t"+s.index(s.part(key))[len(s.prefix):]+"\t", 1)
	}
	return text
}

// The method forced returns the Redis channel for forced releases.
func (s *Store) forced() string { return s.prefix + "forced" }

// Subscribe implements driver.Store. The subscription has a connection of its own. If the connection breaks, go-redis
// makes a new one. In a cluster the connection may be to any node, because a PUBLISH reaches all nodes. There most
// pushes do not come that way: see the type shards. Then the subscription has one more connection to each node that has
// keys for which Acquires with this inbox wait.
func (s *Store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (stop func(), err error) {
	return s.subscribe(ctx, inbox, inbox != driver.ForcedInbox, deliver)
}

// The method subscribe is Subscribe, with a choice. If own is true, the reply to a release of this Store may bring a
// grant for inbox. If own is false, every push to inbox goes through the server.
func (s *Store) subscribe(ctx context.Context, inbox string, own bool, deliver func(driver.Push)) (stop func(), err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	channel, parse := s.channel(inbox), s.parseGrant
	if inbox == driver.ForcedInbox {
		channel, parse = s.forced(), s.parseForced
	}
	sub := s.ops.Subscribe(ctx, channel)
	// Wait until the server confirms the subscription: pushes before the confirmation do not arrive.
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	if own {
		s.inboxes.open(s.address(inbox), deliver)
		s.proofs.load(s)
	}
	told := func(text string) {
		if push, ok := parse(text); ok {
			deliver(push)
		}
	}
	stopShards := func() {}
	if cluster, ok := s.ops.(*redis.ClusterClient); ok && inbox != driver.ForcedInbox {
		stopShards = s.shards.add(inbox, newShards(cluster, func(part int) string { return s.shardChannel(part, inbox) }, told))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { listen(ctx, sub, told) })
	running.Go(func() { ping(ctx, sub) })
	return func() {
		if own {
			s.inboxes.close(s.address(inbox))
		}
		stopShards()
		cancel()
		_ = sub.Close() // an error has no consequence: the subscription is over either way
		running.Wait()
	}, nil
}

// The function listen calls the function hear with each message, until ctx ends. If the connection breaks, sub makes a
// new one. The method Channel of sub would do the same with two more switches of goroutines for each message.
func listen(ctx context.Context, sub *redis.PubSub, hear func(text string)) {
	for failed := false; ctx.Err() == nil; {
		m, err := sub.Receive(ctx)
		if text, ok := m.(*redis.Message); ok {
			hear(text.Payload)
		}
		if err != nil && failed {
			pause(ctx, listenPause)
		}
		failed = err != nil
	}
}

// The function ping tests the connection of sub from time to time, until ctx ends. If a test fails, sub makes a new
// connection.
func ping(ctx context.Context, sub *redis.PubSub) {
	for pause(ctx, pingEvery) {
		bounded, cancel := context.WithTimeout(ctx, pingTimeout)
		_ = sub.Ping(bounded)
		cancel()
	}
}

// The function pause sleeps for d. The result is false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// parseForced reads what release.lua publishes: the fence and the Redis key, a line each. Any other text is from a
// stranger, and parseForced returns false.
func (s *Store) parseForced(text string) (driver.Push, bool) {
	number, name, _ := strings.Cut(text, "\n")
	fence, err := strconv.ParseInt(number, 10, 64)
	key, ours := s.keyOf(name)
	if err != nil || fence < 1 || !ours {
		return driver.Push{}, false
	}
	return driver.Push{Key: key, Fence: fence}, true
}
