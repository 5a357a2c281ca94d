package server

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Nothing but a page of the server itself may send a form.
func TestFormsOfOtherSites(t *testing.T) {
	staged(t, PagesConfig{}, func(cfg *Config) { cfg.Hosts = []string{"localhost", "ops.example"} }, func(s *stage) {
		form := []string{"do", "free-if-idle", "key", jobKey, "fence", s.fence(jobKey), "reason", "x"}
		for name, headers := range map[string]map[string]string{
			"cross-site":    {"Sec-Fetch-Site": "cross-site"},
			"same-site":     {"Sec-Fetch-Site": "same-site"},
			"origin":        {"Origin": "https://evil.example"},
			"null":          {"Origin": "null"},
			"rebound":       {"Sec-Fetch-Site": "same-origin", "Host": "evil.example"},
			"rebound port":  {"Sec-Fetch-Site": "same-origin", "Host": "evil.example:80", "Origin": "http://evil.example:80"},
			"host and user": {"Sec-Fetch-Site": "same-origin", "Host": "localhost.evil.example"},
		} {
			s.headers = headers
			if page := s.submit("act", form...); page.status != http.StatusForbidden && page.status != http.StatusMisdirectedRequest {
				t.Errorf("%s: %d %s", name, page.status, page.words())
			}
			if page := s.submit("logout"); page.status == http.StatusSeeOther {
				t.Errorf("%s: signed out", name)
			}
		}
		s.wantState(jobKey, joblock.StateParked)
		s.headers = map[string]string{"Sec-Fetch-Site": "cross-site"}
		s.open("locks").has(http.StatusOK) // a link in a chat
		s.headers = map[string]string{"Host": "evil.example"}
		s.open("locks").has(http.StatusMisdirectedRequest)
		s.headers = map[string]string{"Host": "ops.example:8443", "Origin": "https://ops.example:8443"}
		s.submit("act", form...).has(http.StatusSeeOther)
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			s.headers = nil
			s.send(method, "locks", nil).has(http.StatusMethodNotAllowed)
		}
		s.send(http.MethodPut, "act", nil).has(http.StatusMethodNotAllowed)
	})
}

func TestSessions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path, token := accountsFile(t, `"scopes": ["read", "operate"], "prefixes": ["billing:"]`)
		_, record := audited(t)
		a := newReplica(t, store(), record, withAccounts(t, path))
		b := a.browser(PagesConfig{})
		if to := b.open("lock?key=billing:1&x=%22").has(http.StatusSeeOther).location(); to != "login?next=lock%3Fkey%3Dbilling%253A1%26x%3D%2522" {
			t.Errorf("the login is at %s", to)
		}
		b.open("live?page=locks").has(http.StatusUnauthorized)
		b.submit("act", "do", "force-release").has(http.StatusUnauthorized)
		b.open("login?next=locks").has(http.StatusOK, `name="token"`, `value="locks"`)
		for _, wrong := range []string{"", "x", token + "x", token[:len(token)-1], "jl_billing_", strings.Repeat("x", 1000)} {
			b.submit("login", "token", wrong).has(http.StatusUnauthorized, "This token is unknown")
		}
		for next, to := range map[string]string{
			"locks": "locks", "lock?key=billing:1": "lock?key=billing%3A1", "https://evil.example/": "./", "//evil.example": "./", "/\\evil.example": "./", "javascript:alert(1)": "./",
			"lock?key=%zz": "lock", "act?do=force-release": "./", "../x": "./", "": "./", "logout": "./", "locks\r\nX: y": "./",
		} {
			r := b.submit("login", "token", " "+token+"\n", "next", next).has(http.StatusSeeOther)
			if r.location() != to {
				t.Errorf("after the login for %q: %s, want %s", next, r.location(), to)
			}
			cookie := r.header.Get("Set-Cookie")
			if !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") || strings.Contains(cookie, token) || strings.Contains(cookie, "Path=") || strings.Contains(cookie, "Domain=") {
				t.Errorf("%s", cookie)
			}
		}
		b.headers["Origin"] = "https://localhost"
		if cookie := b.submit("login", "token", token).header.Get("Set-Cookie"); !strings.Contains(cookie, "Secure") {
			t.Errorf("over TLS: %s", cookie)
		}
		delete(b.headers, "Origin")
		b.open("locks").has(http.StatusOK, "No lock is held").has(http.StatusOK, "Sign out")
		good := b.cookies[sessionCookie]
		for name, value := range map[string]string{
			"other rights": strings.Replace(good, ".", "x.", 1), "no sum": good[:strings.Index(good, ".")], "cut": good[:len(good)-2], "empty": "", "nonsense": "a.b.c",
		} {
			b.cookies[sessionCookie] = value
			if r := b.open("locks"); r.status != http.StatusSeeOther {
				t.Errorf("%s: %d", name, r.status)
			}
		}
		b.cookies[sessionCookie] = good
		peer := newReplica(t, shared{a.store}, withAccounts(t, path)).browser(PagesConfig{})
		peer.cookies[sessionCookie] = good
		peer.open("locks").has(http.StatusOK) // replicas share sessions
		stranger := newReplica(t, memoryStore(), withAccounts(t, path)).browser(PagesConfig{})
		stranger.cookies[sessionCookie] = good
		stranger.open("locks").has(http.StatusSeeOther) // other stores do not
		time.Sleep(sessionTime - time.Minute)
		b.open("locks").has(http.StatusOK)
		time.Sleep(2 * time.Minute)
		b.open("locks").has(http.StatusSeeOther)
		b.submit("login", "token", token).has(http.StatusSeeOther)
		b.open("locks").has(http.StatusOK)
		old := b.cookies[sessionCookie]
		b.submit("logout").has(http.StatusSeeOther)
		if len(b.cookies) != 0 {
			t.Errorf("cookies after signing out: %v", b.cookies)
		}
		b.cookies[sessionCookie] = old
		writeAccount(t, path, `"scopes": ["read"], "expires": "2030-01-01T00:00:00Z"`) // a new token
		touch(t, path)
		time.Sleep(2 * checkFile)
		b.open("locks").has(http.StatusSeeOther)
		a.wantNoSecrets(token, good)
	})
}

// touch makes sure that the change of a file is seen: the file's time is that of the machine, not that of the bubble.
func touch(t *testing.T, path string) {
	t.Helper()
	later := time.Now().Add(time.Hour)
	testkit.WantNil(t, "Chtimes", os.Chtimes(path, later, later))
}

// With another Authorizer a session has the rights of its beginning.
func TestSessionsOfAFunction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		who := Principal{ID: "ann", Scopes: ScopeRead, Expires: time.Now().Add(time.Hour), AllKeys: true, AllQueues: true}
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
				if r.Header.Get("Authorization") == "Bearer good" {
					return who, nil
				}
				return Principal{}, ErrUnauthorized
			})
		})
		_, err := a.locks.TryAcquire(t.Context(), key)
		testkit.WantNil(t, "TryAcquire", err)
		b := a.browser(PagesConfig{})
		b.submit("login", "token", "bad").has(http.StatusUnauthorized)
		b.submit("login", "token", "good").has(http.StatusSeeOther)
		b.open("locks").has(http.StatusOK, key)
		b.open("job?job=default/1").has(http.StatusOK)
		time.Sleep(61 * time.Minute)
		b.open("locks").has(http.StatusSeeOther)
		who.Prefixes, who.AllKeys = []string{strings.Repeat("x", 4000)}, false
		who.Expires = time.Time{}
		b.submit("login", "token", "good").has(http.StatusForbidden, "too many prefixes")
	})
}
