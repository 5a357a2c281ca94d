package forrst

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
)

// with returns a request whose extension has these options, as JSON.
func with(options string) *Request {
	return &Request{Protocol: version, ID: "1", Call: Call{Function: "f", Version: "1.0.0"},
		Extensions: []Extension{{URN: "urn:other", Options: json.RawMessage("1")}, {URN: ExtensionURN, Options: json.RawMessage(options)}}}
}

func done(_ context.Context, req *Request) *Response { return req.Answer("done") }

func wantCode(t *testing.T, res *Response, code, message string) {
	t.Helper()
	if len(res.Errors) != 1 || res.Errors[0].Code != code || !strings.Contains(res.Errors[0].Message, message) {
		t.Errorf("%s, want %s %s", text(res), code, message)
	}
}

func text(v any) string {
	text, err := json.Marshal(v)
	return fmt.Sprint(string(text), err)
}

// dataOf returns what the response says of the lock.
func dataOf(t *testing.T, res *Response) data {
	t.Helper()
	if len(res.Errors) > 0 || len(res.Extensions) != 1 {
		t.Fatalf("%s", text(res))
	}
	return res.Extensions[0].Data.(data)
}

// runs under the lock, which ends with the function: when it returns, refuses or panics.
func TestFunctionRunsUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		const key = "lock:f:k"
		for name, f := range map[string]Function{
			"returns": done,
			"refuses": func(_ context.Context, req *Request) *Response { return req.Refuse(errorf("ORDERS_NONE", "none")) },
			"panics":  func(context.Context, *Request) *Response { panic("on purpose") },
			"nothing": func(context.Context, *Request) *Response { return nil },
		} {
			for _, auto := range []string{"true", "false"} {
				var ran bool
				call := AtomicLock(k.Locks, func(ctx context.Context, req *Request) *Response {
					lock, ok := joblock.FromContext(ctx)
					if !ok || lock.Key() != key || lock.Err() != nil {
						t.Errorf("%s: %v", name, lock)
					}
					k.WantState(key, joblock.StateHeld)
					ran = true
					return f(ctx, req)
				}, nil)
				func() {
					defer func() {
						if v := recover(); (v != nil) != (name == "panics") {
							t.Errorf("%s: %v", name, v)
						}
					}()
					res := call(t.Context(), with(`{"key":"k","ttl":{"value":1,"unit":"minute"},"auto_release":`+auto+`}`))
					if len(res.Extensions) != 1 {
						t.Errorf("%s: %s", name, text(res))
					}
				}()
				want := joblock.StateFree
				if auto == "false" && name != "panics" {
					want = joblock.StateParked
				}
				k.WantState(key, want)
				if !ran {
					t.Errorf("%s: the function has not run", name)
				}
				time.Sleep(2 * time.Minute)
				k.WantState(key, joblock.StateFree)
			}
		}
		if strings.Contains(k.Logs.String(), "lock lost") {
			t.Errorf("a lock that ended as asked for is called lost: %s", k.Logs)
		}
	})
}

// A lock is not renewed: the context of the function ends at expires_at.
func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		began := time.Now()
		call := AtomicLock(k.Locks, func(ctx context.Context, req *Request) *Response {
			<-ctx.Done()
			if took := time.Since(began); !errors.Is(context.Cause(ctx), joblock.ErrLost) || took < 27*time.Second || took > 30*time.Second {
				t.Errorf("%v after %s", context.Cause(ctx), took)
			}
			return req.Answer("late")
		}, nil)
		d := dataOf(t, call(t.Context(), with(`{"key":"k","ttl":{"value":30,"unit":"second"},"scope":"global"}`)))
		if left := time.Time(d.ExpiresAt).Sub(began); left > 30*time.Second || left < 27*time.Second || d.Scope != "global" || d.Key != "k" || !d.Acquired {
			t.Errorf("%+v", d)
		}
		time.Sleep(3 * time.Second)
		k.WantState("lock:k", joblock.StateFree)
	})
}

// A lock that outlives its call is released by key and owner, in any process.
func TestKeptLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		call, elsewhere := AtomicLock(k.Locks, done, nil), AtomicLock(k.Peer(), done, nil)
		release := func(owner string) *Request {
			return &Request{ID: "2", Call: Call{Function: functionsPrefix + "release", Arguments: json.RawMessage(`{"key":"lock:f:k","owner":"` + owner + `"}`)}}
		}
		d := dataOf(t, call(t.Context(), with(`{"key":"k","ttl":{"value":1,"unit":"hour"},"auto_release":false}`)))
		wantCode(t, elsewhere(t.Context(), with(`{"key":"k","ttl":{"value":1,"unit":"hour"}}`)), "LOCK_ACQUISITION_FAILED", "")
		time.Sleep(50 * time.Minute)
		wantCode(t, elsewhere(t.Context(), release("x")), "LOCK_OWNERSHIP_MISMATCH", "")
		if res := elsewhere(t.Context(), release(d.Owner)); len(res.Errors) > 0 {
			t.Errorf("%s", text(res))
		}
		wantCode(t, call(t.Context(), release(d.Owner)), "LOCK_ALREADY_RELEASED", "")

		// With an owner of the client's own.
		d = dataOf(t, call(t.Context(), with(`{"key":"k","ttl":{"value":1,"unit":"day"},"auto_release":false,"owner":"mine"}`)))
		if d.Owner != "mine" {
			t.Errorf("%+v", d)
		}
		time.Sleep(24*time.Hour + time.Second)
		k.WantState("lock:f:k", joblock.StateFree)
		wantCode(t, call(t.Context(), release("mine")), "LOCK_NOT_FOUND", "")

		// The client is gone, and no other client knows the owner.
		gone, cancel := context.WithCancel(t.Context())
		leave := AtomicLock(k.Locks, func(_ context.Context, req *Request) *Response {
			cancel()
			return req.Answer("done")
		}, nil)
		leave(gone, with(`{"key":"k","ttl":{"value":1,"unit":"hour"},"auto_release":false}`))
		k.WantState("lock:f:k", joblock.StateFree)
		if strings.Contains(k.Logs.String(), d.Owner) && d.Owner != "mine" {
			t.Errorf("the log has an owner: %s", k.Logs)
		}
	})
}

// A call waits for its lock in its turn, and at most as long as asked for.
func TestBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		call := AtomicLock(k.Locks, done, &Config{MaxWaiting: 1, MaxBlock: 10 * time.Second})
		lock := k.Acquire("lock:f:k")
		blocking := func(seconds int) *Request {
			return with(fmt.Sprintf(`{"key":"k","ttl":{"value":1,"unit":"minute"},"block":{"value":%d,"unit":"second"}}`, seconds))
		}
		began := time.Now()
		res := call(t.Context(), blocking(1))
		wantCode(t, res, "LOCK_TIMEOUT", "Lock acquisition timed out after 1 second")
		if took := time.Since(began); took < time.Second || took > time.Second+lockkit.OnTime || res.Status() != 409 || res.Extensions != nil {
			t.Errorf("%s %s", took, text(res))
		}
		wantCode(t, call(t.Context(), blocking(0)), "LOCK_ACQUISITION_FAILED", "")
		wantCode(t, call(t.Context(), blocking(11)), "INVALID_ARGUMENTS", "options.block is 11 seconds, must be at most 10s")
		first := make(chan *Response)
		go func() { first <- call(t.Context(), blocking(10)) }()
		synctest.Wait()
		wantCode(t, call(t.Context(), blocking(10)), "LOCK_ACQUISITION_FAILED", "") // one too many
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
		dataOf(t, <-first)

		k.Acquire("lock:f:k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		res = call(ctx, blocking(10))
		wantCode(t, res, "DEADLINE_EXCEEDED", "")
		if res.Status() != 408 {
			t.Errorf("%d", res.Status())
		}
	})
}

func TestBadOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		call := AtomicLock(k.Locks, func(context.Context, *Request) *Response {
			t.Error("the function has run")
			return nil
		}, nil)
		const ttl = `"ttl":{"value":1,"unit":"minute"}`
		for options, want := range map[string]string{
			``:                                "options is missing",
			`null`:                            "options is missing",
			`[]`:                              "options is missing",
			`{` + ttl + `}`:                   "options.key is missing",
			`{"key":"k"}`:                     "options.ttl is missing",
			`{"key":7,` + ttl + `}`:           "options.key has the wrong type",
			`{"key":"k","ttl":30}`:            "options.ttl has the wrong type",
			`{"key":"k","ttl":{"value":1}}`:   "options.ttl.unit must be",
			`{"key":"k","tll":1,` + ttl + `}`: `options has an unknown field: "tll"`,
			`{"key":"k","ttl":{"value":1.5,"unit":"second"}}`:                    "wrong type",
			`{"key":"k","ttl":{"value":0,"unit":"second"}}`:                      "at least 1ms and at most 24h",
			`{"key":"k","ttl":{"value":2,"unit":"day"}}`:                         "options.ttl is 2 days, must be",
			`{"key":"k","ttl":{"value":9223372036854775807,"unit":"hour"}}`:      "options.ttl.value is",
			`{"key":"k","ttl":{"value":-1,"unit":"hour"}}`:                       "options.ttl.value is -1",
			`{"key":"k","scope":"world",` + ttl + `}`:                            "options.scope must be",
			`{"key":"k","owner":"",` + ttl + `}`:                                 "owner is empty",
			`{"key":"k","owner":"` + strings.Repeat("o", 129) + `",` + ttl + `}`: "owner has 129 bytes",
			`{"key":"` + strings.Repeat("k", 512) + `",` + ttl + `}`:             "key has",
			`{"key":"50%",` + ttl + `}`:                                          "%",
			`{"key":"k","block":{},` + ttl + `}`:                                 "options.block.unit must be",
		} {
			res := call(t.Context(), with(options))
			wantCode(t, res, "INVALID_ARGUMENTS", want)
			if res.Status() != http.StatusBadRequest {
				t.Errorf("%d", res.Status())
			}
		}
		twice := with(`{"key":"k",` + ttl + `}`)
		twice.Extensions = append(twice.Extensions, twice.Extensions[1])
		wantCode(t, call(t.Context(), twice), "INVALID_ARGUMENTS", "comes twice")
		if n := k.Store.Calls(""); n != 0 {
			t.Errorf("%d calls to the store", n)
		}
	})
}

// A wrong set-up runs nothing, and a store that does not answer is not mistaken for a held lock.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		req := with(`{"key":"k","ttl":{"value":1,"unit":"minute"}}`)
		for _, call := range []Function{
			AtomicLock(nil, done, nil), AtomicLock(new(joblock.Locker), done, nil), AtomicLock(k.Locks, nil, nil),
			AtomicLock(k.Locks, done, &Config{MaxBlock: -1}), AtomicLock(k.Locks, done, &Config{MaxWaiting: -1}),
		} {
			wantCode(t, call(t.Context(), req), "INTERNAL_ERROR", "")
			wantCode(t, call(t.Context(), &Request{ID: "1", Call: Call{Function: functionsPrefix + "status"}}), "INTERNAL_ERROR", "")
		}
		call := AtomicLock(k.Locks, done, nil)
		if res := call(t.Context(), &Request{ID: "1", Call: Call{Function: "f"}}); res.Result != "done" || res.Extensions != nil {
			t.Errorf("%s", text(res))
		}
		k.Store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		res := call(t.Context(), req)
		wantCode(t, res, "UNAVAILABLE", "")
		if res.Status() != 503 {
			t.Errorf("%d", res.Status())
		}
		k.Store.Clear()
		k.Store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release, faultstore.Park)
		dataOf(t, AtomicLock(k.Locks, done, &Config{Logger: k.Logs.Text()})(t.Context(), req)) // the release is repeated in the background
		if !strings.Contains(k.Logs.String(), "releasing or handing over a call's lock failed") {
			t.Errorf("%s", k.Logs)
		}
		k.Store.Clear()
	})
}

func TestFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		call := func(cfg *Config, name, arguments string) *Response {
			return AtomicLock(k.Locks, done, cfg)(t.Context(), &Request{ID: "1", Call: Call{Function: functionsPrefix + name, Version: "1.0.0", Arguments: json.RawMessage(arguments)}})
		}
		k.Acquire("lock:a")
		wantCode(t, call(nil, "force-release", `{"key":"lock:a"}`), "FUNCTION_NOT_FOUND", "")
		wantCode(t, call(nil, "steal", `{"key":"lock:a"}`), "FUNCTION_NOT_FOUND", "")
		wantCode(t, call(nil, "status", ``), "INVALID_ARGUMENTS", "arguments is missing")
		wantCode(t, call(nil, "status", `{"key":"lock:"}`), "INVALID_ARGUMENTS", "begin with lock:")
		wantCode(t, call(nil, "status", `{"key":"export:1"}`), "INVALID_ARGUMENTS", "begin with lock:")
		wantCode(t, call(nil, "release", `{"key":"lock:a"}`), "INVALID_ARGUMENTS", "owner is empty")
		wantCode(t, call(nil, "release", `{"key":"lock:a","owner":"x","force":true}`), "INVALID_ARGUMENTS", "unknown field")
		allow := &Config{ForceRelease: func(ctx context.Context, key string) error {
			return k.Locks.ForceRelease(ctx, key, joblock.Reason("by an admin"))
		}}
		deny := &Config{ForceRelease: func(context.Context, string) error { return &Error{Code: "FORBIDDEN", Message: "admins only"} }}
		fail := &Config{ForceRelease: func(context.Context, string) error { return errors.New("a secret") }}
		denied := call(deny, "force-release", `{"key":"lock:a"}`)
		wantCode(t, denied, "FORBIDDEN", "admins only")
		if denied.Status() != 403 {
			t.Errorf("%d", denied.Status())
		}
		if failed := call(fail, "force-release", `{"key":"lock:a"}`); strings.Contains(text(failed), "secret") {
			t.Errorf("%s", text(failed))
		}
		k.WantState("lock:a", joblock.StateHeld)
		if res := call(allow, "force-release", `{"key":"lock:a"}`); res.Result != (released{true, "lock:a", true}) {
			t.Errorf("%s", text(res))
		}
		wantCode(t, call(allow, "force-release", `{"key":"lock:a"}`), "LOCK_NOT_FOUND", "")
		old := &Request{ID: "1", Call: Call{Function: functionsPrefix + "status", Version: "9.0.0"}}
		wantCode(t, AtomicLock(k.Locks, done, nil)(t.Context(), old), "VERSION_NOT_FOUND", "")
	})
}

func TestHandler(t *testing.T) {
	h := Handler(func(_ context.Context, req *Request) *Response {
		switch req.Call.Function {
		case "bad":
			return req.Answer(make(chan int))
		case "none":
			return nil
		case "two":
			res := req.Refuse(errorf("CONFLICT", "a"))
			res.Errors = append(res.Errors, errorf("CONFLICT", "b"))
			return res
		}
		return req.Answer(req.Call)
	})
	const ok = `{"protocol":{"name":"forrst","version":"0.1.0"},"id":"7","call":{"function":"%s","version":"1.0.0","arguments":{"a":1}}}`
	for _, c := range []struct {
		method, kind, body string
		status             int
		has                string
	}{
		{"POST", "application/json; charset=utf-8", fmt.Sprintf(ok, "f"), 200, `{"protocol":{"name":"forrst","version":"0.1.0"},"id":"7","result":{"function":"f","version":"1.0.0","arguments":{"a":1}}}`},
		{"POST", "application/json", fmt.Sprintf(ok, "bad"), 500, "cannot be encoded"},
		{"POST", "application/json", fmt.Sprintf(ok, "none"), 500, "no answer"},
		{"POST", "application/json", fmt.Sprintf(ok, "two"), 400, "CONFLICT"},
		{"GET", "", "", 405, "INVALID_REQUEST"},
		{"POST", "text/plain", "{}", 415, "INVALID_REQUEST"},
		{"POST", "application/json", `{"id":"` + strings.Repeat("x", maxBody) + `"}`, 413, "INVALID_REQUEST"},
		{"POST", "application/json", `{`, 400, `"id":null,"result":null,"errors":[{"code":"PARSE_ERROR"`},
		{"POST", "application/json", `[]`, 400, "INVALID_REQUEST"},
		{"POST", "application/json", `null`, 400, "INVALID_PROTOCOL_VERSION"},
		{"POST", "application/json", `{"protocol":{"name":"forrst","version":"2.0.0"},"id":"7"}`, 400, `"id":"7","result":null,"errors":[{"code":"INVALID_PROTOCOL_VERSION"`},
		{"POST", "application/json", `{"protocol":{"name":"forrst","version":"0.1.0"}}`, 400, "id is missing"},
		{"POST", "application/json", `{"protocol":{"name":"forrst","version":"0.1.0"},"id":"7"}`, 400, "call.function is missing"},
	} {
		r := httptest.NewRequest(c.method, "/rpc", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s %.80s: %d %s, want %d %s", c.method, c.body, w.Code, w.Body, c.status, c.has)
		}
	}
}
