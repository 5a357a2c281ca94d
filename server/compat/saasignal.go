package compat

import (
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/internal/problem"
)

// The bounds of SaaSignal's locks API.
const (
	saasMaxTTL   = time.Minute
	saasMaxChars = 256 // of a token and of a holder
	saasMaxKey   = 512
)

// SaaSignal returns a handler for the paths of SaaSignal's locks API:
//
//	POST /infra/locks/{key}/acquire  {ttl_ms, holder_id}  lock  200 {status, key, token, expires_at}
//	POST /infra/locks/{key}/renew    {token, ttl_ms}      lock  200 {status, expires_at}
//	POST /infra/locks/{key}/release  {token}              lock  200 {status}
//	GET  /infra/locks/{key}                               read  200 {status, locked, expires_at, holder_id}
//
// The third column is the scope. Mount the handler at /infra/locks/. status is "ok". ttl_ms is from 1 to 60000 and at
// most joblock.Config.MaxTTL. A token has at most 256 characters, and cannot be used with the routes under /v1. A key has
// 1 to 512 bytes, without ".." and control characters, and must be a valid key of package joblock. A holder_id has at
// most 256 bytes. expires_at is when other callers can get the key, so stop working before then.
//
// Errors have the statuses of that API: 401, 409 and 429, and 400 for a bad value. The status is 409 whenever the token
// does not hold the lock, even if the lock has no holder. 402 is never returned. If the store does not answer, the status
// is 503.
//
// The prefix is put in front of the key in the path to make the key of the lock. With the prefix "", clients of this API
// and of other APIs exclude each other if they lock the same key. The error is joblock.ErrInvalid for a prefix that no
// key can begin with.
func SaaSignal(s *server.Server, prefix string) (http.Handler, error) {
	if err := checkPrefix("prefix", prefix); err != nil {
		return nil, err
	}
	sig := &saaSignal{prefix}
	path := "/infra/locks/{key}"
	return mount(s.Host(), []route{
		{http.MethodPost, path + "/acquire", []string{"lock"}, reads(sig.acquire)},
		{http.MethodPost, path + "/renew", []string{"lock"}, reads(sig.renew)},
		{http.MethodPost, path + "/release", []string{"lock"}, reads(sig.release)},
		{http.MethodGet, path, []string{"read"}, sig.status},
	}, asProblem), nil
}

// saaSignal serves one handler of SaaSignal.
type saaSignal struct{ prefix string }

// keyOf returns the key of the lock that the path names.
func (sig *saaSignal) keyOf(c *call) (string, error) {
	key := c.Request().PathValue("key")
	if strings.Contains(key, "..") {
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "the key has two dots in a row")
	}
	if utf8.RuneCountInString(key) > saasMaxKey {
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "the key has more than %d characters", saasMaxKey)
	}
	return c.keyBelow(sig.prefix)
}

func saasTTL(c *call, field *int64) (time.Duration, error) {
	if field == nil {
		return 0, problem.New(http.StatusBadRequest, problem.Invalid, "ttl_ms is missing")
	}
	ttl, most := time.Duration(*field)*time.Millisecond, min(saasMaxTTL, c.settings().MaxTTL)
	if *field < 1 || *field > most.Milliseconds() {
		return 0, problem.New(http.StatusBadRequest, problem.Invalid, "ttl_ms is %d, must be from 1 to %d", *field, most.Milliseconds())
	}
	return ttl, nil
}

// tokenOf returns the token of a body, for the key of the path. If the token does not name a lock on the key, the error
// is a conflict.
func (sig *saaSignal) tokenOf(c *call, text string) (joblock.Token, error) {
	key, err := sig.keyOf(c)
	if err != nil {
		return joblock.Token{}, err
	}
	if n := utf8.RuneCountInString(text); n < 1 || n > saasMaxChars {
		return joblock.Token{}, problem.New(http.StatusBadRequest, problem.Invalid, "token has %d characters, must have 1 to %d", n, saasMaxChars)
	}
	token, ok := parseCompactToken(key, text)
	if !ok {
		return token, problem.NotHolder("the token names no lock")
	}
	return token, nil
}

type saasAnswer struct {
	Status    string    `json:"status"`
	Key       string    `json:"key,omitempty"`
	Token     string    `json:"token,omitempty"`
	Locked    *bool     `json:"locked,omitempty"`
	ExpiresAt *ops.Time `json:"expires_at,omitempty"`
	HolderID  string    `json:"holder_id,omitempty"`
}

func saasOK(a saasAnswer) (*answer, error) {
	a.Status = "ok"
	return ok(a)
}

type saasAcquireRequest struct {
	TTL    *int64 `json:"ttl_ms"`
	Holder string `json:"holder_id"`
}

func (sig *saaSignal) acquire(c *call, req *saasAcquireRequest) (*answer, error) {
	key, err := sig.keyOf(c)
	if err != nil {
		return nil, err
	}
	ttl, err := saasTTL(c, req.TTL)
	if err != nil {
		return nil, err
	}
	if err := c.MayHold(key); err != nil {
		return nil, err
	}
	g, err := ops.AcquireLease(c.Lasting(), c.s.Locks(), ops.LeaseRequest{Key: key, TTL: ttl, Holder: req.Holder})
	if err == nil {
		err = c.WillBeRead(g.Token)
	}
	if err != nil {
		return nil, c.conflict(err)
	}
	c.Holds(g.Token.Key(), g.Until)
	return saasOK(saasAnswer{Key: c.Request().PathValue("key"), Token: compactToken(g.Token), ExpiresAt: &ops.Time{Time: g.Until}})
}

type saasRenewRequest struct {
	Token string `json:"token"`
	TTL   *int64 `json:"ttl_ms"`
}

func (sig *saaSignal) renew(c *call, req *saasRenewRequest) (*answer, error) {
	ttl, err := saasTTL(c, req.TTL)
	if err != nil {
		return nil, err
	}
	token, err := sig.tokenOf(c, req.Token)
	if err != nil {
		return nil, err
	}
	g, err := ops.RenewLease(c.Lasting(), c.s.Locks(), token, ttl, 0)
	if err != nil {
		return nil, c.conflict(err)
	}
	return saasOK(saasAnswer{ExpiresAt: &ops.Time{Time: g.Until}})
}

type saasReleaseRequest struct {
	Token string `json:"token"`
}

func (sig *saaSignal) release(c *call, req *saasReleaseRequest) (*answer, error) {
	token, err := sig.tokenOf(c, req.Token)
	if err != nil {
		return nil, err
	}
	if err := ops.Release(c.Lasting(), c.s.Locks(), token, ""); err != nil {
		return nil, c.conflict(err)
	}
	c.Gave(token.Key())
	return saasOK(saasAnswer{})
}

func (sig *saaSignal) status(c *call) (*answer, error) {
	key, err := sig.keyOf(c)
	if err != nil {
		return nil, err
	}
	locks, err := c.s.Desk().Read(c.Request().Context(), key)
	if err != nil {
		return nil, err
	}
	l := locks[0]
	locked := l.Locked()
	a := saasAnswer{Locked: &locked}
	if locked {
		a.ExpiresAt, a.HolderID = expiry(l), l.Holder
	}
	return saasOK(a)
}
