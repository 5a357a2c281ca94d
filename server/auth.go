package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/problem"
)

// Scope is a set of rights.
type Scope uint16

// The rights. A route needs one of them; see the table in the package comment.
const (
	ScopeRead    Scope = 1 << iota // to see locks, jobs and ledgers
	ScopeLock                      // to take, renew and release locks
	ScopeEnqueue                   // to enqueue tasks that carry locks
	ScopeOperate                   // to force releases, act on other callers' jobs, pause keys and set limits
	ScopeCron                      // to pause, resume and trigger cron jobs
	ScopeAdmin                     // every right, including rights of later versions
)

// scopeAny is for a route that accepts any caller with at least one right.
const scopeAny = ScopeRead | ScopeLock | ScopeEnqueue | ScopeOperate | ScopeCron | ScopeAdmin

type scopeName struct {
	scope Scope
	name  string
}

var scopeNames = []scopeName{
	{ScopeRead, "read"}, {ScopeLock, "lock"}, {ScopeEnqueue, "enqueue"}, {ScopeOperate, "operate"}, {ScopeCron, "cron"}, {ScopeAdmin, "admin"},
}

// ParseScopes returns the rights with these names: read, lock, enqueue, operate, cron or admin. No names mean no rights.
// The error names an unknown right.
func ParseScopes(names ...string) (Scope, error) {
	var all Scope
	for _, name := range names {
		i := slices.IndexFunc(scopeNames, func(s scopeName) bool { return s.name == name })
		if i < 0 {
			return 0, fmt.Errorf("the scope is %q, must be read, lock, enqueue, operate, cron or admin", name)
		}
		all |= scopeNames[i].scope
	}
	return all, nil
}

// Names returns the names of the rights in s, as ParseScopes takes them.
func (s Scope) Names() []string {
	names := []string{}
	for _, n := range scopeNames {
		if s&n.scope != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// Principal is the caller of a request, with its rights.
type Principal struct {
	// ID names the caller in logs, bounds and audits, and separates the Idempotency-Keys of different callers. An ID is
	// not secret. It must not be empty.
	ID string

	// Scopes has the rights.
	Scopes Scope

	// Prefixes are the prefixes of the keys that the caller may use, none of them "". With AllKeys the caller may use
	// every key, and Prefixes must be empty. With neither it may use no key.
	Prefixes []string
	AllKeys  bool

	// Queues are the asynq queues whose tasks the caller may see and enqueue, none of them "". AllQueues allows all
	// queues, as AllKeys allows all keys.
	Queues    []string
	AllQueues bool

	// Expires is when the rights end; zero means never.
	Expires time.Time
}

func (p *Principal) may(s Scope) bool { return p.Scopes&(s|ScopeAdmin) != 0 }

func (p *Principal) mayUse(key string) bool {
	return p.AllKeys || slices.ContainsFunc(p.Prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

func (p *Principal) mayEnqueueIn(queue string) bool {
	return p.AllQueues || slices.Contains(p.Queues, queue)
}

// viewer returns what the caller may see.
func (p *Principal) viewer() (v ops.Viewer) {
	if !p.AllKeys {
		v.Key = p.mayUse
	}
	if !p.AllQueues {
		v.Queue = p.mayEnqueueIn
	}
	return v
}

// check refuses rights that contradict each other, or cover more than they seem to.
func (p *Principal) check() error {
	switch {
	case p.ID == "":
		return errors.New("the Authorizer returned a Principal without an ID")
	case p.AllKeys && len(p.Prefixes) > 0 || slices.Contains(p.Prefixes, ""):
		return fmt.Errorf("the Authorizer returned a Principal with Prefixes %q and AllKeys %t; set one of them, and no empty prefix", p.Prefixes, p.AllKeys)
	case p.AllQueues && len(p.Queues) > 0 || slices.Contains(p.Queues, ""):
		return fmt.Errorf("the Authorizer returned a Principal with Queues %q and AllQueues %t; set one of them, and no empty queue", p.Queues, p.AllQueues)
	}
	return nil
}

// mayTouch refuses an enqueue that would replace an existing job, or reveal its task, unless the caller could have
// enqueued that job itself: see enqueue.Request.
func (p *Principal) mayTouch(queue string, keys []string) error {
	if !p.mayEnqueueIn(queue) || slices.ContainsFunc(keys, func(key string) bool { return !p.mayUse(key) }) {
		return problem.New(http.StatusForbidden, problem.Forbidden, "the key has a job in a queue, or with a lock, that the caller may not use")
	}
	return nil
}

// ErrUnauthorized is returned by an Authorizer that does not know the caller. The server answers 401. For any other error
// it answers 503: a failing Authorizer admits no caller.
var ErrUnauthorized = errors.New("server: the caller is not known")

// Authorizer identifies the caller of a request. It must not read the body, and must be safe for concurrent use.
type Authorizer interface {
	Authorize(r *http.Request) (Principal, error)
}

// AuthorizeFunc makes a function an Authorizer.
type AuthorizeFunc func(r *http.Request) (Principal, error)

// Authorize calls f.
func (f AuthorizeFunc) Authorize(r *http.Request) (Principal, error) { return f(r) }

// Anyone returns an Authorizer that gives every caller every right. With it, Server.Listen listens only on loopback.
func Anyone() Authorizer { return anyone{} }

type anyone struct{}

func (anyone) Authorize(*http.Request) (Principal, error) {
	return Principal{ID: "anyone", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, nil
}

// anyone reports whether every caller is admitted.
func (cfg *Config) anyone() bool {
	_, yes := cfg.Authorize.(anyone)
	return yes
}

// expired reports whether the rights have ended.
func (p *Principal) expired(now time.Time) bool { return !p.Expires.IsZero() && !now.Before(p.Expires) }

// rightsUnknown returns the problem for a caller whose rights cannot be looked up.
func rightsUnknown() *problem.Problem {
	return problem.New(http.StatusServiceUnavailable, problem.AuthDown, "the rights of the caller cannot be looked up at the moment").Again(time.Second)
}

func rightsEnded() *problem.Problem {
	return problem.New(http.StatusUnauthorized, problem.Auth, "the rights of the caller have ended")
}

// whoIs calls the Authorizer, and checks what it returns.
func (s *Server) whoIs(r *http.Request) (Principal, error) {
	who, err := s.cfg.Authorize.Authorize(r)
	if err == nil {
		err = who.check()
	}
	return who, err
}

// authorize identifies the caller, and refuses one that lacks the right or exceeds its rate.
func (c *call) authorize(scope Scope) *problem.Problem {
	if p := c.s.sites.check(c.r); p != nil {
		return p
	}
	who, err := c.s.whoIs(c.r)
	switch {
	case errors.Is(err, ErrUnauthorized):
		return c.unknown(problem.New(http.StatusUnauthorized, problem.Auth, "send a valid token as Authorization: Bearer, or a client certificate"))
	case err != nil:
		c.detail = err
		return rightsUnknown()
	}
	c.who = who
	if !who.Expires.IsZero() && who.expired(time.Now()) {
		return c.unknown(rightsEnded())
	}
	if after := c.s.quotas.take(who.ID); after > 0 {
		return problem.New(http.StatusTooManyRequests, problem.Rate, "at most %v requests a second are allowed, and %d at once", c.s.cfg.Rate, c.s.cfg.Burst).Again(after)
	}
	if !who.may(scope) {
		return needs(scope)
	}
	return c.letIn()
}

// unknown returns the answer to a caller that is not admitted: p, or a 429 after too many failed attempts from its
// address.
func (c *call) unknown(p *problem.Problem) *problem.Problem {
	after := c.s.attempts.failed(c.r.RemoteAddr)
	if after == 0 {
		return p
	}
	return problem.New(http.StatusTooManyRequests, problem.Rate, "too many requests of unknown callers come from the same address").Again(after)
}

func needs(scope Scope) *problem.Problem {
	return problem.New(http.StatusForbidden, problem.Forbidden, "the caller needs the scope %s", strings.Join(scope.Names(), " or "))
}
