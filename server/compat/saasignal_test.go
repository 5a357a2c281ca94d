package compat

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server"
)

// apiKey is the token in the examples.
const apiKey = "Bearer sk_live_..."

// onlyAPIKey knows the caller of the examples.
func onlyAPIKey(cfg *server.Config) {
	cfg.Authorize = server.AuthorizeFunc(func(r *http.Request) (server.Principal, error) {
		if r.Header.Get("Authorization") != apiKey {
			return server.Principal{}, server.ErrUnauthorized
		}
		return server.Principal{ID: "shop", Scopes: server.ScopeLock | server.ScopeRead, AllKeys: true, AllQueues: true}, nil
	})
}

// curl returns the request of a curl example. As curl does, it takes braces in an address for a list, of one word here.
func curl(t *testing.T, example string) (method, path string, header http.Header, body string) {
	t.Helper()
	m := regexp.MustCompile(`^curl (?:-X (\w+) )?https?://[^/]+(/\S+)`).FindStringSubmatch(example)
	if m == nil {
		t.Fatalf("no curl example: %s", example)
	}
	header = http.Header{}
	for _, h := range regexp.MustCompile(`-H "([^:"]+): ([^"]*)"`).FindAllStringSubmatch(example, -1) {
		header.Add(h[1], h[2])
	}
	if d := regexp.MustCompile(`-d '([^']*)'`).FindStringSubmatch(example); d != nil {
		body = d[1]
	}
	if method = m[1]; method == "" {
		method = "GET"
	}
	return method, strings.NewReplacer("{", "", "}", "").Replace(m[2]), header, body
}

// typescript returns the request that the client of the example sends.
func typescript(t *testing.T, example, token string) (method, path, body string) {
	t.Helper()
	m := regexp.MustCompile(`(?s)ss\.infra\.locks\.(\w+)\('([^']+)'(?:, \{(.*?)\})?\)`).FindStringSubmatch(example)
	if m == nil {
		t.Fatalf("no typescript example: %s", example)
	}
	path = "/infra/locks/" + url.PathEscape(m[2])
	if m[1] == "status" {
		return "GET", path, ""
	}
	fields := regexp.MustCompile(`(\w+): ([^,\n]+),`).ReplaceAllString(strings.ReplaceAll(m[3], "lock.token", `"`+token+`"`), `"$1": $2,`)
	fields = strings.TrimSuffix(strings.TrimSpace(strings.ReplaceAll(fields, "'", `"`)), ",")
	return "POST", path + "/" + m[1], "{" + fields + "}"
}

// Every example of the document is sent as it stands there, in the order in which a client would.
func TestSaaSignalExamples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, memoryStore(), onlyAPIKey, func(cfg *server.Config) { cfg.Rate, cfg.Burst = 1, 20 })
		v := newVisitor(t, mounted(t)(SaaSignal(a.s, "")), "saasignal.txt")
		says := func(section string) string { return v.example(section + ", json — 200 OK") }
		const acquire, renew, status, release = "Acquire Lock", "Renew Lock", "Get Lock Status", "Release Lock"

		runCurl := func(section, token, sayStatus string, want int) object {
			t.Helper()
			method, path, header, body := curl(t, v.example(section+", curl"))
			if token != "" {
				body = strings.Replace(body, `"..."`, `"`+token+`"`, 1)
			}
			w := v.send(method, path, header, body)
			said := ""
			if want == http.StatusOK {
				said = says(section)
			}
			v.want(section, w, want, said)
			v.note(section+", curl", method+" "+path+" "+body, sayStatus, w.Code, w.Body.String())
			return (&reply{t, w.Code, w.Header(), w.Body.Bytes()}).object()
		}
		fine := "200 `{ \"status\": \"ok\" }`"
		lock := runCurl(acquire, "", fine, 200)
		runCurl(status, "", fine, 200)
		runCurl(acquire, "", "409 Conflict", 409)
		runCurl(renew, "", "409 Conflict (`...` names no lock)", 409)
		runCurl(renew, lock.text("token"), fine, 200)
		runCurl(release, "", "409 Conflict (`...` names no lock)", 409)
		runCurl(release, lock.text("token"), fine, 200)
		runCurl(renew, lock.text("token"), "409 Conflict (the lock was released)", 409)

		runTS := func(section, token string, fields ...string) object {
			t.Helper()
			method, path, body := typescript(t, v.example(section+", typescript"), token)
			header := http.Header{"Authorization": {apiKey}, "Content-Type": {"application/json"}}
			w := v.send(method, path, header, body)
			v.want(section, w, 200, says(section))
			o := (&reply{t, w.Code, w.Header(), w.Body.Bytes()}).object()
			said := "200"
			for _, f := range fields {
				if o[f] == nil {
					t.Errorf("%s: the document names %s: %v", section, f, o)
				}
				said += " " + f
			}
			v.note(section+", typescript", method+" "+path+" "+body, said, w.Code, w.Body.String())
			return o
		}
		lock = runTS(acquire, "", "token", "expires_at")
		runTS(renew, lock.text("token"))
		if o := runTS(status, "", "locked", "expires_at", "holder_id"); !o.flag("locked") || o.text("holder_id") != "worker-1" {
			t.Errorf("%v", o)
		}
		runTS(release, lock.text("token"))
		if o := runTS(status, "", "locked"); o.flag("locked") {
			t.Errorf("%v", o)
		}

		for _, section := range []string{acquire, release, renew, status} {
			method, path, header, body := curl(t, v.example(section+", curl"))
			for said := range strings.SplitSeq(v.example(section+", error responses"), "\n") {
				w := v.send(method, path, nil, body)
				switch said[:3] {
				case "401":
				case "402":
					v.note(section+", error responses", "–", said, 0, "")
					continue // there are no tokens to run out of
				case "409":
					key := strings.Split(path, "/")[3]
					other, err := a.locks.Acquire(t.Context(), key)
					if err != nil {
						t.Fatal(err)
					}
					w = v.send(method, path, header, body)
					if err := other.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				case "429":
					for range 30 { // more than the burst
						if w = v.send(method, path, header, body); w.Code == 429 {
							break
						}
					}
					time.Sleep(time.Minute)
				}
				if got := strings.Fields(said)[0]; got != sprint(w.Code) {
					t.Errorf("%s: %d %s, the document says %s", section, w.Code, w.Body, said)
				}
				v.note(section+", error responses", method+" "+path, said, w.Code, w.Body.String())
			}
		}
		v.done("saasignal")
		a.wantNoSecrets(lock.text("token"), "sk_live")
	})
}

// The bounds are those of the document.
func TestSaaSignalBounds(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		v := &visitor{T: t, h: mounted(t)(SaaSignal(a.s, ""))}
		header := http.Header{"Content-Type": {"application/json"}}
		long := strings.Repeat("k", 512)
		for _, c := range []struct {
			path, body string
			status     int
		}{
			{"k/acquire", `{}`, 400},
			{"k/acquire", `{"ttl_ms":0}`, 400},
			{"k/acquire", `{"ttl_ms":60001}`, 400},
			{"k/acquire", `{"ttl_ms":1.5}`, 400},
			{"k/acquire", `{"tll_ms":1}`, 400},
			{"k/acquire", `{"ttl_ms":1000,"holder_id":"` + strings.Repeat("h", 257) + `"}`, 400},
			{"k/acquire", `{"ttl_ms":60000,"holder_id":"` + strings.Repeat("h", 256) + `"}`, 200},
			{long + "/acquire", `{"ttl_ms":60000}`, 200},
			{long + "k/acquire", `{"ttl_ms":60000}`, 400},
			{"a%2F%2Fb%20c/acquire", `{"ttl_ms":60000}`, 200},
			{"a..b/acquire", `{"ttl_ms":60000}`, 400},
			{"a%00/acquire", `{"ttl_ms":60000}`, 400},
			{"k/renew", `{"token":"","ttl_ms":1}`, 400},
			{"k/renew", `{"token":"x"}`, 400},
			{"k/renew", `{"token":"` + strings.Repeat("t", 257) + `","ttl_ms":1}`, 400},
			{"k/renew", `{"token":"` + strings.Repeat("t", 256) + `","ttl_ms":1}`, 409},
			{"k/release", `{}`, 400},
			{"k/release", `{"token":"1.zzzzzzzzzzzz.o"}`, 409},
			{"free/release", `{"token":"1.1.o"}`, 409},
		} {
			if w := v.send("POST", "/infra/locks/"+c.path, header, c.body); w.Code != c.status {
				t.Errorf("%s %s: %d %s, want %d", c.path, c.body, w.Code, w.Body, c.status)
			}
		}
		a.wantState(long, joblock.StateHeld)
		a.wantState("a//b c", joblock.StateHeld)

		// The token of the longest key is within the bound, and holds no other key.
		w := v.send("POST", "/infra/locks/"+long[1:]+"/acquire", header, `{"ttl_ms":1000}`)
		token := (&reply{t, w.Code, w.Header(), w.Body.Bytes()}).ok().text("token")
		if len(token) > saasMaxChars {
			t.Errorf("the token has %d characters", len(token))
		}
		if w := v.send("POST", "/infra/locks/k/release", header, `{"token":"`+token+`"}`); w.Code != 409 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		time.Sleep(2 * time.Second)
		if w := v.send("POST", "/infra/locks/"+long[1:]+"/renew", header, `{"token":"`+token+`","ttl_ms":1000}`); w.Code != 409 {
			t.Errorf("the lease had ended: %d %s", w.Code, w.Body)
		}
		a.wantNoSecrets(token)
	})
}
