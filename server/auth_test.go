package server

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// accountsFile writes a file with one account, whose other fields are in rest.
func accountsFile(t *testing.T, rest string) (path, token string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "accounts.json")
	return path, writeAccount(t, path, rest)
}

func writeAccount(t *testing.T, path, rest string) (token string) {
	t.Helper()
	token, digest, err := NewAccountToken("billing")
	testkit.WantNil(t, "NewAccountToken", err)
	text := `{"accounts": [{"id": "billing", "sha256": "` + digest + `", ` + rest + `}]}`
	testkit.WantNil(t, "WriteFile", os.WriteFile(path, []byte(text), 0o600))
	return token
}

// changeAccount gives the account of token other rights, or removes it if rest is "".
func changeAccount(t *testing.T, path, token, rest string) {
	t.Helper()
	text := `{"accounts": []}`
	if rest != "" {
		sum := sha256.Sum256([]byte(token))
		text = `{"accounts": [{"id": "billing", "sha256": "` + hex.EncodeToString(sum[:]) + `", ` + rest + `}]}`
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(path, []byte(text), 0o600))
}

func withAccounts(t *testing.T, path string) func(*Config) {
	t.Helper()
	accounts, err := OpenAccounts(path, nil)
	testkit.WantNil(t, "OpenAccounts", err)
	return func(cfg *Config) { cfg.Authorize = accounts }
}

func TestTokens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path, token := accountsFile(t, `"scopes": ["lock", "read"], "prefixes": ["billing:"], "expires": "2000-01-02T00:00:00Z"`)
		a := newReplica(t, store(), withAccounts(t, path))
		_, stranger := accountsFile(t, `"scopes": ["admin"]`)
		body := object{"key": "billing:1"}
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer " + stranger, "Bearer jl_nobody_x", "Bearer jl_billing_", "Basic " + token,
			"Bearer " + token[:len(token)-1], "Bearer " + token + "x", token, "Bearer " + strings.Repeat("x", 10_000), "Bearer " + strings.ToUpper(token)} {
			r := a.post("/v1/acquire", body, with("Authorization", header))
			r.refused(http.StatusUnauthorized, "AUTH_REQUIRED")
			if !strings.HasPrefix(r.header.Get("WWW-Authenticate"), "Bearer ") {
				t.Errorf("%v", r.header)
			}
		}
		a.post("/v1/acquire", body).refused(http.StatusUnauthorized, "AUTH_REQUIRED")
		a.bearer = token
		a.post("/v1/acquire", body, with("Authorization", "Bearer "+token)).refused(http.StatusUnauthorized, "AUTH_REQUIRED") // twice
		lock := a.post("/v1/acquire", body).ok()
		a.post("/v1/acquire", object{"key": "other:1"}).refused(http.StatusForbidden, "FORBIDDEN")
		a.post("/v1/locks/other%3A1/acquire", object{}).refused(http.StatusForbidden, "FORBIDDEN")
		a.post("/v1/hold", object{"key": "billing"}).refused(http.StatusForbidden, "FORBIDDEN")
		foreign, err := a.locks.TryAcquire(t.Context(), "other:1")
		testkit.WantNil(t, "TryAcquire", err)
		text, err := foreign.MarshalText()
		testkit.WantNil(t, "MarshalText", err)
		for _, verb := range []string{"renew", "release", "park", "resume", "hold"} {
			a.post("/v1/"+verb, object{"token": string(text)}).refused(http.StatusForbidden, "FORBIDDEN")
		}
		me := a.do(http.MethodGet, "/v1/me", nil).ok()
		if me.text("id") != "billing" || me.text("expires") != "2000-01-02T00:00:00.000Z" {
			t.Errorf("%v", me)
		}
		a.do(http.MethodGet, "/healthz", nil, with("Authorization", "nonsense")).ok()
		time.Sleep(24 * time.Hour) // the bubble's time begins on 2000-01-01
		a.post("/v1/acquire", body).refused(http.StatusUnauthorized, "AUTH_REQUIRED")
		a.wantNoSecrets(token, stranger, lock.text("token"), string(text))
		testkit.WantNil(t, "Release", a.locks.Release(t.Context(), foreign.Token()))
	})
}

func TestScopes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
				scope, err := ParseScopes(r.Header.Get("Scope"))
				return Principal{ID: "x", Scopes: scope, AllKeys: true, AllQueues: true}, err
			})
		})
		for _, c := range []struct {
			scope   string
			mayLock bool
		}{{"read", false}, {"lock", true}, {"enqueue", false}, {"operate", false}, {"cron", false}, {"admin", true}} {
			r := a.post("/v1/acquire", object{"key": c.scope}, with("Scope", c.scope))
			if c.mayLock {
				r.ok()
			} else if p := r.refused(http.StatusForbidden, "FORBIDDEN"); !strings.Contains(p.text("detail"), "scope lock") {
				t.Errorf("%v", p)
			}
			if me := a.do(http.MethodGet, "/v1/me", nil, with("Scope", c.scope)).ok(); !strings.Contains(sprint(me["scopes"]), c.scope) {
				t.Errorf("%v", me)
			}
		}
		// An Authorizer that fails admits no caller.
		r := a.post("/v1/acquire", object{"key": "x"}, with("Scope", "nonsense"))
		r.refused(http.StatusServiceUnavailable, "AUTH_UNAVAILABLE")
		if strings.Contains(string(r.text), "nonsense") {
			t.Errorf("%s", r.text)
		}
		a.post("/v1/acquire", object{"key": "x"}, with("Scope", "lock"), with("Caller", "")).ok()
	})
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.Authorize = byHeader })
		a.post("/v1/acquire", object{"key": "x"}).refused(http.StatusServiceUnavailable, "AUTH_UNAVAILABLE") // no ID
	})
}

// A caller whose lists are empty, however that came about, may use nothing. What says two things admits no caller.
func TestEmptyListsGrantNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var who Principal
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Metrics = http.NotFoundHandler()
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
		})
		_, err := a.locks.TryAcquire(t.Context(), heldKey)
		testkit.WantNil(t, "TryAcquire", err)
		b := a.browser(PagesConfig{})
		for _, who = range []Principal{
			{ID: "x", Scopes: ScopeAdmin},
			{ID: "x", Scopes: ScopeAdmin, Prefixes: []string{}, Queues: []string{}},
		} {
			a.post("/v1/acquire", object{"key": "k"}).refused(http.StatusForbidden, "FORBIDDEN")
			a.get("/v1/lock?key="+url.QueryEscape(heldKey)).refused(http.StatusForbidden, "FORBIDDEN")
			a.get("/v1/locks").refused(http.StatusForbidden, "FORBIDDEN")
			a.get("/v1/jobs/default/1").refused(http.StatusForbidden, "FORBIDDEN")
			a.get("/metrics").refused(http.StatusForbidden, "FORBIDDEN")
			b.open("locks").has(http.StatusOK).lacks(heldKey)
			b.open("lock?key=" + url.QueryEscape(heldKey)).has(http.StatusForbidden)
			if me := a.get("/v1/me").ok(); me["all_keys"] != false || me["all_queues"] != false {
				t.Errorf("%v", me)
			}
		}
		who = Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true}
		a.get("/v1/lock?key=" + url.QueryEscape(heldKey)).ok()
		a.get("/v1/jobs/default/1").refused(http.StatusForbidden, "FORBIDDEN")
		b.open("locks").has(http.StatusOK, heldKey)
		for _, who = range []Principal{
			{ID: "x", Scopes: ScopeAdmin, Prefixes: []string{"a", ""}},
			{ID: "x", Scopes: ScopeAdmin, Prefixes: []string{"a"}, AllKeys: true},
			{ID: "x", Scopes: ScopeAdmin, AllKeys: true, Queues: []string{"a", ""}},
			{ID: "x", Scopes: ScopeAdmin, AllKeys: true, Queues: []string{"a"}, AllQueues: true},
		} {
			a.get("/v1/me").refused(http.StatusServiceUnavailable, "AUTH_UNAVAILABLE")
		}
		synctest.Wait() // a line is written after its answer
		for _, told := range []string{`Prefixes ["a" ""] and AllKeys false`, `Queues ["a"] and AllQueues true`} {
			if !strings.Contains(strings.ReplaceAll(a.log.String(), `\`, ""), told) {
				t.Errorf("the log does not say %s:\n%s", told, a.log)
			}
		}
	})
}

// A changed file counts a second later. If the changed file is bad, the accounts from before stay.
func TestAccountsAreReadAgain(t *testing.T) {
	path, old := accountsFile(t, `"scopes": ["lock"]`)
	var log testkit.Log
	accounts, err := OpenAccounts(path, log.JSON())
	testkit.WantNil(t, "OpenAccounts", err)
	known := func(token string) bool {
		accounts.mu.Lock()
		accounts.checked = time.Time{} // as if a second had passed
		accounts.mu.Unlock()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := accounts.Authorize(r)
		if err != nil && !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
		return err == nil
	}
	if !known(old) {
		t.Fatal("the token is not known")
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(path, []byte(`{"accounts": [{"id": "billing"}]}`), 0o600))
	if !known(old) || !strings.Contains(log.String(), "neither sha256 nor certificate is set") {
		t.Errorf("after a bad file: %s", log.String())
	}
	next := writeAccount(t, path, `"scopes": ["lock"], "prefixes": ["x"]`)
	if known(old) || !known(next) {
		t.Error("the changed file does not count")
	}
	testkit.WantNil(t, "Remove", os.Remove(path))
	if !known(next) {
		t.Error("without the file, the accounts from before are gone")
	}
	if strings.Contains(log.String(), old) || strings.Contains(log.String(), next) {
		t.Errorf("the log has a token: %s", log.String())
	}
}

// An atomic replacement counts, also if the new file has the time and the size of the old one. A file that is written in
// two parts never counts half. A change within the resolution of the file system's clock counts too.
func TestAccountsAreReplaced(t *testing.T) {
	path, first := accountsFile(t, `"scopes": ["lock"]`)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	testkit.WantNil(t, "Chtimes", os.Chtimes(path, old, old))
	var log testkit.Log
	accounts, err := OpenAccounts(path, log.JSON())
	testkit.WantNil(t, "OpenAccounts", err)
	known := func(token string) bool {
		accounts.mu.Lock()
		accounts.checked = time.Time{} // as if a second had passed
		accounts.mu.Unlock()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := accounts.Authorize(r)
		return err == nil
	}
	if !known(first) {
		t.Fatal("the token is not known")
	}

	beside := filepath.Join(filepath.Dir(path), "new")
	second := writeAccount(t, beside, `"scopes": ["lock"]`)
	testkit.WantNil(t, "Chtimes", os.Chtimes(beside, old, old))
	testkit.WantNil(t, "Rename", os.Rename(beside, path))
	if known(first) || !known(second) {
		t.Error("a file that has taken the place of the first one does not count")
	}

	third := writeAccount(t, beside, `"scopes": ["lock"]`)
	whole, err := os.ReadFile(beside)
	testkit.WantNil(t, "ReadFile", err)
	for n := range len(whole) {
		testkit.WantNil(t, "WriteFile", os.WriteFile(path, whole[:n], 0o600))
		if !known(second) || known(third) {
			t.Fatalf("with %d of %d bytes of the file: %s", n, len(whole), log.String())
		}
	}
	if n := strings.Count(log.String(), "accounts file is invalid"); n < 1 {
		t.Errorf("the log tells %d times of half a file", n)
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(path, whole, 0o600))
	if known(second) || !known(third) {
		t.Error("the whole file does not count")
	}

	now := time.Now() // the file system gives two changes the same time
	testkit.WantNil(t, "Chtimes", os.Chtimes(path, now, now))
	if !known(third) {
		t.Error("the account is gone")
	}
	fourth := writeAccount(t, path, `"scopes": ["lock"]`)
	testkit.WantNil(t, "Chtimes", os.Chtimes(path, now, now))
	if known(third) || !known(fourth) {
		t.Error("a change in the same tick does not count")
	}
	told := log.String()
	for range 3 {
		known(fourth)
	}
	if log.String() != told {
		t.Error("the log tells of a file that has not changed")
	}
}

func TestBadAccounts(t *testing.T) {
	const digest = `"sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"`
	for text, says := range map[string]string{
		``:                            "EOF",
		`[]`:                          "cannot unmarshal",
		`{"accounts": []} x`:          "after the object",
		`{"acounts": []}`:             "unknown field",
		`{"accounts": [{}]}`:          "the id has 0 bytes, must have 1 to 32",
		`{"accounts": [{"id": "A"}]}`: "lower-case",
		`{"accounts": [{"id": "a"}]}`: "neither sha256 nor certificate",
		`{"accounts": [{"id": "a", "sha256": "00", "scopes": ["lock"]}]}`:                                                          "64 hexadecimal digits",
		`{"accounts": [{"id": "a", ` + digest + `}]}`:                                                                              "scopes is empty",
		`{"accounts": [{"id": "a", ` + digest + `, "scopes": ["locks"]}]}`:                                                         `the scope is "locks", must be read`,
		`{"accounts": [{"id": "a", ` + digest + `, "scopes": ["lock"], "prefixes": []}]}`:                                          "leave prefixes out",
		`{"accounts": [{"id": "a", ` + digest + `, "scopes": ["lock"], "prefixes": [""]}]}`:                                        "leave prefixes out",
		`{"accounts": [{"id": "a", ` + digest + `, "scopes": ["lock"], "queues": []}]}`:                                            "leave queues out",
		`{"accounts": [{"id": "a", ` + digest + `, "scopes": ["lock"]}, {"id": "a", ` + digest + `, "scopes": ["lock"]}]}`:         "appears twice",
		`{"accounts": [{"id": "a", "certificate": "x", "scopes": ["lock"]}, {"id": "b", "certificate": "x", "scopes": ["lock"]}]}`: "the certificate x appears twice",
		`{"accounts": [{"id": "a", ` + digest + `, "scopes": ["lock"], "expires": "tomorrow"}]}`:                                   "tomorrow",
	} {
		path := filepath.Join(t.TempDir(), "accounts.json")
		testkit.WantNil(t, "WriteFile", os.WriteFile(path, []byte(text), 0o600))
		if _, err := OpenAccounts(path, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	if _, err := OpenAccounts(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, _, err := NewAccountToken("No"); err == nil {
		t.Error("a bad id has a token")
	}
}

// A caller without a token is known by its certificate, which TLS has verified.
func TestCertificates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accounts.json")
	testkit.WantNil(t, "WriteFile", os.WriteFile(path, []byte(`{"accounts": [
		{"id": "dns", "certificate": "billing.internal", "scopes": ["lock"]},
		{"id": "uri", "certificate": "spiffe://example/export", "scopes": ["lock"]}]}`), 0o600))
	accounts, err := OpenAccounts(path, nil)
	testkit.WantNil(t, "OpenAccounts", err)
	uri, err := url.Parse("spiffe://example/export")
	testkit.WantNil(t, "Parse", err)
	for name, c := range map[string]struct {
		cert     *x509.Certificate
		verified bool
		header   string
		want     string
	}{
		"DNS name":     {&x509.Certificate{DNSNames: []string{"x", "billing.internal"}}, true, "", "dns"},
		"URI":          {&x509.Certificate{URIs: []*url.URL{uri}}, true, "", "uri"},
		"not verified": {&x509.Certificate{DNSNames: []string{"billing.internal"}}, false, "", ""},
		"unknown":      {&x509.Certificate{DNSNames: []string{"mallory.internal"}}, true, "", ""},
		"bad token":    {&x509.Certificate{DNSNames: []string{"billing.internal"}}, true, "Bearer jl_dns_", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		if c.verified {
			r.TLS.VerifiedChains = [][]*x509.Certificate{{c.cert}}
		}
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		if who, err := accounts.Authorize(r); who.ID != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, who.ID, err, c.want)
		}
	}
}

func TestRate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.Rate, cfg.Burst, cfg.Authorize = 0.5, 2, byHeader })
		me := func(who string) *reply { return a.do(http.MethodGet, "/v1/me", nil, with("Caller", who)) }
		me("alice").ok()
		me("alice").ok()
		r := me("alice")
		r.refused(http.StatusTooManyRequests, "RATE_LIMITED")
		if r.header.Get("Retry-After") != "2" {
			t.Errorf("%v", r.header)
		}
		me("bob").ok()
		time.Sleep(2 * time.Second)
		me("alice").ok()
		me("alice").refused(http.StatusTooManyRequests, "RATE_LIMITED")
	})
}

// A Server that makes no sense is refused when it is made.
func TestBadConfigs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locks, err := joblock.New(store(), nil)
		testkit.WantNil(t, "New", err)
		defer func() { testkit.WantNil(t, "Close", locks.Close(t.Context())) }()
		for says, cfg := range map[string]Config{
			"Config.Locks":                              {Authorize: Anyone()},
			"Config.Authorize is nil":                   {Locks: locks},
			"Config.MaxWait is 1ms, must be from 1s":    {Locks: locks, Authorize: Anyone(), MaxWait: time.Millisecond},
			"Config.BodyTimeout is 2h0m0s":              {Locks: locks, Authorize: Anyone(), BodyTimeout: 2 * time.Hour},
			"Config.MaxWaiting is -1, must be at least": {Locks: locks, Authorize: Anyone(), MaxWaiting: -1},
			"Config.MaxWaitingEach is -1":               {Locks: locks, Authorize: Anyone(), MaxWaitingEach: -1},
			"Config.Burst is -1":                        {Locks: locks, Authorize: Anyone(), Burst: -1},
			"Config.Rate is -1":                         {Locks: locks, Authorize: Anyone(), Rate: -1},
			"must come from redisstore.New":             {Locks: locks, Authorize: Anyone(), Store: shared{store()}},
		} {
			_, err := New(cfg)
			if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want ErrInvalid with %q", err, says)
			}
		}
	})
}

// A file of accounts that other users may write is refused: who writes it has every right. A prefix that covers longer names
// too is logged.
func TestFileOfAccountsThatOthersWrite(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no such modes")
	}
	path, token := accountsFile(t, `"scopes": ["lock"], "prefixes": ["a:", "bill"]`)
	testkit.WantNil(t, "Chmod", os.Chmod(path, 0o666))
	if _, err := OpenAccounts(path, nil); err == nil || !strings.Contains(err.Error(), "0666") {
		t.Errorf("%v", err)
	}
	for _, mode := range []os.FileMode{0o600, 0o640, 0o644, 0o664} {
		testkit.WantNil(t, "Chmod", os.Chmod(path, mode))
		log := &testkit.Log{}
		_, err := OpenAccounts(path, log.JSON())
		testkit.WantNil(t, "OpenAccounts", err)
		if text := log.String(); strings.Count(text, "longer names") != 1 || !strings.Contains(text, `"prefix":"bill"`) {
			t.Errorf("%s", text)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, store(), withAccounts(t, path))
		a.bearer = token
		a.get("/v1/me").ok()
		changeAccount(t, path, token, `"scopes": ["admin"]`)
		testkit.WantNil(t, "Chmod", os.Chmod(path, 0o666))
		time.Sleep(2 * checkFile)
		if scopes := fmt.Sprint(a.get("/v1/me").ok()["scopes"]); scopes != "[lock]" {
			t.Errorf("%s", scopes)
		}
	})
}

// Over TLS the pages ask browsers to stay with TLS, but not under the names of this machine, where others serve too.
func TestPagesAskForTLS(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		p, err := a.s.Pages(PagesConfig{})
		testkit.WantNil(t, "Pages", err)
		for host, want := range map[string]string{"locks.internal:7420": "max-age=31536000", "localhost:7420": "", "127.0.0.1": ""} {
			for _, secure := range []*tls.ConnectionState{nil, {}} {
				r := httptest.NewRequest(http.MethodGet, "/login", nil)
				r.Host, r.TLS = host, secure
				w := httptest.NewRecorder()
				p.ServeHTTP(w, r)
				if got := w.Header().Get("Strict-Transport-Security"); secure == nil && got != "" || secure != nil && got != want {
					t.Errorf("%s, TLS %t: %q", host, secure != nil, got)
				}
			}
		}
	})
}
