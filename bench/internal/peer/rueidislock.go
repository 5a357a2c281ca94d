package peer

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type rueidislockPeer struct {
	lib   rueidislock.Locker
	again time.Duration
}

// openRueidislock gives it one key per lock, as the others have, and the setting
// with which it does not wake itself: by default a lock of its, once extended,
// sends tens of thousands of commands a second. Leases are extended every third,
// as here and unlike its default of a half, so that periods compare.
func openRueidislock(o Options) (*rueidislockPeer, error) {
	lib, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{o.Addr},
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return o.Wire.Dial(ctx, "tcp", addr)
			},
		},
		KeyValidity:    o.TTL,
		ExtendInterval: o.TTL / 3,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return &rueidislockPeer{lib, o.Again}, nil
}

func (p *rueidislockPeer) Acquire(ctx context.Context, key string) (Held, error) {
	for p.again > 0 {
		held, err := p.acquireWithin(ctx, key)
		if err == nil || ctx.Err() != nil {
			return held, err
		}
	}
	return p.acquire(ctx, key)
}

// acquireWithin is acquire, given up after p.again.
func (p *rueidislockPeer) acquireWithin(ctx context.Context, key string) (Held, error) {
	ctx, cancel := context.WithCancel(ctx) // the lock's too, so not with a timeout
	timer := time.AfterFunc(p.again, cancel)
	held, err := p.acquire(ctx, key)
	if err != nil || !timer.Stop() {
		cancel()
		return nil, context.Canceled
	}
	context.AfterFunc(held.ctx, cancel)
	return held, nil
}

func (p *rueidislockPeer) acquire(ctx context.Context, key string) (*rueidislockHeld, error) {
	lockCtx, cancel, err := p.lib.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return &rueidislockHeld{lockCtx, cancel}, nil
}

func (p *rueidislockPeer) Close() error {
	p.lib.Close()
	return nil
}

// rueidislockHeld is the pair that the library returns. The one small allocation
// of putting it together stands for the variables that a user would keep it in.
type rueidislockHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// Release returns when the server has answered; what it answered is not told.
func (h *rueidislockHeld) Release(context.Context) error {
	h.cancel()
	return nil
}

func (h *rueidislockHeld) Lost() bool { return h.ctx.Err() != nil }
