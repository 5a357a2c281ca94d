package server

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// people are the principals of the tests: the token is the name.
func people(scopes map[string]Scope) func(*Config) {
	return func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if scopes[name] == 0 {
				return Principal{}, ErrUnauthorized
			}
			return Principal{ID: name, Scopes: scopes[name], AllKeys: true, AllQueues: true}, nil
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
		a := newReplica(t, memoryStore(), people(map[string]Scope{"ann": ScopeLock, "bob": ScopeLock, "ops": ScopeOperate}), audit)
		v := newVisitor(t, a.s.Terraform(), "terraform.txt")
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
		a.wantState("foo", joblock.StateHeld)
		try("UNLOCK", "ops", other, "200: OK for success (force-unlock)", 200)
		a.wantState("foo", joblock.StateFree)
		v.done("terraform")
	})
}

// Repeats, lies, faults and other holders of a key.
func TestTerraform(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		mini, audit := audited(t)
		who := people(map[string]Scope{"ann": ScopeLock, "root": ScopeLock | ScopeOperate})
		a := newReplica(t, peer(), who, audit)
		b := newReplica(t, peer(), who, audit)
		one, two := &visitor{T: t, h: a.s.Terraform()}, &visitor{T: t, h: b.s.Terraform()}
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
		if st := a.wantState("a/b", joblock.StateHeld); st.Holder != "ann@host" || st.Lease < 23*time.Hour {
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
		a.wantState("a/b", joblock.StateHeld)
		want(one, "UNLOCK", root, other, 200)
		entries, n := a.s.desk, 0
		for e, err := range entries.Audit(t.Context(), ops.AuditQuery{Key: "a/b"}) {
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
		a.wantState("a/b", joblock.StateHeld)
		want(two, "UNLOCK", root, "", 200)
		a.wantState("a/b", joblock.StateFree)

		// A holder without a lock info.
		lock, err := a.locks.Acquire(t.Context(), "a/b", joblock.Holder("a job"))
		testkit.WantNil(t, "Acquire", err)
		want(one, "LOCK", ann, `{"ID":"3"}`, 423, `"Who":"a job"`, `"ID":""`)
		want(one, "UNLOCK", root, other, 409)
		want(one, "UNLOCK", root, "", 409)
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
	})
}
