package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// forcedCases test the pushes to ForcedInbox, which notify holders that a forced release has ended their leases.
var forcedCases = []testCase{
	{"forcing a live lease pushes to every subscriber", func(k *kit) {
		one, two := k.watch(k.ctx), k.watch(k.ctx)
		h := k.runFor("key", "me", "q/job", long)
		req := k.forceReq("key")
		req.Reason = "stuck"
		k.want("force", k.release(req), driver.OutcomeOK)
		for _, w := range []*watcher{one, two} {
			if got, want := w.next(), (driver.Push{Key: "key", Fence: h.fence}); got != want {
				k.Errorf("pushed %+v, want %+v", got, want)
			}
		}
	}},
	{"the push names the term that ended, not the term of the next waiter", func(k *kit) {
		w, m := k.watch(k.ctx), k.listen()
		h := k.hold("key", "me")
		next := k.waitReq("key", "you", m)
		k.join(next)
		k.want("force", k.release(k.forceReq("key")), driver.OutcomeOK)
		m.wantGrant(next.Nonce)
		if got := w.next(); got.Fence != h.fence {
			k.Errorf("pushed fence %d, want %d", got.Fence, h.fence)
		}
	}},
	{"nothing else is pushed", func(k *kit) {
		w := k.watch(k.ctx)
		k.released("released", "me", "")
		k.parkFor("parked", "me", "q/job", long)
		k.want("force parked", k.release(k.forceReq("parked")), driver.OutcomeOK)
		k.want("force nothing", k.release(k.forceReq("nothing")), driver.OutcomeNotFound)
		h := k.hold("orphaned", "me")
		req := k.renewReq(byFence("orphaned", "me", h.fence))
		req.TTL, req.Reserve = k.Unit, long
		k.want("renew", k.renew(req), driver.OutcomeOK)
		k.runFor("busy", "me", "q/job", long)
		k.want("release for its job", k.release(k.freeReq("busy", "q/job")), driver.OutcomeBusy)
		k.lapse()
		k.want("force orphaned", k.release(k.forceReq("orphaned")), driver.OutcomeOK)

		k.hold("forced", "me")
		again := k.forceReq("forced")
		k.want("force", k.release(again), driver.OutcomeOK)
		k.want("the same call", k.release(again), driver.OutcomeOK)
		k.hold("last", "me")
		k.want("force", k.release(k.forceReq("last")), driver.OutcomeOK)
		for _, key := range []string{"forced", "last"} {
			if got := w.next(); got.Key != key {
				k.Errorf("pushed for %q, want nothing before %q", got.Key, key)
			}
		}
	}},
	{"no push is delivered after stop", func(k *kit) {
		w, witness := k.watch(k.ctx), k.watch(k.ctx)
		w.stop()
		k.forced("key", "me", "")
		witness.next()
		if n := len(w.pushes); n != 0 {
			k.Errorf("%d pushes were delivered", n)
		}
	}},
	{"Subscribe fails if its context has ended, and outlives a context that ends later", func(k *kit) {
		ctx, cancel := context.WithCancel(k.ctx)
		w := k.watch(ctx)
		cancel()
		k.forced("key", "me", "")
		w.next()
		stop, err := k.Store.Subscribe(ctx, driver.ForcedInbox, func(driver.Push) {})
		if !errors.Is(err, context.Canceled) {
			k.Errorf("error %v, want context.Canceled", err)
		}
		if err == nil {
			stop()
		}
	}},
}

// watcher collects the pushes of forced releases.
type watcher struct {
	kit    *kit
	stop   func()
	pushes chan driver.Push
}

// watch subscribes to ForcedInbox until the test ends.
func (k *kit) watch(ctx context.Context) *watcher {
	k.Helper()
	w := &watcher{kit: k, pushes: make(chan driver.Push, 16)}
	stop, err := k.Store.Subscribe(ctx, driver.ForcedInbox, func(p driver.Push) { w.pushes <- p })
	if err != nil {
		k.Fatalf("Subscribe: %v", err)
	}
	w.stop = sync.OnceFunc(stop)
	k.Cleanup(w.stop)
	return w
}

func (w *watcher) next() driver.Push {
	w.kit.Helper()
	select {
	case p := <-w.pushes:
		return p
	case <-time.After(pushTimeout):
		w.kit.Fatalf("nothing was pushed in %s", pushTimeout)
		return driver.Push{}
	}
}
