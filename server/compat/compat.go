package compat

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/foreign"
	"github.com/joblock/toolkit/server/internal/problem"
)

type answer = foreign.Answer

// A call is a request to one of the handlers.
type call struct {
	foreign.Call
	s foreign.Server
}

// A route is a foreign.Route whose function takes a call.
type route struct {
	method, path string
	scopes       []string
	do           func(*call) (*answer, error)
}

func mount(s foreign.Server, routes []route, refuse func(*call, *problem.Problem)) http.Handler {
	list := make([]foreign.Route, len(routes))
	for i, r := range routes {
		list[i] = foreign.Route{Method: r.method, Path: r.path, Scopes: r.scopes, Do: func(c foreign.Call) (*answer, error) { return r.do(&call{c, s}) }}
	}
	return s.Mount(list, func(c foreign.Call, p *problem.Problem) { refuse(&call{c, s}, p) })
}

// reads returns a route's function that decodes the body into a T, and calls do.
func reads[T any](do func(c *call, req *T) (*answer, error)) func(c *call) (*answer, error) {
	return func(c *call) (*answer, error) {
		req := new(T)
		if err := c.Read(req); err != nil {
			return nil, err
		}
		return do(c, req)
	}
}

func ok(body any) (*answer, error) { return &answer{Status: http.StatusOK, Body: body}, nil }

// empty answers 200 with an empty object, unless err is set.
func empty(err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	return ok(struct{}{})
}

func (c *call) settings() core.Config { return (*core.Locker)(c.s.Locks()).Settings() }

// needs returns the problem for a caller that lacks a right.
func needs(scope string) *problem.Problem {
	return problem.New(http.StatusForbidden, problem.Forbidden, "the caller needs the scope %s", scope)
}

// asProblem writes an error as the server's own routes do.
func asProblem(c *call, p *problem.Problem) { c.WriteProblem(p) }

// compactToken returns a form of the token without the key, for APIs that limit the length of a token: the fence and the
// TTL in milliseconds, both in base 36, and the owner, separated by dots.
func compactToken(token joblock.Token) string {
	id := core.Token(token)
	return strconv.FormatInt(id.Fence(), 36) + "." + strconv.FormatInt(id.TTL().Milliseconds(), 36) + "." + id.Owner()
}

// parseCompactToken parses a compact token for a lock on key. It returns false if text is not a compact token.
func parseCompactToken(key, text string) (joblock.Token, bool) {
	fence, rest, _ := strings.Cut(text, ".")
	ttl, owner, _ := strings.Cut(rest, ".")
	n, err1 := strconv.ParseInt(fence, 36, 64)
	ms, err2 := strconv.ParseInt(ttl, 36, 64)
	if err1 != nil || err2 != nil || n < 1 || ms < 1 || ms > maxMillis {
		return joblock.Token{}, false
	}
	token, err := joblock.NewToken(key, owner, time.Duration(ms)*time.Millisecond)
	if err != nil {
		return joblock.Token{}, false
	}
	return joblock.Token(core.Token(token).At(n)), true
}

// maxMillis is the longest time.Duration, in milliseconds.
const maxMillis = int64(1<<63-1) / int64(time.Millisecond)

// conflict returns the problem for err. It turns a lock that has ended or never existed into a conflict, like another
// holder's lock: these APIs have no other status for it.
func (c *call) conflict(err error) *problem.Problem {
	p := c.Problem(err)
	if p.Status == http.StatusGone || p.Status == http.StatusNotFound {
		p.Status = http.StatusConflict
	}
	return p
}

// expiry returns when other callers can get the key, unless it is freed earlier.
func expiry(l ops.Lock) *ops.Time {
	t := l.ReservedUntil.Time
	if t.IsZero() {
		t = l.ExpiresAt.Time
	}
	if t.IsZero() {
		return nil
	}
	return &ops.Time{Time: t}
}

// look reads the record of key, with its memo and its owner.
func (c *call) look(op, key string) (driver.Record, error) {
	recs, err := (*core.Locker)(c.s.Locks()).Inspect(c.Request().Context(), op, key, driver.InspectRequest{Keys: []string{key}, Memo: true})
	if err != nil {
		return driver.Record{}, err
	}
	return recs[0], nil
}

// ownerOf returns the owner token for a name that a client of the API has chosen. Neither the owner nor its digest
// reveals the name.
func (c *call) ownerOf(api, key, name string) (string, error) {
	named, err := ops.NewCall(c.Request().Context(), c.s.Locks(), fmt.Sprintf("%s %q %q", api, key, name), "")
	return named.Name(), err
}

// releaseOf ends the holding in a record from look.
func (c *call) releaseOf(rec driver.Record, reason string) error {
	token, err := joblock.NewToken(rec.Key, rec.Owner, driver.MinPeriod)
	if err != nil {
		return err
	}
	if err := ops.Release(c.Lasting(), c.s.Locks(), joblock.Token(core.Token(token).At(rec.Fence)), reason); err != nil {
		return err
	}
	c.Gave(rec.Key)
	return nil
}

// forceOf frees the key of a record from look, regardless of its holder.
func (c *call) forceOf(rec driver.Record, reason string) error {
	if !c.May("operate") {
		return problem.New(http.StatusForbidden, problem.Forbidden, "another principal has the lock, and the caller lacks the scope operate")
	}
	if rec.State == joblock.StateFree {
		return core.Refusal("force release", rec.Key, driver.Reply{Outcome: driver.OutcomeNotFound})
	}
	return c.Force(rec.Key, rec.Fence, reason)
}

// keyBelow returns the key for a path: the prefix followed by the name in the path.
func (c *call) keyBelow(prefix string) (string, error) {
	key := prefix + c.Request().PathValue("key") // never empty: a path with two slashes in a row is refused
	return key, c.UseKey(key)
}

// checkPrefix refuses a prefix that no key can begin with.
func checkPrefix(field, prefix string) error {
	if err := core.CheckText("new", "", field, prefix, 0, driver.MaxKeyBytes-1); err != nil {
		return fmt.Errorf("compat: %w", err)
	}
	return nil
}
