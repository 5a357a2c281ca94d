package compat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/internal/problem"
)

// DaprAlpha1 returns a handler for Dapr's lock API as Dapr serves it, version alpha1:
//
//	POST /v1.0-alpha1/lock/{store}    {resourceId, lockOwner, expiryInSeconds}  200 {"success":true|false}
//	POST /v1.0-alpha1/unlock/{store}  {resourceId, lockOwner}                   200 {"status":0|1|2}
//
// Both need the scope lock.
//
// status is 0 if the lock was released, 1 if the lock has no holder, 2 if another owner has the lock. A lock is not
// renewed. A lockOwner should be different for each lock, and secret: any client that knows it can unlock.
//
// Errors are {"errorCode","message"}, with Dapr's codes and statuses: 400 ERR_RESOURCE_ID_EMPTY, ERR_OWNER_EMPTY,
// ERR_EXPIRY_NOT_POSITIVE and ERR_MALFORMED_REQUEST, 404 ERR_LOCK_NOT_FOUND for an unknown store, 500 ERR_TRY_LOCK,
// ERR_UNLOCK and ERR_LOCK_NOT_CONFIGURED. Dapr's field details is left out. Errors that Dapr does not have, 401, 403, 413,
// 415 and 429, have the codes of the routes under /v1.
//
// stores maps the names of the stores to prefixes for their keys: the key of a lock is the prefix and the resourceId. Dapr
// puts the ID of the application before the resourceId, so give each application a prefix of its own if applications must
// not share locks. Without stores every lock is refused with ERR_LOCK_NOT_CONFIGURED. The error is joblock.ErrInvalid for a
// prefix that no key can begin with.
func DaprAlpha1(s *server.Server, stores map[string]string) (http.Handler, error) {
	for name, prefix := range stores {
		if err := checkPrefix(fmt.Sprintf("stores[%q]", name), prefix); err != nil {
			return nil, err
		}
	}
	d := &dapr{maps.Clone(stores)}
	return mount(s.Host(), []route{
		{http.MethodPost, "/v1.0-alpha1/lock/{store}", []string{"lock"}, d.tryLock},
		{http.MethodPost, "/v1.0-alpha1/unlock/{store}", []string{"lock"}, d.unlock},
	}, asDaprError), nil
}

type dapr struct {
	stores map[string]string // prefixes by name
}

// daprError is an error of Dapr's HTTP APIs.
type daprError struct {
	Code    string `json:"errorCode"`
	Message string `json:"message"`
}

func asDaprError(c *call, p *problem.Problem) {
	c.WriteJSON(p.Status, "application/json", daprError{p.Code, p.Detail})
}

type daprRequest struct {
	ResourceID string      `json:"resourceId"`
	LockOwner  string      `json:"lockOwner"`
	Expiry     json.Number `json:"expiryInSeconds"`
}

// read reads a body. Like Dapr, it ignores unknown fields.
func (d *dapr) read(c *call) (req daprRequest, err error) {
	text, err := c.Body()
	if err != nil {
		return req, err
	}
	if json.Unmarshal(text, &req) != nil {
		return req, problem.New(http.StatusBadRequest, "ERR_MALFORMED_REQUEST", "failed deserializing HTTP body")
	}
	return req, nil
}

// keyOf checks a request in Dapr's order, and returns the key and the owner.
func (d *dapr) keyOf(c *call, req daprRequest) (key, owner string, err error) {
	store := c.Request().PathValue("store")
	prefix, known := d.stores[store]
	switch {
	case len(d.stores) == 0:
		return "", "", problem.New(http.StatusInternalServerError, "ERR_LOCK_NOT_CONFIGURED", "lock %s is not configured", problem.Shown(store))
	case req.ResourceID == "":
		return "", "", problem.New(http.StatusBadRequest, "ERR_RESOURCE_ID_EMPTY", "lock resource id is empty")
	case req.LockOwner == "":
		return "", "", problem.New(http.StatusBadRequest, "ERR_OWNER_EMPTY", "lock owner is empty")
	case !known:
		return "", "", problem.New(http.StatusNotFound, "ERR_LOCK_NOT_FOUND", "lock %s is not found", problem.Shown(store))
	}
	key = prefix + req.ResourceID
	if err = c.UseKey(key); err == nil {
		owner, err = c.ownerOf("dapr", key, req.LockOwner)
	}
	return key, owner, err
}

// failed returns an error that is the caller's fault unchanged, and for any other error the one code that Dapr has.
func (d *dapr) failed(c *call, err error, code, message string) error {
	if own := (*problem.Problem)(nil); errors.As(err, &own) {
		return own
	}
	p := c.Problem(err)
	if p.Status < http.StatusInternalServerError && p.Status != http.StatusGone && p.Status != http.StatusConflict {
		if p.Code == problem.Invalid {
			p.Code = "ERR_MALFORMED_REQUEST"
		}
		return p
	}
	c.Note("", err)
	return problem.New(http.StatusInternalServerError, code, "%s", message)
}

func (d *dapr) tryLock(c *call) (*answer, error) {
	const code, message = "ERR_TRY_LOCK", "failed to try acquiring lock"
	req, err := d.read(c)
	if err != nil {
		return nil, err
	}
	var seconds int64
	if req.Expiry != "" {
		if seconds, err = req.Expiry.Int64(); err != nil || seconds > math.MaxInt32 || seconds < math.MinInt32 {
			return nil, problem.New(http.StatusBadRequest, "ERR_MALFORMED_REQUEST", "expiryInSeconds is no whole number of 32 bits")
		}
	}
	if seconds <= 0 {
		return nil, problem.New(http.StatusBadRequest, "ERR_EXPIRY_NOT_POSITIVE", "expiry in seconds is not positive")
	}
	key, owner, err := d.keyOf(c, req)
	if err != nil {
		return nil, d.failed(c, err, code, message)
	}
	ttl := time.Duration(seconds) * time.Second
	if most := c.settings().MaxTTL; ttl > most {
		return nil, problem.New(http.StatusBadRequest, "ERR_MALFORMED_REQUEST", "expiryInSeconds is %d, must be at most %d", seconds, int64(most/time.Second))
	}
	if err := c.MayHold(key); err != nil {
		return nil, err
	}
	_, err = c.s.Locks().Acquire(c.Lasting(), key, joblock.TTL(ttl), joblock.Owner(owner), joblock.MaxWait(0), joblock.NoRenew(),
		core.With(func(o *core.Options) { o.Detached = true }))
	if err != nil && !errors.Is(err, joblock.ErrHeld) {
		return nil, d.failed(c, err, code, message)
	}
	if err == nil {
		c.Holds(key, time.Now().Add(ttl))
	}
	return ok(struct {
		Success bool `json:"success"`
	}{err == nil})
}

// The statuses of unlock.
const (
	daprUnlocked = iota
	daprNoLock
	daprOtherOwner
)

func (d *dapr) unlock(c *call) (*answer, error) {
	const code, message = "ERR_UNLOCK", "failed to release lock"
	req, err := d.read(c)
	if err != nil {
		return nil, err
	}
	key, owner, err := d.keyOf(c, req)
	if err != nil {
		return nil, d.failed(c, err, code, message)
	}
	rec, err := c.look("release", key)
	if err != nil {
		return nil, d.failed(c, err, code, message)
	}
	status := daprUnlocked
	switch {
	case rec.State == joblock.StateFree:
		status = daprNoLock
	case rec.Owner != owner:
		status = daprOtherOwner
	default:
		err = c.releaseOf(rec, "")
		switch {
		case errors.Is(err, joblock.ErrNotOwner):
			status = daprOtherOwner
		case errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrAlreadyReleased), errors.Is(err, joblock.ErrLost):
			status = daprNoLock
		case err != nil:
			return nil, d.failed(c, err, code, message)
		}
	}
	return ok(struct {
		Status int `json:"status"`
	}{status})
}
