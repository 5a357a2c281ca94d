package client

import (
	"context"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/routes"
)

// ask sends the request of a route, and returns its answer.
func ask[Req, Res any](ctx context.Context, c *Client, op string, route *routes.Route[Req, Res], req Req) (res Res, err error) {
	one, err := callOf(op, &route.Row, req)
	if err == nil {
		one.into = &res
		_, err = c.do(ctx, one)
	}
	return res, err
}

// callOf returns the call for a request: it puts each field of req where the field's tag says.
func callOf(op string, row *routes.Row, req any) (call, error) {
	v := reflect.ValueOf(req)
	one := call{op: op, method: row.Method, path: row.Path, query: make(url.Values), header: make(http.Header), again: !row.Acts}
	if key := v.FieldByName("Key"); key.IsValid() {
		one.key = key.String()
	}
	if task, ok := req.(ops.CancelTask); ok && task.Then != "" {
		one.wait = ops.EndWait
	}
	for _, f := range routes.Fields(row.Request) {
		of := v.FieldByIndex(f.Index)
		text := textOf(of)
		switch {
		case f.In == "query" && text != "":
			one.query.Set(f.Name, text)
		case f.In == "header" && text != "":
			one.header.Set(f.Name, text)
		case f.In == "match" && (f.Name == "lock" || text != ""):
			one.header.Set("If-Match", `"`+text+`"`)
		case f.In == "match":
			one.header.Set("If-Match", "*")
		case f.In == "path" && strings.Contains(one.path, "{"+f.Name+"}"):
			if text == "" { // the path would be that of another route
				return one, core.Invalid(op, "", "%s is empty", row.Request.FieldByIndex(f.Index).Name)
			}
			one.path = strings.Replace(one.path, "{"+f.Name+"}", segment(text), 1)
		}
	}
	if routes.HasBody(row.Request) {
		body := make(map[string]any)
		for _, f := range reflect.VisibleFields(row.Request) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if of := v.FieldByIndex(f.Index); name != "" && name != "-" && !(of.IsZero() && options == "omitempty") {
				body[name] = of.Interface()
			}
		}
		one.body = body
	}
	return one, nil
}

// textOf returns the text of a parameter; "" for a zero value.
func textOf(v reflect.Value) string {
	if v.IsZero() {
		return ""
	}
	switch of := v.Interface().(type) {
	case time.Time:
		return of.UTC().Format(time.RFC3339Nano)
	case time.Duration:
		return strconv.FormatInt(ms(of), 10)
	case bool:
		return "1"
	case []string:
		return strings.Join(of, ",")
	case []joblock.State:
		names := make([]string, len(of))
		for i, s := range of {
			names[i] = s.String()
		}
		return strings.Join(names, ",")
	}
	if v.CanInt() {
		return strconv.FormatInt(v.Int(), 10)
	}
	return v.String()
}

// segment escapes a name as a segment of a path. It also escapes "." and "..", which servers would treat as an unclean
// path.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}
