package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// LeaseRequest describes the lock that AcquireLease takes.
type LeaseRequest struct {
	Key    string
	TTL    time.Duration // 0 means Config.TTL
	Wait   time.Duration // 0 means no wait
	Holder string        // "" means Config.Holder
	Limit  int           // the number of permits of Key, or 0 for no limit; see package limit. Not allowed with Call

	// Call, unless nil, makes AcquireLease repeatable; see [Call].
	Call *Call
}

// Call is a call that may be repeated, even by another process. A repeated call finds what the first call took. No
// process keeps a list of calls: the store recognizes the call by its owner and its nonce.
//
// If a Call ends without an answer, a repeated call finds its lock, or else the end of the lease frees it. A Call that
// stops waiting gives up its place in the line, but not a lock that it was granted meanwhile.
type Call struct {
	owner, nonce string
}

// NewCall returns the Call with this name. body has the parameters that a repeated call must have as well. Different
// callers must use different names, so make the caller a part of the name. The result depends on secrets of the store or
// of Config.Secrets, so that another caller cannot derive the owner token. NewCall may read these secrets from the store,
// and returns ErrUnavailable if the store does not answer.
func NewCall(ctx context.Context, locks *joblock.Locker, name, body string) (*Call, error) {
	in := (*core.Locker)(locks)
	if err := in.Check("acquire"); err != nil {
		return nil, err
	}
	derived, err := in.Ring().Derive(ctx, "repeatable call "+name)
	if err != nil {
		return nil, in.Call(ctx, "acquire", "", func(context.Context, driver.Store) error { return err })
	}
	sum := sha256.Sum256(append(derived[:len(derived):len(derived)], body...))
	return &Call{
		owner: core.ByHand + hex.EncodeToString(derived),
		nonce: strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:13]), // see newNonce in package core
	}, nil
}

// ErrOtherBody means that the same [Call] was made before with another body.
var ErrOtherBody = errors.New("the same call was made with other parameters")

// AcquireLease takes a lock as Locker.Acquire does, but leaves no Lock behind. The errors are those of Locker.Acquire.
// With Call there are three more:
//
//	ErrOtherBody              the call has the lock, but was made with another body
//	joblock.ErrBusy           the lock of the call was handed over
//	joblock.ErrAlreadyReleased  the lock of the call has ended, and the store still remembers so
func AcquireLease(ctx context.Context, locks *joblock.Locker, req LeaseRequest) (Grant, error) {
	opts := append(make([]joblock.AcquireOption, 0, 5), joblock.NoRenew(), joblock.MaxWait(req.Wait), detached)
	if req.TTL != 0 {
		opts = append(opts, joblock.TTL(req.TTL))
	}
	if req.Holder != "" {
		opts = append(opts, joblock.Holder(req.Holder))
	}
	switch {
	case req.Call != nil && req.Limit != 0:
		return Grant{}, core.Invalid("acquire", req.Key, "a repeatable call takes no permit of a limit")
	case req.Call != nil:
		return acquireAgain(ctx, locks, req, opts)
	case req.Limit != 0:
		return leaseOf(limit.New(locks, req.Limit).Acquire(ctx, req.Key, opts...))
	}
	return leaseOf(locks.Acquire(ctx, req.Key, opts...))
}

// detached is the option of an acquisition that leaves no Lock behind.
var detached core.With = func(o *core.Options) { o.Detached = true }

// acquireAgain is AcquireLease with a Call. The result depends on what the store still records about the call's lock.
func acquireAgain(ctx context.Context, locks *joblock.Locker, req LeaseRequest, opts []joblock.AcquireOption) (Grant, error) {
	sts, err := locks.Status(ctx, req.Key)
	if err != nil {
		return Grant{}, err
	}
	opts = append(opts, joblock.Owner(req.Call.owner), core.With(func(o *core.Options) { o.Nonce = req.Call.nonce }))
	probe, err := joblock.NewToken(req.Key, req.Call.owner, time.Second)
	if err != nil {
		return Grant{}, err
	}
	st := sts[0]
	if st.Owner != probe.Digest() || st.State == joblock.StateFree && st.Ended == driver.EndedLapsed {
		return leaseOf(locks.Acquire(ctx, req.Key, opts...))
	}
	switch st.State {
	case joblock.StateHeld:
		lease, err := leaseOf(locks.Acquire(ctx, req.Key, append(opts, joblock.MaxWait(0))...))
		if !errors.Is(err, joblock.ErrHeld) {
			return lease, err
		}
		// The first call had another body, or its lease has ended meanwhile.
		now, serr := locks.Status(ctx, req.Key)
		switch {
		case serr != nil:
			return Grant{}, serr
		case now[0].Owner == st.Owner && now[0].Fence == st.Fence && now[0].State == joblock.StateHeld:
			return Grant{}, ErrOtherBody
		}
		return leaseOf(locks.Acquire(ctx, req.Key, opts...))
	case joblock.StateFree:
		return Grant{}, core.Refusal("acquire", req.Key, driver.Reply{Outcome: driver.OutcomeReleased, Ended: st.Ended, Reason: st.Reason})
	}
	return Grant{}, core.Refusal("acquire", req.Key, driver.Reply{Outcome: driver.OutcomeBusy, Job: st.Job, Remaining: st.Reserved})
}

// RenewLease is Renew, but the Grant says how long the lock can be trusted; see joblock.Config.Margin. With a ttl of 0
// the lease is as long as the token says.
func RenewLease(ctx context.Context, locks *joblock.Locker, token joblock.Token, ttl, reserve time.Duration) (Grant, error) {
	ttl = cmp.Or(ttl, core.Token(token).TTL()).Truncate(time.Millisecond)
	until, err := renew(ctx, locks, token, ttl, reserve)
	if err != nil {
		return Grant{}, err
	}
	until = until.Add((*core.Locker)(locks).Trusted(ttl) - ttl)
	trusted := until.Sub((*core.Locker)(locks).Now())
	if trusted <= 0 {
		return Grant{}, core.Refusal("renew", token.Key(), driver.Reply{Outcome: driver.OutcomeLapsed})
	}
	return Grant{Token: token, Fence: FenceOf(token), Lease: trusted, Until: until}, nil
}

// leaseOf returns the Grant of a Lock that a call with core.Options.Detached has returned.
func leaseOf(lock *joblock.Lock, err error) (Grant, error) {
	if err != nil {
		return Grant{}, err
	}
	return grantOf(lock), nil
}

// Name returns a name for a Resume with this call; see [Resume].
func (c *Call) Name() string {
	if c == nil {
		return ""
	}
	return c.owner
}

// TTLOf returns the length of the lease that token names.
func TTLOf(token joblock.Token) time.Duration { return core.Token(token).TTL() }

// FenceOf returns the fence of the holding that token names; 0 for a token that was made before its lock was taken.
func FenceOf(token joblock.Token) int64 { return core.Token(token).Fence() }

// RepeatableEnqueue returns the task ID and the Call for an enqueue that may be repeated; see [NewCall] for the name. A
// repeated enqueue does what the first one left undone: see enqueue.Request.
func RepeatableEnqueue(ctx context.Context, locks *joblock.Locker, name string) (taskID string, _ enqueue.Call, err error) {
	c, err := NewCall(ctx, locks, "task "+name, "")
	if err != nil {
		return "", enqueue.Call{}, err
	}
	sum := sha256.Sum256([]byte(c.owner)) // an ID is no secret, and the owner is one
	return "call-" + hex.EncodeToString(sum[:16]), enqueue.Call{Owner: c.owner, Nonce: c.nonce}, nil
}
