package joblock

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

func init() {
	door.Of = func(locker any) door.Locker { return inside{locker.(*Locker)} }
	door.OfLock = func(lock any) door.Lock { return insideLock{lock.(*Lock)} }
	door.IdentityOf, door.DigestOf = identityOf, digest
	door.TokenAt = func(token any, fence int64) any {
		t := token.(Token)
		t.fence = fence
		return t
	}
	door.Refusal = errorOf
	door.CheckText = checkText
	door.CheckPeriod = func(op, key, what string, d, least, most time.Duration) error {
		return checkDurations(op, key, duration{what, d, least, most})
	}
	door.AnyStatus = func(r driver.Record) any { return statusOf(r) }
	door.AnyByHand = func(status any) bool { return status.(Status).byHand }
	door.AnyOption = doorOption
	door.AnyToken = func(token any, key string) any {
		t := token.(Token)
		t.key, t.fence = key, 0
		return t
	}
	door.AnyInvalid = func(op, key, detail string) error { return invalid(op, key, "%s", detail) }
}

func doorOption(d door.Option) any {
	return option(func(o *options) {
		o.door.OwnKey = o.door.OwnKey || d.OwnKey
		o.door.Memo = o.door.Memo || d.Memo
		o.door.Silent = o.door.Silent || d.Silent
		o.door.LongGate = o.door.LongGate || d.LongGate
		o.door.Detached = o.door.Detached || d.Detached
		if d.Waits != nil {
			o.door.Waits = d.Waits
		}
		if d.Part {
			o.door.Part, o.door.Since, o.hasWait = true, d.Since, false
		}
		if d.Nonce != "" {
			o.door.Nonce = d.Nonce
		}
		if d.Owner != "" {
			o.owner, o.hasOwn = d.Owner, true
		}
	})
}

func identityOf(lockOrToken any) (id door.Identity) {
	switch of := lockOrToken.(type) {
	case Token:
		id = door.Identity{Owner: of.owner.reveal(), Fence: of.fence, TTL: of.ttl}
	case *Lock:
		if !of.none() {
			id = door.Identity{Owner: *of.h.owner, Fence: of.Fence(), TTL: of.h.ttl}
		}
	}
	return id
}

// The type inside is the door.Locker of a Locker that may be nil.
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
	return door.Settings{Holder: c.Holder, JobGrace: c.JobGrace, Reserve: c.Reserve, Retain: c.Retain, TTL: c.TTL, MaxTTL: c.MaxTTL,
		MaxRenew: c.MaxRenew, Logger: c.Logger, Observed: c.Observer != nil}
}

func (in inside) Check(op string, keys ...string) error { return in.l.check(op, keys...) }

func (in inside) Asked(op, key string, opts any) (door.Asked, error) {
	a, err := newAcquisition(in.l, op, key, opts.([]AcquireOption))
	if err != nil {
		return door.Asked{}, err
	}
	o := &a.o
	return door.Asked{
		Retain: o.retain, Holder: o.holder, Owner: o.owner, Digest: digest(o.owner), Bounded: o.hasWait, MaxWait: o.maxWait,
		Door: o.door,
	}, nil
}

func (in inside) Call(ctx context.Context, op, key string, f func(context.Context, driver.Store) error) error {
	return in.l.call(ctx, op, key, func(ctx context.Context) error { return f(ctx, in.l.store) })
}

func (in inside) Store() driver.Store {
	if in.l == nil {
		return nil
	}
	return in.l.store
}

func (in inside) Parts() int {
	if in.l == nil || in.l.store == nil {
		return 0
	}
	return in.l.store.Parts()
}

func (in inside) Inspect(ctx context.Context, op, key string, req driver.InspectRequest) ([]driver.Record, error) {
	return in.l.inspectAll(ctx, op, key, req)
}

func (in inside) Do(ctx context.Context, key string, fn func(context.Context) error, opts, acquire any) error {
	return in.l.do(ctx, key, fn, opts.([]AcquireOption), acquire.(acquirer))
}

func (in inside) AcquireAll(ctx context.Context, keys []string, opts, acquire any) (any, error) {
	return in.l.acquireAll(ctx, keys, opts.([]AcquireOption), acquire.(acquirer))
}

func (in inside) Take(ctx context.Context, op string, takes []door.Take) []door.Taken {
	return in.l.takeAll(ctx, op, takes)
}

func (in inside) PassOn(ctx context.Context, op string, slots []string) error {
	return in.l.passOn(ctx, op, slots)
}

func (in inside) Resume(ctx context.Context, tokens, opts any) (any, []error) {
	return in.l.resumeTokens(ctx, tokens.([]Token), opts.([]ResumeOption))
}

func (in inside) Park(ctx context.Context, locks, opts any) (any, []error) {
	return in.l.parkLocks(ctx, locks.(Locks), opts.(func(int) []ParkOption))
}

func (in inside) End(ctx context.Context, locks any, reason string) []error {
	return locks.(Locks).end(ctx, Reason(reason))
}

func (in inside) Release(ctx context.Context, tokens, opts any) []error {
	return in.l.releaseTokens(ctx, tokens.([]Token), opts.([]ReleaseOption))
}

func (in inside) Enter(op, key string) (done func(), err error) {
	return in.l.waiters.Done, in.l.enter(op, key)
}

func (in inside) Trusted(ttl time.Duration) time.Duration { return ttl - in.l.cfg.margin(ttl) }

func (in inside) Now() time.Time { return in.l.now() }

func (in inside) Tell(e event.Event) { in.l.tell(e) }

func (in inside) Trace(ctx context.Context, c event.Call) (context.Context, event.Span) {
	ctx, s := in.l.trace(ctx, c)
	return ctx, s // a nil *span does nothing
}

func (in inside) TraceHeaders(ctx context.Context) (headers map[string]string) {
	if in.l != nil && in.l.cfg.Tracer != nil {
		in.l.guard(func() { headers = in.l.cfg.Tracer.Headers(ctx) })
	}
	return headers
}

func (in inside) TraceMerge(of []map[string]string) (headers map[string]string) {
	if in.l != nil && in.l.cfg.Tracer != nil {
		in.l.guard(func() { headers = in.l.cfg.Tracer.Merge(of) })
	}
	return headers
}

// insideLock is the door.Lock of a Lock that may be nil.
type insideLock struct{ k *Lock }

func (in insideLock) Memo() []byte {
	if in.k.none() {
		return nil
	}
	in.k.mu.Lock()
	defer in.k.mu.Unlock()
	return in.k.memo
}

func (in insideLock) LoadMemo(ctx context.Context) ([]byte, error) {
	const op = "load memo"
	if in.k.none() {
		return nil, nilLock(op)
	}
	if err := in.k.l.open(op, in.k.Key()); err != nil {
		return nil, err
	}
	recs, err := in.k.l.inspectAll(ctx, op, in.k.Key(), driver.InspectRequest{Keys: []string{in.k.Key()}, Memo: true})
	if err == nil {
		err = in.k.Err() // else the memo may be a later holder's
	}
	if err != nil {
		return nil, err
	}
	in.k.mu.Lock()
	defer in.k.mu.Unlock()
	in.k.memo = recs[0].Memo
	return in.k.memo, nil
}

func (in insideLock) WriteMemo(ctx context.Context, memo []byte) error {
	const op = "write memo"
	if len(memo) > driver.MaxMemoBytes {
		return invalid(op, in.k.Key(), "memo has %d bytes, at most %d are allowed", len(memo), driver.MaxMemoBytes)
	}
	return in.k.renewNow(ctx, op, append([]byte{}, memo...))
}

func (in insideLock) GiveBack(ctx context.Context, reason string) {
	_ = in.k.end(ctx, "release", reason)
}

func (in insideLock) RememberFor(d time.Duration) {
	in.k.mu.Lock()
	defer in.k.mu.Unlock()
	in.k.h.remembered(d)
}

func (in insideLock) Store() driver.Store {
	if in.k.none() {
		return nil
	}
	return in.k.l.store
}

func (in insideLock) AsOf() time.Time { return in.k.asOf }
