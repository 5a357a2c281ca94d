package server

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

var updateSecurity = flag.Bool("update-security", false, "rewrite the tables of docs/security-pages.md")

const securityPage = "../docs/security-pages.md"

// wantTable fails the test unless a table of docs/security-pages.md has these rows, and no others.
func wantTable(t *testing.T, name string, rows []string) {
	t.Helper()
	text, err := os.ReadFile(securityPage)
	testkit.WantNil(t, "ReadFile", err)
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	head, rest, ok := strings.Cut(string(text), begin)
	body, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table %q", securityPage, name)
	}
	titles, _, _ := strings.Cut(body, "\n|--") // the heads of the columns
	if rows[0] != titles && !*updateSecurity {
		t.Errorf("the columns of the table %q are %s, want %s", name, titles, rows[0])
	}
	want := rows[0] + "\n" + strings.Repeat("|---", strings.Count(rows[0], " |")) + "|\n" + strings.Join(rows[1:], "\n") + "\n"
	if body == want {
		return
	}
	if *updateSecurity {
		testkit.WantNil(t, "WriteFile", os.WriteFile(securityPage, []byte(head+begin+want+end+tail), 0o644))
		return
	}
	is, should := strings.Split(body, "\n"), strings.Split(want, "\n")
	for _, row := range should {
		if !slices.Contains(is, row) {
			t.Errorf("%s lacks the row %s", securityPage, row)
		}
	}
	for _, row := range is {
		if !slices.Contains(should, row) {
			t.Errorf("%s has a row of which there is no test: %s", securityPage, row)
		}
	}
	t.Errorf("the table %q is not what was tried; go test ./server -run TestSecurity -update-security", name)
}

// raw sends a request as it is: no header but those that change sets.
func (s *stage) raw(method, path, body string, change ...func(*http.Request)) *seen {
	s.Helper()
	r := httptest.NewRequest(method, "http://localhost/", strings.NewReader(body))
	at, err := url.ParseRequestURI(path)
	testkit.WantNil(s, "ParseRequestURI", err)
	r.URL, r.RequestURI = at, path
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return &seen{s.T, w.Code, w.Header(), w.Body.String()}
}

func hostNamed(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

// idleForm is a form that frees jobKey, if it is let in.
func (s *stage) idleForm() string {
	return url.Values{"do": {"free-if-idle"}, "key": {jobKey}, "fence": {s.fence(jobKey)}, "reason": {"x"}}.Encode()
}

// unchanged says with which status a request was refused, and that nothing was changed.
func (s *stage) unchanged(page *seen) string {
	s.Helper()
	if st := s.status(jobKey); st.State != joblock.StateParked {
		return fmt.Sprintf("%d, and the key is %s", page.status, st.State)
	}
	if page.header.Get("Set-Cookie") != "" {
		return fmt.Sprintf("%d, with a cookie", page.status)
	}
	return fmt.Sprintf("%d, nothing changes", page.status)
}

// What was tried against the pages and the API, and what came of it: each row of the table in docs/security-pages.md.
func TestSecurityAttempts(t *testing.T) {
	rows := []string{"| kind | attempt | result |"}
	run := func(area string, all []attack, change func(*Config)) {
		t.Run(area, func(t *testing.T) {
			staged(t, PagesConfig{}, change, func(s *stage) {
				for _, a := range all {
					if got := a.try(s); got != a.want {
						s.Errorf("%s: %s, want %s", a.what, got, a.want)
					}
				}
			})
		})
		for _, a := range all {
			rows = append(rows, fmt.Sprintf("| %s | %s | %s |", area, a.what, a.want))
		}
	}
	local := func(cfg *Config) { cfg.Hosts = []string{"localhost"} }
	run("forged requests", forgeries, local)
	run("embedding, rebinding", embeddings, local)
	t.Run("hostile texts", func(t *testing.T) {
		staged(t, PagesConfig{}, nil, func(s *stage) {
			got := s.tryEvil()
			for _, p := range evilPlaces {
				if want := map[bool]string{true: "shown as text", false: "not shown"}[p.shown]; got[p.name] != want {
					s.Errorf("%s: %s, want %s", p.what, got[p.name], want)
				}
			}
		})
	})
	for _, p := range evilPlaces {
		rows = append(rows, fmt.Sprintf("| hostile texts | HTML, quotes and a template in %s | %s |", p.what, map[bool]string{true: "shown as text", false: "not shown"}[p.shown]))
	}
	rows = append(rows, "| hostile texts | the same in every parameter of every page | shown as text, or refused |",
		"| hostile texts | the same in the answers of the API | JSON with `<` escaped, `nosniff` |")
	run("paths and keys", paths, nil)
	run("redirects", redirects, func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			return Principal{ID: "ann", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, nil
		})
	})
	run("forms, bounds", bounds, func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			if strings.Contains(r.Header.Get("Authorization"), "wrong") {
				return Principal{}, ErrUnauthorized
			}
			return Principal{ID: "ann", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, nil
		})
	})
	t.Run("sessions", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			path, token := accountsFile(t, `"scopes": ["read", "operate"]`)
			a := newReplica(t, store(), withAccounts(t, path))
			s := &session{browser: a.browser(PagesConfig{}), path: path, token: token}
			s.submit("login", "token", token).has(http.StatusSeeOther)
			s.good = s.cookies[sessionCookie]
			for _, try := range sessions {
				s.cookies[sessionCookie] = s.good
				if got := try.try(s); got != try.want {
					t.Errorf("%s: %s, want %s", try.what, got, try.want)
				}
			}
			a.wantNoSecrets(token, s.good)
		})
	})
	for _, try := range sessions {
		rows = append(rows, fmt.Sprintf("| sessions | %s | %s |", try.what, try.want))
	}
	wantTable(t, "attempts", rows)
}

// Who may ask for what at the API: each scope tries every route.
func TestSecurityRoutes(t *testing.T) {
	rows := []string{"| |"}
	bubble(t, func(t *testing.T) {
		var who Principal
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Jobs = noJobs
			cfg.Metrics = http.NotFoundHandler()
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) {
				if who.ID == "" {
					return Principal{}, ErrUnauthorized
				}
				return who, nil
			})
		})
		all := a.s.routes()
		for _, r := range all {
			rows = append(rows, fmt.Sprintf("| `%s %s` |", r.method, r.path))
		}
		for _, scope := range append([]string{"no account", "none"}, scopeAny.Names()...) {
			rows[0] += " " + scope + " |"
			who = Principal{ID: "x", AllKeys: true, AllQueues: true}
			if scope == "no account" {
				who = Principal{}
			} else if scope != "none" {
				who.Scopes, _ = ParseScopes(scope)
			}
			for i, r := range all {
				path := strings.NewReplacer("{key}", "k", "{queue}", "q", "{id}", "i", "{name}", "n").Replace(r.path)
				w := httptest.NewRecorder()
				a.s.ServeHTTP(w, httptest.NewRequest(r.method, "http://localhost"+path, nil))
				cell := "may"
				if w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden {
					cell = fmt.Sprint(w.Code)
				}
				rows[i+1] += " " + cell + " |"
			}
		}
	})
	wantTable(t, "routes", rows)
}
