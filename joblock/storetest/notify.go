package storetest

import (
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// notifyCases test Notify.
var notifyCases = []testCase{
	{"Notify pushes the key to every subscriber, and to no other inbox", func(k *kit) {
		one, two, forced, m := k.notices(), k.notices(), k.watch(k.ctx), k.listen()
		k.hold("key", "me")
		for _, key := range []string{"key", "key", "free", "with: many {parts}"} {
			if err := k.Store.Notify(k.ctx, key); err != nil {
				k.Fatalf("Notify: %v", err)
			}
			for _, pushes := range []chan driver.Push{one, two} {
				select {
				case p := <-pushes:
					if p != (driver.Push{Key: key}) {
						k.Errorf("pushed %+v, want the key %q alone", p, key)
					}
				case <-time.After(pushTimeout):
					k.Fatalf("nothing was pushed in %s", pushTimeout)
				}
			}
		}
		if n := len(forced.pushes); n != 0 {
			k.Errorf("%d pushes to ForcedInbox", n)
		}
		m.wantNothing("an inbox that nothing was sent to")
		recs, err := k.Store.Inspect(k.ctx, driver.InspectRequest{Keys: []string{"key", "free"}})
		if err != nil || recs[0].State != driver.StateHeld || recs[1].State != driver.StateFree {
			k.Errorf("the records are %+v, %v; want them as before", recs, err)
		}
	}},
}

// notices subscribes to NotifyInbox until the test ends.
func (k *kit) notices() chan driver.Push {
	k.Helper()
	pushes := make(chan driver.Push, 16)
	stop, err := k.Store.Subscribe(k.ctx, driver.NotifyInbox, func(p driver.Push) { pushes <- p })
	if err != nil {
		k.Fatalf("Subscribe: %v", err)
	}
	k.Cleanup(sync.OnceFunc(stop))
	return pushes
}
