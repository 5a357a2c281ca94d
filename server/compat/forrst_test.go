package compat

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/compat/forrst"
)

// wantSame fails the test unless got is the JSON value want of the document. The values at the paths in natural are of
// another kind in each run: they only have to match the expression.
func wantSame(t *testing.T, what, got, want string, natural map[string]string) {
	t.Helper()
	var g, w any
	testkit.WantNil(t, what+": the document", json.Unmarshal([]byte(want), &w))
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Errorf("%s: %v in %s", what, err, got)
		return
	}
	for path, expression := range natural {
		value, ok := at(g, path)
		if text := strings.TrimSpace(sprint(value)); !ok || !regexp.MustCompile("^(?:"+expression+")$").MatchString(text) {
			t.Errorf("%s: %s is %v, must match %s", what, path, value, expression)
		}
		if _, ok := at(w, path); !ok {
			t.Errorf("%s: the document has no %s", what, path)
		}
		put(w, path, value)
	}
	if !reflect.DeepEqual(g, w) {
		text, _ := json.Marshal(w)
		t.Errorf("%s: %s\nthe document says %s", what, got, text)
	}
}

// at returns the value at a path such as "extensions.data.owner", where a list has one element.
func at(v any, path string) (any, bool) {
	for name := range strings.SplitSeq(path, ".") {
		if list, ok := v.([]any); ok && len(list) == 1 {
			v = list[0]
		}
		o, _ := v.(map[string]any)
		value, ok := o[name]
		if !ok {
			return nil, false
		}
		v = value
	}
	return v, true
}

func put(v any, path string, value any) {
	i := strings.LastIndex(path, ".")
	if i >= 0 {
		v, _ = at(v, path[:i])
	}
	if o, ok := v.(map[string]any); ok {
		o[path[i+1:]] = value
	}
}

const (
	uuid4    = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
	iso8601  = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`
	anyID    = "req_.*"
	notOwner = "LOCK_OWNERSHIP_MISMATCH"
)

func TestForrstExamples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, audit := audited(t)
		a := newReplica(t, memoryStore(), people(map[string]server.Scope{"shop": server.ScopeLock | server.ScopeRead, "ops": server.ScopeOperate}), audit)
		v := newVisitor(t, Forrst(a.s), "forrst.txt")
		// The service, which knows no lock server.
		server := Forrst(a.s)
		service := forrst.Handler(forrst.AtomicLock(a.locks, func(_ context.Context, req *forrst.Request) *forrst.Response {
			if req.Call.Function == "payments.charge" {
				return req.Answer(map[string]string{"charge_id": "ch_abc", "status": "succeeded"})
			}
			return req.Answer(map[string]string{"report": "rp_1"})
		}, nil))
		try := func(section, to, body, says string, status int) string {
			t.Helper()
			synctest.Wait() // those who waited have left the line
			v.h = map[string]http.Handler{"service": service, "server": server}[to]
			w := v.send(http.MethodPost, "/rpc", asPerson("shop"), body)
			if w.Code != status {
				t.Errorf("%s: %d %s, want %d", section, w.Code, w.Body, status)
			}
			v.note(section, "to the "+to+": "+body, says, w.Code, w.Body.String())
			return w.Body.String()
		}
		function := func(name, arguments string) string {
			return `{"protocol": { "name": "forrst", "version": "0.1.0" },"id": "req_fn","call": {"function": "urn:cline:forrst:ext:atomic-lock:fn:` +
				name + `","version": "1.0.0","arguments": ` + arguments + `}}`
		}
		result := func(answer string) string {
			t.Helper()
			var res struct{ Result json.RawMessage }
			testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(answer), &res))
			return string(res.Result)
		}
		compact := func(section string) string { return "`" + strings.Join(strings.Fields(v.example(section)), " ") + "`" }

		// A lock for the time of a call.
		const auto, manual = "Request with Atomic Lock", "Request with Blocking and Manual Release"
		got := try(auto, "service", v.example(auto), compact("Successful Response"), 200)
		wantSame(t, auto, got, v.example("Successful Response"), map[string]string{"extensions.data.owner": uuid4, "extensions.data.expires_at": iso8601})
		a.wantState("lock:payments.charge:user:123", joblock.StateFree)
		busy, err := a.locks.Acquire(t.Context(), "lock:payments.charge:user:123")
		testkit.WantNil(t, "Acquire", err)
		got = try(auto, "service", v.example(auto), "(the lock is held) "+compact("Lock Acquisition Failed"), 409)
		wantSame(t, auto, got, v.example("Lock Acquisition Failed"), map[string]string{"id": anyID})

		// The functions, with a lock that a service holds.
		const status = "fn:status, Result"
		got = result(try(status, "server", function("status", `{"key": "lock:payments.charge:user:123"}`), compact(status), 200))
		wantSame(t, status, got, v.example(status), map[string]string{
			"owner": "#[0-9a-f]{8}", "acquired_at": iso8601, "expires_at": iso8601, "ttl_remaining": `30|29`,
		})
		testkit.WantNil(t, "Release", busy.Release(t.Context()))
		const free = "fn:status, When not locked"
		got = result(try(free, "server", function("status", `{"key": "lock:payments.charge:user:123"}`), compact(free), 200))
		wantSame(t, free, got, v.example(free), nil)

		// A lock that outlives its call.
		got = try(manual, "service", v.example(manual), "the lock remains held, with its owner in the answer", 200)
		held := ownerIn(t, got)
		a.wantState("lock:billing:report", joblock.StateParked)
		got = try(manual, "service", v.example(manual), "(the lock is held) "+compact("Lock Timeout"), 409)
		wantSame(t, manual, got, v.example("Lock Timeout"), map[string]string{"id": anyID})
		const release = "Releasing a Lock"
		for _, to := range []string{"server", "service"} {
			got = try(release, to, v.example(release), compact("Lock Ownership Mismatch"), 409)
			wantSame(t, release, got, v.example("Lock Ownership Mismatch"), nil)
		}
		own := regexp.MustCompile(uuid4).ReplaceAllString(v.example(release), held)
		got = result(try("fn:release, Result", "server", own, compact("fn:release, Result")+", with its key", 200))
		wantSame(t, "fn:release, Result", got, v.example("fn:release, Result"), map[string]string{"key": "lock:billing:report"})
		a.wantState("lock:billing:report", joblock.StateFree)
		codes := v.example("Error Codes")
		code := func(request, name string, status int) {
			t.Helper()
			if !strings.Contains(codes, name) {
				t.Errorf("the document has no code %s", name)
			}
			if got := try("Error Codes", "server", request, name, status); !strings.Contains(got, `"`+name+`"`) {
				t.Errorf("%s, want %s", got, name)
			}
		}
		code(own, "LOCK_ALREADY_RELEASED", 410)
		code(function("release", `{"key": "lock:unknown", "owner": "x"}`), "LOCK_NOT_FOUND", 404)

		// An admin.
		const force = "fn:force-release, Result"
		try(manual, "service", v.example(manual), "the lock remains held", 200)
		forced := function("force-release", `{"key": "lock:billing:report"}`)
		try(force, "server", forced, "(without the right)", 403)
		w := v.send(http.MethodPost, "/rpc", asPerson("ops"), forced)
		v.note(force, "to the server: "+forced+" as ops", compact(force), w.Code, w.Body.String())
		wantSame(t, force, result(w.Body.String()), v.example(force), nil)
		a.wantState("lock:billing:report", joblock.StateFree)

		// Scopes.
		const cross, scope = "Cross-Function Coordination", "Scope Behavior"
		var fragment struct{ Options json.RawMessage }
		testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(v.example(cross)), &fragment))
		with := func(function string) string {
			return `{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_5","call":{"function":"` + function + `","version":"1.0.0"},"extensions":[{"urn":"` +
				forrst.ExtensionURN + `","options":` + string(fragment.Options) + `}]}`
		}
		lock, err := a.locks.Acquire(t.Context(), "lock:billing:monthly")
		testkit.WantNil(t, "Acquire", err)
		for _, name := range []string{"billing.close", "billing.invoice"} {
			got = try(cross, "service", with(name), "only one of the functions runs at a time", 409)
			if !strings.Contains(got, `"full_key":"lock:billing:monthly"`) {
				t.Errorf("%s", got)
			}
		}
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
		for _, form := range []string{"lock:{function}:{key}", "lock:{key}"} {
			if !strings.Contains(v.example(scope), form) {
				t.Errorf("the document has no %s", form)
			}
		}

		// The document's own code in PHP, in Go.
		const laravel = "Laravel Integration"
		v.example(laravel)
		php := func(php, goCode, happened string) {
			v.note(laravel, php, "`"+goCode+"`", 0, happened)
		}
		first, err := a.locks.TryAcquire(t.Context(), "k", joblock.TTL(time.Minute), joblock.Owner("mine"))
		testkit.WantNil(t, "TryAcquire", err)
		php("Cache::lock($key, $ttl)->get(), $lock->owner()", "locks.TryAcquire(ctx, key, joblock.TTL(ttl)), lock.Token()", "acquired: "+sprint(first.Err() == nil))
		_, err = a.locks.Acquire(t.Context(), "k", joblock.MaxWait(5*time.Second))
		testkit.WantErr(t, err, joblock.ErrTimeout)
		synctest.Wait()
		php("$lock->block($timeout)", "locks.Acquire(ctx, key, joblock.MaxWait(timeout))", joblock.CodeOf(err))
		restored, err := joblock.NewToken("k", "mine", time.Minute)
		testkit.WantNil(t, "NewToken", err)
		err = a.locks.Release(t.Context(), restored)
		testkit.WantNil(t, "Release", err)
		php("Cache::restoreLock($key, $owner)->release()", "joblock.NewToken(key, owner, ttl), locks.Release(ctx, token)", "released: "+sprint(err == nil))
		_, err = a.locks.TryAcquire(t.Context(), "k")
		testkit.WantNil(t, "TryAcquire", err)
		err = a.locks.ForceRelease(t.Context(), "k", joblock.Reason("by hand"))
		testkit.WantNil(t, "ForceRelease", err)
		php("Cache::lock($key)->forceRelease()", "locks.ForceRelease(ctx, key, joblock.Reason(reason))", "released: "+sprint(err == nil))

		v.done("forrst")
		a.wantNoSecrets(held)
	})
}

func ownerIn(t *testing.T, answer string) string {
	t.Helper()
	var v any
	testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(answer), &v))
	owner, _ := at(v, "extensions.data.owner")
	text, _ := owner.(string)
	if text == "" {
		t.Fatalf("no owner in %s", answer)
	}
	return text
}

// The mount has the rights of the server, and shows nothing but locks of the extension.
func TestForrstRights(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		mini, audit := audited(t)
		a := newReplica(t, peer(), audit, func(cfg *server.Config) {
			cfg.Authorize = server.AuthorizeFunc(func(r *http.Request) (server.Principal, error) {
				switch r.Header.Get("Authorization") {
				case "reader":
					return server.Principal{ID: "reader", Scopes: server.ScopeRead, AllKeys: true, AllQueues: true}, nil
				case "locker":
					return server.Principal{ID: "locker", Scopes: server.ScopeLock, Prefixes: []string{"lock:shop:"}, AllQueues: true}, nil
				case "root":
					return server.Principal{ID: "root", Scopes: server.ScopeAdmin, AllKeys: true, AllQueues: true}, nil
				}
				return server.Principal{}, server.ErrUnauthorized
			})
		})
		v := &visitor{T: t, h: Forrst(a.s)}
		call := func(who, function, arguments string) *httptest.ResponseRecorder {
			return v.send("POST", "/", http.Header{"Authorization": {who}, "Content-Type": {"application/json"}},
				`{"protocol":{"name":"forrst","version":"0.1.0"},"id":"1","call":{"function":"`+function+`","version":"1.0.0","arguments":`+arguments+`}}`)
		}
		const fn = "urn:cline:forrst:ext:atomic-lock:fn:"
		want := func(w *httptest.ResponseRecorder, status int, parts ...string) {
			t.Helper()
			if w.Code != status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, status)
			}
			for _, part := range parts {
				if !strings.Contains(w.Body.String(), part) {
					t.Errorf("%s lacks %s", w.Body, part)
				}
			}
		}
		_, err := a.locks.Acquire(t.Context(), "lock:shop:1", joblock.Owner("secret-owner"))
		testkit.WantNil(t, "Acquire", err)
		_, err = a.locks.Acquire(t.Context(), "job:1", joblock.Owner("secret-owner"))
		testkit.WantNil(t, "Acquire", err)
		w := call("reader", fn+"status", `{"key":"lock:shop:1"}`)
		want(w, 200, `"locked":true`, `"owner":"#`)
		if strings.Contains(w.Body.String(), "secret-owner") {
			t.Errorf("the status shows the owner: %s", w.Body)
		}
		want(call("", fn+"status", `{}`), 401, "UNAUTHORIZED", `"id":null`)
		want(call("reader", fn+"status", `{"key":"job:1"}`), 400, "INVALID_ARGUMENTS", "must begin with lock:")
		want(call("root", fn+"release", `{"key":"job:1","owner":"secret-owner"}`), 400, "INVALID_ARGUMENTS")
		want(call("root", fn+"force-release", `{"key":"job:1"}`), 400, "INVALID_ARGUMENTS")
		want(call("reader", fn+"release", `{"key":"lock:shop:1","owner":"secret-owner"}`), 403, "FORBIDDEN")
		want(call("locker", fn+"release", `{"key":"lock:other","owner":"secret-owner"}`), 403, "FORBIDDEN")
		want(call("locker", fn+"force-release", `{"key":"lock:shop:1"}`), 403, "FORBIDDEN")
		want(call("locker", fn+"release", `{"key":"lock:shop:1","owner":"other"}`), 409, notOwner, `"details":{"key":"lock:shop:1"}`)
		want(call("locker", fn+"release", `{"key":"lock:shop:1","owner":""}`), 400, "INVALID_ARGUMENTS", "owner is empty")
		want(call("root", fn+"other", `{}`), 404, "FUNCTION_NOT_FOUND")
		want(call("root", "payments.charge", `{}`), 404, "FUNCTION_NOT_FOUND")
		want(v.send("GET", "/", nil, ""), 405, "INVALID_REQUEST")
		want(v.send("POST", "/", http.Header{"Authorization": {"root"}}, "{}"), 415, "INVALID_REQUEST")
		want(v.send("POST", "/", http.Header{"Authorization": {"root"}, "Content-Type": {"application/json"}}, "{"), 400, "PARSE_ERROR", `"id":null`)
		mini.SetError("down")
		want(call("root", fn+"force-release", `{"key":"lock:shop:1"}`), 503, "UNAVAILABLE")
		mini.SetError("")
		a.wantState("lock:shop:1", joblock.StateHeld)
		want(call("root", fn+"force-release", `{"key":"lock:shop:1"}`), 200, `"forced":true`)
		want(call("root", fn+"force-release", `{"key":"lock:shop:1"}`), 404, "LOCK_NOT_FOUND")
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release, faultstore.Inspect)
		want(call("root", fn+"release", `{"key":"lock:shop:1","owner":"x"}`), 503, "UNAVAILABLE")
		want(call("root", fn+"status", `{"key":"lock:shop:1"}`), 503, "UNAVAILABLE")
		a.store.Clear()
		a.wantNoSecrets("secret-owner")
	})
}
