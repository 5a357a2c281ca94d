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
	// pushBuffer is how many pushes may wait for delivery. Delivering does not
	// block, so this is for bursts; go-redis drops what finds it full for
	// pushTimeout, and then asking finds the grant.
	pushBuffer  = 1000
	pushTimeout = time.Second

	// pingEvery is how soon a subscription whose connection died in silence is
	// made anew. Until then waiters live by asking.
	pingEvery = 3 * time.Second
)

// channel is where the grants for an inbox are published. It begins with the
// prefix, so that one ACL pattern covers keys and channels.
func (s *Store) channel(inbox string) string { return s.prefix + "inbox:" + inbox }

// forced is where releases with Force are published.
func (s *Store) forced() string { return s.prefix + "forced" }

// Listen implements driver.Store.
func (s *Store) Listen(ctx context.Context, inbox string, deliver func(nonce string)) (stop func(), err error) {
	return s.subscribe(ctx, s.channel(inbox), deliver)
}

// Watch implements driver.Store.
func (s *Store) Watch(ctx context.Context, deliver func(driver.Forced)) (stop func(), err error) {
	return s.subscribe(ctx, s.forced(), func(text string) {
		if f, ok := s.parseForced(text); ok {
			deliver(f)
		}
	})
}

// subscribe delivers what is published to a channel. The subscription has a
// connection of its own, which is made anew whenever it breaks. In a cluster a
// PUBLISH reaches every node, so it does not matter which one it is made to.
func (s *Store) subscribe(ctx context.Context, channel string, deliver func(text string)) (stop func(), err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	sub := s.ops.Subscribe(ctx, channel)
	// Subscribed only once the server says so: before that a push could be missed
	// without a reconnection as its reason.
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	messages := sub.Channel(
		redis.WithChannelSize(pushBuffer),
		redis.WithChannelSendTimeout(pushTimeout),
		redis.WithChannelHealthCheckInterval(pingEvery),
	)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range messages {
			deliver(m.Payload)
		}
	}()
	return func() {
		_ = sub.Close() // of no consequence: the subscription is over either way
		<-done
	}, nil
}

// parseForced reads what release.lua publishes: fence and key in Redis, a line each.
// What nobody here has published is nobody's lock.
func (s *Store) parseForced(text string) (driver.Forced, bool) {
	number, name, _ := strings.Cut(text, "\n")
	fence, err := strconv.ParseInt(number, 10, 64)
	key, ours := strings.CutPrefix(name, s.prefix)
	if err != nil || fence < 1 || !ours || key == "" {
		return driver.Forced{}, false
	}
	return driver.Forced{Key: key, Fence: fence}, true
}
