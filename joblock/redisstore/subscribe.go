package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// pushBuffer is how many pushes may wait for delivery. The buffer is for bursts, because the function deliver does
	// not block. If the buffer is full for pushTimeout, go-redis drops the next push. Then the waiter finds its grant
	// by asking.
	pushBuffer  = 1000
	pushTimeout = time.Second

	// pingEvery is how often a subscription's connection is tested. A connection that has died in silence is replaced
	// after the test. Until then waiters find their grants by asking.
	pingEvery = 3 * time.Second
)

// The method channel returns the Redis channel for the grants to an inbox. The channel's name begins with the prefix,
// so that keys and channels have the same ACL pattern.
func (s *Store) channel(inbox string) string { return s.prefix + "inbox:" + inbox }

// The method forced returns the Redis channel for forced releases.
func (s *Store) forced() string { return s.prefix + "forced" }

// Subscribe implements driver.Store. The subscription has a connection of its own. If the connection breaks, go-redis
// makes a new one. In a cluster the connection may be to any node, because a PUBLISH reaches all nodes.
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
	messages := sub.Channel(
		redis.WithChannelSize(pushBuffer),
		redis.WithChannelSendTimeout(pushTimeout),
		redis.WithChannelHealthCheckInterval(pingEvery),
	)
	if own {
		s.inboxes.open(channel, deliver)
		s.proofs.load(s)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range messages {
			if push, ok := parse(m.Payload); ok {
				deliver(push)
			}
		}
	}()
	return func() {
		if own {
			s.inboxes.close(channel)
		}
		_ = sub.Close() // an error has no consequence: the subscription is over either way
		<-done
	}, nil
}

// parseForced reads what release.lua publishes: the fence and the Redis key, a line each. Any other text is from a
// stranger, and parseForced returns false.
func (s *Store) parseForced(text string) (driver.Push, bool) {
	number, name, _ := strings.Cut(text, "\n")
	fence, err := strconv.ParseInt(number, 10, 64)
	key, ours := strings.CutPrefix(name, s.prefix)
	if err != nil || fence < 1 || !ours || key == "" {
		return driver.Push{}, false
	}
	return driver.Push{Key: key, Fence: fence}, true
}
