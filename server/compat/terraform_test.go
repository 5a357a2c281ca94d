package compat

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server"
)

// people are the principals of the tests: the token is the name.
func people(scopes map[string]server.Scope) func(*server.Config) {
	return func(cfg *server.Config) {
		cfg.Authorize = server.AuthorizeFunc(func(r *http.Request) (server.Principal, error) {
			name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if scopes[name] == 0 {
				return server.Principal{}, server.ErrUnauthorized
			}
			return server.Principal{ID: name, Scopes: scopes[name], AllKeys: true, AllQueues: true}, nil
		})
	}
}

func asPerson(name string) http.Header {
	return http.Header{"Authorization": {"Bearer " + name}, "Content-Type": {"application/json"}}
}

// infoOf returns the lock info that Terraform sends, from the text that it prints.
func infoOf(t *testing.T, printed string) string {
	t.Helper()
	fields := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\s*(\w+): *(.*)$`).FindAllStringSubmatch(printed, -1) {
		fields[m[1]] = m[2]
	}
	created, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", fields["Created"])
	testkit.WantNil(t, "Parse", err)
	text, err := json.Marshal(lockInfo{ID: fields["ID"], Operation: fields["Operation"], Info: fields["Info"], Who: fields["Who"],
		Version: fields["Version"], Created: created, Path: fields["Path"]})
	testkit.WantNil(t, "Marshal", err)
	return string(text)
}

func TestTerraformExamples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, audit := audited(t)
		a := newReplica(t, memoryStore(), people(map[string]server.Scope{"ann": server.ScopeLock, "bob": server.ScopeLock, "ops": server.ScopeOperate}), audit)
		v := newVisitor(t, mounted(t)(Terraform(a.s, "")), "terraform.txt")
		const locking, usage, printed = "Backend Type: http, locking", "Backend Type: http, Example Usage", "Command: force-unlock, Lock Info"
		address := func(name string) string {
			m := regexp.MustCompile(` ` + name + ` = "https?://[^/]+(/[^"]*)"`).FindStringSubmatch(v.example(usage))
			if m == nil {
				t.Fatalf("the example has no %s", name)
			}
			return m[1]
		}
		rule := v.example(locking)
		if !strings.Contains(rule, "423: Locked") || !strings.Contains(rule, "200: OK") {
			t.Errorf("%s", rule)
		}
		info := infoOf(t, v.example(printed))
		other := strings.Replace(info, "a1b2c3d4", "ffffffff", 1)
		try := func(method, who, body, says string, want int) string {
			t.Helper()
			path := address(strings.ToLower(method) + "_address")
			w := v.send(method, path, asPerson(who), body)
			v.want(method, w, want, "")
			v.note(usage+", "+printed, method+" "+path+" "+body+" as "+who, says, w.Code, w.Body.String())
			return strings.TrimSpace(w.Body.String())
		}
		try("LOCK", "ann", info, "200: OK for success", 200)
		if got := try("LOCK", "bob", other, "423: Locked, with the holding lock info", 423); got != info {
			t.Errorf("%s, want %s", got, info)
		}
		try("UNLOCK", "bob", other, "any other status: an error", 409)
		try("UNLOCK", "ann", info, "200: OK for success", 200)
		try("LOCK", "bob", other, "200: OK for success", 200)
		try("UNLOCK", "ann", other, "any other status: an error (force-unlock without the right)", 403)
		a.wantState("terraform:foo", joblock.StateHeld)
		try("UNLOCK", "ops", other, "200: OK for success (force-unlock)", 200)
		a.wantState("terraform:foo", joblock.StateFree)
		v.done("terraform")
	})
}

// A prefix keeps the locks of another API apart from those of the same name.
func TestPrefixesOfOtherAPIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, audit := audited(t)
		a := newReplica(t, memoryStore(), audit)
		header := http.Header{"Content-Type": {"application/json"}}
		send := func(h http.Handler, method, path, body string, status int) string {
			t.Helper()
			w := (&visitor{T: t, h: h}).send(method, path, header, body)
			if w.Code != status {
				t.Errorf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, status)
			}
			return w.Body.String()
		}
		_, err := a.locks.TryAcquire(t.Context(), "a/b")
		testkit.WantNil(t, "TryAcquire", err)

		tf := mounted(t)(Terraform(a.s, "tf:"))
		send(tf, "LOCK", "/a%2Fb", `{"ID":"1"}`, 200)
		a.wantState("tf:a/b", joblock.StateHeld)
		send(tf, "LOCK", "/a%2Fb", `{"ID":"2"}`, 423)
		send(tf, "UNLOCK", "/a%2Fb", `{"ID":"1"}`, 200)
		send(tf, "LOCK", "/a%2Fb", `{"ID":"3"}`, 200)
		send(tf, "UNLOCK", "/a%2Fb", "", 200)
		a.wantState("tf:a/b", joblock.StateFree)
		_, err = a.locks.TryAcquire(t.Context(), "tf:c")
		testkit.WantNil(t, "TryAcquire", err)
		if text := send(tf, "LOCK", "/c", `{"ID":"1"}`, 423); !strings.Contains(text, `"Path":"c"`) {
			t.Errorf("%s lacks the name in the path", text)
		}
		send(tf, "LOCK", "/", `{"ID":"1"}`, 404)
		send(tf, "UNLOCK", "/", "", 404)
		send(tf, "LOCK", "/prod/network/", `{"ID":"1"}`, 400)
		send(tf, "LOCK", "/prod//network", `{"ID":"1"}`, 400)
		send(tf, "LOCK", "/prod/network", `{"ID":"1"}`, 200)
		a.wantState("tf:prod/network", joblock.StateHeld)
		send(tf, "UNLOCK", "/prod%2Fnetwork", `{"ID":"1"}`, 200)
		// By default a state does not share a lock of the same name that other programs use.
		send(mounted(t)(Terraform(a.s, "")), "LOCK", "/a/b", `{"ID":"9"}`, 200)
		a.wantState("terraform:a/b", joblock.StateHeld)

		saas := mounted(t)(SaaSignal(a.s, "saas:"))
		var lock struct{ Key, Token string }
		testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(send(saas, "POST", "/infra/locks/a%2Fb/acquire", `{"ttl_ms":1000}`, 200)), &lock))
		if lock.Key != "a/b" {
			t.Errorf("the answer has the key %q", lock.Key)
		}
		a.wantState("saas:a/b", joblock.StateHeld)
		send(saas, "POST", "/infra/locks/a%2Fb/renew", `{"ttl_ms":1000,"token":"`+lock.Token+`"}`, 200)
		if text := send(saas, "GET", "/infra/locks/a%2Fb", "", 200); !strings.Contains(text, `"locked":true`) {
			t.Error(text)
		}
		send(saas, "POST", "/infra/locks/a%2Fb/release", `{"token":"`+lock.Token+`"}`, 200)
		a.wantState("saas:a/b", joblock.StateFree)
		send(saas, "POST", "/infra/locks//acquire", `{"ttl_ms":1000}`, 400)
		a.wantState("a/b", joblock.StateHeld)

		for _, c := range []struct {
			what  string
			mount func(prefix string) (http.Handler, error)
		}{
			{"prefix", func(p string) (http.Handler, error) { return Terraform(a.s, p) }},
			{"prefix", func(p string) (http.Handler, error) { return SaaSignal(a.s, p) }},
			{`stores["x"]`, func(p string) (http.Handler, error) { return DaprAlpha1(a.s, map[string]string{"x": p}) }},
			{"DaprAlpha2Config.Prefix", func(p string) (http.Handler, error) { return DaprAlpha2(a.s, DaprAlpha2Config{Prefix: p}) }},
		} {
			for _, bad := range []string{"a\n", strings.Repeat("p", driver.MaxKeyBytes)} {
				if h, err := c.mount(bad); h != nil || !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), c.what) {
					t.Errorf("%s of %d bytes: %v, %v", c.what, len(bad), h, err)
				}
			}
		}
	})
}

// Repeats, lies, faults and other holders of a key.
func TestTerraform(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		mini, audit := audited(t)
		who := people(map[string]server.Scope{"ann": server.ScopeLock, "root": server.ScopeLock | server.ScopeOperate})
		a := newReplica(t, peer(), who, audit)
		b := newReplica(t, peer(), who, audit)
		one, two := &visitor{T: t, h: mounted(t)(Terraform(a.s, ""))}, &visitor{T: t, h: mounted(t)(Terraform(b.s, ""))}
		const info, other = `{"ID":"1","Who":"ann@host","New":"field"}`, `{"ID":"2"}`
		want := func(v *visitor, method string, header http.Header, body string, status int, parts ...string) {
			t.Helper()
			w := v.send(method, "/a%2Fb", header, body)
			if w.Code != status {
				t.Errorf("%s %s: %d %s, want %d", method, body, w.Code, w.Body, status)
			}
			for _, part := range parts {
				if !strings.Contains(w.Body.String(), part) {
					t.Errorf("%s %s: %s lacks %s", method, body, w.Body, part)
				}
			}
		}
		ann, root := asPerson("ann"), asPerson("root")
		basic := http.Header{"Content-Type": {"application/json"}}
		basic.Set("Authorization", "Basic YW55Ym9keTphbm4=") // anybody:ann
		want(one, "LOCK", nil, info, 401)
		want(one, "LOCK", ann, `{`, 400)
		want(one, "LOCK", ann, `{"ID":""}`, 400)
		want(one, "LOCK", ann, `{"ID":"1","Info":"`+strings.Repeat("x", maxLockInfo)+`"}`, 413)
		want(one, "POST", ann, info, 405)
		want(one, "UNLOCK", ann, info, 404)

		want(one, "LOCK", basic, info, 200)
		want(two, "LOCK", ann, info, 200) // repeated, through another replica
		if st := a.wantState("terraform:a/b", joblock.StateHeld); st.Holder != "ann@host" || st.Lease < 23*time.Hour {
			t.Errorf("%+v", st)
		}
		want(two, "LOCK", root, other, 423, info)
		want(two, "UNLOCK", ann, info, 200)
		want(one, "UNLOCK", ann, info, 200) // repeated
		want(one, "LOCK", ann, info, 410)   // an ID is used once

		want(one, "LOCK", ann, other, 200)
		mini.SetError("down")
		want(one, "UNLOCK", root, other, 503, "ACTION_NOT_RECORDED")
		mini.SetError("")
		a.wantState("terraform:a/b", joblock.StateHeld)
		want(one, "UNLOCK", root, other, 200)
		entries, n := a.s.Host().Desk(), 0
		for e, err := range entries.Audit(t.Context(), ops.AuditQuery{Key: "terraform:a/b"}) {
			testkit.WantNil(t, "Audit", err)
			if n++; e.By != "root" || !strings.HasPrefix(e.Reason, "terraform force-unlock") {
				t.Errorf("%+v", e)
			}
		}
		if n == 0 {
			t.Error("the force-unlock is not in the audit")
		}

		// As clients send it whose force-unlock names no ID.
		const third = `{"ID":"third"}`
		want(one, "UNLOCK", root, "", 404)
		want(one, "LOCK", ann, third, 200)
		want(two, "UNLOCK", ann, "", 403)
		a.wantState("terraform:a/b", joblock.StateHeld)
		want(two, "UNLOCK", root, "", 200)
		a.wantState("terraform:a/b", joblock.StateFree)

		// A holder without a lock info.
		lock, err := a.locks.Acquire(t.Context(), "terraform:a/b", joblock.Holder("a job"))
		testkit.WantNil(t, "Acquire", err)
		want(one, "LOCK", ann, `{"ID":"3"}`, 423, `"Who":"a job"`, `"ID":""`)
		want(one, "UNLOCK", root, other, 409)
		want(one, "UNLOCK", root, "", 409)
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
	})
}

// The answer to a refused LOCK has the holder's ID. Another caller cannot take the lock over with that ID: this would need
// the scope operate, and would be recorded.
func TestTerraformIDIsNoKeyToTheLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, memoryStore(), people(map[string]server.Scope{"ann": server.ScopeLock, "bob": server.ScopeLock}))
		v := &visitor{T: t, h: mounted(t)(Terraform(a.s, ""))}
		for _, tc := range []struct {
			method, who, body string
			status            int
		}{
			{"UNLOCK", "ann", "", 404},
			{"LOCK", "ann", `{"ID":"1","Who":"ann"}`, 200},
			{"LOCK", "bob", `{"ID":"1","Who":"bob"}`, 423},
			{"UNLOCK", "bob", `{"ID":"1"}`, 403},
			{"LOCK", "ann", `{"ID":"1","Who":"ann"}`, 200}, // again, as after an answer that was lost
			{"UNLOCK", "ann", `{"ID":"1"}`, 200},
		} {
			if w := v.send(tc.method, "/foo", asPerson(tc.who), tc.body); w.Code != tc.status {
				t.Errorf("%s %s as %s: %d %s, want %d", tc.method, tc.body, tc.who, w.Code, w.Body, tc.status)
			}
		}
	})
}
