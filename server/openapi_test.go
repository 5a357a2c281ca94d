package server

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

var update = flag.Bool("update", false, "write openapi.json")

// openapi.json is what the table of routes says, with the types of requests and answers and their comments. After a change of
// these run: go generate
func TestOpenAPI(t *testing.T) {
	made := append(makeDocument(t), '\n')
	if *update {
		testkit.WantNil(t, "WriteFile", os.WriteFile("openapi.json", made, 0o644))
		return
	}
	if !bytes.Equal(made, openAPI) {
		t.Error("openapi.json is not what the table of routes says; run: go generate")
	}
}

type dict = map[string]any

// A generator makes the document. All schemas of types are in the components.
type generator struct {
	*jsonschema.Reflector
	schemas dict
}

func makeDocument(t *testing.T) []byte {
	g := &generator{&jsonschema.Reflector{Anonymous: true, Namer: schemaName, Mapper: schemaOf}, dict{}}
	for _, dir := range []string{"internal/routes", "../internal/ops"} {
		testkit.WantNil(t, "AddGoComments", g.AddGoComments("github.com/joblock/toolkit/server", dir))
	}
	for name, text := range g.CommentMap {
		g.CommentMap[name] = strings.Join(strings.Fields(text), " ")
	}
	g.schema(reflect.TypeFor[problem.Problem]())
	paths, ids := make(map[string]dict), make(map[any]string)
	for _, row := range routes.All {
		for i, path := range row.Paths() {
			if paths[path] == nil {
				paths[path] = dict{}
			}
			op := g.operation(row, path, i > 0)
			if other := ids[op["operationId"]]; other != "" {
				t.Errorf("%s and %s have the same operationId", path, other)
			}
			ids[op["operationId"]] = path
			paths[path][strings.ToLower(row.Method)] = op
		}
	}
	g.schemas["Code"] = dict{"type": "string", "enum": codes()}
	g.schemas["Problem"].(*jsonschema.Schema).Properties.Set("code", &jsonschema.Schema{Ref: "#/components/schemas/Code"})
	g.schemas["Time"] = dict{"type": "string", "pattern": `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$`}
	text, err := json.MarshalIndent(dict{
		"openapi":  "3.1.0",
		"info":     dict{"title": "joblock server", "version": "1", "license": dict{"name": "see the repository"}, "summary": "Locks for programs in every language, and for the jobs that carry them."},
		"servers":  []dict{{"url": "/"}},
		"security": []dict{{"token": []string{}}, {"certificate": []string{}}},
		"paths":    paths,
		"components": dict{
			"schemas":         g.schemas,
			"responses":       problems(),
			"securitySchemes": dict{"certificate": dict{"type": "mutualTLS"}, "token": dict{"type": "http", "scheme": "bearer", "description": "A token jl_<id>_<secret>."}},
		},
	}, "", " ")
	testkit.WantNil(t, "MarshalIndent", err)
	return bytes.ReplaceAll(text, []byte(`"#/$defs/`), []byte(`"#/components/schemas/`))
}

// schemaName returns the name of a type in the document: List[ops.Lock] is LockList.
func schemaName(t reflect.Type) string {
	name, of, generic := strings.Cut(t.Name(), "[")
	if !generic {
		return name
	}
	of = strings.TrimSuffix(of[strings.LastIndexAny(of, "./")+1:], "]")
	return strings.ToUpper(of[:1]) + of[1:] + name
}

// schemaOf returns the schema of types whose JSON is their own matter.
func schemaOf(t reflect.Type) *jsonschema.Schema {
	switch {
	case t == reflect.TypeFor[ops.Time]():
		return &jsonschema.Schema{Ref: "#/components/schemas/Time"}
	case t == reflect.TypeFor[time.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case t == reflect.TypeFor[ops.Millis]():
		return &jsonschema.Schema{Type: "integer"}
	case t == reflect.TypeFor[driver.Ended]():
		return &jsonschema.Schema{Type: "string", Description: "How an ownership of the key ended."}
	case t == reflect.TypeFor[json.RawMessage]():
		return &jsonschema.Schema{}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// schema returns the schema of a type, and adds those of structs to the components.
func (g *generator) schema(t reflect.Type) any {
	s := g.ReflectFromType(t)
	for name, def := range s.Definitions {
		g.schemas[name] = def
	}
	s.Definitions, s.Version = nil, ""
	return s
}

func (g *generator) operation(row *routes.Row, path string, keyed bool) dict {
	op := dict{"summary": row.Doc, "operationId": operationID(row, keyed)}
	if row.Scope == routes.None {
		op["security"] = []string{}
	} else if row.Scope != routes.Any {
		op["description"] = "Scope: " + row.Scope + "."
	}
	params := []dict{}
	param := func(in, name string, required bool, schema any, description string) {
		p := dict{"in": in, "name": name, "schema": schema}
		if required {
			p["required"] = true
		}
		if description != "" {
			p["description"] = description
		}
		params = append(params, p)
	}
	if keyed {
		param("path", "key", true, dict{"type": "string", "minLength": 1, "maxLength": 512}, "Percent-encoded: / is %2F.")
	}
	for _, f := range routes.Fields(row.Request) {
		sf := row.Request.FieldByIndex(f.Index)
		switch {
		case f.In == "match" && f.Name == "lock":
			param("header", "If-Match", true, dict{"type": "string"}, "The ETag, or the fence in quotes, of the lock as the caller has seen it.")
		case f.In == "match":
			param("header", "If-Match", true, dict{"type": "string"}, "The ETag of the job as the caller has seen it: the step of its task in quotes. * is whatever step the task is at.")
		case f.In == "path" && !strings.Contains(path, "{"+f.Name+"}"), f.In == "query" && keyed && f.Name == "key":
		default:
			param(f.In, f.Name, f.In == "path", parameterSchema(sf.Type, f), g.comment(row.Request, f.Index))
		}
	}
	if row.ETag && row.Path == "/v1/lock" {
		param("header", "If-None-Match", false, dict{"type": "string"}, "An ETag that the caller knows.")
	}
	if len(params) > 0 {
		op["parameters"] = params
	}
	statuses := []int{400, 401, 403, 405, 421, 429, 500, 503}
	if routes.HasBody(row.Request) {
		statuses = append(statuses, 408, 413, 415)
		op["requestBody"] = dict{"required": true, "content": dict{"application/json": dict{"schema": g.bodySchema(row.Request)}}}
	}
	responses := dict{"200": g.answer(row)}
	if row == &routes.Enqueue.Row {
		responses["201"] = g.answer(row)
	}
	if row == &routes.Lock.Row {
		responses["304"] = dict{"description": "The caller knows the lock as it is.", "headers": header("ETag")}
	}
	for _, status := range append(statuses, row.Errors...) {
		responses[strconv.Itoa(status)] = dict{"$ref": "#/components/responses/P" + strconv.Itoa(status)}
	}
	op["responses"] = responses
	return op
}

// bodySchema is the schema of a body: of the fields of the request with the tag json.
func (g *generator) bodySchema(t reflect.Type) any {
	s := g.schema(t)
	if def, ok := g.schemas[schemaName(t)].(*jsonschema.Schema); ok {
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == "" {
				def.Properties.Delete(f.Name)
				def.Required = slices.DeleteFunc(def.Required, func(name string) bool { return name == f.Name })
			}
		}
		if _, hasKey := def.Properties.Get("key"); hasKey { // which the path can have
			def.Required = slices.DeleteFunc(def.Required, func(name string) bool { return name == "key" })
		}
	}
	return s
}

func parameterSchema(t reflect.Type, f routes.Field) dict {
	s := dict{"type": "string"}
	switch {
	case t == reflect.TypeFor[time.Time]():
		s["format"] = "date-time"
	case t.Kind() == reflect.Bool:
		s = dict{"enum": []string{"0", "1", "true", "false"}}
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		s = dict{"type": "integer"}
	}
	for _, rule := range strings.Split(f.Schema, ",") {
		if name, value, ok := strings.Cut(rule, "="); ok {
			s[name] = json.RawMessage(value)
		}
	}
	return s
}

// comment returns the comment of a field of a request, which may be that of a struct within.
func (g *generator) comment(t reflect.Type, index []int) string {
	for _, i := range index[:len(index)-1] {
		t = t.Field(i).Type
	}
	return g.CommentMap[t.PkgPath()+"."+t.Name()+"."+t.Field(index[len(index)-1]).Name]
}

func (g *generator) answer(row *routes.Row) dict {
	content := dict{}
	if row.Raw != "" {
		content[row.Raw] = dict{"schema": dict{}}
	} else if row.Answer != reflect.TypeFor[routes.Empty]() {
		content["application/json"] = dict{"schema": g.schema(row.Answer)}
	}
	if row.Stream != "" {
		lines := dict{"schema": g.schema(row.Line)}
		content[row.Stream], content["text/event-stream"] = lines, lines
	}
	a := dict{"description": "Done.", "content": content}
	switch {
	case row.Fence:
		a["headers"] = header("Joblock-Fence")
	case row.ETag:
		a["headers"] = header("ETag")
		if row == &routes.Job.Row { // a task that asynq does not have is at no step
			a["headers"].(dict)["ETag"].(dict)["required"] = false
		}
	}
	return a
}

func header(name string) dict {
	return dict{name: dict{"required": true, "schema": dict{"type": "string"}}}
}

// operationID returns a name for an operation: the words of its path.
func operationID(row *routes.Row, keyed bool) string {
	path := strings.TrimPrefix(row.Path, "/v1/")
	if row.Method == http.MethodPost {
		path = strings.Replace(path, "cron-", "cron-all-", 1)
	}
	path = strings.NewReplacer("{name}/", "", "{queue}/{id}/", "", "{name}", "of", "{queue}/{id}", "of").Replace(path)
	id := ""
	for _, w := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune("/-.", r) }) {
		id += strings.ToUpper(w[:1]) + w[1:]
	}
	id = strings.ToLower(id[:1]) + id[1:]
	if row.Path == routes.CronCount.Path && row.Method == http.MethodPost {
		id += "Start"
	}
	if keyed {
		id += "AtKey"
	}
	return id
}

// codes are those of problems, of this package and of package joblock.
func codes() []string {
	all := slices.Collect(maps.Keys(problem.Titles))
	for _, a := range answers {
		all = append(all, joblock.CodeOf(a.sentinel))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func problems() dict {
	all := dict{}
	for _, status := range []int{400, 401, 403, 404, 405, 406, 408, 409, 410, 412, 413, 415, 421, 422, 428, 429, 500, 503} {
		p := dict{
			"description": http.StatusText(status) + ".",
			"content":     dict{"application/problem+json": dict{"schema": dict{"$ref": "#/components/schemas/Problem"}}},
		}
		switch status {
		case 401:
			p["headers"] = header("WWW-Authenticate")
		case 405:
			p["headers"] = header("Allow")
		case 409, 429, 503:
			p["headers"] = dict{"Retry-After": dict{"description": "In seconds.", "schema": dict{"type": "integer", "minimum": 1}}}
		}
		all["P"+strconv.Itoa(status)] = p
	}
	return all
}
