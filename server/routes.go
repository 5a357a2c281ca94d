package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/joblock/toolkit/server/internal/problem"
)

// A route is a method and a path, and what serves it.
type route struct {
	method string
	path   string
	scope  Scope // zero: no caller is needed
	do     func(c *call) (*answer, error)
}

// The paths of calls about one lock exist twice: with the key in the path, and with the key or a token in the body.
func oneLock(verb string, do func(*call) (*answer, error), scope Scope) []route {
	return []route{
		{http.MethodPost, "/v1/" + verb, scope, do},
		{http.MethodPost, "/v1/locks/{key}/" + verb, scope, do},
	}
}

func (s *Server) routes() []route {
	all := slices.Concat(
		oneLock("acquire", reads(s.acquire), ScopeLock),
		oneLock("renew", reads(s.renew), ScopeLock),
		oneLock("release", reads(s.release), ScopeLock),
		oneLock("park", reads(s.park), ScopeLock),
		oneLock("resume", reads(s.resume), ScopeLock),
		oneLock("hold", reads(s.hold), ScopeLock),
		[]route{
			{http.MethodGet, "/v1/me", scopeAny, s.me},
			{http.MethodGet, "/healthz", 0, s.healthz},
			{http.MethodGet, "/readyz", 0, s.readyz},
			{http.MethodGet, "/openapi.json", 0, s.openAPI},
		},
	)
	all = append(all, s.deskRoutes()...)
	if s.cfg.Metrics != nil {
		all = append(all, route{http.MethodGet, "/metrics", ScopeRead, s.metrics})
	}
	if s.cfg.Jobs != nil {
		all = append(all, route{http.MethodPost, "/v1/enqueue", ScopeEnqueue, reads(s.enqueue)})
	}
	return all
}

// A mount serves the routes of one API: those of the Server itself, or those of another lock API that a program mounts
// beside it. All mounts have the callers, rights, prefixes, rates, log and audit of the Server.
type mount struct {
	s      *Server
	mux    *http.ServeMux
	refuse func(c *call, p *problem.Problem) // writes the error as the API has it
}

// mount returns the handler of some routes. For its mux every path is known: mux answers neither 404 nor 405 itself,
// because its answers would be plain text.
func (s *Server) mount(routes []route, refuse func(c *call, p *problem.Problem)) *mount {
	m := &mount{s: s, mux: http.NewServeMux(), refuse: refuse}
	methods := make(map[string][]string)
	for _, r := range routes {
		m.mux.Handle(r.method+" "+r.path, step(func(c *call) { c.route = r.path; c.serve(r) }))
		if methods[r.path] = append(methods[r.path], r.method); r.method == http.MethodGet {
			methods[r.path] = append(methods[r.path], http.MethodHead)
		}
	}
	for path, allowed := range methods {
		slices.Sort(allowed)
		allow := strings.Join(allowed, ", ")
		m.mux.Handle(path, step(func(c *call) {
			c.route = path
			c.w.Header().Set("Allow", allow)
			c.refuse(problem.New(http.StatusMethodNotAllowed, problem.Method, "the method is %s, must be %s", problem.Shown(c.r.Method), allow))
		}))
	}
	if methods["/"] == nil && methods[anyKey] == nil {
		m.mux.Handle("/", step(func(c *call) {
			c.refuse(problem.New(http.StatusNotFound, problem.NoRoute, "there is nothing at this path"))
		}))
	}
	return m
}

// anyKey is the pattern of all paths, whose PathValue "key" may have slashes, and is "" for the path "/".
const anyKey = "/{key...}"

// ServeHTTP serves one request.
func (m *mount) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := m.newCall(w, r)
	defer c.gone()
	defer c.log()
	defer c.count()
	defer c.caught()
	if p := checkPath(r.URL.EscapedPath()); p != nil {
		c.refuse(p)
		return
	}
	m.mux.ServeHTTP(c.w, r)
}

// reads returns the route whose body is a T. The body is read before anything else is done.
func reads[T any](do func(c *call, req *T) (*answer, error)) func(c *call) (*answer, error) {
	return func(c *call) (*answer, error) {
		req := new(T)
		if err := c.read(req); err != nil {
			return nil, err
		}
		return do(c, req)
	}
}

// step is a handler of the mux. The ResponseWriter is that of a call.
type step func(c *call)

func (f step) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := w.(*writer).c
	c.r = r // with the values of the path
	f(c)
}

// checkPath refuses a path that the mux would redirect. A client that follows the redirection would ask for another
// key.
func checkPath(path string) *problem.Problem {
	if strings.HasPrefix(path, "/") && !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return nil
	}
	segments := strings.Split(path, "/")
	if segments[0] != "" || len(segments) < 2 {
		return problem.New(http.StatusBadRequest, problem.Request, "the path does not begin with a slash")
	}
	for i, segment := range segments[1:] {
		if segment == "." || segment == ".." || segment == "" && i+2 < len(segments) {
			return problem.New(http.StatusBadRequest, problem.Request,
				"the path has an empty segment, a . or a ..; in a key write / as %%2F and . as %%2E, or send the key in the body")
		}
	}
	return nil
}
