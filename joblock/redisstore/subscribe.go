package redisstore

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// pingEvery is how long the connection of a subscription may be silent until a PING is sent, and then how long the
	// answer may take. A connection without an answer is replaced, because a host that is gone closes no connections.
	// Until then waiters find their grants by polling.
	pingEvery = 3 * time.Second

	// pingTimeout bounds the making of a new connection, and the sending of a PING.
	pingTimeout = 5 * time.Second

	// listenPause is the time between two attempts to listen, while the server cannot be reached.
	listenPause = 100 * time.Millisecond
)

// channel returns the Redis channel for the grants to an inbox. The channel's name begins with the prefix,
// so that keys and channels have the same ACL pattern.
func (s *store) channel(inbox string) string { return s.prefix + "inbox:" + inbox }

// shardChannel returns the shard channel for the grants to an inbox of the keys of one part. Shard channels are for a
// cluster: the shard channel is in the slot of these keys.
func (s *store) shardChannel(part int, inbox string) string { return s.index(part) + "inbox:" + inbox }

// address returns what scripts get about the channels of an inbox. Outside of a cluster that is the channel. In a
// cluster it has two tabs, and inPart writes a hash tag between the tabs. The address without the tabs is then the
// shard channel, and the address without the tabs and the hash tag is the channel.
func (s *store) address(inbox string) string {
	if s.sharded {
		return s.prefix + "\t\tinbox:" + inbox
	}
	return s.channel(inbox)
}

// inPart completes a text that begins with an address, for a call for key.
func (s *store) inPart(key, text string) string {
	if s.sharded {
		return strings.Replace(text, "\t\t", "\t"+s.index(s.part(key))[len(s.prefix):]+"\t", 1)
	}
	return text
}

// sure marks address, with a second tab after the first, as that of a waiter whose shard channel is subscribed to. If
// the channel of such an address has no subscriber later, the waiter has died, or its slot has moved. Without the mark,
// the waiter may be new.
func sure(address string) string { return strings.Replace(address, "\t", "\t\t", 1) }

// forced returns the Redis channel for forced releases.
func (s *store) forced() string { return s.prefix + "forced" }

// jobs returns the Redis channel for grants to waiting jobs.
func (s *store) jobs() string { return s.prefix + driver.JobsInbox }

// notify returns the Redis channel for Notify.
func (s *store) notify() string { return s.prefix + driver.NotifyInbox }

// Notify implements driver.Store. In a cluster the PUBLISH reaches all nodes.
func (s *store) Notify(ctx context.Context, key string) error {
	return s.ops.Publish(ctx, s.notify(), s.name(key)).Err()
}

// Subscribe implements driver.Store. The subscription has a connection of its own. If the connection breaks, go-redis
// makes a new one. In a cluster the connection may be to any node, because a PUBLISH reaches all nodes. There most
// pushes do not come that way: see the type shards. Then the subscription has one more connection to each node that has
// keys for which Acquires with this inbox wait.
func (s *store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (stop func(), err error) {
	return s.subscribe(ctx, inbox, inbox != driver.ForcedInbox && inbox != driver.JobsInbox && inbox != driver.NotifyInbox, deliver)
}

// subscribe is Subscribe. If own is true, the reply to a release of this Store may bring a grant for inbox; otherwise
// every push to inbox goes through the server.
func (s *store) subscribe(ctx context.Context, inbox string, own bool, deliver func(driver.Push)) (stop func(), err error) {
	channel, parse := s.channel(inbox), s.parseGrant
	waits := false // whether calls of this process wait with the inbox
	switch inbox {
	case driver.ForcedInbox:
		channel, parse = s.forced(), s.parseForced
	case driver.JobsInbox:
		channel, parse = s.jobs(), s.parseJob
	case driver.NotifyInbox:
		channel, parse = s.notify(), s.parseNotice
	default:
		waits = true
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
	report := func(text string) {
		if push, ok := parse(text); ok {
			deliver(push)
		}
	}
	stopShards := func() {}
	if cluster, ok := s.ops.(*redis.ClusterClient); ok && waits {
		stopShards = s.shards.add(inbox, newShards(cluster, func(part int) string { return s.shardChannel(part, inbox) }, report))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { listen(ctx, &ear{sub: sub, every: pingEvery}, report) })
	return func() {
		if own {
			s.inboxes.close(s.address(inbox))
		}
		stopShards()
		cancel()
		_ = sub.Close() // an error has no consequence: the subscription ends either way
		running.Wait()
	}, nil
}

// listen calls hear with each message, until ctx ends. If the connection breaks, go-redis makes a new one. The method
// Channel of a redis.PubSub would do the same, but switches goroutines twice more for each message.
func listen(ctx context.Context, from *ear, hear func(text string)) {
	for failed := false; ctx.Err() == nil; {
		m, err := from.next(ctx)
		if text, ok := m.(*redis.Message); ok {
			hear(text.Payload)
		}
		if err != nil && failed {
			pause(ctx, listenPause)
		}
		failed = err != nil
	}
}

// ear reads the connection of a subscription, and finds out whether a silent connection is dead.
type ear struct {
	sub   *redis.PubSub
	every time.Duration // see pingEvery
	asked bool          // a PING has had no answer yet
}

// next returns what comes next through the connection: a message, or an answer to a command. The result is nil if
// nothing has come for e.every, and a PING was sent. After an error the connection is closed, and go-redis makes a new
// one, within a bounded time. A PING without an answer is such an error. An error that the server has answered leaves
// the connection open.
func (e *ear) next(ctx context.Context) (got any, err error) {
	within := e.every + pingTimeout
	if e.asked {
		within = e.every
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if e.asked {
		// After a timeout of ReceiveTimeout go-redis keeps the connection. After the end of a context it does not.
		e.asked = false
		return e.sub.Receive(ctx)
	}
	got, err = e.sub.ReceiveTimeout(ctx, e.every)
	if !isTimeout(err) {
		return got, err
	}
	err = e.sub.Ping(ctx)
	e.asked = err == nil
	return nil, err
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// pause sleeps for d. The result is false if ctx ended first.
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
func (s *store) parseForced(text string) (driver.Push, bool) {
	number, name, _ := strings.Cut(text, "\n")
	fence, err := strconv.ParseInt(number, 10, 64)
	key, ours := s.keyOf(name)
	if err != nil || fence < 1 || !ours {
		return driver.Push{}, false
	}
	return driver.Push{Key: key, Fence: fence}, true
}

// parseJob reads what record.lua publishes when a waiting job gets a key: the job and the Redis key, a line each. Any
// other text is from a stranger, and parseJob returns false.
func (s *store) parseJob(text string) (driver.Push, bool) {
	job, name, _ := strings.Cut(text, "\n")
	key, ours := s.keyOf(name)
	if job == "" || len(job) > driver.MaxLabelBytes || !ours {
		return driver.Push{}, false
	}
	return driver.Push{Key: key, Job: job}, true
}

// parseNotice reads what Notify publishes: the Redis key. Any other text is from a stranger, and parseNotice returns
// false.
func (s *store) parseNotice(name string) (driver.Push, bool) {
	key, ours := s.keyOf(name)
	return driver.Push{Key: key}, ours
}
