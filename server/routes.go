package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// A route is a method, a path, and the function that serves them.
type route struct {
	method string
	path   string
	scope  Scope // zero: no authentication is needed
	do     func(c *call) (*answer, error)
}

// routes returns the routes of the table's rows with the functions that serve them.
func (s *Server) routes() []route {
	all := slices.Concat(
		on(routes.Acquire, s.acquire), on(routes.Renew, s.renew), on(routes.Release, s.release), on(routes.Park, s.park), on(routes.Resume, s.resume),
		on(routes.Hold, s.hold), on(routes.Me, s.me), on(routes.Healthz, s.healthz), on(routes.Readyz, s.readyz), on(routes.OpenAPI, s.openAPI),

		on(routes.Lock, s.lock), on(routes.Explain, s.explain), on(routes.Line, s.line), on(routes.Permits, s.permits), on(routes.Locks, s.locks),
		on(routes.Statuses, s.statuses), on(routes.Jobs, s.jobs), on(routes.Job, s.job), on(routes.Controls, s.controls), on(routes.Sequences, s.sequences), on(routes.Keeper, s.keeper), on(routes.Outboxes, s.outboxes),
		on(routes.Doctor, s.doctor), on(routes.Audit, s.audit), on(routes.Events, s.events), on(routes.History, s.history),
		on(routes.CronScopes, s.cronScopes), on(routes.CronJobs, s.cronJobs), on(routes.CronJob, s.cronJob), on(routes.CronNext, s.cronNext),
		on(routes.CronNodes, s.cronNodes), on(routes.CronPreview, s.cronPreview), on(routes.CronCount, s.cronCount),
	)
	for _, v := range ops.Verbs {
		if v.Path != "" {
			all = append(all, at(routes.Of(v.Action), performs)...)
		}
	}
	if s.cfg.Metrics != nil {
		all = append(all, on(routes.Metrics, s.metrics)...)
	}
	if s.cfg.Jobs != nil {
		all = append(all, on(routes.Enqueue, s.enqueue)...)
	}
	return all
}

// A mount serves the routes of one API: the Server's own, or another lock API that a program mounts next to it. All
// mounts share the callers, rights, prefixes, rates, log and audit of the Server.
type mount struct {
	s      *Server
	mux    *http.ServeMux
	refuse func(c *call, p *problem.Problem) // writes the error in the API's format
}

// mount returns the handler of some routes. It registers every path, so that the mux never answers 404 or 405 itself:
// those answers would be plain text.
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

// anyKey is the pattern that matches all paths. Its PathValue "key" may have slashes, and is "" for the path "/".
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

// step is a handler in the mux. Its ResponseWriter must be the writer of a call.
type step func(c *call)

func (f step) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := w.(*writer).c
	c.r = r // this request has the values of the path
	f(c)
}

// checkPath refuses a path that the mux would redirect: a client that follows the redirection would request another key.
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
