package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"
)

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
	{"a cookie with other rights, without its signature, cut off, empty, or nonsense", "303 to the login", func(s *session) string {
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
	{"the cookie after the account was given another token", "303 to the login", func(s *session) string {
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
