package server

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
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

// An attack is a row of the table: what was tried, and what comes of it.
type attack struct {
	what string
	want string
	try  func(s *stage) string
}

// post is an attempt to send the form that frees a key.
func post(change ...func(*http.Request)) func(s *stage) string {
	return func(s *stage) string { return s.unchanged(s.raw("POST", "/act", s.idleForm(), change...)) }
}

const crossSite, sameOrigin = "cross-site", "same-origin"

func site(values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header["Sec-Fetch-Site"] = values }
}

var forgeries = []attack{
	{"a form of another site", "403, nothing changes", post(site(crossSite))},
	{"a form of another port or a subdomain", "403, nothing changes", post(site("same-site"))},
	{"the same from a browser that sends no `Sec-Fetch-Site`", "403, nothing changes", post(with("Origin", "https://evil.example"))},
	{"a form of a sandboxed frame or a `data:` page, `Origin: null`", "403, nothing changes", post(with("Origin", "null"))},
	{"`Sec-Fetch-Site` twice, the second one `cross-site`", "403, nothing changes", post(site(sameOrigin, crossSite))},
	{"`Sec-Fetch-Site` twice, the first one `cross-site`", "403, nothing changes", post(site(crossSite, sameOrigin))},
	{"`Sec-Fetch-Site: same-origin, cross-site` in one header", "403, nothing changes", post(site(sameOrigin + ", " + crossSite))},
	{"`Origin` twice, the second one of another site", "403, nothing changes", post(with("Origin", "http://localhost"), with("Origin", "https://evil.example"))},
	{"a form of another site with a password that the browser adds, `Authorization: Basic`", "403, nothing changes", post(site(crossSite), with("Authorization", "Basic YTpi"))},
	{"the same with `Negotiate`", "403, nothing changes", post(site(crossSite), with("Authorization", "Negotiate YTpi"))},
	{"a JSON action of the API, sent by a form of another site as `text/plain`", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/v1/force-release", `{"key":"`+jobKey+`","reason":"x"}`, site(crossSite), with("If-Match", `"`+s.fence(jobKey)+`"`), func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }))
	}},
	{"the same with `application/json` and a password that the browser adds", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/v1/force-release", `{"key":"`+jobKey+`","reason":"x"}`, site(crossSite), with("If-Match", `"`+s.fence(jobKey)+`"`), with("Authorization", "Basic YTpi"), func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }))
	}},
	{"the whole form in the address of a link", "200, nothing changes", func(s *stage) string { return s.unchanged(s.raw("GET", "/act?"+s.idleForm(), "")) }},
	{"the same with `X-HTTP-Method-Override: POST` and `_method=POST`", "200, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("GET", "/act?_method=POST&"+s.idleForm(), "", with("X-HTTP-Method-Override", "POST")))
	}},
	{"a reason in the address, so that only a click is left", "the field is empty", func(s *stage) string {
		if page := s.raw("GET", "/act?"+s.idleForm(), ""); page.status == 200 && strings.Contains(page.text, `name="reason" type="text" required maxlength="256" value=""`) {
			return "the field is empty"
		}
		return "the field is filled"
	}},
	{"the form in the address of a POST with an empty body", "400, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/act?"+s.idleForm(), "", site(sameOrigin)))
	}},
	{"the form as `text/plain`", "400, nothing changes", post(site(sameOrigin), func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })},
	{"the form as `multipart/form-data`", "400, nothing changes", post(site(sameOrigin), func(r *http.Request) { r.Header.Set("Content-Type", "multipart/form-data; boundary=x") })},
	{"the form with PUT", "405, nothing changes", func(s *stage) string { return s.unchanged(s.raw("PUT", "/act", s.idleForm(), site(sameOrigin))) }},
	{"a form of another site that signs its visitor in as another user", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/login", "token=x", site(crossSite)))
	}},
	{"a form of another site that signs its visitor out", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/logout", "x=y", site(crossSite)))
	}},
	{"the form of the same site", "303, and the key is free", post(site(sameOrigin))},
}

// status tells the status of a GET.
func status(path string, change ...func(*http.Request)) func(s *stage) string {
	return func(s *stage) string { return fmt.Sprint(s.raw("GET", path, "", change...).status) }
}

func fetch(mode, dest string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", crossSite)
		r.Header.Set("Sec-Fetch-Mode", mode)
		r.Header.Set("Sec-Fetch-Dest", dest)
	}
}

var embeddings = []attack{
	{"any page in a frame, an object or an embed of another site, to have its buttons clicked", "every answer forbids it", func(s *stage) string {
		for path, page := range s.crawl() {
			if !strings.Contains(page.header.Get("Content-Security-Policy"), "frame-ancestors 'none'") || page.header.Get("X-Frame-Options") != "DENY" {
				return path + " does not"
			}
		}
		return "every answer forbids it"
	}},
	{"the same: a browser asks for the frame", "403", status("/act?do=force-release&key="+url.QueryEscape(heldKey), fetch("navigate", "iframe"))},
	{"a page as a script, a picture or a fetch of another site", "403", status("/locks", fetch("no-cors", "script"))},
	{"a stream as a picture of another site, to use up the streams", "403", status("/live?page=locks", fetch("no-cors", "image"))},
	{"a page that another site has opened in a window, to read it or to move it", "it loses the window: `Cross-Origin-Opener-Policy`", func(s *stage) string {
		if s.raw("GET", "/locks", "").header.Get("Cross-Origin-Opener-Policy") == "same-origin" {
			return "it loses the window: `Cross-Origin-Opener-Policy`"
		}
		return "it keeps the window"
	}},
	{"answers of the API read by a script of another site", "no answer has `Access-Control-Allow-Origin`", func(s *stage) string {
		for _, path := range []string{"/v1/locks", "/v1/events", "/locks", "/openapi.json", "/healthz"} {
			if h := s.raw("GET", path, "", with("Origin", "https://evil.example")).header; h.Get("Access-Control-Allow-Origin") != "" {
				return path + " has"
			}
		}
		return "no answer has `Access-Control-Allow-Origin`"
	}},
	{"a link that a user follows", "200", status("/locks", fetch("navigate", "document"))},
	{"a name of the attacker that resolves to this machine", "421", status("/locks", hostNamed("evil.example"))},
	{"the same with a port, and the `Origin` to it", "421", status("/locks", hostNamed("evil.example:7420"), with("Origin", "http://evil.example:7420"))},
	{"a name that begins with ours", "421", status("/locks", hostNamed("localhost.evil.example"))},
	{"`X-Forwarded-Host: localhost` under another name", "421", status("/locks", hostNamed("evil.example"), with("X-Forwarded-Host", "localhost"))},
	{"the API under another name", "421", status("/v1/locks", hostNamed("evil.example"))},
}

var paths = []attack{
	{"`/x/audit`: a page below a path that a proxy does not guard", "404", status("/x/audit")},
	{"`//evil.example/locks`", "404", status("//evil.example/locks")},
	{"`/x/..%2Faudit`", "404", status("/x/..%2Faudit")},
	{"`/..%2Flocks`", "404", status("/..%2Flocks")},
	{"`/locks/../audit`", "404", status("/locks/../audit")},
	{"`/locks%2F..%2Faudit`", "404", status("/locks%2F..%2Faudit")},
	{"`/locks%00`", "404", status("/locks%00")},
	{"`/locks;x=1`", "404", status("/locks;x=1")},
	{"`/LOCKS`", "404", status("/LOCKS")},
	{"`/locks/`", "404", status("/locks/")},
	{"`/templates/layout.html`, `/pages.go`, `/assets/pages.js`", "404, 404, 404", func(s *stage) string {
		return status("/templates/layout.html")(s) + ", " + status("/pages.go")(s) + ", " + status("/assets/pages.js")(s)
	}},
	{"`/v1%2Fme`", "404", status("/v1%2Fme")},
	{"`/v1//me`", "400", status("/v1//me")},
	{"`/v1/locks/../me`", "400", status("/v1/locks/../me")},
	{"`/v1/locks/a%2F..%2Fb`: a key, not a path", "200", status("/v1/locks/a%2F..%2Fb")},
	{"the key `../../etc/passwd`: a key, not a path", "200", status("/lock?key=../../etc/passwd")},
	{"a key with NUL", "400", status("/lock?key=a%00b")},
	{"a key with a line break", "400", status("/lock?key=a%0d%0ab")},
	{"a key with a character that turns the direction of the text", "400", status("/lock?key=a%E2%80%AEb")},
	{"a key that is not UTF-8, such as an overlong dot", "400", status("/lock?key=%C0%AE")},
	{"a key of 513 bytes", "400", status("/lock?key=" + strings.Repeat("k", 513))},
	{"`%zz` in a parameter", "400", status("/lock?key=%zz")},
}

// redirect tells where a login leads.
func redirect(next string) func(s *stage) string {
	return func(s *stage) string {
		page := s.raw("POST", "/login", url.Values{"token": {"good"}, "next": {next}}.Encode(), site(sameOrigin))
		switch to := page.location(); {
		case page.status != http.StatusSeeOther:
			return fmt.Sprint(page.status)
		case to == "./":
			return "to the overview"
		default:
			return "to `" + to + "`"
		}
	}
}

var redirects = []attack{
	{"`next=https://evil.example/`", "to the overview", redirect("https://evil.example/")},
	{"`next=//evil.example`", "to the overview", redirect("//evil.example")},
	{"`next=/\\evil.example`", "to the overview", redirect(`/\evil.example`)},
	{"`next=` a tab and `//evil.example`", "to the overview", redirect("\t//evil.example")},
	{"`next=%2F%2Fevil.example`", "to the overview", redirect("%2F%2Fevil.example")},
	{"`next=javascript:alert(1)`", "to the overview", redirect("javascript:alert(1)")},
	{"`next=../../other`", "to the overview", redirect("../../other")},
	{"`next=locks` and a second header after a line break", "to the overview", redirect("locks\r\nSet-Cookie: a=b")},
	{"`next=act?do=force-release&key=a`: an action after the login", "to the overview", redirect("act?do=force-release&key=a")},
	{"`next=logout`", "to the overview", redirect("logout")},
	{"`next=lock?key=//evil.example`", "to `lock?key=%2F%2Fevil.example`", redirect("lock?key=//evil.example")},
	{"`back=https://evil.example/` on the page of an action, and `query=` in that of many", "no link leads there", func(s *stage) string {
		for _, path := range []string{
			"/act?do=free-if-idle&key=" + url.QueryEscape(jobKey) + "&back=https://evil.example/&return=https://evil.example/&next=https://evil.example/",
			"/bulk?prefix=export:&query=https://evil.example/&back=https://evil.example/", "/lock?key=x&back=https://evil.example/",
		} {
			for _, link := range s.raw("GET", path, "").has(200).links() {
				if u, err := url.Parse(link); err != nil || u.Host != "" || u.Scheme != "" || strings.HasPrefix(link, "/") {
					return link
				}
			}
		}
		return "no link leads there"
	}},
	{"an action on the key `//evil.example`", "to `lock?key=%2F%2Fevil.example&done=…`", func(s *stage) string {
		l, err := s.locks.TryAcquire(s.Context(), "//evil.example")
		testkit.WantNil(s, "TryAcquire", err)
		_, err = l.Park(s.Context(), joblock.Reserve(time.Hour))
		testkit.WantNil(s, "Park", err)
		page := s.raw("POST", "/act", url.Values{"do": {"free-if-idle"}, "key": {"//evil.example"}, "fence": {s.fence("//evil.example")}, "reason": {"x"}}.Encode(), site(sameOrigin))
		to, _, _ := strings.Cut(page.location(), "done=")
		return "to `" + to + "done=…`"
	}},
}

// evil is a text that is dangerous in every place of a page. The word after x- says where it came from.
func evil(place string) string {
	return `<x-` + place + ` onclick=alert(1)>"'` + "`" + `></textarea></title></script><script>alert(1)</script>{{.}}&lt;`
}

// The markup of a page: the names of its elements and of its attributes, and the addresses in it.
type markup struct{ elements, attributes, addresses map[string]bool }

// markupOf reads HTML as a browser would, as far as that is needed to find what is an element.
func markupOf(text string) markup {
	m := markup{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for {
		i := strings.IndexByte(text, '<')
		if i < 0 {
			return m
		}
		text = text[i+1:]
		if text == "" || text[0] == '!' || text[0] == '/' {
			continue
		}
		end := strings.IndexAny(text, " \t\n/>")
		if end < 0 {
			return m
		}
		m.elements[text[:end]] = true
		text = text[end:]
		for {
			if text = strings.TrimLeft(text, " \t\n/"); text == "" || text[0] == '>' {
				break
			}
			end := strings.IndexAny(text, " \t\n/>=")
			if end <= 0 {
				break
			}
			name, value := text[:end], ""
			text = text[end:]
			if strings.HasPrefix(text, "=") {
				text = text[1:]
				if text != "" && (text[0] == '"' || text[0] == '\'') {
					value, text, _ = strings.Cut(text[1:], text[:1])
				} else {
					end := strings.IndexAny(text, " \t\n>")
					value, text = text[:end], text[end:]
				}
			}
			m.attributes[name] = true
			if name == "href" || name == "src" || name == "action" {
				m.addresses[html.UnescapeString(value)] = true
			}
		}
	}
}

// harmless says what is wrong with the markup of a page, or "".
func (m markup) harmless() string {
	for name := range m.elements {
		if strings.HasPrefix(name, "x-") || slices.Contains([]string{"style", "iframe", "object", "embed", "base", "textarea", "img"}, name) {
			return "the element " + name
		}
	}
	for name := range m.attributes {
		if strings.HasPrefix(strings.ToLower(name), "on") || name == "style" || name == "srcdoc" || name == "formaction" {
			return "the attribute " + name
		}
	}
	for at := range m.addresses {
		u, err := url.Parse(at)
		if err != nil || u.Scheme != "" || u.Host != "" || strings.HasPrefix(at, "/") {
			return "the address " + at
		}
	}
	return ""
}

// evilPlaces are the texts of others that pages show, or do not.
var evilPlaces = []struct {
	name, what string
	shown      bool
}{
	{"key", "a key", true}, {"holder", "the label of a holder", true}, {"waiter", "the label of a waiter", true}, {"limit", "the key of a limit", true},
	{"permit", "the holder of a permit", true}, {"job", "the ID of a job", true}, {"type", "the type of a task", true}, {"error", "the error of a task", true},
	{"payload", "the payload of a task", false}, {"memo", "the memo of a lock", false}, {"reason", "the reason of an action", true}, {"cron", "the name of a cron job", true}, {"cronerror", "the error of a cron job", true},
	{"pause", "the reason of a pause", true}, {"node", "the name of a node", true}, {"event", "the error in an event", true},
}

// fillEvil puts the dangerous text everywhere, and returns the paths of the pages that no link leads to.
func (s *stage) fillEvil() (paths []string) {
	ctx := s.Context()
	key := evil("key")
	_, err := s.locks.TryAcquire(ctx, key, joblock.Holder(evil("holder")))
	testkit.WantNil(s, "TryAcquire", err)
	go func() { _, _ = s.locks.Acquire(ctx, key, joblock.Holder(evil("waiter"))) }()
	_, err = ops.AcquireLease(ctx, s.locks, ops.LeaseRequest{Key: evil("limit"), TTL: time.Hour, Limit: 3, Holder: evil("permit")})
	testkit.WantNil(s, "AcquireLease", err)
	job := "default/" + evil("job")
	s.tasks.put(job, asynq.TaskInfo{
		ID: evil("job"), Queue: "default", Type: evil("type"), Payload: []byte(evil("payload")), LastErr: evil("error") + "\u202e\x1b[2J\x00", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1,
	})
	l, err := s.locks.TryAcquire(ctx, "kept")
	testkit.WantNil(s, "TryAcquire", err)
	token, err := l.Park(ctx, joblock.ForJob(job), joblock.Reserve(time.Hour))
	testkit.WantNil(s, "Park", err)
	_ = token
	lease, err := ops.AcquireLease(ctx, s.locks, ops.LeaseRequest{Key: "noted", TTL: time.Hour})
	testkit.WantNil(s, "AcquireLease", err)
	testkit.WantNil(s, "WriteMemo", ops.WriteMemo(ctx, s.locks, lease.Token, time.Hour, []byte(evil("memo"))))
	gone, err := s.locks.TryAcquire(ctx, "gone")
	testkit.WantNil(s, "TryAcquire", err)
	_, err = gone.Park(ctx, joblock.Reserve(time.Hour))
	testkit.WantNil(s, "Park", err)
	freed := s.raw("POST", "/act", url.Values{"do": {"free-if-idle"}, "key": {"gone"}, "fence": {s.fence("gone")}, "reason": {evil("reason")}}.Encode(), site(sameOrigin)).has(http.StatusSeeOther)
	j, err := journal.New(s.s.cfg.Redis, nil)
	testkit.WantNil(s, "journal.New", err)
	j.Observe(event.Event{Kind: event.Lost, Key: key, Holder: evil("holder"), Fence: 7, Err: errors.New(evil("event"))})
	testkit.WantNil(s, "Close", j.Close(ctx))
	return []string{"/" + freed.location(), "/lock?key=kept", "/lock?key=gone", "/lock?key=noted", "/lock?key=" + url.QueryEscape(key), "/job?job=" + url.QueryEscape(job)}
}

// withEvilCron runs f while a node with a dangerous name has a cron job with a dangerous name.
func (s *stage) withEvilCron(f func()) {
	ctx, cancel := context.WithCancel(s.Context())
	node, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: evil("node"), Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(s, "scheduler.New", err)
	testkit.WantNil(s, "Func", node.Func(evil("cron"), "@every 1m", func(context.Context) error { return errors.New(evil("cronerror") + "\u202e") }))
	over := make(chan error)
	go func() { over <- node.Run(ctx) }()
	time.Sleep(3 * time.Minute)
	testkit.WantNil(s, "Pause", admin.Of(node).Pause(ctx, evil("cron"), evil("pause")))
	f()
	cancel()
	<-over
}

// tryEvil says for each place whether its text is shown, and that it is nothing but text.
func (s *stage) tryEvil() map[string]string {
	result := make(map[string]string)
	s.withEvilCron(func() {
		extra := s.fillEvil()
		time.Sleep(time.Minute)
		pages := s.crawl()
		for _, path := range extra {
			pages[path] = s.raw("GET", path, "")
		}
		for _, p := range evilPlaces {
			result[p.name] = "not shown"
		}
		for path, page := range pages {
			if !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
				continue
			}
			if bad := markupOf(page.text).harmless(); bad != "" {
				s.Errorf("%s has %s", path, bad)
			}
			if strings.ContainsAny(page.text, "\u202e\x1b\x00") || strings.Contains(page.text, "ZgotmplZ") {
				s.Errorf("%s has a character that steers, or a text in a place for which it could not be escaped", path)
			}
			for _, p := range evilPlaces {
				if strings.Contains(page.whole(), "&lt;x-"+p.name) {
					result[p.name] = "shown as text"
				}
				if strings.Contains(page.text, "<x-"+p.name) {
					s.Errorf("%s has the element x-%s", path, p.name)
				}
			}
		}
		// In the answers of the API, and in every parameter of every page.
		for _, path := range []string{"/v1/locks?own=1", "/v1/jobs", "/v1/sequences", "/v1/cron", "/v1/events", "/v1/audit", "/v1/explain?key=" + url.QueryEscape(evil("key"))} {
			if r := s.raw("GET", path, ""); r.status != 200 || strings.Contains(r.text, "<") || r.header.Get("Content-Type") != "application/json" || r.header.Get("X-Content-Type-Options") != "nosniff" {
				s.Errorf("%s: %d %s", path, r.status, r.header)
			}
		}
		for name, params := range map[string]string{
			"": "refresh", "locks": "prefix holder job older waiters state after sort dir", "lock": "key done", "jobs": "prefix queue task after", "sequences": "prefix state after", "job": "job done", "limits": "prefix after",
			"cron": "name scope state after done", "cronjob": "scope name done", "events": "key prefix kind after", "nodes": "refresh", "doctor": "again", "audit": "key by action outcome after",
			"help": "q", "act": "do key job scope name reason fence", "bulk": "prefix holder job query", "login": "next", "live": "page every",
		} {
			all := url.Values{}
			for param := range strings.FieldsSeq(params) {
				all.Set(param, evil("parameter"))
				page := s.raw("GET", "/"+name+"?"+url.Values{param: all[param]}.Encode(), "")
				if bad := markupOf(page.text).harmless(); bad != "" || page.status >= 500 {
					s.Errorf("%s with %q: %d, %s", name, param, page.status, bad)
				}
			}
			if bad := markupOf(s.raw("GET", "/"+name+"?"+all.Encode(), "").text).harmless(); bad != "" {
				s.Errorf("%s: %s", name, bad)
			}
		}
	})
	return result
}

var bounds = []attack{
	{"a form of 65 KiB", "400", func(s *stage) string {
		return fmt.Sprint(s.raw("POST", "/act", s.idleForm()+"&x="+strings.Repeat("x", 65<<10), site(sameOrigin)).status)
	}},
	{"a reason of 300 bytes", "422, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/act", s.idleForm()+strings.Repeat("x", 300), site(sameOrigin)))
	}},
	{"the fence 0, a negative one, none, two", "409, 409, 400, 409", func(s *stage) string {
		var all []string
		for _, fence := range []string{"&fence=0", "&fence=-1", "", "&fence=0&fence=" + s.fence(jobKey)} {
			all = append(all, fmt.Sprint(s.raw("POST", "/act", "do=free-if-idle&reason=x&key="+url.QueryEscape(jobKey)+fence, site(sameOrigin)).status))
		}
		return strings.Join(all, ", ")
	}},
	{"two keys in one form: one that may be freed, one that may not", "only the first counts", func(s *stage) string {
		page := s.raw("POST", "/act", "do=force-release&reason=x&key=unused&key="+url.QueryEscape(heldKey)+"&typed="+url.QueryEscape(heldKey)+"&fence="+s.fence(heldKey), site(sameOrigin))
		if s.status(heldKey).State == joblock.StateHeld && page.status == http.StatusConflict {
			return "only the first counts"
		}
		return fmt.Sprint(page.status)
	}},
	{"a form for many that has a key twice, or more fences than keys", "400, 400", func(s *stage) string {
		twice := s.raw("POST", "/bulk", "reason=x&k=a&k=a&f=1&f=1&s=held&s=held", site(sameOrigin)).status
		return fmt.Sprint(twice, ", ", s.raw("POST", "/bulk", "reason=x&k=a&f=1&f=2&s=held", site(sameOrigin)).status)
	}},
	{"an action that does not exist", "400", status("/act?do=drop-all")},
	{"the same form twice", "303, then 409", func(s *stage) string {
		form := s.idleForm()
		return fmt.Sprint(s.raw("POST", "/act", form, site(sameOrigin)).status, ", then ", s.raw("POST", "/act", form, site(sameOrigin)).status)
	}},
	{"`done=` with the record of an action on something else", "no banner", func(s *stage) string {
		l, err := s.locks.TryAcquire(s.Context(), "other")
		testkit.WantNil(s, "TryAcquire", err)
		_, err = l.Park(s.Context(), joblock.Reserve(time.Hour))
		testkit.WantNil(s, "Park", err)
		to := s.raw("POST", "/act", url.Values{"do": {"free-if-idle"}, "key": {"other"}, "fence": {s.fence("other")}, "reason": {"x"}}.Encode(), site(sameOrigin)).has(303).location()
		_, id, _ := strings.Cut(to, "done=")
		s.raw("GET", "/"+to, "").has(200, "banner good", "free if idle of other")
		for _, path := range []string{s.lockPage(heldKey), "job?job=" + s.job, "cron?x=y", "cronjob?scope=shop&name=" + url.QueryEscape(cronName)} {
			if strings.Contains(s.raw("GET", "/"+path+"&done="+id, "").has(200).text, "banner good") {
				return "a banner at " + path
			}
		}
		return "no banner"
	}},
	{"1,000 wrong tokens from one address", "429 from the 101st on", func(s *stage) string {
		for i := range 1000 {
			if got := s.raw("POST", "/login", "token=wrong", site(sameOrigin)).status; got == http.StatusTooManyRequests {
				return fmt.Sprintf("429 from the %dst on", i+1)
			}
		}
		return "no bound"
	}},
}

// A session is tried with accounts, whose tokens are secrets.
var sessions = []struct {
	what, want string
	try        func(s *session) string
}{
	{"the cookie read by a script, sent by another site, sent in the clear", "`HttpOnly`, `SameSite=Strict`, over TLS `Secure`, no `Domain`", func(s *session) string {
		r := s.submit("login", "token", s.token)
		cookie := r.header.Get("Set-Cookie")
		s.headers["Origin"] = "https://localhost"
		secure := s.submit("login", "token", s.token).header.Get("Set-Cookie")
		delete(s.headers, "Origin")
		if strings.Contains(cookie, "HttpOnly") && strings.Contains(cookie, "SameSite=Strict") && !strings.Contains(cookie, "Domain") && !strings.Contains(cookie, s.token) && strings.Contains(secure, "Secure") {
			return "`HttpOnly`, `SameSite=Strict`, over TLS `Secure`, no `Domain`"
		}
		return cookie
	}},
	{"the cookie in place of a token at the API", "401", func(s *session) string {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/v1/me", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: s.good})
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		return fmt.Sprint(w.Code)
	}},
	{"a token in the address", "303 to the login", func(s *session) string {
		delete(s.cookies, sessionCookie)
		r := s.open("locks?token=" + s.token + "&access_token=" + s.token)
		return fmt.Sprintf("%d to the %.5s", r.status, r.location())
	}},
	{"two `Authorization` headers, one of them good", "303 to the login", func(s *session) string {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/locks", nil)
		r.Header["Authorization"] = []string{"Bearer " + s.token, "Bearer x"}
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		return fmt.Sprintf("%d to the %.5s", w.Code, w.Header().Get("Location"))
	}},
	{"a cookie with other rights, without its sum, cut off, empty, of nonsense", "303 to the login", func(s *session) string {
		for _, value := range []string{strings.Replace(s.good, ".", "x.", 1), s.good[:strings.Index(s.good, ".")], s.good[:len(s.good)-2], "", "a.b.c", "eyJpIjoiYWRtaW4ifQ."} {
			if s.cookies[sessionCookie] = value; s.open("locks").status != http.StatusSeeOther {
				return "let in with " + value
			}
		}
		return "303 to the login"
	}},
	{"the cookie of a server with another store", "303 to the login", func(s *session) string {
		stranger := newReplica(s.T, memoryStore(), withAccounts(s.T, s.path)).browser(PagesConfig{})
		stranger.cookies[sessionCookie] = s.good
		return fmt.Sprintf("%d to the login", stranger.open("locks").status)
	}},
	{"the cookie after eight hours", "303 to the login", func(s *session) string {
		time.Sleep(sessionTime)
		return fmt.Sprintf("%d to the login", s.open("locks").status)
	}},
	{"the cookie after the account has got another token", "303 to the login", func(s *session) string {
		s.submit("login", "token", s.token).has(http.StatusSeeOther)
		s.open("locks").has(http.StatusOK)
		writeAccount(s.T, s.path, `"scopes": ["read"], "expires": "2030-01-01T00:00:00Z"`)
		touch(s.T, s.path)
		time.Sleep(2 * checkFile)
		return fmt.Sprintf("%d to the login", s.open("locks").status)
	}},
}

type session struct {
	*browser
	path, token, good string
}

// What was tried against the pages and the API, and what came of it: each row of the table in docs/security-pages.md.
func TestSecurityAttempts(t *testing.T) {
	rows := []string{"| what | tried | comes of it |"}
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

// A role is a caller with some rights.
type role struct {
	name  string
	who   Principal
	pages PagesConfig
}

var roles = []role{
	{"no account", Principal{}, PagesConfig{}},
	{"lock, enqueue", Principal{ID: "x", Scopes: ScopeLock | ScopeEnqueue, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"operate, cron", Principal{ID: "x", Scopes: ScopeOperate | ScopeCron, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"read", Principal{ID: "x", Scopes: ScopeRead, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"read, operate", Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"the same, other keys", Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"import:"}, AllQueues: true}, PagesConfig{}},
	{"the same, another queue", Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Queues: []string{"mail"}, AllKeys: true}, PagesConfig{}},
	{"read, cron", Principal{ID: "x", Scopes: ScopeRead | ScopeCron, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"admin", Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"admin, read-only pages", Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{ReadOnly: true}},
}

// deeds is everything that can be asked of the pages, in an order in which none is in the way of the next.
var deeds = []struct {
	name string
	do   func(s *stage) *seen
}{
	{"look at the overview", func(s *stage) *seen { return s.open("") }},
	{"look at the locks", func(s *stage) *seen { return s.open("locks") }},
	{"look at a lock", func(s *stage) *seen { return s.open(s.lockPage(heldKey)) }},
	{"look at the jobs", func(s *stage) *seen { return s.open("jobs") }},
	{"look at a job", func(s *stage) *seen { return s.open("job?job=" + s.job) }},
	{"look at the sequences", func(s *stage) *seen { return s.open("sequences") }},
	{"look at the limits", func(s *stage) *seen { return s.open("limits") }},
	{"look at the cron jobs", func(s *stage) *seen { return s.open("cron") }},
	{"look at a cron job", func(s *stage) *seen { return s.open("cronjob?scope=shop&name=" + url.QueryEscape(cronName)) }},
	{"look at the events", func(s *stage) *seen { return s.open("events") }},
	{"look at the nodes", func(s *stage) *seen { return s.open("nodes") }},
	{"look at what the doctor finds", func(s *stage) *seen { return s.open("doctor") }},
	{"look at the audit", func(s *stage) *seen { return s.open("audit") }},
	{"look at the help", func(s *stage) *seen { return s.open("help") }},
	{"the stream of the audit, which has none", func(s *stage) *seen { return s.open("live?page=audit") }},
	{"the form to force", func(s *stage) *seen { return s.open("act?do=force-release&key=" + url.QueryEscape(heldKey)) }},
	{"the form to free many", func(s *stage) *seen { return s.open("bulk?prefix=export:") }},
	{"cancel a task", func(s *stage) *seen { return s.deed("cancel-task", "job", "default/active") }},
	{"end a job, and archive it", func(s *stage) *seen { return s.deed("end-and-archive-task", "job", "default/active") }},
	{"end a job", func(s *stage) *seen { return s.deed("end-and-delete-task", "job", "default/active") }},
	{"run a task", func(s *stage) *seen { return s.deed("run-task", "job", s.job) }},
	{"archive a task", func(s *stage) *seen { return s.deed("archive-task", "job", s.job) }},
	{"delete a task", func(s *stage) *seen { return s.deed("delete-task", "job", s.job) }},
	{"add a note about a job", func(s *stage) *seen { return s.deed("annotate-job", "job", s.job) }},
	{"pause a key", func(s *stage) *seen { return s.deed("pause-key", "key", "paused:k") }},
	{"resume a key", func(s *stage) *seen { return s.deed("resume-key", "key", "paused:k") }},
	{"skip a job", func(s *stage) *seen { return s.deed("skip-job", "key", jobKey, "fence", s.fence(jobKey)) }},
	{"free many", func(s *stage) *seen {
		return s.submit("bulk", "query", "prefix=export:", "k", "export:many", "f", s.fence("export:many"), "s", "parked", "live", "0", "reason", "x")
	}},
	{"free if idle", func(s *stage) *seen {
		return s.deed("free-if-idle", "key", "export:idle", "fence", s.fence("export:idle"))
	}},
	{"force release", func(s *stage) *seen {
		return s.deed("force-release", "key", heldKey, "fence", s.fence(heldKey), "typed", heldKey)
	}},
	{"cron: pause", func(s *stage) *seen { return s.deed("cron-pause", "scope", "shop", "name", cronName) }},
	{"cron: resume", func(s *stage) *seen { return s.deed("cron-resume", "scope", "shop", "name", cronName) }},
	{"cron: trigger", func(s *stage) *seen { return s.deed("cron-trigger", "scope", "shop", "name", cronName) }},
	{"cron: stop a backfill", func(s *stage) *seen { return s.deed("cron-stop-backfill", "scope", "shop", "name", cronName) }},
	{"cron: pause all", func(s *stage) *seen { return s.deed("cron-pause-all", "scope", "shop", "typed", "shop") }},
	{"cron: resume all", func(s *stage) *seen { return s.deed("cron-resume-all", "scope", "shop") }},
	{"cron: forget, while a node has the job", func(s *stage) *seen { return s.deed("cron-forget", "scope", "shop", "name", cronName) }},
	{"cron: pause, in a scope that is not served", func(s *stage) *seen { return s.deed("cron-pause", "scope", "other", "name", cronName) }},
}

func (s *stage) deed(do string, pairs ...string) *seen {
	s.Helper()
	deedsDone[do] = true
	return s.submit("act", append(pairs, "do", do, "reason", "x")...)
}

// deedsDone are the actions that were tried.
var deedsDone = make(map[string]bool)

// fillForRoles adds what the deeds need in addition to what a stage has.
func (s *stage) fillForRoles() {
	for _, key := range []string{"export:many", "export:idle", "export:active"} {
		l, err := s.locks.TryAcquire(s.Context(), key)
		testkit.WantNil(s, "TryAcquire", err)
		opts := []joblock.ParkOption{joblock.Reserve(time.Hour)}
		if key == "export:active" {
			opts = append(opts, joblock.ForJob("default/active"))
		}
		_, err = l.Park(s.Context(), opts...)
		testkit.WantNil(s, "Park", err)
	}
	s.tasks.put("default/active", asynq.TaskInfo{ID: "active", Queue: "default", Type: "export", State: asynq.TaskStateActive})
}

// Who may do what on the pages: each caller tries everything.
func TestSecurityRoles(t *testing.T) {
	rows := make([]string, len(deeds))
	head := "| |"
	for i, d := range deeds {
		rows[i] = "| " + d.name + " |"
	}
	for _, r := range roles {
		head += " " + r.name + " |"
		authorize := func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) {
				if r.who.ID == "" {
					return Principal{}, ErrUnauthorized
				}
				return r.who, nil
			})
		}
		staged(t, r.pages, authorize, func(s *stage) {
			s.fillForRoles()
			for i, d := range deeds {
				page := d.do(s)
				rows[i] += fmt.Sprintf(" %d |", page.status)
				if changed := page.status == http.StatusSeeOther && !strings.HasPrefix(page.location(), "login"); changed && (r.who.Scopes&(ScopeOperate|ScopeCron|ScopeAdmin) == 0 || r.pages.ReadOnly) {
					s.Errorf("%s may %s", r.name, d.name)
				}
			}
		})
	}
	for _, verb := range ops.Verbs {
		if do := strings.ReplaceAll(verb.Action.Verb(), " ", "-"); !deedsDone[do] && !verb.Has("From") && !verb.Has("Limit") { // they have no form
			t.Errorf("no deed tries the action %s", do)
		}
	}
	wantTable(t, "roles", append([]string{head}, rows...))
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
