package compat

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/internal/foreign"
	"github.com/joblock/toolkit/server/internal/problem"
)

// DaprAlpha2Config configures the handler of [DaprAlpha2]. The zero value of a field means its default.
type DaprAlpha2Config struct {
	// Prefix is put in front of a resource's ID to make the key of its lock. Default none.
	Prefix string

	// Stream selects option 2 of the proposal: a stream holds the lock. The default is option 1: the server holds the
	// lock until it is unlocked.
	Stream bool

	// MaxHold is how long the server renews a lock of option 1, from a second to 366 days. After that the lock ends with
	// its lease, so a forgotten lock does not live forever. Default one hour.
	MaxHold time.Duration
}

// DaprAlpha2 returns a handler for the lock API that Dapr has proposed as version alpha2, without the version in the path:
//
//	                                         option 1               option 2
//	POST   /lock/{resource}  immediate, ttl  200 {"lockID"}         200, a stream of lines, below
//	DELETE /lock/{resource}  force, lockID   204                    204; always forced, and reads no body
//
// POST needs the scope lock. So does DELETE with the lockID of the lock. A forced DELETE needs the scope operate, is
// recorded, and is refused if it cannot be recorded. Mount one handler for each store of locks:
//
//	locks, err := compat.DaprAlpha2(s, compat.DaprAlpha2Config{Prefix: "shop:"})
//	...
//	mux.Handle("/v1.0-alpha2/", http.StripPrefix("/v1.0-alpha2", locks))
//
// A POST waits for its turn as long as the client does, or not at all with "immediate":true. ttl is a Go duration of at
// most joblock.Config.MaxTTL; if it is absent or not positive, joblock.Config.TTL applies. The server renews the lock.
//
// With option 1 the server renews the lock until DELETE, for MaxHold at most. A lockID is a token: any client that has it
// can unlock, through any replica. A client is not notified when its lock is lost, and gets no fence. When the Server
// closes, the lock stays reserved for the lockID for the rest of MaxHold. When the replica dies, the lock ends with its
// lease. When the rights of the caller end, the server stops renewing. A lock counts as a stream for Config.MaxWaiting
// and Config.MaxWaitingEach.
//
// Option 2 has these lines, of type application/x-ndjson:
//
//	{"type":"ping"}                  at least every third of ttl, even while the client waits
//	{"type":"lock-acquired"}         once
//	{"type":"error","error":"…"}     the end: there is no lock, or no longer
//
// The lock is released when the client closes the connection. A client that reads no line for ttl has lost its lock. When
// the Server closes, the stream ends with an error, and the lock ends with its lease.
//
// Errors have these statuses. The body is {"errorCode","message"}, and with option 2 a line of type error:
//
//	400  ERR_MALFORMED_REQUEST
//	404  ERR_LOCK_NOT_FOUND     the lockID names no present lock, or the lock has no holder
//	409  ERR_RESOURCE_LOCKED    immediate, and the lock is held
//	401, 403, 408, 413, 415, 429, 500 and 503 with the codes of the routes under /v1
//
// The error is joblock.ErrInvalid for a MaxHold out of bounds, and for a Prefix that no key can begin with.
func DaprAlpha2(s *server.Server, cfg DaprAlpha2Config) (http.Handler, error) {
	cfg.MaxHold = cmp.Or(cfg.MaxHold, time.Hour)
	if cfg.MaxHold < time.Second || cfg.MaxHold > driver.MaxPeriod {
		return nil, core.Invalid("new", "", "DaprAlpha2Config.MaxHold is %s, must be from %s to %s", cfg.MaxHold, time.Second, driver.MaxPeriod)
	}
	if err := checkPrefix("DaprAlpha2Config.Prefix", cfg.Prefix); err != nil {
		return nil, err
	}
	d := &daprLocks{s: s.Host(), cfg: cfg, held: make(map[daprHolding]*daprHeld)}
	lock, unlock, refuse, scopes := d.lock, d.unlock, asDaprError, []string{"lock", "operate"}
	if cfg.Stream {
		lock, unlock, refuse, scopes = d.stream, d.forceUnlock, asDaprLine, []string{"operate"}
	}
	return mount(d.s, []route{
		{http.MethodPost, "/lock/{resource}", []string{"lock"}, lock},
		{http.MethodDelete, "/lock/{resource}", scopes, unlock},
	}, refuse), nil
}

// daprLocks serves one handler of DaprAlpha2.
type daprLocks struct {
	s    foreign.Server
	cfg  DaprAlpha2Config
	warn sync.Once // logs a warning about streams over HTTP/1 once

	mu   sync.Mutex                // guards held
	held map[daprHolding]*daprHeld // what this replica renews with option 1
}

type daprHolding struct {
	key   string
	fence int64
}

type daprHeld struct {
	lock  *joblock.Lock
	over  chan struct{} // closed when the lock was released through this replica
	ended chan struct{} // closed when the rights of the caller end
}

// The errors of the proposal.
const (
	daprLocked   = "the resource is already locked"
	daprNotFound = "the resource is locked with a different lock ID or the lock does not exist"
)

// failed returns the problem for err, with the codes and messages of the proposal.
func (d *daprLocks) failed(c *call, err error) *problem.Problem {
	p := c.Problem(err)
	switch {
	case p.Code == problem.Invalid, p.Code == problem.Request:
		p.Code = "ERR_MALFORMED_REQUEST"
	case p.Status == http.StatusConflict && p.Retryable:
		p.Code, p.Detail = "ERR_RESOURCE_LOCKED", daprLocked
	case p.Status == http.StatusConflict, p.Status == http.StatusGone, p.Status == http.StatusNotFound:
		p.Status, p.Code, p.Detail = http.StatusNotFound, "ERR_LOCK_NOT_FOUND", daprNotFound
	case p.Detail == "":
		p.Detail = p.Title
	}
	return p
}

// read reads a body, which may be absent because each field has a default. Like Dapr, it ignores unknown fields.
func (d *daprLocks) read(c *call, req any) error {
	if c.Request().ContentLength == 0 {
		return nil
	}
	text, err := c.Body()
	if err == nil && (json.Unmarshal(text, req) != nil || bytes.Equal(bytes.TrimSpace(text), []byte("null"))) {
		err = problem.New(http.StatusBadRequest, problem.Request, "failed deserializing HTTP body")
	}
	return err
}

func (d *daprLocks) key(c *call) (string, error) {
	key := d.cfg.Prefix + c.Request().PathValue("resource")
	return key, c.UseKey(key)
}

type daprLockRequest struct {
	Immediate bool   `json:"immediate"`
	TTL       string `json:"ttl"`
}

// asked decodes the request for a lock.
func (d *daprLocks) asked(c *call) (key string, ttl time.Duration, opts []joblock.AcquireOption, err error) {
	var req daprLockRequest
	if err = d.read(c, &req); err != nil {
		return "", 0, nil, err
	}
	if key, err = d.key(c); err != nil {
		return "", 0, nil, err
	}
	if req.TTL != "" {
		if ttl, err = time.ParseDuration(req.TTL); err != nil {
			return "", 0, nil, problem.New(http.StatusBadRequest, problem.Request, "ttl is %s, must be a duration such as 30s", problem.Shown(req.TTL))
		}
	}
	settings := c.settings()
	if ttl <= 0 {
		ttl = settings.TTL
	}
	if ttl < driver.MinPeriod || ttl > settings.MaxTTL {
		return "", 0, nil, problem.New(http.StatusBadRequest, problem.Request, "ttl is %s, must be at least %s and at most %s", ttl, driver.MinPeriod, settings.MaxTTL)
	}
	opts = []joblock.AcquireOption{joblock.TTL(ttl)}
	if req.Immediate {
		opts = append(opts, joblock.MaxWait(0))
	}
	return key, ttl, opts, nil
}

// lock serves POST of option 1.
func (d *daprLocks) lock(c *call) (*answer, error) {
	key, ttl, opts, err := d.asked(c)
	if err != nil {
		return nil, d.failed(c, err)
	}
	leave, err := c.Enter()
	if err != nil {
		return nil, err
	}
	last := time.Now().Add(d.cfg.MaxHold)
	lock, err := d.acquire(c, key, opts)
	if err != nil {
		leave()
		return nil, d.failed(c, err)
	}
	if expires := c.Expires(); !expires.IsZero() && expires.Before(last) {
		last = expires
	}
	token, h := lock.Token(), d.hold(lock)
	rights := c.Watch(key, func(*problem.Problem) { close(h.ended) })
	go func() {
		defer leave()
		defer rights.Stop()
		d.keep(h, last, ttl)
	}()
	if c.Ended() {
		_ = d.release(c.Lasting(), token, "the client is gone") // no client has the lockID
		return nil, context.Cause(c.Request().Context())
	}
	return ok(struct {
		LockID string `json:"lockID"`
	}{compactToken(token)})
}

// acquire takes a lock that this process renews. The wait ends with the request, with Close, or with the caller's rights.
func (d *daprLocks) acquire(c *call, key string, opts []joblock.AcquireOption) (*joblock.Lock, error) {
	ctx, cancel := d.s.UntilClosing(c.Request().Context())
	defer cancel(nil)
	rights := c.Watch(key, func(p *problem.Problem) { cancel(p) })
	defer rights.Stop()
	lock, err := d.s.Locks().Acquire(ctx, key, opts...)
	if err == nil {
		rights.Confirm()
	}
	cause := context.Cause(ctx)
	var ended *problem.Problem
	if err == nil && errors.As(cause, &ended) {
		_ = lock.Release(c.Lasting(), joblock.Reason("the rights of the caller have ended"))
		return nil, ended
	}
	if err != nil && cause != nil {
		return nil, cause
	}
	return lock, err
}

// hold records a lock that this replica renews.
func (d *daprLocks) hold(lock *joblock.Lock) *daprHeld {
	h := &daprHeld{lock: lock, over: make(chan struct{}), ended: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[daprHolding{lock.Key(), lock.Fence()}] = h
	return h
}

// taken removes and returns the lock that token names, if this replica renews it.
func (d *daprLocks) taken(token joblock.Token) *daprHeld {
	at := daprHolding{token.Key(), ops.FenceOf(token)}
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[at]
	if h == nil || subtle.ConstantTimeCompare([]byte(core.Token(token).Owner()), []byte((*core.Lock)(h.lock).Owner())) == 0 {
		return nil
	}
	delete(d.held, at)
	return h
}

// keep returns when a lock that this replica renews has ended. After last it stops renewing the lock. If the Server
// closes before that, the key stays reserved for the lockID until last.
func (d *daprLocks) keep(h *daprHeld, last time.Time, ttl time.Duration) {
	lock := h.lock
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.held, daprHolding{lock.Key(), lock.Fence()})
	}()
	stop := time.NewTimer(time.Until(last))
	defer stop.Stop()
	ended := h.ended
	for {
		select {
		case <-h.over:
			return
		case <-lock.Done():
			return
		case <-stop.C:
			(*core.Lock)(lock).StopRenewing() // the lock ends with its lease
		case <-ended:
			(*core.Lock)(lock).StopRenewing()
			ended, last = nil, time.Now()
		case <-d.s.Closing():
			// A lease that began at last would end one ttl later, so the reservation ends then.
			_, err := lock.Park(context.Background(), joblock.Reserve(max(driver.MinPeriod, time.Until(last.Add(ttl)))))
			if errors.Is(err, joblock.ErrUnavailable) {
				(*core.Lock)(lock).StopRenewing()
				d.s.Logger().Warn("server: could not park a lock during shutdown; it ends with its lease", "key", lock.Key(), "err", err)
			}
			return
		}
	}
}

// release ends the lock of a lockID, no matter through which replica it was taken.
func (d *daprLocks) release(ctx context.Context, token joblock.Token, reason string) error {
	if h := d.taken(token); h != nil {
		defer close(h.over)
		if err := h.lock.Release(ctx, joblock.Reason(reason)); !errors.Is(err, joblock.ErrNotOwner) {
			return err
		}
		// Close has parked the lock meanwhile.
	}
	// Release by the owner, not by the fence: if Close has parked the lock, its fence differs from the fence in the
	// lockID.
	return d.s.Locks().Release(ctx, token, joblock.Reason(reason))
}

type daprUnlockRequest struct {
	Force  bool   `json:"force"`
	LockID string `json:"lockID"`
}

// unlock serves DELETE of option 1. A lockID that names the lock unlocks without force.
func (d *daprLocks) unlock(c *call) (*answer, error) {
	var req daprUnlockRequest
	if err := d.read(c, &req); err != nil {
		return nil, d.failed(c, err)
	}
	key, err := d.key(c)
	if err == nil && req.LockID == "" && !req.Force {
		err = problem.New(http.StatusBadRequest, problem.Request, "lockID is missing")
	}
	if err == nil && !req.Force && !c.May("lock") {
		err = needs("lock")
	}
	if err != nil {
		return nil, d.failed(c, err)
	}
	err = problem.NotHolder("the lockID names no lock")
	if token, known := parseCompactToken(key, req.LockID); known && c.May("lock") {
		err = d.release(c.Lasting(), token, "")
	}
	if err == nil {
		c.WriteEmpty(http.StatusNoContent)
		return nil, nil
	}
	p := d.failed(c, err)
	if req.Force && p.Status == http.StatusNotFound {
		return d.forceUnlock(c)
	}
	return nil, p
}

// forceUnlock serves a forced DELETE.
func (d *daprLocks) forceUnlock(c *call) (*answer, error) {
	key, err := d.key(c)
	if err != nil {
		return nil, d.failed(c, err)
	}
	rec, err := c.look("force release", key)
	if err == nil {
		err = c.forceOf(rec, "dapr force unlock")
	}
	if err != nil {
		return nil, d.failed(c, err)
	}
	c.WriteEmpty(http.StatusNoContent)
	return nil, nil
}

// stream serves POST of option 2.
func (d *daprLocks) stream(c *call) (*answer, error) {
	key, ttl, opts, err := d.asked(c)
	if err != nil {
		return nil, d.failed(c, err)
	}
	if c.Request().ProtoMajor == 1 {
		d.warn.Do(func() {
			d.s.Logger().Warn("server: a Dapr lock stream over HTTP/1.1 occupies a whole connection; clients should use HTTP/2")
		})
	}
	err = c.Stream(foreign.Stream{Key: key, TTL: ttl, Shape: daprLineOf}, func(ctx context.Context, waits func(int)) (*joblock.Lock, error) {
		return d.s.Locks().Acquire(ctx, key, append(opts, core.With(func(o *core.Options) { o.Waits = waits }))...)
	})
	if err != nil {
		return nil, d.failed(c, err)
	}
	return nil, nil
}

// daprLine is a line of option 2.
type daprLine struct {
	Type  string `json:"type"`
	Error string `json:"error,omitempty"`
}

// daprLineOf returns the proposal's line for a line of POST /v1/hold.
func daprLineOf(kind, text string) any {
	switch kind {
	case "waiting", "ping":
		return daprLine{Type: "ping"}
	case "lock-acquired":
		return daprLine{Type: "lock-acquired"}
	case "draining":
		return daprLine{"error", "the server is closing, and the lock ends with its lease"}
	case "lock-lost":
		return daprLine{"error", strings.TrimSuffix("the lock is lost: "+text, ": ")}
	}
	return daprLine{"error", text}
}

func asDaprLine(c *call, p *problem.Problem) {
	c.WriteJSON(p.Status, "application/x-ndjson", daprLine{"error", cmp.Or(p.Detail, p.Title)})
}
