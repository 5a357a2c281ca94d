package compat

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/internal/problem"
)

var updateCompat = flag.Bool("update-compat", false, "rewrite the tables of docs/compat.md")

// documents reads a file of testdata/compat: the examples of a document as they stand there, by the name of the section.
func documents(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	testkit.WantNil(t, "ReadFile", err)
	examples := make(map[string]string)
	for i, part := range strings.Split(string(text), "\n== ") {
		name, example, _ := strings.Cut(part, "\n")
		if i > 0 {
			examples[name] = strings.TrimSpace(example)
		}
	}
	return examples
}

// A visitor sends requests to a mount, and notes them for the table of a document.
type visitor struct {
	*testing.T
	h        http.Handler
	examples map[string]string
	used     map[string]bool
	rows     []string
}

func newVisitor(t *testing.T, h http.Handler, file string) *visitor {
	t.Helper()
	return &visitor{T: t, h: h, examples: documents(t, file), used: make(map[string]bool)}
}

// example returns the text of a section.
func (v *visitor) example(section string) string {
	v.Helper()
	text, ok := v.examples[section]
	if !ok {
		v.Fatalf("the document has no example %q", section)
	}
	v.used[section] = true
	return text
}

// send sends a request with an empty line between head and body: "POST /path", headers, body.
func (v *visitor) send(method, path string, header http.Header, body string) *httptest.ResponseRecorder {
	v.Helper()
	return v.sendIn(v.Context(), method, path, header, body)
}

func (v *visitor) sendIn(ctx context.Context, method, path string, header http.Header, body string) *httptest.ResponseRecorder {
	v.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body)).WithContext(ctx)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	v.h.ServeHTTP(w, r)
	return w
}

// secretText matches what is another text in each run: owners, their digests, tokens and the names of requests.
var secretText = regexp.MustCompile(`[0-9a-z]+\.[0-9a-z]+\.[0-9a-f-]{36}|urn:joblock:request:[0-9a-z]+|[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|[A-Za-z0-9_-]{60,}|#[0-9a-f]{8}`)

// note adds a row: what the document says, and what was sent and answered.
func (v *visitor) note(section, sent, says string, status int, body string) {
	cell := func(text string) string {
		text = secretText.ReplaceAllString(strings.Join(strings.Fields(text), " "), "…")
		return "`" + strings.ReplaceAll(text, "|", "\\|") + "`"
	}
	var p problem.Problem
	if json.Unmarshal([]byte(body), &p) == nil && strings.HasPrefix(p.Type, "urn:joblock:problem:") {
		body = p.Code
	}
	answered := "nothing"
	if status != 0 {
		answered = cell(strings.TrimSpace(sprint(status) + " " + body))
	} else if body != "" {
		answered = cell(body)
	}
	v.rows = append(v.rows, "| "+strings.Join([]string{section, cell(sent), cmp.Or(says, "–"), answered}, " | ")+" |")
}

// want fails the test unless the answer has the status and, with every field, the JSON object of the document.
func (v *visitor) want(section string, w *httptest.ResponseRecorder, status int, object string) {
	v.Helper()
	if w.Code != status {
		v.Errorf("%s: %d %s, the document says %d", section, w.Code, w.Body, status)
	}
	if object != "" {
		wantFields(v.T, section, w.Body.String(), object)
	}
}

// wantFields fails the test unless got has all that the JSON value want has.
func wantFields(t *testing.T, what, got, want string) {
	t.Helper()
	var g, w any
	testkit.WantNil(t, what+": the document", json.Unmarshal([]byte(want), &w))
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Errorf("%s: %v in %s", what, err, got)
		return
	}
	if !has(g, w) {
		t.Errorf("%s: %s, the document says %s", what, got, want)
	}
}

func has(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for name, value := range want {
			if !ok || g[name] == nil && value != nil || !has(g[name], value) {
				return false
			}
		}
		return ok
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(want) {
			return false
		}
		for i := range want {
			if !has(g[i], want[i]) {
				return false
			}
		}
		return true
	}
	return got == want
}

// done fails the test unless every example of the document was used, and the table in docs/compat.md is what was noted.
func (v *visitor) done(document string) {
	v.Helper()
	for section := range v.examples {
		if !v.used[section] {
			v.Errorf("the example %q was not sent", section)
		}
	}
	const page = "../../docs/compat.md"
	text, err := os.ReadFile(page)
	testkit.WantNil(v, "ReadFile", err)
	begin, end := "<!-- begin "+document+" -->\n", "<!-- end "+document+" -->"
	before, rest, ok1 := strings.Cut(string(text), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		v.Fatalf("%s has no table between %q and %q", page, begin, end)
	}
	want := "| example | sent | the document says | answered |\n|---|---|---|---|\n" + strings.Join(v.rows, "\n") + "\n"
	if table == want {
		return
	}
	if !*updateCompat {
		v.Errorf("the table of %s in %s is out of date: go test ./ -run %s -update-compat\n%s", document, page, v.Name(), want)
		return
	}
	testkit.WantNil(v, "WriteFile", os.WriteFile(page, []byte(before+begin+want+end+after), 0o644))
}

// A mount has the rights, prefixes, rates and the audit of /v1, refuses what /v1 refuses, and shows no secret.
func TestMountsHaveTheRightsOfTheServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		who := server.Principal{ID: "ci", Scopes: server.ScopeLock, Prefixes: []string{"ci:"}, AllQueues: true}
		a := newReplica(t, memoryStore(), func(cfg *server.Config) {
			cfg.Authorize = server.AuthorizeFunc(func(r *http.Request) (server.Principal, error) {
				if r.Header.Get("Authorization") == "" {
					return server.Principal{}, server.ErrUnauthorized
				}
				return who, nil
			})
			cfg.Rate, cfg.Burst = 1, 3
		})
		v := &visitor{T: t, h: mounted(t)(SaaSignal(a.s, ""))}
		auth := http.Header{"Authorization": {"Bearer x"}, "Content-Type": {"application/json"}}
		for _, c := range []struct {
			method, path string
			header       http.Header
			body         string
			status       int
		}{
			{"POST", "/infra/locks/ci:a/acquire", nil, `{"ttl_ms":1000}`, 401},
			{"POST", "/infra/locks/other/acquire", auth, `{"ttl_ms":1000}`, 403},
			{"GET", "/infra/locks/ci:a", auth, ``, 403},
			{"POST", "/infra/locks/ci:a/acquire", auth, `{"ttl_ms":1000}`, 200},
			{"POST", "/infra/locks/ci:a/acquire", auth, `{"ttl_ms":1000}`, 429},
			{"DELETE", "/infra/locks/ci:a", auth, ``, 405},
			{"GET", "/other", auth, ``, 404},
			{"POST", "/infra/locks/../acquire", auth, `{}`, 400},
		} {
			if w := v.send(c.method, c.path, c.header, c.body); w.Code != c.status {
				t.Errorf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, w.Code, w.Body, c.status)
			}
		}
		a.wantState("ci:a", joblock.StateHeld)
		a.wantState("other", joblock.StateFree)
	})
}
