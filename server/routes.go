package server

import (
	"net/http"
	"slices"
	"strings"
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
		oneLock("acquire", s.acquire, ScopeLock),
		oneLock("renew", s.renew, ScopeLock),
		oneLock("release", s.release, ScopeLock),
		oneLock("park", s.park, ScopeLock),
		oneLock("resume", s.resume, ScopeLock),
		oneLock("hold", s.hold, ScopeLock),
		[]route{
			{http.MethodGet, "/v1/me", ScopeAny, s.me},
			{http.MethodGet, "/healthz", 0, s.healthz},
			{http.MethodGet, "/readyz", 0, s.readyz},
			{http.MethodGet, "/openapi.json", 0, s.openAPI},
		},
	)
	all = append(all, s.deskRoutes()...)
	if s.cfg.Jobs != nil {
		all = append(all, route{http.MethodPost, "/v1/enqueue", ScopeEnqueue, s.enqueue})
	}
	return all
}

// newMux returns a mux for which every path is known: mux answers neither 404 nor 405 itself, because its answers would
// be plain text.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	methods := make(map[string][]string)
	for _, r := range s.routes() {
		mux.Handle(r.method+" "+r.path, step(func(c *call) { c.route = r.path; c.serve(r) }))
		if methods[r.path] = append(methods[r.path], r.method); r.method == http.MethodGet {
			methods[r.path] = append(methods[r.path], http.MethodHead)
		}
	}
	for path, allowed := range methods {
		slices.Sort(allowed)
		allow := strings.Join(allowed, ", ")
		mux.Handle(path, step(func(c *call) {
			c.route = path
			c.w.Header().Set("Allow", allow)
			c.refuse(problemf(http.StatusMethodNotAllowed, codeMethod, "the method is %s, must be %s", shown(c.r.Method), allow))
		}))
	}
	mux.Handle("/", step(func(c *call) {
		c.refuse(problemf(http.StatusNotFound, codeNoRoute, "there is nothing at this path; /openapi.json lists the paths"))
	}))
	return mux
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
func checkPath(path string) *problem {
	segments := strings.Split(path, "/")
	if segments[0] != "" || len(segments) < 2 {
		return problemf(http.StatusBadRequest, codeRequest, "the path does not begin with a slash")
	}
	for i, segment := range segments[1:] {
		if segment == "." || segment == ".." || segment == "" && i+2 < len(segments) {
			return problemf(http.StatusBadRequest, codeRequest,
				"the path has an empty segment, a . or a ..; in a key write / as %%2F and . as %%2E, or send the key in the body")
		}
	}
	return nil
}
