package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Scope is a set of rights.
type Scope uint16

// The rights. A route needs one of them; see the table in the package comment.
const (
	ScopeRead    Scope = 1 << iota // to see locks, jobs and ledgers
	ScopeLock                      // to take, renew and release locks
	ScopeEnqueue                   // to enqueue tasks that carry locks
	ScopeOperate                   // to free locks of others
	ScopeCron                      // to pause, resume and trigger cron jobs
	ScopeAdmin                     // every right, those of later versions included

	// ScopeAny is any right at all.
	ScopeAny = ScopeRead | ScopeLock | ScopeEnqueue | ScopeOperate | ScopeCron | ScopeAdmin
)

var scopeNames = []struct {
	scope Scope
	name  string
}{
	{ScopeRead, "read"}, {ScopeLock, "lock"}, {ScopeEnqueue, "enqueue"}, {ScopeOperate, "operate"}, {ScopeCron, "cron"}, {ScopeAdmin, "admin"},
}

// ParseScope returns the right with a name: read, lock, enqueue, operate, cron or admin.
func ParseScope(name string) (Scope, error) {
	for _, s := range scopeNames {
		if s.name == name {
			return s.scope, nil
		}
	}
	return 0, fmt.Errorf("the scope is %q, must be read, lock, enqueue, operate, cron or admin", name)
}

// Names returns the names of the rights in s.
func (s Scope) Names() []string {
	names := []string{}
	for _, n := range scopeNames {
		if s&n.scope != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// Principal is who sends a request, and what that caller may do.
type Principal struct {
	// ID names the caller in logs, bounds and audits, and separates the Idempotency-Keys of different callers. An ID is
	// not secret. It must not be empty.
	ID string

	// Scopes has the rights.
	Scopes Scope

	// Prefixes restricts the caller to keys that begin with one of them. None means all keys.
	Prefixes []string

	// Queues restricts the caller to tasks in these queues of asynq. None means all queues.
	Queues []string

	// Expires is when the rights end; zero means never.
	Expires time.Time
}

func (p *Principal) may(s Scope) bool { return p.Scopes&(s|ScopeAdmin) != 0 }

func (p *Principal) mayUse(key string) bool {
	return len(p.Prefixes) == 0 || slices.ContainsFunc(p.Prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

func (p *Principal) mayEnqueueIn(queue string) bool {
	return len(p.Queues) == 0 || slices.Contains(p.Queues, queue)
}

// mayTouch refuses that the caller's job takes the place of a job, or shows the job's task, if the caller could not have
// enqueued that job itself: see door.WithOthers.
func (p *Principal) mayTouch(queue string, keys []string) error {
	if !p.mayEnqueueIn(queue) || slices.ContainsFunc(keys, func(key string) bool { return !p.mayUse(key) }) {
		return problemf(http.StatusForbidden, codeForbidden, "the key has a job in a queue, or with a lock, that the caller may not use")
	}
	return nil
}

// ErrUnauthorized is the error of an Authorizer that does not know the caller. The answer is 401. For every other error
// the answer is 503: nobody gets in because an Authorizer fails.
var ErrUnauthorized = errors.New("server: the caller is not known")

// Authorizer names the caller of a request. An Authorizer must not read the body, and must be safe for concurrent use.
type Authorizer interface {
	Authorize(r *http.Request) (Principal, error)
}

// AuthorizeFunc is a function as an Authorizer.
type AuthorizeFunc func(r *http.Request) (Principal, error)

// Authorize calls f.
func (f AuthorizeFunc) Authorize(r *http.Request) (Principal, error) { return f(r) }

// Anyone is the Authorizer that gives every caller every right. Server.Listen then listens on loopback only.
var Anyone Authorizer = anyone{}

type anyone struct{}

func (anyone) Authorize(*http.Request) (Principal, error) {
	return Principal{ID: "anyone", Scopes: ScopeAny}, nil
}

// expired reports whether the rights have ended.
func (p *Principal) expired(now time.Time) bool { return !p.Expires.IsZero() && !now.Before(p.Expires) }

// rightsUnknown is the problem of a caller whose rights cannot be looked up.
func rightsUnknown() *problem {
	p := problemf(http.StatusServiceUnavailable, codeAuthDown, "the rights of the caller cannot be looked up at the moment")
	p.Retryable, p.retryAfter = true, time.Second
	return p
}

func rightsEnded() *problem {
	return problemf(http.StatusUnauthorized, codeAuth, "the rights of the caller have ended")
}

// whoIs asks the Authorizer.
func (s *Server) whoIs(r *http.Request) (Principal, error) {
	who, err := s.cfg.Authorize.Authorize(r)
	if err == nil && who.ID == "" {
		err = errors.New("the Authorizer returned a Principal without an ID")
	}
	return who, err
}

// authorize finds out who calls, and refuses a caller who lacks the right or sends too much.
func (c *call) authorize(scope Scope) *problem {
	if p := c.s.sites.check(c.r); p != nil {
		return p
	}
	who, err := c.s.whoIs(c.r)
	switch {
	case errors.Is(err, ErrUnauthorized):
		return c.unknown(problemf(http.StatusUnauthorized, codeAuth, "send a token that is valid as Authorization: Bearer, or a certificate"))
	case err != nil:
		c.detail = err
		return rightsUnknown()
	}
	c.who = who
	if !who.Expires.IsZero() && who.expired(time.Now()) {
		return c.unknown(rightsEnded())
	}
	if after := c.s.quotas.take(who.ID); after > 0 {
		p := problemf(http.StatusTooManyRequests, codeRate, "at most %v requests a second are allowed, and %d at once", c.s.cfg.Rate, c.s.cfg.Burst)
		p.Retryable, p.retryAfter = true, after
		return p
	}
	if !who.may(scope) {
		return needs(scope)
	}
	return nil
}

// unknown returns the problem of a caller who is not let in: p, or a 429 if too many from the same address were not.
func (c *call) unknown(p *problem) *problem {
	after := c.s.attempts.failed(c.r.RemoteAddr)
	if after == 0 {
		return p
	}
	p = problemf(http.StatusTooManyRequests, codeRate, "too many callers who are not known come from the same address")
	p.Retryable, p.retryAfter = true, after
	return p
}

func needs(scope Scope) *problem {
	return problemf(http.StatusForbidden, codeForbidden, "the caller needs the scope %s", strings.Join(scope.Names(), " or "))
}
