package server

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/pages"
	"github.com/joblock/toolkit/server/internal/problem"
)

// PagesConfig configures the pages of a Server. The zero value means the defaults.
type PagesConfig struct {
	// ReadOnly refuses every action, regardless of the caller's rights.
	ReadOnly bool

	// Share bounds the share of the store's time that all walks over keys take together, and that each other kind of
	// read takes, from 0.001 to 1. Default 0.005: an open page then takes at most 1 % of a core. What takes longer to
	// read is read less often, and the page says how old it is. The first walk over all keys after a pause may take a
	// quarter of the time, for three seconds.
	Share float64
}

// Pages are the pages for people. Make them with Server.Pages.
type Pages struct {
	s     *Server
	pages *pages.Handler
}

// Pages returns the pages for people: locks, lines, jobs, limits, cron jobs and operators' actions, live, with the
// actions that the viewer may perform. Mount the result at any path that ends with a slash, with or without
// http.StripPrefix. Close of the Server ends the streams of the pages.
//
// A caller needs ScopeRead to look, ScopeOperate to free locks and control tasks, ScopeCron to control cron jobs, and
// ScopeAdmin to see all actions. Without Config.Redis there are no actions. A caller that Config.Authorize does not know
// is asked for a token, which the browser sends once. It gets a cookie with a session of at most 8 hours, signed with a
// secret that all replicas share. With [Accounts], the session ends earlier when the rights of its account end. With
// another Authorizer it keeps the rights that the caller had when it began.
//
// The error matches joblock.ErrInvalid.
func (s *Server) Pages(cfg PagesConfig) (*Pages, error) {
	h, err := pages.New(pages.Config{
		Desk: s.desk, Scopes: s.cfg.CronScopes, ReadOnly: cfg.ReadOnly, Recorded: s.cfg.Redis != nil, Share: cfg.Share, Logger: s.cfg.Logger,
	})
	if err != nil {
		return nil, invalid("pages: %s", err)
	}
	p := &Pages{s: s, pages: h}
	done, err := s.enter() // so that Close of the Server waits for the streams
	if err != nil {
		h.Close()
		return nil, err
	}
	go func() {
		defer done()
		<-s.closing.Done()
		h.Close()
	}()
	return p, nil
}

// Root returns a handler that serves the paths of the Server's own API, and the pages everywhere else. It does not clean
// paths, as a mux would: that would change the keys in them.
func (p *Pages) Root() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/v1/"), path == "/v1", path == "/healthz", path == "/readyz", path == "/metrics", path == "/openapi.json":
			p.s.ServeHTTP(w, r)
		default:
			if r.Pattern == "" { // the handler is not mounted below another path
				at := *r
				at.Pattern = "/"
				r = &at
			}
			p.ServeHTTP(w, r)
		}
	})
}

// ServeHTTP serves one request.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := p.s.own.newCall(w, r)
	c.route = "pages"
	defer c.gone()
	defer c.log()
	defer c.count()
	defer c.caught()
	pages.Headers(c.w.Header())
	if r.TLS != nil && !loopback(hostName(r.Host)) {
		c.w.Header().Set("Strict-Transport-Security", "max-age=31536000") // not on localhost, where other servers run, too
	}
	req, ok := p.pages.Parse(r)
	if ok && req.Asset {
		c.route = "pages/file"
		c.send(func() { p.pages.ServeAsset(c.w, r, req.Name) })
		return
	}
	nobody := &pages.Caller{}
	say := func(status int, title, text string) {
		c.send(func() { p.pages.Problem(c.w, r, nobody, status, title, text) })
	}
	if !ok {
		say(http.StatusNotFound, "There is no such page", "The address is wrong, or is from another version.")
		return
	}
	c.route = "pages/" + req.Name
	if p.s.closing.Err() != nil {
		say(http.StatusServiceUnavailable, "The server is closing", "Another replica serves the same page.")
		return
	}
	if bad := p.s.sites.check(r); bad != nil {
		c.code = bad.Code
		if bad.Status == http.StatusMisdirectedRequest {
			say(bad.Status, "Unknown host name", "These pages are served only under known host names. See server.Config.Hosts.")
		} else {
			say(bad.Status, "Request from another site", "The form was sent by a page of another site. Nothing was changed.")
		}
		return
	}
	if within(r) {
		c.code = problem.Forbidden
		say(http.StatusForbidden, "Embedded in another site", "A page of another site has tried to embed this page.")
		return
	}
	switch req.Name {
	case "login":
		p.login(c)
		return
	case "logout":
		p.logout(c)
		return
	}
	who, session, err := p.identify(c)
	if errors.Is(err, ErrUnauthorized) {
		if req.Name == "live" || r.Method != http.MethodGet {
			say(http.StatusUnauthorized, "You are not signed in", "Open the page again to sign in. Nothing was changed.")
			return
		}
		next := req.Name
		if r.URL.RawQuery != "" {
			next += "?" + r.URL.RawQuery
		}
		c.w.Header().Set("Location", "login?"+url.Values{"next": {p.pages.Next(next)}}.Encode())
		c.w.WriteHeader(http.StatusSeeOther)
		return
	}
	if err != nil {
		c.detail = err
		say(http.StatusServiceUnavailable, "Temporarily unavailable", "Your rights cannot be looked up at the moment.")
		return
	}
	c.who = who
	if after := p.s.quotas.take(who.ID); after > 0 {
		c.w.Header().Set("Retry-After", "1")
		say(http.StatusTooManyRequests, "Too many requests", "Wait for a second, and load the page again.")
		return
	}
	if !who.may(ScopeRead) {
		say(http.StatusForbidden, "Not allowed", "You need the scope read to see these pages.")
		return
	}
	if tooMany := c.letIn(); tooMany != nil {
		c.code = tooMany.Code
		c.w.Header().Set("Retry-After", "1")
		say(http.StatusTooManyRequests, "Too many requests", "Wait for a second, and load the page again.")
		return
	}
	caller := &pages.Caller{
		ID: who.ID, From: r.RemoteAddr, Operate: who.may(ScopeOperate), Cron: who.may(ScopeCron), Admin: who.may(ScopeAdmin),
		Prefixes: who.Prefixes, AllKeys: who.AllKeys, Queues: who.Queues, AllQueues: who.AllQueues, Expires: who.Expires, Session: session,
		Acts: func(n int) bool { return p.s.quotas.act(who.ID, n) == 0 },
	}
	if req.Name == "live" {
		p.pages.Serve(c.w, c.r, req.Name, caller) // it sets deadlines of its own
		return
	}
	c.whole = r.ContentLength == 0
	p.pages.Serve(bounded{c}, c.r, req.Name, caller)
}

// bounded limits how long the client may take to read an answer, from its first byte.
type bounded struct{ *call }

func (b bounded) Header() http.Header { return b.w.Header() }

func (b bounded) WriteHeader(status int) {
	_ = http.NewResponseController(b.w).SetWriteDeadline(time.Now().Add(answerTimeout))
	b.w.WriteHeader(status)
}

func (b bounded) Write(text []byte) (n int, err error) {
	b.send(func() { n, err = b.w.Write(text) })
	return n, err
}

// identify returns the caller: by the Authorizer or, if the Authorizer does not know the caller, by the session.
func (p *Pages) identify(c *call) (who Principal, session bool, err error) {
	who, err = p.s.whoIs(c.r)
	if errors.Is(err, ErrUnauthorized) {
		session = true
		who, err = p.s.session(c.r)
	}
	switch {
	case err != nil:
		return Principal{}, false, err
	case who.expired(time.Now()):
		return Principal{}, false, ErrUnauthorized
	}
	return who, session, nil
}

const maxLoginForm = 8 << 10

// login starts a session for a token.
func (p *Pages) login(c *call) {
	switch c.r.Method {
	case http.MethodGet, http.MethodHead:
		c.send(func() { p.pages.Login(c.w, c.r, http.StatusOK, c.r.URL.Query().Get("next"), "") })
		return
	case http.MethodPost:
	default:
		c.w.Header().Set("Allow", "GET, HEAD, POST")
		c.send(func() { p.pages.Login(c.w, c.r, http.StatusMethodNotAllowed, "", "") })
		return
	}
	c.r.Body = http.MaxBytesReader(c.w, c.r.Body, maxLoginForm)
	if err := c.parseForm(); err != nil {
		c.send(func() { p.pages.Login(c.w, c.r, http.StatusBadRequest, "", "The form cannot be read.") })
		return
	}
	c.whole = true
	next, token := c.r.PostForm.Get("next"), strings.TrimSpace(c.r.PostForm.Get("token"))
	who, cookie, err := p.s.newSession(c.r, token)
	switch {
	case errors.Is(err, ErrUnauthorized):
		c.code = problem.Auth
		if p.s.attempts.failed(c.r.RemoteAddr) > 0 {
			c.w.Header().Set("Retry-After", "1")
			c.send(func() {
				p.pages.Login(c.w, c.r, http.StatusTooManyRequests, next, "There were too many attempts. Wait for a moment.")
			})
			return
		}
		c.send(func() {
			p.pages.Login(c.w, c.r, http.StatusUnauthorized, next, "This token is unknown, or has expired.")
		})
		return
	case errors.Is(err, errSessionSize):
		c.send(func() {
			p.pages.Login(c.w, c.r, http.StatusForbidden, next, "The caller has too many prefixes for a session.")
		})
		return
	case err != nil:
		c.detail = err
		c.send(func() {
			p.pages.Login(c.w, c.r, http.StatusServiceUnavailable, next, "The token cannot be looked up at the moment.")
		})
		return
	}
	c.who = who
	http.SetCookie(c.w, cookie)
	c.w.Header().Set("Location", p.pages.Next(next))
	c.send(func() { c.w.WriteHeader(http.StatusSeeOther) })
}

// parseForm reads the form of a caller that is not yet known.
func (c *call) parseForm() error {
	defer c.strange(http.NewResponseController(c.w).SetReadDeadline)()
	return c.r.ParseForm()
}

func (p *Pages) logout(c *call) {
	if c.r.Method != http.MethodPost {
		c.w.Header().Set("Allow", "POST")
		c.send(func() {
			p.pages.Problem(c.w, c.r, &pages.Caller{}, http.StatusMethodNotAllowed, "Not so", "Use the button to sign out.")
		})
		return
	}
	http.SetCookie(c.w, &http.Cookie{Name: sessionCookie, MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: overTLS(c.r)})
	c.w.Header().Set("Location", "login")
	c.send(func() { c.w.WriteHeader(http.StatusSeeOther) })
}

var _ pages.Desk = (*ops.Desk)(nil)
