package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
)

const (
	// pushBuffer is how many grants may wait for delivery. Delivering does not
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

// Listen implements joblock.Store with one subscription on a connection of its
// own, which is made anew whenever it breaks. In a cluster a PUBLISH reaches every
// node, so it does not matter which one it is made to.
func (s *Store) Listen(ctx context.Context, inbox string, deliver func(joblock.Grant)) (stop func(), err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	sub := s.ops.Subscribe(ctx, s.channel(inbox))
	// Subscribed only once the server says so: before that a grant could be missed
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
			// What nobody here has published is nobody's grant.
			if g, ok := parseGrant(m.Payload); ok {
				deliver(g)
			}
		}
	}()
	return func() {
		_ = sub.Close() // of no consequence: the subscription is over either way
		<-done
	}, nil
}

// parseGrant reads what grant in queue.lua publishes: nonce, fence, time in
// microseconds, end of the previous ownership, memo, a line each.
func parseGrant(text string) (joblock.Grant, bool) {
	parts := strings.SplitN(text, "\n", 5)
	if len(parts) != 5 {
		return joblock.Grant{}, false
	}
	fence, ferr := strconv.ParseInt(parts[1], 10, 64)
	us, terr := strconv.ParseInt(parts[2], 10, 64)
	ended, known := endings[parts[3]]
	if ferr != nil || terr != nil || fence < 1 || us < 1 || !known {
		return joblock.Grant{}, false
	}
	g := joblock.Grant{Nonce: parts[0], Fence: fence, At: time.UnixMicro(us), Ended: ended}
	if parts[4] != "" {
		g.Memo = []byte(parts[4])
	}
	return g, true
}
