package server

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// useScope checks the scope of cron jobs that the call names, or sets it if the Server has only one scope.
func (c *call) useScope(scope *string) error {
	all := c.s.cfg.CronScopes
	if *scope == "" && len(all) == 1 {
		*scope = all[0]
	}
	if !slices.Contains(all, *scope) {
		return problem.New(http.StatusBadRequest, problem.Invalid, "scope is %s, must be one of: %s", problem.Shown(*scope), strings.Join(all, ", "))
	}
	return nil
}

func (s *Server) cronJobs(c *call, q *routes.ScopeQuery) (l routes.List[ops.CronJob], err error) {
	if err = c.useScope(&q.Scope); err == nil {
		l.Items, err = s.desk.CronJobs(c.r.Context(), q.Scope)
	}
	return l, cronProblem(err)
}

func (s *Server) cronJob(c *call, q *routes.CronQuery) (j ops.CronJob, err error) {
	if err = c.useScope(&q.Scope); err == nil {
		j, err = s.desk.CronJob(c.r.Context(), q.Scope, q.Name)
	}
	return j, cronProblem(err)
}

func (s *Server) cronNext(c *call, q *ops.CronNextQuery) (l routes.List[ops.CronTick], err error) {
	if err = c.useScope(&q.Scope); err == nil {
		l.Items, err = s.desk.CronNext(c.r.Context(), *q)
	}
	return l, cronProblem(err)
}

func (s *Server) cronNodes(c *call, q *routes.ScopeQuery) (l routes.List[ops.CronNode], err error) {
	if err = c.useScope(&q.Scope); err == nil {
		l.Items, err = s.desk.CronNodes(c.r.Context(), q.Scope)
	}
	return l, cronProblem(err)
}

// cronScopes lists the scopes of cron jobs. They are not secret: every route about cron jobs names them.
func (s *Server) cronScopes(*call, *routes.Empty) (routes.List[string], error) {
	return routes.List[string]{Items: append([]string{}, s.cfg.CronScopes...)}, nil
}

func (s *Server) cronPreview(_ *call, q *routes.CronPreviewQuery) (plan ops.CronPlan, err error) {
	zone, err := time.LoadLocation(q.Zone)
	if err != nil || len(q.Zone) > 64 {
		return plan, problem.New(http.StatusBadRequest, problem.Invalid, "zone is %s, must be a name such as Europe/Berlin", problem.Shown(q.Zone))
	}
	if len(q.Spec) > 1024 {
		return plan, problem.New(http.StatusBadRequest, problem.Invalid, "spec has %d bytes, at most 1024 are allowed", len(q.Spec))
	}
	plan, err = ops.CronPreview(q.Spec, zone, time.Now(), cmp.Or(q.N, 10))
	if e := (*joblock.Error)(nil); err != nil && !errors.As(err, &e) {
		err = problem.New(http.StatusBadRequest, problem.Invalid, "spec: %s", err)
	}
	return plan, err
}

func (s *Server) cronCount(c *call, r *ops.CronRange) (n routes.Count, err error) {
	if err = c.useRange(&r.Scope, r.From, r.To); err == nil {
		n.Ticks, err = s.desk.CronCount(c.r.Context(), *r)
	}
	return n, cronProblem(err)
}

// useRange is useScope, and also refuses a range without a start or an end.
func (c *call) useRange(scope *string, from, to time.Time) error {
	for name, t := range map[string]time.Time{"from": from, "to": to} {
		if t.IsZero() {
			return problem.New(http.StatusBadRequest, problem.Invalid, "%s is missing; a time is like 2026-01-02T15:04:05Z", name)
		}
	}
	return c.useScope(scope)
}

// cronProblem returns the problem for an error of package scheduler, with a text that names the cron job.
func cronProblem(err error) error {
	if p := (*problem.Problem)(nil); err == nil || errors.As(err, &p) {
		return err
	}
	text := strings.TrimPrefix(err.Error(), "scheduler: ")
	switch {
	case errors.Is(err, joblock.ErrNotFound):
		return problem.New(http.StatusNotFound, problem.NoCron, "%s", text)
	case errors.Is(err, ops.ErrBackfilling):
		return problem.New(http.StatusConflict, problem.Backfilling, "%s", text)
	case errors.Is(err, joblock.ErrInvalid):
		return problem.New(http.StatusBadRequest, problem.Invalid, "%s", strings.TrimPrefix(text, "joblock: "))
	}
	return err
}
