package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

var passOn = redis.NewScript(`redis.call("SET", KEYS[1], ARGV[1]) return redis.call("PUBLISH", ARGV[2], ARGV[1])`)

// batons is more than waiters of one process can be told of before one of them listens.
const batons = 1024

// publish is the least that a hand-over by a push needs: a script that writes and publishes,
// and a subscriber. It is no lock. The processes take turns, whoever waits, and so do the
// waiters of one process.
type publish struct {
	Options
	rdb    *redis.Client
	sub    *redis.PubSub // nil for a process that only begins
	told   chan struct{} // one for each message
	closed chan struct{} // closed when nobody listens any more
}

func openPublish(o Options) (*publish, error) {
	p := &publish{Options: o, rdb: goRedis(o), told: make(chan struct{}, batons), closed: make(chan struct{})}
	if o.Seats == 0 {
		close(p.closed)
		return p, nil
	}
	ctx := context.Background()
	p.sub = p.rdb.Subscribe(ctx, channelOf(o.Seat))
	if _, err := p.sub.Receive(ctx); err != nil { // the server's confirmation
		return nil, errors.Join(err, p.sub.Close(), p.rdb.Close())
	}
	go func() {
		defer close(p.closed)
		for {
			if _, err := p.sub.ReceiveMessage(ctx); err != nil {
				return // closed
			}
			p.told <- struct{}{}
		}
	}()
	return p, nil
}

func channelOf(seat int) string { return fmt.Sprintf("baton:%d", seat) }

// Acquire has the first who asks for key go on at once. All others wait for a message.
func (p *publish) Acquire(ctx context.Context, key string) (Held, error) {
	err := p.rdb.SetArgs(ctx, key, "first", redis.SetArgs{Mode: "NX", TTL: p.TTL}).Err()
	first := err == nil
	if errors.Is(err, redis.Nil) {
		select {
		case <-p.told:
			err = nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return &baton{p, key, first}, err
}

func (p *publish) Close() error {
	var err error
	if p.sub != nil {
		err = p.sub.Close()
	}
	<-p.closed
	return errors.Join(err, p.rdb.Close())
}

type baton struct {
	of    *publish
	key   string
	first bool // nobody had the key before
}

// nobody is a seat that nobody has.
const nobody = -1

// Release tells the next process, the first one after the last. Who only begins tells the
// first one. Who has a seat, and a key that nobody had before, tells nobody.
func (b *baton) Release(ctx context.Context) error {
	var next int
	switch {
	case b.of.Seats == 0:
	case b.first:
		next = nobody
	default:
		next = (b.of.Seat + 1) % b.of.Seats
	}
	return passOn.Run(ctx, b.of.rdb, []string{b.key}, "again", channelOf(next)).Err()
}
