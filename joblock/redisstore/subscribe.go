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
	// pushBuffer is how many pushes may wait for delivery. It is for bursts, because
	// deliver does not block. If it is full for pushTimeout, go-redis drops the next push,
	// and the waiter finds its grant by asking.
	pushBuffer  = 1000
	pushTimeout = time.Second

	// pingEvery is how often a subscription's connection is tested. If it has died in
	// silence, it is replaced. Until then waiters find their grants by asking.
	pingEvery = 3 * time.Second
)

// channel is the Redis channel for the grants to an inbox. It begins with the prefix, so
// that keys and channels have the same ACL pattern.
func (s *Store) channel(inbox string) string { return s.prefix + "inbox:" + inbox }

// forced is the Redis channel for forced releases.
func (s *Store) forced() string { return s.prefix + "forced" }

// Subscribe implements driver.Store. The subscription has a connection of its own, which is
// replaced when it breaks. In a cluster any node will do, because a PUBLISH reaches all.
func (s *Store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (stop func(), err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	channel, parse := s.channel(inbox), s.parseGrant
	if inbox == driver.ForcedInbox {
		channel, parse = s.forced(), s.parseForced
	}
	sub := s.ops.Subscribe(ctx, channel)
	// Wait until the server confirms the subscription: pushes before that are missed.
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	messages := sub.Channel(
		redis.WithChannelSize(pushBuffer),
		redis.WithChannelSendTimeout(pushTimeout),
		redis.WithChannelHealthCheckInterval(pingEvery),
	)
	own := inbox != driver.ForcedInbox
	if own {
		s.inboxes.open(channel, deliver)
		s.proofs.load(ctx, s)
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
		_ = sub.Close() // of no consequence: the subscription is over either way
		<-done
	}, nil
}

// parseForced reads what release.lua publishes: the fence and the Redis key, a line each.
// Anything else was published by a stranger, and is ignored.
func (s *Store) parseForced(text string) (driver.Push, bool) {
	number, name, _ := strings.Cut(text, "\n")
	fence, err := strconv.ParseInt(number, 10, 64)
	key, ours := strings.CutPrefix(name, s.prefix)
	if err != nil || fence < 1 || !ours || key == "" {
		return driver.Push{}, false
	}
	return driver.Push{Key: key, Fence: fence}, true
}
