package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// Peer is a lock library connected to a server.
type Peer interface {
	// Acquire takes the lock on key, waiting as the library waits until ctx ends.
	// ctx has a deadline: some libraries give up early without one.
	Acquire(ctx context.Context, key string) (Held, error)

	// Close gives up what is held and closes all connections.
	Close() error
}

// Held is one held lock.
type Held interface {
	Release(ctx context.Context) error
}

// Refresher is a Held that does not renew itself: its user has to.
type Refresher interface {
	Refresh(ctx context.Context, ttl time.Duration) error
}

// Loser is a Held that renews itself, and knows if that has failed.
type Loser interface {
	Lost() bool
}

// Options are what all libraries are given.
type Options struct {
	Addr string
	Wire *rig.Wire
	TTL  time.Duration

	// Places makes what joblock grants Placed.
	Places bool

	// Seat is this process's place among the Seats processes of Publish, from 0. Seats is
	// 0 for a process that only begins.
	Seat, Seats int

	// Again is how long an Acquire of rueidislock may take before it is made anew; 0
	// is for ever. Without loop tracking an attempt of its that fails once, on a machine
	// that stands still, is woken by nobody. Not for measuring: it allocates.
	Again time.Duration
}

// Name is the name of a library in the results.
type Name string

// The libraries. Floor and Publish are none: Floor is what two commands through go-redis
// cost, and Publish what a message through go-redis costs that a script sends.
const (
	Floor       Name = "floor"
	Publish     Name = "publish"
	Joblock     Name = "joblock"
	Redislock   Name = "redislock"
	Redsync     Name = "redsync"
	Rueidislock Name = "rueidislock"
)

// All returns every library, and the floor of acquiring and releasing.
func All() []Name { return append([]Name{Floor}, Libraries()...) }

// Libraries returns those that wait and that can be renewed.
func Libraries() []Name { return []Name{Joblock, Redislock, Redsync, Rueidislock} }

// Open connects a library to the server.
func Open(name Name, o Options) (Peer, error) {
	switch name {
	case Floor:
		return openFloor(o), nil
	case Publish:
		return openPublish(o)
	case Joblock:
		return openJoblock(o)
	case Redislock:
		return openRedislock(o), nil
	case Redsync:
		return openRedsync(o), nil
	case Rueidislock:
		return openRueidislock(o)
	}
	return nil, fmt.Errorf("no such library: %q", name)
}

// Commands returns the commands that a library sends to acquire and to release, as the server
// names them in its statistics. No script of that library runs one of them.
func Commands(name Name) []string {
	if name == Floor || name == Redsync {
		return []string{"set", "evalsha"}
	}
	return []string{"evalsha"}
}

// poolSize is above the parallelism of every measurement without waiters.
const poolSize = 64

func goRedis(o Options) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: o.Addr, Dialer: o.Wire.Dial, PoolSize: poolSize})
}
