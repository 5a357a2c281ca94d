package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

const (
	sessionCookie = "joblock_session"
	sessionTime   = 8 * time.Hour

	// mostCookie is a size of cookies that every browser accepts.
	mostCookie = 3800
)

// errSessionSize means that the rights of a caller do not fit into a cookie.
var errSessionSize = errors.New("the session is too large for a cookie")

// A ticket is the content of a session's cookie. It is signed but not secret, and does not contain the caller's token.
type ticket struct {
	ID   string    `json:"i"`
	Ends time.Time `json:"e"`

	// Mark is what Accounts.mark returned when the session began. If the token of the account has changed since, so
	// has the mark, and the session is no longer valid.
	Mark string `json:"m,omitempty"`

	// If Mark is "", the rights are those that the caller had when the session began.
	Scopes    Scope     `json:"s,omitempty"`
	Prefixes  []string  `json:"p,omitempty"`
	AllKeys   bool      `json:"pa,omitempty"`
	Queues    []string  `json:"q,omitempty"`
	AllQueues bool      `json:"qa,omitempty"`
	Expires   time.Time `json:"x,omitzero"`
}

// sessionKey returns the key that signs sessions, which is the same in all replicas.
func (s *Server) sessionKey(ctx context.Context) ([]byte, error) {
	return s.in.Ring().Derive(ctx, "sessions of pages")
}

func sign(key, text []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return mac.Sum(nil)
}

// newSession returns the caller with the token, and the cookie of a new session. The error matches ErrUnauthorized if the
// token is unknown.
func (s *Server) newSession(r *http.Request, token string) (Principal, *http.Cookie, error) {
	if token == "" || len(token) > maxTokenBytes || strings.ContainsAny(token, " \t\r\n") {
		return Principal{}, nil, ErrUnauthorized
	}
	ask := r.Clone(r.Context())
	ask.Header.Set("Authorization", "Bearer "+token)
	ask.Header.Del("Cookie")
	ask.Body = http.NoBody
	who, err := s.whoIs(ask)
	switch {
	case err != nil:
		return Principal{}, nil, err
	case who.expired(time.Now()):
		return Principal{}, nil, ErrUnauthorized
	}
	t := ticket{ID: who.ID, Ends: time.Now().Add(sessionTime).UTC().Truncate(time.Second)}
	if accounts, ok := s.cfg.Authorize.(*Accounts); ok {
		t.Mark = accounts.mark(who.ID)
	} else {
		t.Scopes, t.Expires = who.Scopes, who.Expires
		t.Prefixes, t.AllKeys, t.Queues, t.AllQueues = who.Prefixes, who.AllKeys, who.Queues, who.AllQueues
	}
	key, err := s.sessionKey(r.Context())
	if err != nil {
		return Principal{}, nil, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return Principal{}, nil, err
	}
	value := base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(sign(key, text))
	if len(value) > mostCookie {
		return Principal{}, nil, errSessionSize
	}
	// Without a Path, the cookie applies to the directory of the pages, wherever they are mounted.
	return who, &http.Cookie{
		Name: sessionCookie, Value: value, MaxAge: int(sessionTime.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: overTLS(r),
	}, nil
}

// overTLS reports whether the browser uses TLS: to this server or, as the Origin of a form shows, to a proxy in front of
// it.
func overTLS(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// session returns the caller of the request's session, or ErrUnauthorized if there is no valid session.
func (s *Server) session(r *http.Request) (Principal, error) {
	cookies := r.CookiesNamed(sessionCookie)
	if len(cookies) == 0 {
		return Principal{}, ErrUnauthorized
	}
	key, err := s.sessionKey(r.Context())
	if err != nil {
		return Principal{}, err
	}
	for _, cookie := range cookies { // nested mounts have a cookie each
		if who, ok := s.readSession(key, cookie.Value); ok {
			return who, nil
		}
	}
	return Principal{}, ErrUnauthorized
}

func (s *Server) readSession(key []byte, value string) (Principal, bool) {
	first, second, _ := strings.Cut(value, ".")
	text, err := base64.RawURLEncoding.DecodeString(first)
	if err != nil {
		return Principal{}, false
	}
	sum, err := base64.RawURLEncoding.DecodeString(second)
	if err != nil || !hmac.Equal(sum, sign(key, text)) {
		return Principal{}, false
	}
	var t ticket
	if json.Unmarshal(text, &t) != nil || !time.Now().Before(t.Ends) {
		return Principal{}, false
	}
	accounts, ok := s.cfg.Authorize.(*Accounts)
	if !ok {
		return Principal{
			ID: t.ID, Scopes: t.Scopes, Expires: t.Expires, Prefixes: t.Prefixes, AllKeys: t.AllKeys, Queues: t.Queues, AllQueues: t.AllQueues,
		}, t.Mark == ""
	}
	return accounts.marked(t.ID, t.Mark)
}

// mark returns a text that changes with the token of an account, and reveals neither the token nor its digest.
func (a *Accounts) mark(id string) string {
	found := a.known.Load().byID[id]
	if found == nil {
		return ""
	}
	return found.mark()
}

func (a *account) mark() string {
	sum := sha256.Sum256(append([]byte("mark of a session "), a.digest[:]...))
	return hex.EncodeToString(sum[:8])
}

// marked returns the account with the id, if its mark is still the same.
func (a *Accounts) marked(id, mark string) (Principal, bool) {
	a.refresh()
	found := a.known.Load().byID[id]
	if found == nil || !found.token || subtle.ConstantTimeCompare([]byte(found.mark()), []byte(mark)) != 1 {
		return Principal{}, false
	}
	return found.who, true
}
