package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Acquire takes the lock of token, which joblock.NewToken has made, and returns the token of the new holding. The
// options are those of Locker.Acquire, without Owner.
//
// After ErrUnavailable the lock may be taken, for one TTL. An Acquire with the same token then returns that lock. So the
// caller stores token before the call. After any other error the token is used up.
func Acquire(ctx context.Context, locks *joblock.Locker, token joblock.Token, opts ...joblock.AcquireOption) (joblock.Token, error) {
	id := door.IdentityOf(token)
	opts = append(opts, joblock.TTL(id.TTL), joblock.NoRenew(), joblock.Owner(id.Owner),
		door.Use[joblock.AcquireOption](door.Option{Nonce: nonce("acquire", id, "")}))
	lock, err := locks.Acquire(ctx, token.Key(), opts...)
	if err != nil {
		return joblock.Token{}, err
	}
	return lock.Token(), nil
}

// Renew begins a new lease of the holding that token names, and returns how long the lease lasts at least. With a ttl
// of 0 the length is that of the token. The reservation of a job's lock lasts for at least reserve beyond the lease.
//
// Errors: ErrLost when the lease has ended; ErrNotOwner when another holder has come since the token was made;
// ErrAlreadyReleased, ErrNotFound, ErrUnavailable, ErrInvalid, ErrClosed.
func Renew(ctx context.Context, locks *joblock.Locker, token joblock.Token, ttl, reserve time.Duration) (time.Duration, error) {
	const op = "renew"
	in, id, key := door.Of(locks), door.IdentityOf(token), token.Key()
	ttl = cmp.Or(ttl, id.TTL).Truncate(time.Millisecond)
	if err := check(in, op, key,
		period{"TTL", ttl, driver.MinPeriod, in.Settings().MaxTTL}, period{"Reserve", reserve, 0, driver.MaxPeriod}); err != nil {
		return 0, err
	}
	began := in.Now()
	_, err := send(ctx, in, op, key, driver.Store.Renew, driver.RenewRequest{
		Term: term(key, id), TTL: ttl, Retain: in.Settings().Retain, Reserve: reserve,
	})
	if err != nil {
		return 0, err
	}
	return ttl - in.Now().Sub(began), nil
}

// Park reserves the key for whoever has the token that Park returns, and ends the holding that token names. With a job,
// only that job can resume the lock. A reserve of 0 is Config.Reserve.
//
// Errors, with which nothing was parked: those of Renew. After ErrUnavailable the caller can repeat the call.
func Park(ctx context.Context, locks *joblock.Locker, token joblock.Token, job string, reserve time.Duration) (joblock.Token, error) {
	const op = "park"
	in, id, key := door.Of(locks), door.IdentityOf(token), token.Key()
	settings := in.Settings()
	reserve = cmp.Or(reserve, settings.Reserve).Truncate(time.Millisecond)
	if err := check(in, op, key, period{"Reserve", reserve, driver.MinPeriod, driver.MaxPeriod}); err != nil {
		return joblock.Token{}, err
	}
	if err := door.CheckText(op, key, "job", job, 0, driver.MaxLabelBytes); err != nil {
		return joblock.Token{}, err
	}
	r, err := send(ctx, in, op, key, driver.Store.Park, driver.ParkRequest{
		Term: term(key, id), Nonce: nonce(op, id, job), Job: job, Reserve: reserve, Retain: settings.Retain,
		Grace: max(driver.MinPeriod, min(settings.JobGrace, reserve/2)),
	})
	if err != nil {
		return joblock.Token{}, err
	}
	return door.TokenAt(token, r.Fence).(joblock.Token), nil
}

// Resume is Locker.Resume, without a Lock that somebody renews. Resume returns the token of the new holding.
func Resume(ctx context.Context, locks *joblock.Locker, token joblock.Token, opts ...joblock.ResumeOption) (joblock.Token, error) {
	lock, err := locks.Resume(ctx, token, append(opts, joblock.NoRenew())...)
	if err != nil {
		return joblock.Token{}, err
	}
	return lock.Token(), nil
}

func term(key string, id door.Identity) driver.Term {
	return driver.Term{Key: key, Owner: id.Owner, Fence: id.Fence}
}

// The function nonce names a call. The same call with the same token and the same job has the same name, in every
// process. The name tells nothing about the owner.
func nonce(op string, id door.Identity, job string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "joblock %s\n%s\n%d\n%s", op, id.Owner, id.Fence, job))
	return hex.EncodeToString(sum[:])[:13] // see newNonce in package joblock
}

// The type period is the value of a parameter, with its bounds.
type period struct {
	name           string
	d, least, most time.Duration
}

func check(in door.Locker, op, key string, periods ...period) error {
	if err := in.Check(op, key); err != nil {
		return err
	}
	for _, p := range periods {
		if err := door.CheckPeriod(op, key, p.name, p.d, p.least, p.most); err != nil {
			return err
		}
	}
	return nil
}

// The function send calls a method of the store with one request, and returns the error of a refusal.
func send[R any](ctx context.Context, in door.Locker, op, key string,
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
	return r, door.Refusal(op, key, r)
}
