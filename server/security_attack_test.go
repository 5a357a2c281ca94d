package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

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
	{"a form on another site", "403, nothing changes", post(site(crossSite))},
	{"a form on another port or a subdomain", "403, nothing changes", post(site("same-site"))},
	{"the same, from a browser that sends no `Sec-Fetch-Site`", "403, nothing changes", post(with("Origin", "https://evil.example"))},
	{"a form in a sandboxed frame or on a `data:` page: `Origin: null`", "403, nothing changes", post(with("Origin", "null"))},
	{"`Sec-Fetch-Site` twice, the second one `cross-site`", "403, nothing changes", post(site(sameOrigin, crossSite))},
	{"`Sec-Fetch-Site` twice, the first one `cross-site`", "403, nothing changes", post(site(crossSite, sameOrigin))},
	{"`Sec-Fetch-Site: same-origin, cross-site` in one header", "403, nothing changes", post(site(sameOrigin + ", " + crossSite))},
	{"`Origin` twice, the second one that of another site", "403, nothing changes", post(with("Origin", "http://localhost"), with("Origin", "https://evil.example"))},
	{"a form on another site with a password that the browser adds: `Authorization: Basic`", "403, nothing changes", post(site(crossSite), with("Authorization", "Basic YTpi"))},
	{"the same with `Negotiate`", "403, nothing changes", post(site(crossSite), with("Authorization", "Negotiate YTpi"))},
	{"a JSON action of the API, sent by a form on another site as `text/plain`", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/v1/force-release", `{"key":"`+jobKey+`","reason":"x"}`, site(crossSite), with("If-Match", `"`+s.fence(jobKey)+`"`), func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }))
	}},
	{"the same with `application/json` and a password that the browser adds", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/v1/force-release", `{"key":"`+jobKey+`","reason":"x"}`, site(crossSite), with("If-Match", `"`+s.fence(jobKey)+`"`), with("Authorization", "Basic YTpi"), func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }))
	}},
	{"the whole form in the address of a link", "200, nothing changes", func(s *stage) string { return s.unchanged(s.raw("GET", "/act?"+s.idleForm(), "")) }},
	{"the same with `X-HTTP-Method-Override: POST` and `_method=POST`", "200, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("GET", "/act?_method=POST&"+s.idleForm(), "", with("X-HTTP-Method-Override", "POST")))
	}},
	{"the reason in the address of a form, so that the user has only to click", "the field is empty", func(s *stage) string {
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
	{"a form on another site that signs its visitor in as another user", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/login", "token=x", site(crossSite)))
	}},
	{"a form on another site that signs its visitor out", "403, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/logout", "x=y", site(crossSite)))
	}},
	{"the form on the site itself", "303, and the key is free", post(site(sameOrigin))},
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
	{"the request of a browser for such a frame", "403", status("/act?do=force-release&key="+url.QueryEscape(heldKey), fetch("navigate", "iframe"))},
	{"a page that another site loads as a script, as a picture or with fetch", "403", status("/locks", fetch("no-cors", "script"))},
	{"a stream that another site loads as a picture, to use up the streams", "403", status("/live?page=locks", fetch("no-cors", "image"))},
	{"a page that another site has opened in a window, to read it or to move it", "it loses the window: `Cross-Origin-Opener-Policy`", func(s *stage) string {
		if s.raw("GET", "/locks", "").header.Get("Cross-Origin-Opener-Policy") == "same-origin" {
			return "it loses the window: `Cross-Origin-Opener-Policy`"
		}
		return "it keeps the window"
	}},
	{"answers of the API that a script on another site tries to read", "no answer has `Access-Control-Allow-Origin`", func(s *stage) string {
		for _, path := range []string{"/v1/locks", "/v1/events", "/locks", "/openapi.json", "/healthz"} {
			if h := s.raw("GET", path, "", with("Origin", "https://evil.example")).header; h.Get("Access-Control-Allow-Origin") != "" {
				return path + " has"
			}
		}
		return "no answer has `Access-Control-Allow-Origin`"
	}},
	{"a link that a user follows", "200", status("/locks", fetch("navigate", "document"))},
	{"a name of the attacker that resolves to this machine", "421", status("/locks", hostNamed("evil.example"))},
	{"the same with a port, and with the matching `Origin`", "421", status("/locks", hostNamed("evil.example:7420"), with("Origin", "http://evil.example:7420"))},
	{"a name that begins with the server's", "421", status("/locks", hostNamed("localhost.evil.example"))},
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
	{"a key with a character that reverses the direction of the text", "400", status("/lock?key=a%E2%80%AEb")},
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
	{"`next=`, a tab and `//evil.example`", "to the overview", redirect("\t//evil.example")},
	{"`next=%2F%2Fevil.example`", "to the overview", redirect("%2F%2Fevil.example")},
	{"`next=javascript:alert(1)`", "to the overview", redirect("javascript:alert(1)")},
	{"`next=../../other`", "to the overview", redirect("../../other")},
	{"`next=locks` and a second header after a line break", "to the overview", redirect("locks\r\nSet-Cookie: a=b")},
	{"`next=act?do=force-release&key=a`: an action after the login", "to the overview", redirect("act?do=force-release&key=a")},
	{"`next=logout`", "to the overview", redirect("logout")},
	{"`next=lock?key=//evil.example`", "to `lock?key=%2F%2Fevil.example`", redirect("lock?key=//evil.example")},
	{"`back=https://evil.example/` on the page of an action, and `query=` on the page for many keys", "no link leads there", func(s *stage) string {
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

var bounds = []attack{
	{"a form of 65 KiB", "400", func(s *stage) string {
		return fmt.Sprint(s.raw("POST", "/act", s.idleForm()+"&x="+strings.Repeat("x", 65<<10), site(sameOrigin)).status)
	}},
	{"a reason of 300 bytes", "422, nothing changes", func(s *stage) string {
		return s.unchanged(s.raw("POST", "/act", s.idleForm()+strings.Repeat("x", 300), site(sameOrigin)))
	}},
	{"the fence 0, a negative fence, no fence, two fences", "409, 409, 400, 409", func(s *stage) string {
		var all []string
		for _, fence := range []string{"&fence=0", "&fence=-1", "", "&fence=0&fence=" + s.fence(jobKey)} {
			all = append(all, fmt.Sprint(s.raw("POST", "/act", "do=free-if-idle&reason=x&key="+url.QueryEscape(jobKey)+fence, site(sameOrigin)).status))
		}
		return strings.Join(all, ", ")
	}},
	{"two keys in one form: first an unused one, then a held one", "only the first counts", func(s *stage) string {
		page := s.raw("POST", "/act", "do=force-release&reason=x&key=unused&key="+url.QueryEscape(heldKey)+"&typed="+url.QueryEscape(heldKey)+"&fence="+s.fence(heldKey), site(sameOrigin))
		if s.status(heldKey).State == joblock.StateHeld && page.status == http.StatusConflict {
			return "only the first counts"
		}
		return fmt.Sprint(page.status)
	}},
	{"a form for many keys that has a key twice, or more fences than keys", "400, 400", func(s *stage) string {
		twice := s.raw("POST", "/bulk", "reason=x&k=a&k=a&f=1&f=1&s=held&s=held", site(sameOrigin)).status
		return fmt.Sprint(twice, ", ", s.raw("POST", "/bulk", "reason=x&k=a&f=1&f=2&s=held", site(sameOrigin)).status)
	}},
	{"an action that does not exist", "400", status("/act?do=drop-all")},
	{"the same form twice", "303, then 409", func(s *stage) string {
		form := s.idleForm()
		return fmt.Sprint(s.raw("POST", "/act", form, site(sameOrigin)).status, ", then ", s.raw("POST", "/act", form, site(sameOrigin)).status)
	}},
	{"`done=` with the record of another key's action", "no banner", func(s *stage) string {
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
