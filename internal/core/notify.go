package core

import (
	"context"

	"github.com/joblock/toolkit/joblock/driver"
)

// Notify asks the holder of key to check whether it may continue: see Notices. It changes nothing. After an error the
// notice may not have arrived.
func (l *Locker) Notify(ctx context.Context, key string) error {
	const op = "notify"
	if err := l.Check(op, key); err != nil {
		return err
	}
	return l.Call(ctx, op, key, func(ctx context.Context, store driver.Store) error { return store.Notify(ctx, key) })
}

// Notices calls notice with the key of each Notify, in all processes with the same locks, until ctx ends, and returns
// then. A notice may be lost, late, repeated or forged, and none arrives before the store has answered. notice must not
// block.
func (l *Locker) Notices(ctx context.Context, notice func(key string)) {
	l.subscribe(ctx, driver.NotifyInbox, func(p driver.Push) { notice(p.Key) })
}

// subscribe calls deliver with each push to inbox until ctx ends. It subscribes again until the store answers.
func (l *Locker) subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) {
	var stop func()
	for pause := newPauses(); ; {
		err := l.call(ctx, "watch", "", func(ctx context.Context) (err error) {
			stop, err = l.store.Subscribe(ctx, inbox, deliver)
			return err
		})
		if err == nil {
			break
		}
		if !pause.wait(ctx) {
			return
		}
	}
	<-ctx.Done()
	stop()
}
