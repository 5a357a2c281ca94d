package server

import (
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// The bounds of SaaSignal's locks API.
const (
	saasMaxTTL   = time.Minute
	saasMaxChars = 256 // of a token and of a holder
	saasMaxKey   = 512
)

// SaaSignalConfig configures the handler of [Server.SaaSignal]. The zero value of each field means its default.
type SaaSignalConfig struct {
	// Prefix comes before the key in the path, and makes the key of its lock. Default none: then clients of other APIs who
	// lock the same key exclude those of this one.
	Prefix string
}

// SaaSignal returns a handler for the paths of SaaSignal's locks API:
//
//	POST /infra/locks/{key}/acquire  {ttl_ms, holder_id}  lock  200 {status, key, token, expires_at}
//	POST /infra/locks/{key}/renew    {token, ttl_ms}      lock  200 {status, expires_at}
//	POST /infra/locks/{key}/release  {token}              lock  200 {status}
//	GET  /infra/locks/{key}                               read  200 {status, locked, expires_at, holder_id}
//
// The third column is the scope. Mount the handler at /infra/locks/. The field status is "ok". ttl_ms is from 1 to 60000
// and at most joblock.Config.MaxTTL. A token has at most 256 characters, and is no token of the routes under /v1. A key
// has 1 to 512 bytes, neither ".." nor a control character, and is otherwise a key of package joblock. A holder_id has at
// most 256 bytes. The field expires_at tells when others can get the key; stop working before.
//
// Errors have the statuses of that API: 401, 409 and 429, and 400 for a bad value. 409 is the answer for each lock that
// the token does not hold, also if nobody holds the lock. 402 never comes. A store that does not answer is 503.
//
// The error is joblock.ErrInvalid for a Prefix that no key can begin with.
func (s *Server) SaaSignal(cfg SaaSignalConfig) (http.Handler, error) {
	if err := checkPrefix("SaaSignalConfig.Prefix", cfg.Prefix); err != nil {
		return nil, err
	}
	sig := &saaSignal{s, cfg.Prefix}
	path := "/infra/locks/{key}"
	return s.mount([]route{
		{http.MethodPost, path + "/acquire", ScopeLock, reads(sig.acquire)},
		{http.MethodPost, path + "/renew", ScopeLock, reads(sig.renew)},
		{http.MethodPost, path + "/release", ScopeLock, reads(sig.release)},
		{http.MethodGet, path, ScopeRead, sig.status},
	}, asProblem), nil
}

// saaSignal serves one handler of SaaSignal.
type saaSignal struct {
	s      *Server
	prefix string
}

// keyOf returns the key of the lock that the path names.
func (sig *saaSignal) keyOf(c *call) (string, error) {
	key := c.r.PathValue("key")
	if strings.Contains(key, "..") {
		return "", problemf(http.StatusBadRequest, codeInvalid, "the key has two dots in a row")
	}
	if utf8.RuneCountInString(key) > saasMaxKey {
		return "", problemf(http.StatusBadRequest, codeInvalid, "the key has more than %d characters", saasMaxKey)
	}
	return c.keyBelow(sig.prefix)
}

func saasTTL(c *call, field *int64) (time.Duration, error) {
	if field == nil {
		return 0, problemf(http.StatusBadRequest, codeInvalid, "ttl_ms is missing")
	}
	return millis("ttl_ms", field, 0, time.Millisecond, min(saasMaxTTL, c.s.in.Settings().MaxTTL))
}

// tokenOf returns the token of a body, for the key of the path. A token that names no lock of the key is a conflict.
func (sig *saaSignal) tokenOf(c *call, text string) (joblock.Token, error) {
	key, err := sig.keyOf(c)
	if err != nil {
		return joblock.Token{}, err
	}
	if n := utf8.RuneCountInString(text); n < 1 || n > saasMaxChars {
		return joblock.Token{}, problemf(http.StatusBadRequest, codeInvalid, "token has %d characters, must have 1 to %d", n, saasMaxChars)
	}
	token, ok := parseCompactToken(key, text)
	if !ok {
		return token, notTheHolder("the token names no lock")
	}
	return token, nil
}

type saasAnswer struct {
	Status    string `json:"status"`
	Key       string `json:"key,omitempty"`
	Token     string `json:"token,omitempty"`
	Locked    *bool  `json:"locked,omitempty"`
	ExpiresAt *stamp `json:"expires_at,omitempty"`
	HolderID  string `json:"holder_id,omitempty"`
}

func saasOK(a saasAnswer) (*answer, error) {
	a.Status = "ok"
	return ok(a), nil
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
	if err := c.mayHold(key); err != nil {
		return nil, err
	}
	g, err := ops.AcquireLease(c.lasting(), sig.s.cfg.Locks, ops.LeaseRequest{Key: key, TTL: ttl, Holder: req.Holder})
	if err == nil {
		err = c.willBeRead(g.Token)
	}
	if err != nil {
		return nil, c.conflict(err)
	}
	c.holds(g)
	return saasOK(saasAnswer{Key: c.r.PathValue("key"), Token: compactToken(g.Token), ExpiresAt: (*stamp)(&g.Until)})
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
	g, err := ops.RenewLease(c.lasting(), sig.s.cfg.Locks, token, ttl, 0)
	if err != nil {
		return nil, c.conflict(err)
	}
	return saasOK(saasAnswer{ExpiresAt: (*stamp)(&g.Until)})
}

type saasReleaseRequest struct {
	Token string `json:"token"`
}

func (sig *saaSignal) release(c *call, req *saasReleaseRequest) (*answer, error) {
	token, err := sig.tokenOf(c, req.Token)
	if err != nil {
		return nil, err
	}
	if err := ops.Release(c.lasting(), sig.s.cfg.Locks, token, ""); err != nil {
		return nil, c.conflict(err)
	}
	c.s.quotas.gave(c.who.ID, token.Key())
	return saasOK(saasAnswer{})
}

func (sig *saaSignal) status(c *call) (*answer, error) {
	key, err := sig.keyOf(c)
	if err != nil {
		return nil, err
	}
	locks, err := sig.s.desk.Read(c.r.Context(), key)
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
