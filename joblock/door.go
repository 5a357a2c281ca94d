package joblock

import (
	"context"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

func init() {
	door.Open(door.Joblock{
		Locker:  func(locker any) door.Locker { return inside{locker.(*Locker)} },
		Option:  func(d door.Option) any { return option(func(o *options) { o.own = d.OwnKey }) },
		Invalid: func(op, key, detail string) error { return invalid(op, key, "%s", detail) },
		Refusal: errorOf,
		Text:    checkText,
		Period:  checkDuration,
	})
}

// inside is a Locker as package door shows it. The Locker may be nil.
type inside struct{ l *Locker }

func (in inside) Ring() *seal.Ring {
	if in.l == nil {
		return nil
	}
	return in.l.seals
}

func (in inside) Owns(lock any) bool {
	k := lock.(*Lock)
	return in.l != nil && !k.none() && k.l == in.l
}

func (in inside) Settings() door.Settings {
	if in.l == nil {
		return door.Settings{}
	}
	c := &in.l.cfg
	return door.Settings{Holder: c.Holder, Reserve: c.Reserve, Retain: c.Retain}
}

func (in inside) Check(op string, keys ...string) error {
	key := ""
	if len(keys) == 1 {
		key = keys[0]
	}
	if err := in.l.open(op, key); err != nil {
		return err
	}
	for _, key := range keys {
		if err := checkKey(op, key); err != nil {
			return err
		}
	}
	return nil
}

func (in inside) Call(ctx context.Context, op, key string, f func(context.Context, driver.Store) error) error {
	return in.l.call(ctx, op, key, func(ctx context.Context) error { return f(ctx, in.l.store) })
}

func (in inside) Tell(e event.Event) { in.l.tell(e) }
