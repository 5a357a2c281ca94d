package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// subscribeCases test the beginning and the end of a subscription.
var subscribeCases = []testCase{
	{"no push is delivered after stop", func(k *kit) {
		m, other := k.listen(), k.listen()
		k.hold("key", "me")
		first, second := k.waitReq("key", "a", m), k.waitReq("key", "b", m)
		witness := k.waitReq("key", "c", other)
		for _, req := range []driver.AcquireRequest{first, second, witness} {
			k.join(req)
		}
		k.free("key")
		m.wantGrant(first.Nonce)
		m.stop()
		k.free("key")
		k.free("key")
		other.wantGrant(witness.Nonce)
		if n := m.left(); n != 0 {
			k.Errorf("%d grants were delivered after the subscription was stopped", n)
		}
	}},
	{"an inbox can be subscribed to again", func(k *kit) {
		m := k.listen()
		m.stop()
		stop, err := k.Store.Subscribe(k.ctx, m.inbox, m.deliver)
		if err != nil {
			k.Fatal(err)
		}
		defer stop()
		m.wantNothing("an inbox that nothing was sent to")
	}},
	{"stopping waits for a delivery under way", func(k *kit) {
		var once sync.Once
		var finished atomic.Bool
		under, gate := make(chan struct{}), make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		m := &mailbox{inbox: "inbox of " + k.Name()}
		stop, err := k.Store.Subscribe(k.ctx, m.inbox, func(driver.Push) {
			once.Do(func() {
				close(under)
				<-gate
				finished.Store(true)
			})
		})
		if err != nil {
			k.Fatal(err)
		}
		h := k.hold("key", "me")
		k.join(k.waitReq("key", "you", m))
		release := k.releaseReq(byFence("key", "me", h.fence))
		released := make(chan error, 1)
		go func() { // a store may deliver the push before Release returns
			_, err := k.Store.Release(k.ctx, []driver.ReleaseRequest{release})
			released <- err
		}()
		select {
		case <-under:
		case <-time.After(pushTimeout):
			k.Fatal("the grant was not delivered")
		}
		stopped := make(chan bool, 1)
		go func() {
			stop()
			stopped <- finished.Load()
		}()
		// No event shows that stop waits. Without this pause, the test might pass for a stop that does not wait.
		select {
		case <-stopped:
			k.Error("stop returned while a grant was being delivered")
		case <-time.After(20 * time.Millisecond):
			open()
			if !<-stopped {
				k.Error("stop returned before the delivery was over")
			}
		}
		open()
		if err := <-released; err != nil {
			k.Errorf("Release: %v", err)
		}
	}},
	{"Subscribe fails if its context has ended", func(k *kit) {
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		stop, err := k.Store.Subscribe(ctx, "inbox of "+k.Name(), func(driver.Push) {})
		if !errors.Is(err, context.Canceled) {
			k.Errorf("error %v, want context.Canceled", err)
		}
		if err == nil {
			stop()
		}
	}},
	{"the end of its context does not end a subscription", func(k *kit) {
		ctx, cancel := context.WithCancel(k.ctx)
		m := k.listen()
		m.stop()
		stop, err := k.Store.Subscribe(ctx, m.inbox, m.deliver)
		if err != nil {
			k.Fatal(err)
		}
		defer stop()
		cancel()
		m.wantNothing("an inbox that nothing was sent to")
	}},
}
