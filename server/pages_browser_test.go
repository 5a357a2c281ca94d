package server

import (
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/testkit"
)

// A browser asks for pages as a browser does.
type browser struct {
	*replica
	handler http.Handler
	mount   string // with a slash at the end
	cookies map[string]string
	headers map[string]string
}

func (a *replica) browser(cfg PagesConfig) *browser {
	a.Helper()
	p, err := a.s.Pages(cfg)
	testkit.WantNil(a, "Pages", err)
	return &browser{replica: a, handler: p.Root(), mount: "/", cookies: make(map[string]string), headers: map[string]string{"Sec-Fetch-Site": "same-origin"}}
}

// A seen page is an answer.
type seen struct {
	*testing.T
	status int
	header http.Header
	text   string
}

func (b *browser) send(method, path string, form url.Values) *seen {
	b.Helper()
	var body *strings.Reader = strings.NewReader(form.Encode())
	r := httptest.NewRequest(method, "http://localhost"+b.mount+path, body)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range b.headers {
		r.Header.Set(name, value)
	}
	if host := b.headers["Host"]; host != "" {
		r.Host = host
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		} else {
			b.cookies[c.Name] = c.Value
		}
	}
	return &seen{b.T, w.Code, w.Header(), w.Body.String()}
}

func (b *browser) open(path string) *seen { b.Helper(); return b.send(http.MethodGet, path, nil) }

func (b *browser) submit(path string, pairs ...string) *seen {
	b.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	return b.send(http.MethodPost, path, form)
}

// has fails the test unless the answer has the status and all texts.
func (s *seen) has(status int, texts ...string) *seen {
	s.Helper()
	if s.status != status {
		s.Fatalf("the status is %d, want %d: %s", s.status, status, s.words())
	}
	for _, text := range texts {
		if !strings.Contains(s.text, text) && !strings.Contains(s.words(), text) {
			s.Errorf("the page lacks %q: %s", text, s.words())
		}
	}
	return s
}

func (s *seen) lacks(texts ...string) *seen {
	s.Helper()
	for _, text := range texts {
		if strings.Contains(s.text, text) || strings.Contains(s.whole(), text) {
			s.Errorf("the page has %q", text)
		}
	}
	return s
}

var (
	tags  = regexp.MustCompile(`(?s)<svg.*?</svg>|<[^>]*>`)
	blank = regexp.MustCompile(`\s+`)
	refs  = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
)

// parted finds what is only there to end lines between the parts of a name.
var parted = regexp.MustCompile(`<wbr>|<span class="w">([^<]*)</span>`)

// whole returns the page with the names in one piece.
func (s *seen) whole() string { return parted.ReplaceAllString(s.text, "$1") }

// words returns what a person reads.
func (s *seen) words() string {
	_, main, _ := strings.Cut(s.whole(), "<main")
	return blank.ReplaceAllString(html.UnescapeString(tags.ReplaceAllString("<main"+main, " ")), " ")
}

func (s *seen) location() string { return s.header.Get("Location") }

// links returns the addresses in the page.
func (s *seen) links() (all []string) {
	for _, m := range refs.FindAllStringSubmatch(s.text, -1) {
		if l := html.UnescapeString(m[1]); !strings.HasPrefix(l, "#") && !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	return all
}
