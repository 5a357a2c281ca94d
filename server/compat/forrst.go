package compat

import (
	"cmp"
	"context"
	"net/http"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/compat/forrst"
	"github.com/joblock/toolkit/server/internal/problem"
)

// Forrst returns a handler for the functions of Forrst's atomic-lock extension:
//
//	urn:cline:forrst:ext:atomic-lock:fn:release        key, owner  lock
//	urn:cline:forrst:ext:atomic-lock:fn:force-release  key         operate
//	urn:cline:forrst:ext:atomic-lock:fn:status         key         read
//
// The third column is the scope. A request is a POST with the envelope of the protocol, at the path where the handler is
// mounted:
//
//	mux.Handle("/rpc", compat.Forrst(s))
//
// The locks are the ones that services take with forrst.AtomicLock. Package forrst documents the errors and their
// statuses. There are also UNAUTHORIZED (401), FORBIDDEN (403), RATE_LIMITED (429), and INVALID_REQUEST for 405, 408, 413
// and 415. A force-release is recorded, and is refused if it cannot be recorded. A principal with prefixes needs a prefix
// that begins with "lock:".
func Forrst(s *server.Server) http.Handler {
	return mount(s.Host(), []route{{http.MethodPost, "/", []string{"lock", "read", "operate"}, serveForrst}}, asForrstError)
}

func serveForrst(c *call) (*answer, error) {
	text, err := c.Body()
	if err != nil {
		return nil, err
	}
	req, res := forrst.ParseRequest(text)
	if req != nil {
		res = c.forrstFunctions().Call(c.Request().Context(), req)
	}
	if len(res.Errors) > 0 {
		c.Note(res.Errors[0].Code, nil)
	}
	return &answer{Status: res.Status(), Body: res}, nil
}

// forrstFunctions returns the functions for the caller.
func (c *call) forrstFunctions() forrst.Functions {
	own := forrst.LocksOf(c.s.Locks())
	// may checks the caller, and then calls do.
	may := func(scope string, key string, do func() error) error {
		if !c.May(scope) {
			return c.forrstError(needs(scope))
		}
		if err := c.UseKey(key); err != nil {
			return c.forrstError(err)
		}
		return c.forrstError(do())
	}
	return forrst.Functions{
		Release: func(_ context.Context, key, owner string) error {
			return may("lock", key, func() error { return own.Release(c.Lasting(), key, owner) })
		},
		ForceRelease: func(_ context.Context, key string) error {
			return may("operate", key, func() error {
				rec, err := c.look("force release", key)
				if err != nil {
					return err
				}
				return c.forceOf(rec, "forrst force-release")
			})
		},
		Status: func(ctx context.Context, key string) (st joblock.Status, err error) {
			return st, may("read", key, func() error {
				st, err = own.Status(ctx, key)
				return err
			})
		},
	}
}

// forrstCodes maps codes of problems to codes of the protocol. The five codes of the extension are the same as joblock's.
var forrstCodes = map[string]string{
	problem.Invalid: "INVALID_ARGUMENTS", problem.Request: "INVALID_REQUEST", problem.Auth: "UNAUTHORIZED", problem.Forbidden: "FORBIDDEN", problem.Rate: "RATE_LIMITED",
	problem.Method: "INVALID_REQUEST", problem.TooLarge: "INVALID_REQUEST", problem.MediaType: "INVALID_REQUEST", problem.Slow: "INVALID_REQUEST",
	problem.Internal: "INTERNAL_ERROR",
}

// forrstError returns err as an error of the protocol, and records the details for the log. Errors for which package
// forrst has a code are returned unchanged.
func (c *call) forrstError(err error) error {
	if err == nil {
		return nil
	}
	p := c.Problem(err)
	if p.Status == http.StatusConflict || p.Status == http.StatusGone || p.Status == http.StatusNotFound {
		return err
	}
	return forrstErrorOf(p)
}

func forrstErrorOf(p *problem.Problem) *forrst.Error {
	code := forrstCodes[p.Code]
	if code == "" && p.Status == http.StatusServiceUnavailable {
		code = "UNAVAILABLE"
	}
	if code == "" {
		code = p.Code
	}
	return &forrst.Error{Code: code, Message: cmp.Or(p.Detail, p.Title)}
}

// asForrstError answers a request whose envelope was not read.
func asForrstError(c *call, p *problem.Problem) {
	c.WriteJSON(p.Status, "application/json", forrst.Refusal(forrstErrorOf(p)))
}
