package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/limit"
)

// Grant is a holding that a call by token has begun.
type Grant struct {
	Token joblock.Token // of the new holding
	Fence int64
	Lease time.Duration // how long the caller can rely on the lock, from the return of the call
	Until time.Time     // the same, as a time with a monotonic reading, so that delays after the call do not prolong it
	Prior driver.Ended  // how the ownership before this one ended; see joblock.Lock.Prior
}

func grantOf(lock *joblock.Lock) Grant {
	token, until := lock.Token(), lock.ExpiresAt()
	return Grant{Token: token, Fence: FenceOf(token), Lease: time.Until(until), Until: until, Prior: lock.Prior()}
}

// Acquire takes the lock of token, which joblock.NewToken has made. The options are those of Locker.Acquire, without
// Owner.
//
// After ErrUnavailable the lock may be taken, for one TTL. An Acquire with the same token then returns that lock, so the
// caller must store token before the call. After any other error the token is used up.
func Acquire(ctx context.Context, locks *joblock.Locker, token joblock.Token, opts ...joblock.AcquireOption) (Grant, error) {
	id := core.Token(token)
	opts = append(opts, detachedFor(id), core.With(func(o *core.Options) { o.Nonce = nonce("acquire", id, "") }))
	lock, err := locks.Acquire(ctx, token.Key(), opts...)
	if err != nil {
		return Grant{}, err
	}
	return grantOf(lock), nil
}

// detachedFor is the option of an acquisition that takes the lock of id and leaves no Lock behind.
func detachedFor(id core.Token) core.With {
	return func(o *core.Options) {
		o.TTL, o.NoRenew, o.Owner, o.Shared, o.Detached = id.TTL(), true, id.Owner(), true, true
	}
}

// AcquirePermit takes one of n permits, see package limit. The key of token is that of the limit; the key of the Grant's
// token is that of the permit.
//
// The caller must store token before the call. After a call without an answer, or whose caller died, FindPermit finds the
// permit.
func AcquirePermit(ctx context.Context, locks *joblock.Locker, token joblock.Token, n int, opts ...joblock.AcquireOption) (Grant, error) {
	opts = append(opts, detachedFor(core.Token(token)))
	lock, err := limit.New(locks, n).Acquire(ctx, token.Key(), opts...)
	if err != nil {
		return Grant{}, err
	}
	return grantOf(lock), nil
}

// FindPermit returns the permit that an earlier AcquirePermit with the same token has taken, with a new lease. found is
// false if the owner of token has no permit. The owner may have several permits, if a caller died during AcquirePermit:
// FindPermit releases all but one. Errors are those of Renew.
func FindPermit(ctx context.Context, locks *joblock.Locker, token joblock.Token, n int) (g Grant, found bool, err error) {
	st, err := limit.New(locks, n).Status(ctx, token.Key())
	if err != nil {
		return Grant{}, false, err
	}
	for _, permit := range st.Permits {
		if permit.State != joblock.StateHeld || permit.Owner != token.Digest() {
			continue
		}
		own := joblock.Token(core.Token(token).OfSlot(permit.Key).At(permit.Fence))
		if found {
			_ = Release(ctx, locks, own, "one permit is enough") // otherwise the lease ends
			continue
		}
		left, err := Renew(ctx, locks, own, 0, 0)
		if errors.Is(err, joblock.ErrNotOwner) {
			continue // another owner with this digest
		}
		if err != nil {
			return Grant{}, false, err
		}
		g, found = Grant{Token: own, Fence: permit.Fence, Lease: left, Until: (*core.Locker)(locks).Now().Add(left)}, true
	}
	return g, found, nil
}

// Renew begins a new lease of the holding that token names, and returns the minimum duration of that lease. With a ttl of
// 0 the length is that of the token. The reservation of a job's lock lasts for at least reserve beyond the lease.
//
// Errors: ErrLost if the lease has ended; ErrNotOwner if the key has had another holder since the token was made;
// ErrAlreadyReleased, ErrNotFound, ErrUnavailable, ErrInvalid, ErrClosed.
func Renew(ctx context.Context, locks *joblock.Locker, token joblock.Token, ttl, reserve time.Duration) (time.Duration, error) {
	until, err := renew(ctx, locks, token, ttl, reserve)
	if err != nil {
		return 0, err
	}
	return until.Sub((*core.Locker)(locks).Now()), nil
}

// renew is Renew, and returns when the lease ends at the earliest.
func renew(ctx context.Context, locks *joblock.Locker, token joblock.Token, ttl, reserve time.Duration) (time.Time, error) {
	const op = "renew"
	in, id, key := (*core.Locker)(locks), core.Token(token), token.Key()
	ttl = cmp.Or(ttl, id.TTL()).Truncate(time.Millisecond)
	if err := check(in, op, key,
		period{"TTL", ttl, driver.MinPeriod, in.Settings().MaxTTL}, period{"Reserve", reserve, 0, driver.MaxPeriod}); err != nil {
		return time.Time{}, err
	}
	began := in.Now()
	_, err := send(ctx, in, op, key, driver.Store.Renew, driver.RenewRequest{
		Term: term(key, id), TTL: ttl, Retain: in.Settings().Retain, Reserve: reserve,
	})
	if err != nil {
		return time.Time{}, err
	}
	return began.Add(ttl), nil
}

// Park ends the holding that token names and reserves the key for any caller with the token that Park returns. With a
// job, only that job can resume the lock. A reserve of 0 is Config.Reserve.
//
// Errors, after which nothing was parked: those of Renew. After ErrUnavailable the caller can repeat the call.
func Park(ctx context.Context, locks *joblock.Locker, token joblock.Token, job string, reserve time.Duration) (joblock.Token, error) {
	const op = "park"
	in, id, key := (*core.Locker)(locks), core.Token(token), token.Key()
	settings := in.Settings()
	reserve = cmp.Or(reserve, settings.Reserve).Truncate(time.Millisecond)
	if err := check(in, op, key, period{"Reserve", reserve, driver.MinPeriod, driver.MaxPeriod}); err != nil {
		return joblock.Token{}, err
	}
	if err := core.CheckText(op, key, "job", job, 0, driver.MaxLabelBytes); err != nil {
		return joblock.Token{}, err
	}
	r, err := send(ctx, in, op, key, driver.Store.Park, driver.ParkRequest{
		Term: term(key, id), Nonce: nonce(op, id, job), Job: job, Reserve: reserve, Retain: settings.Retain,
		Grace: max(driver.MinPeriod, min(settings.JobGrace, reserve/2)),
	})
	if err != nil {
		return joblock.Token{}, err
	}
	return joblock.Token(core.Token(token).At(r.Fence)), nil
}

// Resume is Locker.Resume, without a Lock that is renewed automatically.
//
// A call that is repeated after ErrUnavailable under the same name finds the grant of the first call and renews its
// lease. The name is a secret of one caller: two callers with the same name would have the same lock. With the name "" a
// repeated call counts as a new call, which gets ErrBusy for one TTL if the first one has resumed the lock.
func Resume(ctx context.Context, locks *joblock.Locker, token joblock.Token, name string, opts ...joblock.ResumeOption) (Grant, error) {
	opts = append(opts, core.With(func(o *core.Options) {
		o.NoRenew, o.Detached = true, true
		if name != "" {
			o.Nonce = nonce("resume", core.Token(token), name)
		}
	}))
	lock, err := locks.Resume(ctx, token, opts...)
	if err != nil {
		return Grant{}, err
	}
	g := grantOf(lock)
	if name == "" {
		return g, nil
	}
	// The grant may be that of an earlier call, with part of its lease used up.
	return RenewLease(ctx, locks, g.Token, 0, 0)
}

// Release ends the holding, or the reservation, that token names. Unlike Locker.Release, it leaves later steps of the
// same owner alone: after a Park, the token from before the Park releases nothing. A token without a fence, from an
// unanswered Acquire, names what that Acquire has got: the lock, or a place in line.
//
// A repeated call with the same token succeeds if the first call did. The reason has at most 256 bytes.
//
// Errors: ErrLost if the lock had expired before and the key has had no other holder since; ErrNotOwner if the key has
// had another holder since the token was made; ErrAlreadyReleased, ErrNotFound, ErrUnavailable, ErrInvalid, ErrClosed.
func Release(ctx context.Context, locks *joblock.Locker, token joblock.Token, reason string) error {
	const op = "release"
	in, id, key := (*core.Locker)(locks), core.Token(token), token.Key()
	if err := in.Check(op, key); err != nil {
		return err
	}
	if err := core.CheckText(op, key, "reason", reason, 0, driver.MaxLabelBytes); err != nil {
		return err
	}
	req := driver.ReleaseRequest{Term: term(key, id), Nonce: nonce(op, id, ""), Reason: reason,
		Retain: in.Settings().Retain, Grace: in.Settings().JobGrace}
	if id.Fence() == 0 {
		req.Grant = nonce("acquire", id, "")
		req.Nonce = strconv.FormatUint(rand.Uint64(), 36) // the token may take the lock again, and release it again
	}
	_, err := send(ctx, in, op, key, driver.Store.Release, req)
	if err == nil && in.Settings().Observer != nil {
		in.Emit(event.Event{Kind: event.ReleasedByToken, Key: key, Owner: id.Digest(), Reason: reason})
	}
	return err
}

func term(key string, id core.Token) driver.Term {
	return driver.Term{Key: key, Owner: id.Owner(), Fence: id.Fence()}
}

// nonce names a call. The same call with the same token and the same detail has the same name, in every process. The name
// reveals nothing about the owner.
func nonce(op string, id core.Token, detail string) string {
	text := make([]byte, 0, 256)
	text = append(append(append(text, "joblock "...), op...), '\n')
	text = append(append(text, id.Owner()...), '\n')
	text = append(strconv.AppendInt(text, id.Fence(), 10), '\n')
	text = append(text, detail...)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:7])[:13] // see newNonce in package core
}

// period is the value of a parameter, with its bounds.
type period struct {
	name           string
	d, least, most time.Duration
}

func check(in *core.Locker, op, key string, periods ...period) error {
	if err := in.Check(op, key); err != nil {
		return err
	}
	for _, p := range periods {
		if err := core.CheckPeriod(op, key, p.name, p.d, p.least, p.most); err != nil {
			return err
		}
	}
	return nil
}

// send calls a method of the store with one request, and returns the error of a refusal.
func send[R any](ctx context.Context, in *core.Locker, op, key string,
	method func(driver.Store, context.Context, []R) ([]driver.Reply, error), req R,
) (r driver.Reply, err error) {
	err = in.Call(ctx, op, key, func(ctx context.Context, store driver.Store) error {
		replies, err := method(store, ctx, []R{req})
		if len(replies) == 1 {
			r = replies[0]
		}
		return err
	})
	if err != nil {
		return r, err
	}
	return r, core.Refusal(op, key, r)
}
