package server

import (
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// on returns the routes of a row, which do serves. The result of do is the answer, unless do has written an answer
// itself.
func on[Req, Res any](row *routes.Route[Req, Res], do func(c *call, req *Req) (Res, error)) []route {
	return at(&row.Row, func(c *call, req any) (any, error) { return do(c, req.(*Req)) })
}

// at returns the routes of a row, which do serves. req is a pointer to a Row.Request.
func at(row *routes.Row, do func(c *call, req any) (any, error)) []route {
	serve := func(c *call) (*answer, error) {
		req := reflect.New(row.Request).Interface()
		if err := c.decode(row, req); err != nil {
			return nil, err
		}
		res, err := do(c, req)
		if err != nil || c.w.status != 0 {
			return nil, err
		}
		return &answer{status: max(http.StatusOK, c.status), fence: c.fence, etag: c.etag, body: res}, nil
	}
	switch {
	case row.Acts:
		serve = acts(serve)
	case row.Lists:
		serve = walks(serve)
	}
	scope := Scope(0)
	switch row.Scope {
	case routes.None:
	case routes.Any:
		scope = scopeAny
	default:
		scope, _ = ParseScopes(row.Scope)
	}
	var all []route
	for _, path := range row.Paths() {
		all = append(all, route{row.Method, path, scope, serve})
	}
	return all
}

// decode reads the query, the body and the path of a request. Its headers are read by seen, and by the routes that accept
// an Idempotency-Key.
func (c *call) decode(row *routes.Row, req any) error {
	v, fields := reflect.ValueOf(req).Elem(), routes.Fields(row.Request)
	if row.Scope != routes.None && row.Raw == "" {
		if err := c.decodeQuery(v, fields); err != nil {
			return err
		}
	}
	if routes.HasBody(row.Request) {
		if err := c.read(req); err != nil {
			return err
		}
	}
	for i := range fields {
		if f := &fields[i]; f.In == "path" {
			v.FieldByIndex(f.Index).SetString(c.r.PathValue(f.Name))
		} else if f.In == "header" {
			v.FieldByIndex(f.Index).SetString(c.r.Header.Get(f.Name))
		}
	}
	return nil
}

// decodeQuery reads the parameters of a query. It refuses parameters that are not in fields, or occur twice.
func (c *call) decodeQuery(v reflect.Value, fields []routes.Field) error {
	if c.r.URL.RawQuery == "" {
		return nil
	}
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil { // values lacks the bad parameters, so the call could cover more than the caller wants
		return problem.New(http.StatusBadRequest, problem.Request, "the query is not well formed: write %% as %%25 and ; as %%3B")
	}
	var known []string
	for _, f := range fields {
		if f.In == "query" {
			known = append(known, f.Name)
		}
	}
	for name, values := range values {
		if !slices.Contains(known, name) {
			return problem.New(http.StatusBadRequest, problem.Request, "the parameter %s is unknown; the parameters are %s", shownName(name), strings.Join(known, ", "))
		} else if len(values) > 1 {
			return problem.New(http.StatusBadRequest, problem.Request, "the parameter %s occurs twice", name)
		}
	}
	for i := range fields {
		if f := &fields[i]; f.In == "query" && values.Get(f.Name) != "" {
			if err := decodeText(v.FieldByIndex(f.Index), f, values.Get(f.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// decodeText sets a field to the value of a parameter.
func decodeText(v reflect.Value, f *routes.Field, text string) error {
	bad := func(must string, args ...any) error {
		return problem.New(http.StatusBadRequest, problem.Invalid, "%s is %s, must be "+must, append([]any{f.Name, problem.Shown(text)}, args...)...)
	}
	switch to := v.Addr().Interface().(type) {
	case *time.Time:
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return bad("a time such as 2026-01-02T15:04:05Z")
		}
		*to = t
	case *time.Duration:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(f.Least) || n > int64(f.Most) {
			return bad("from %d to %d", f.Least, f.Most)
		}
		*to = time.Duration(n) * time.Millisecond
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil || n < f.Least || n > f.Most {
			return bad("from %d to %d", f.Least, f.Most)
		}
		*to = n
	case *bool:
		on, known := map[string]bool{"0": false, "false": false, "1": true, "true": true}[text]
		if !known {
			return bad("0 or 1")
		}
		*to = on
	case *[]joblock.State:
		for name := range strings.SplitSeq(text, ",") {
			if name == "" {
				continue
			}
			i := slices.IndexFunc(states, func(s joblock.State) bool { return s.String() == name })
			if i < 0 {
				return bad("states out of free, held, parked and orphaned, separated by commas")
			}
			*to = append(*to, states[i])
		}
	case *[]string:
		*to = slices.DeleteFunc(strings.Split(text, ","), func(part string) bool { return part == "" })
	default:
		v.SetString(text)
	}
	return nil
}

var states = []joblock.State{joblock.StateFree, joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned}

// seen sets the fields that If-Match stands for: the fence or the step that the caller has seen.
func (c *call) seen(req any) error {
	v := reflect.ValueOf(req).Elem()
	for _, f := range routes.Fields(v.Type()) {
		if f.In != "match" {
			continue
		}
		if f.Name == "task" {
			step, err := c.ifMatchStep()
			v.FieldByIndex(f.Index).SetString(step)
			return err
		}
		fence, err := c.ifMatch()
		v.FieldByIndex(f.Index).SetInt(fence)
		return err
	}
	return nil
}
