package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/joblock/toolkit/server/internal/problem"
)

// document is openapi.json, as far as the tests read it.
type document struct {
	Paths map[string]map[string]json.RawMessage `json:"paths"`

	compiler *jsonschema.Compiler
	mu       sync.Mutex // guards what follows
	schemas  map[string]*jsonschema.Schema
}

type operation struct {
	Responses map[string]response `json:"responses"`
	Body      *struct {
		Content map[string]json.RawMessage `json:"content"`
	} `json:"requestBody"`
}

type response struct {
	Ref     string                     `json:"$ref"`
	Content map[string]json.RawMessage `json:"content"`
	Headers map[string]struct {
		Required bool `json:"required"`
	} `json:"headers"`
}

var theDocument = sync.OnceValues(func() (*document, error) {
	d := &document{compiler: jsonschema.NewCompiler(), schemas: make(map[string]*jsonschema.Schema)}
	if err := json.Unmarshal(openAPI, d); err != nil {
		return nil, err
	}
	raw, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI))
	if err != nil {
		return nil, err
	}
	return d, d.compiler.AddResource("openapi.json", raw)
})

// validate checks text against the schema at a place of the document.
func (d *document) validate(text []byte, place ...string) error {
	for i, p := range place {
		place[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(p)
	}
	url := "openapi.json#/" + strings.Join(place, "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	schema := d.schemas[url]
	if schema == nil {
		var err error
		if schema, err = d.compiler.Compile(url); err != nil {
			return err
		}
		d.schemas[url] = schema
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%w in %q", err, text)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("%w in %s", err, text)
	}
	return nil
}

// template returns the path of the document for the path of a request, "" if there is none. A path without parameters
// comes first.
func (d *document) template(path string) string {
	if _, ok := d.Paths[path]; ok {
		return path
	}
	parts := strings.Split(path, "/")
	for candidate := range d.Paths {
		is := func(i int, part string) bool {
			return part == parts[i] || strings.HasPrefix(part, "{") && parts[i] != ""
		}
		if wants := strings.Split(candidate, "/"); len(wants) == len(parts) {
			same := true
			for i, part := range wants {
				same = same && is(i, part)
			}
			if same {
				return candidate
			}
		}
	}
	return ""
}

// check checks an answer against the document, and the request too if it succeeded.
func (d *document) check(method, path string, request []byte, status int, header http.Header, body []byte) error {
	template := d.template(path)
	if method == http.MethodHead {
		method = http.MethodGet
	}
	item, known := d.Paths[template][strings.ToLower(method)]
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil && status != http.StatusNotModified {
		return err
	}
	if template == "" || !known && status == http.StatusMethodNotAllowed || status == http.StatusBadRequest && bytes.Contains(body, []byte("empty segment")) {
		if kind != "application/problem+json" {
			return fmt.Errorf("the answer is %s", kind)
		}
		return d.validate(body, "components", "schemas", "Problem")
	}
	if !known {
		return fmt.Errorf("%s %s is answered with %d, but is not documented", method, template, status)
	}
	var op operation
	if err := json.Unmarshal(item, &op); err != nil {
		return err
	}
	code := strconv.Itoa(status)
	r, ok := op.Responses[code]
	if !ok {
		return fmt.Errorf("%s %s: the status %s is not documented; the body is %s", method, template, code, body)
	}
	place := []string{"paths", template, strings.ToLower(method), "responses", code}
	if r.Ref != "" {
		place = strings.Split(strings.TrimPrefix(r.Ref, "#/"), "/")
		var whole struct {
			Components struct {
				Responses map[string]response `json:"responses"`
			} `json:"components"`
		}
		if err := json.Unmarshal(openAPI, &whole); err != nil {
			return err
		}
		r = whole.Components.Responses[place[2]]
	}
	for name, h := range r.Headers {
		if h.Required && header.Get(name) == "" {
			return fmt.Errorf("%s %s: %s has no header %s", method, template, code, name)
		}
	}
	if status == http.StatusNotModified {
		return nil
	}
	if _, ok := r.Content[kind]; !ok {
		return fmt.Errorf("%s %s: %s has the type %s, want one of %v", method, template, code, kind, slices.Collect(maps.Keys(r.Content)))
	}
	place = append(place, "content", kind, "schema")
	switch {
	case status < 300 && op.Body != nil:
		if err := d.validate(request, "paths", template, strings.ToLower(method), "requestBody", "content", "application/json", "schema"); err != nil {
			return fmt.Errorf("the server accepts what the document refuses: %w", err)
		}
	}
	switch kind {
	case "text/plain":
		return nil
	case "application/x-ndjson":
		return each(body, "\n", func(line []byte) error { return d.validate(line, slices.Clone(place)...) })
	case "text/event-stream":
		return each(body, "\n\n", func(event []byte) error {
			_, data, ok := bytes.Cut(event, []byte("\ndata: "))
			if !ok && (bytes.HasPrefix(event, []byte(": ")) || bytes.HasPrefix(event, []byte("id: "))) {
				return nil // a line that keeps the stream, or tells the place
			}
			if !ok {
				return fmt.Errorf("no event: %q", event)
			}
			return d.validate(data, slices.Clone(place)...)
		})
	}
	return d.validate(body, place...)
}

func each(text []byte, sep string, f func([]byte) error) error {
	for _, part := range bytes.Split(bytes.TrimSuffix(text, []byte(sep)), []byte(sep)) {
		if err := f(part); err != nil {
			return err
		}
	}
	return nil
}

// Each route is in the document, and nothing else is. Each code is in the document and in the package comment.
func TestDocumentHasEveryRouteAndCode(t *testing.T) {
	doc, err := theDocument()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: Config{Jobs: noJobs, Metrics: http.NotFoundHandler()}}
	served := make(map[string]bool)
	for _, r := range s.routes() {
		served[r.method+" "+r.path] = true
		if _, ok := doc.Paths[r.path][strings.ToLower(r.method)]; !ok {
			t.Errorf("%s %s is not documented", r.method, r.path)
		}
	}
	for path, item := range doc.Paths {
		for method := range item {
			if method != "parameters" && !served[strings.ToUpper(method)+" "+path] {
				t.Errorf("%s %s is documented, but not served", method, path)
			}
		}
	}
	var whole struct {
		Components struct {
			Schemas struct {
				Code struct{ Enum []string }
			}
		}
	}
	if err := json.Unmarshal(openAPI, &whole); err != nil {
		t.Fatal(err)
	}
	for code := range problem.Titles {
		if !slices.Contains(whole.Components.Schemas.Code.Enum, code) {
			t.Errorf("the code %s is not documented", code)
		}
	}
	comment := packageComment(t)
	for _, code := range whole.Components.Schemas.Code.Enum {
		if !strings.Contains(comment, " "+code+" ") {
			t.Errorf("the package comment lacks the code %s", code)
		}
	}
	for route := range served {
		method, path, _ := strings.Cut(route, " ")
		if !strings.Contains(path, "{") && !strings.Contains(comment, fmt.Sprintf("//\t%-4s %s ", method, path)) {
			t.Errorf("the package comment lacks %s", route)
		}
	}
}
