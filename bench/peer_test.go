//go:build servers

package bench

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// peer is a lock library that is connected to a server.
type peer interface {
	// Acquire takes the lock on key. It waits as the library waits, until ctx ends. ctx has a deadline.
	Acquire(ctx context.Context, key string) (held, error)

	// Close gives up what is held and closes all connections.
	Close() error
}

type held interface {
	Release(ctx context.Context) error
}

// seat is what a peer is connected to, and its place among the processes that wait.
type seat struct {
	Addr string
	wire *wire

	// Seat is the number of this process, from 0, and Seats is how many there are. Seats is 0 for a process that does
	// not wait.
	Seat, Seats int
}

// peers are the libraries, by the names in the results. "floor" is what two commands cost, "publish" what one script and
// one message cost; neither is a lock of use.
var peers = map[string]func(seat) (peer, error){
	"floor":       openFloor,
	"publish":     openPublish,
	"joblock":     openJoblock,
	"redislock":   openRedislock,
	"redsync":     openRedsync,
	"rueidislock": openRueidislock,
}

// open connects a library, and closes it at the end of the test.
func open(t testing.TB, name string, s seat) peer {
	t.Helper()
	p, err := peers[name](s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func goRedis(s seat) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, Dialer: s.wire.Dial, PoolSize: 64})
}

// closing returns a context for Close.
func closing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

type joblockPeer struct {
	rdb   *redis.Client
	locks *joblock.Locker
}

func openJoblock(s seat) (peer, error) {
	rdb := goRedis(s)
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: leaseTTL, Logger: slog.New(slog.DiscardHandler)})
	return joblockPeer{rdb, locks}, err
}

func (p joblockPeer) Acquire(ctx context.Context, key string) (held, error) {
	lock, err := p.locks.Acquire(ctx, key)
	return (*joblockHeld)(lock), err
}

func (p joblockPeer) Close() error {
	ctx, cancel := closing()
	defer cancel()
	return errors.Join(p.locks.Close(ctx), p.rdb.Close())
}

// joblockHeld is a Lock by another name: a struct around it would be an allocation.
type joblockHeld joblock.Lock

func (h *joblockHeld) Release(ctx context.Context) error { return (*joblock.Lock)(h).Release(ctx) }

var compareAndDelete = redis.NewScript(
	`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

// floor is the least that a safe lock needs. It does not wait.
type floor struct{ *redis.Client }

func openFloor(s seat) (peer, error) { return floor{goRedis(s)}, nil }

func (f floor) Acquire(ctx context.Context, key string) (held, error) {
	value := rand.Text()
	return floorHeld{f, key, value}, f.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: leaseTTL}).Err()
}

type floorHeld struct {
	floor
	key, value string
}

func (h floorHeld) Release(ctx context.Context) error {
	return compareAndDelete.Run(ctx, h.Client, []string{h.key}, h.value).Err()
}

// redislockPeer waits with the backoff of redislock's own examples.
type redislockPeer struct{ *redis.Client }

func openRedislock(s seat) (peer, error) { return redislockPeer{goRedis(s)}, nil }

func (p redislockPeer) Acquire(ctx context.Context, key string) (held, error) {
	return redislock.Obtain(ctx, p.Client, key, leaseTTL,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
}

type redsyncPeer struct {
	*redis.Client
	lib *redsync.Redsync
}

func openRedsync(s seat) (peer, error) {
	rdb := goRedis(s)
	return redsyncPeer{rdb, redsync.New(goredis.NewPool(rdb))}, nil
}

// Acquire waits with redsync's own pauses, but tries more often than 32 times.
func (p redsyncPeer) Acquire(ctx context.Context, key string) (held, error) {
	m := p.lib.NewMutex(key, redsync.WithExpiry(leaseTTL), redsync.WithTries(math.MaxInt))
	return redsyncHeld{m}, m.LockContext(ctx)
}

type redsyncHeld struct{ *redsync.Mutex }

func (h redsyncHeld) Release(ctx context.Context) error {
	ok, err := h.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("redsync: not held")
	}
	return err
}

type rueidislockPeer struct{ rueidislock.Locker }

// openRueidislock chooses one key per lock, as the other libraries have, and NoLoopTracking, without which an extended
// lock wakes itself and sends tens of thousands of commands a second.
func openRueidislock(s seat) (peer, error) {
	lib, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{s.Addr},
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return s.wire.Dial(ctx, "tcp", addr)
			},
		},
		KeyValidity: leaseTTL, ExtendInterval: leaseTTL / 3, KeyMajority: 1, NoLoopTracking: true,
	})
	return rueidislockPeer{lib}, err
}

// Acquire gives each attempt 5 s: without loop tracking an attempt that fails on a busy machine is never woken.
func (p rueidislockPeer) Acquire(ctx context.Context, key string) (held, error) {
	for {
		attempt, cancel := context.WithCancel(ctx) // no deadline, since its end is the end of the lock
		timer := time.AfterFunc(5*time.Second, cancel)
		_, release, err := p.WithContext(attempt, key)
		if err == nil && timer.Stop() {
			return rueidislockHeld(func() { release(); cancel() }), nil
		}
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

func (p rueidislockPeer) Close() error {
	p.Locker.Close()
	return nil
}

type rueidislockHeld context.CancelFunc

// Release returns when the server has answered.
func (h rueidislockHeld) Release(context.Context) error {
	h()
	return nil
}

var passOn = redis.NewScript(`redis.call("SET", KEYS[1], ARGV[1]) return redis.call("PUBLISH", ARGV[2], ARGV[1])`)

// publish is the least that a hand-over by a push needs: a script that writes and publishes, and a subscriber. The
// processes take turns, and so do the waiters of one process.
type publish struct {
	seat
	*redis.Client
	sub  *redis.PubSub // nil for a process that does not wait
	told <-chan *redis.Message
}

func openPublish(s seat) (peer, error) {
	p := publish{seat: s, Client: goRedis(s)}
	if s.Seats == 0 {
		return p, nil
	}
	p.sub = p.Subscribe(context.Background(), channelOf(s.Seat))
	_, err := p.sub.Receive(context.Background()) // the server's confirmation
	p.told = p.sub.Channel(redis.WithChannelHealthCheckInterval(0))
	return p, err
}

func channelOf(seat int) string { return fmt.Sprintf("baton:%d", seat) }

// Acquire returns at once to the first caller that asks for key. All others wait for a message.
func (p publish) Acquire(ctx context.Context, key string) (held, error) {
	err := p.SetArgs(ctx, key, "first", redis.SetArgs{Mode: "NX", TTL: leaseTTL}).Err()
	if !errors.Is(err, redis.Nil) {
		return baton{p, key, p.Seats > 0}, err
	}
	select {
	case <-p.told:
		return baton{p, key, false}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p publish) Close() error {
	var err error
	if p.sub != nil {
		err = p.sub.Close()
	}
	return errors.Join(err, p.Client.Close())
}

type baton struct {
	publish
	key  string
	mute bool // release without a message: a waiter's warm-up
}

// Release passes on to the next process. A process that does not wait passes on to the first one.
func (b baton) Release(ctx context.Context) error {
	next := 0
	switch {
	case b.mute:
		next = -1
	case b.Seats > 0:
		next = (b.Seat + 1) % b.Seats
	}
	return passOn.Run(ctx, b.Client, []string{b.key}, "again", channelOf(next)).Err()
}

func TestEveryPeerExcludesAndHandsOver(t *testing.T) {
	server := redistest.Start(t)
	for name := range peers {
		if name == "floor" {
			continue // does not wait
		}
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s := seat{Addr: server.Addr(), wire: new(wire)}
			first, err := open(t, name, s).Acquire(ctx, "key:"+name)
			if err != nil {
				t.Fatal(err)
			}
			s.Seats = 1
			waiter := open(t, name, s)
			brief, stop := context.WithTimeout(ctx, 50*time.Millisecond)
			defer stop()
			if _, err := waiter.Acquire(brief, "key:"+name); err == nil {
				t.Fatal("a second holder was granted the lock")
			}
			granted := make(chan error, 1)
			go func() {
				second, err := waiter.Acquire(ctx, "key:"+name)
				if err == nil {
					err = second.Release(ctx)
				}
				granted <- err
			}()
			if err := first.Release(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-granted; err != nil {
				t.Errorf("after the release: %v", err)
			}
		})
	}
}
