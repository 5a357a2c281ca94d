package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// Headers of answers, in their canonical form.
const (
	fenceHeader = "Joblock-Fence" // the fence of a granted lock, for clients that read no body
	etagHeader  = "Etag"
)

// grant returns the answer for a lock. The client adds valid_ms to the time at which it sent its request, so both
// durations are rounded down.
func (c *call) grant(g ops.Grant) routes.Granted {
	elapsed, left := c.left(g)
	c.fence = g.Fence
	return routes.Granted{
		Key: g.Token.Key(), Token: g.Token, Fence: g.Fence, TTL: ops.TTLOf(g.Token).Milliseconds(),
		Elapsed: elapsed.Milliseconds(), Valid: left.Milliseconds(), ExpiresAt: ops.Time{Time: g.Until}, Prior: g.Prior,
	}
}

// left returns how long the call has taken, and how long the client can rely on the lock from then on. The order matters:
// if the process is paused between the two, the sum is too small rather than too large.
func (c *call) left(g ops.Grant) (elapsed, left time.Duration) {
	elapsed = c.elapsed()
	return elapsed, max(0, time.Until(g.Until))
}

func (s *Server) acquire(c *call, req *routes.AcquireRequest) (none routes.Granted, err error) {
	ask, err := c.leaseRequest(req)
	if err != nil {
		return none, err
	}
	parameters := func() string { return fmt.Sprint(ask.TTL, " ", strconv.Quote(ask.Holder), " ", ask.Limit) }
	if ask.Call, err = c.repeatable("acquire", ask.Key, parameters); err != nil {
		return none, err
	}
	if err := c.mayHold(ask.Key); err != nil {
		return none, err
	}
	lease, err := s.lease(c, ask)
	if err != nil {
		return none, err
	}
	c.holds(lease)
	if ask.Call == nil { // with a Call, a repeated request finds the lock
		if err := c.willBeRead(lease.Token); err != nil {
			return none, err
		}
	}
	return c.grant(lease), nil
}

// mayHold refuses another lock to a caller that has reached its limit.
func (c *call) mayHold(key string) error {
	if c.s.quotas.mayHold(c.who.ID, key) {
		return nil
	}
	return problem.New(http.StatusTooManyRequests, problem.Locks, "at most %d locks of one caller are allowed", c.s.cfg.MaxLocksEach).Again(time.Second)
}

// holds records that the caller has a lock.
func (c *call) holds(g ops.Grant) { c.s.quotas.holds(c.who.ID, g.Token.Key(), g.Until) }

// willBeRead returns nil if the client is still connected, and so will read the token. Otherwise it releases the lock and
// returns errGone. If the store does not answer, the lock ends with its lease.
func (c *call) willBeRead(token joblock.Token) error {
	if !c.ended() {
		return nil
	}
	_ = ops.Release(c.lasting(), c.s.cfg.Locks, token, "the client is gone")
	c.s.quotas.gave(c.who.ID, token.Key())
	return errGone
}

// leaseRequest checks and converts the fields of an acquire.
func (c *call) leaseRequest(req *routes.AcquireRequest) (ask ops.LeaseRequest, err error) {
	if ask.Key, err = c.keyFrom(req.Key); err != nil {
		return ask, err
	}
	ask.Holder = req.Holder
	settings := c.s.in.Settings()
	if ask.TTL, err = millis("ttl_ms", req.TTL, settings.TTL, driver.MinPeriod, settings.MaxTTL); err != nil {
		return ask, err
	}
	if ask.Wait, err = millis("wait_ms", req.Wait, 0, 0, c.s.cfg.MaxWait); err != nil {
		return ask, err
	}
	n, err := number("limit", req.Limit, 0, 1, limit.Max)
	ask.Limit = int(n)
	return ask, err
}

// lease takes the lock. The wait ends when the request ends, or when Close begins.
func (s *Server) lease(c *call, ask ops.LeaseRequest) (ops.Grant, error) {
	if ask.Wait == 0 {
		return ops.AcquireLease(c.lasting(), s.cfg.Locks, ask)
	}
	leave, ok := s.quotas.enter(c.who.ID)
	if !ok {
		ask.Wait = 0
		lease, err := ops.AcquireLease(c.lasting(), s.cfg.Locks, ask)
		if errors.Is(err, joblock.ErrHeld) {
			err = c.tooManyWaits()
		}
		return lease, err
	}
	defer leave()
	done, err := s.begin(false)
	if err != nil {
		return ops.Grant{}, err
	}
	defer done()
	ctx, cancel := s.untilClosing(c.r.Context())
	defer cancel(nil)
	rights := c.watch(mayLock(ask.Key), func(p *problem.Problem) { cancel(p) })
	defer rights.Stop()
	lease, err := ops.AcquireLease(ctx, s.cfg.Locks, ask)
	if err == nil {
		rights.Confirm()
	}
	var ended *problem.Problem
	switch cause := context.Cause(ctx); {
	case errors.As(cause, &ended):
		if err == nil {
			_ = ops.Release(c.lasting(), s.cfg.Locks, lease.Token, "the rights of the caller have ended")
		}
		return ops.Grant{}, ended
	case err != nil && cause == errClosing:
		err = problem.Closing()
	}
	return lease, err
}

func (c *call) tooManyWaits() *problem.Problem {
	return problem.New(http.StatusTooManyRequests, problem.Waits, "the lock is held, and at most %d requests may wait, of one caller at most %d", c.s.cfg.MaxWaiting, c.s.cfg.MaxWaitingEach).Again(time.Second)
}

// tooManyStreams refuses a call as tooManyWaits does, if the call would hold a lock, or wait for something other than a
// single lock.
func (c *call) tooManyStreams() *problem.Problem {
	return problem.New(http.StatusTooManyRequests, problem.Waits, "at most %d requests may wait or hold locks, of one caller at most %d", c.s.cfg.MaxWaiting, c.s.cfg.MaxWaitingEach).Again(time.Second)
}

// untilClosing returns a child of ctx that ends with the cause errClosing when Close begins.
func (s *Server) untilClosing(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.closing, func() { cancel(errClosing) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// idempotencyHeader is the header that makes an acquire, a resume or an enqueue repeatable.
const idempotencyHeader = "Idempotency-Key"

// idempotencyKey returns the Idempotency-Key, "" if there is none.
func (c *call) idempotencyKey() (string, error) {
	values := c.r.Header.Values(idempotencyHeader)
	if len(values) == 0 {
		return "", nil
	}
	const most = 128
	bad := len(values) > 1 || values[0] == "" || len(values[0]) > most
	for i := range len(values[0]) {
		bad = bad || values[0][i] < ' ' || values[0][i] > '~'
	}
	if bad {
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "%s must occur once, with 1 to %d printable ASCII characters", idempotencyHeader, most)
	}
	return values[0], nil
}

// repeatable returns the Call that the Idempotency-Key names, or nil without an Idempotency-Key. The name belongs to the
// caller and the lock's key: for another principal or key it is another Call.
func (c *call) repeatable(verb, key string, parameters func() string) (*ops.Call, error) {
	name, err := c.idempotencyKey()
	if name == "" || err != nil {
		return nil, err
	}
	return ops.NewCall(c.r.Context(), c.s.cfg.Locks, fmt.Sprintf("%q %q %q %q", verb, c.who.ID, key, name), parameters())
}

func (s *Server) renew(c *call, req *routes.RenewRequest) (none routes.Renewed, err error) {
	token, err := c.tokenFrom(req.Token)
	if err != nil {
		return none, err
	}
	ttl, err := millis("ttl_ms", req.TTL, 0, driver.MinPeriod, s.in.Settings().MaxTTL)
	if err != nil {
		return none, err
	}
	reserve, err := c.s.reserve(req.Reserve, 0)
	if err != nil {
		return none, err
	}
	lease, err := ops.RenewLease(c.lasting(), s.cfg.Locks, token, ttl, reserve)
	if err != nil {
		return none, err
	}
	s.quotas.holds(c.who.ID, token.Key(), lease.Until.Add(reserve))
	elapsed, left := c.left(lease)
	return routes.Renewed{
		Key: token.Key(), Fence: lease.Fence, TTL: cmp.Or(ttl, ops.TTLOf(token)).Milliseconds(), Elapsed: elapsed.Milliseconds(), Valid: left.Milliseconds(),
		ExpiresAt: ops.Time{Time: lease.Until},
	}, nil
}

func (s *Server) release(c *call, req *routes.ReleaseRequest) (none routes.Released, err error) {
	token, err := c.tokenFrom(req.Token)
	if err != nil {
		return none, err
	}
	err = ops.Release(c.lasting(), s.cfg.Locks, token, req.Reason)
	if err == nil {
		s.quotas.gave(c.who.ID, token.Key())
		return routes.Released{Key: token.Key(), Released: true}, nil
	}
	var e *joblock.Error
	if errors.As(err, &e) && errors.Is(e, joblock.ErrAlreadyReleased) {
		return routes.Released{Key: token.Key(), Released: true, Already: true, Ended: e.Ended, Reason: e.Reason}, nil
	}
	return none, err
}

func (s *Server) park(c *call, req *routes.ParkRequest) (none routes.Parked, err error) {
	token, err := c.tokenFrom(req.Token)
	if err != nil {
		return none, err
	}
	reserve, err := s.reserve(req.Reserve, s.in.Settings().Reserve)
	if err != nil {
		return none, err
	}
	if err := c.bindJob(req.Job, token.Key()); err != nil {
		return none, err
	}
	parked, err := ops.Park(c.lasting(), s.cfg.Locks, token, req.Job, reserve)
	if err != nil {
		return none, err
	}
	s.quotas.holds(c.who.ID, token.Key(), time.Now().Add(reserve))
	c.fence = ops.FenceOf(parked)
	return routes.Parked{Key: parked.Key(), Token: parked, Fence: c.fence, Reserved: reserve.Milliseconds(), Job: req.Job}, nil
}

func (s *Server) resume(c *call, req *routes.ResumeRequest) (none routes.Granted, err error) {
	token, err := c.tokenFrom(req.Token)
	if err != nil {
		return none, err
	}
	ttl, err := millis("ttl_ms", req.TTL, 0, driver.MinPeriod, s.in.Settings().MaxTTL)
	if err != nil {
		return none, err
	}
	if err := c.bindJob(req.Job, token.Key()); err != nil {
		return none, err
	}
	opts, err := s.resumeOptions(req)
	if err != nil {
		return none, err
	}
	if ttl > 0 {
		opts = append(opts, joblock.TTL(ttl))
	}
	// The token's digest is a parameter: the same Idempotency-Key with another token is another call.
	parameters := func() string { return fmt.Sprint(token.Digest(), " ", ops.FenceOf(token), " ", strconv.Quote(req.Job)) }
	repeat, err := c.repeatable("resume", token.Key(), parameters)
	if err != nil {
		return none, err
	}
	if err := c.mayHold(token.Key()); err != nil {
		return none, err
	}
	lease, err := ops.Resume(c.lasting(), s.cfg.Locks, token, repeat.Name(), opts...)
	if err != nil {
		return none, err
	}
	c.holds(lease)
	return c.grant(lease), nil
}

// reserve returns the value of a field reserve_ms. Its limit is that of a lease, so that no caller can reserve a key for
// longer than it could hold the lock without a renewal.
func (s *Server) reserve(field *int64, absent time.Duration) (time.Duration, error) {
	settings := s.in.Settings()
	return millis("reserve_ms", field, absent, driver.MinPeriod, max(settings.MaxTTL, settings.Reserve))
}

// resumeOptions returns the options of a Resume, except the TTL.
func (s *Server) resumeOptions(req *routes.ResumeRequest) (opts []joblock.ResumeOption, err error) {
	opts = []joblock.ResumeOption{joblock.ForJob(req.Job)}
	if req.Holder != "" {
		opts = append(opts, joblock.Holder(req.Holder))
	}
	reserve, err := s.reserve(req.Reserve, 0)
	return append(opts, joblock.Reserve(reserve)), err
}
