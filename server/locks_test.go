package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// life takes a lock through one replica, and renews, parks, resumes and releases the lock through the other one.
func life(a, b *replica) {
	got := a.post("/v1/acquire", object{"key": key, "ttl_ms": 10_000, "holder": "python"})
	lock := got.ok()
	if lock.number("valid_ms") > 9500 || lock.number("valid_ms") < 9000 || lock.number("ttl_ms") != 10_000 ||
		got.header.Get("Joblock-Fence") != fmt.Sprint(lock.number("fence")) {
		a.Errorf("%s %v", got.text, got.header)
	}
	held := b.post("/v1/acquire", object{"key": key}).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	if held.text("holder") != "python" || !held.flag("retryable") || held.number("remaining_ms") > 10_001 {
		a.Errorf("%v", held)
	}
	token := lock.text("token")
	renewed := b.post("/v1/renew", object{"token": token, "ttl_ms": 20_000}).ok()
	if renewed.number("fence") != lock.number("fence") || renewed.number("valid_ms") < 18_000 {
		a.Errorf("%v", renewed)
	}
	parked := b.post("/v1/park", object{"token": token, "reserve_ms": 60_000, "job": "default/1"}).ok()
	b.post("/v1/renew", object{"token": token}).refused(http.StatusConflict, "LOCK_OWNERSHIP_MISMATCH")
	b.post("/v1/release", object{"token": token}).refused(http.StatusConflict, "LOCK_OWNERSHIP_MISMATCH")
	a.wantState(key, joblock.StateParked)
	b.post("/v1/resume", object{"token": parked.text("token")}).refused(http.StatusConflict, "LOCK_OWNERSHIP_MISMATCH")
	resumed := a.post("/v1/resume", object{"token": parked.text("token"), "job": "default/1", "ttl_ms": 5000}).ok()
	if resumed.number("fence") <= lock.number("fence") || resumed.number("valid_ms") > 4750 {
		a.Errorf("%v after %v", resumed, lock)
	}
	b.post("/v1/resume", object{"token": parked.text("token"), "job": "default/1"}).refused(http.StatusConflict, "LOCK_BUSY")
	b.post("/v1/renew", object{"token": resumed.text("token"), "reserve_ms": 3_600_000}).ok()
	if st := a.wantState(key, joblock.StateHeld); st.Reserved < 59*time.Minute {
		a.Errorf("%+v, want the key to be reserved for an hour", st)
	}
	released := b.post("/v1/release", object{"token": resumed.text("token"), "reason": "done"}).ok()
	if released.flag("already") {
		a.Errorf("%v", released)
	}
	a.post("/v1/release", object{"token": resumed.text("token")}).ok()
	a.wantState(key, joblock.StateFree)
	for _, r := range []*replica{a, b} {
		r.wantNoSecrets(token, parked.text("token"), resumed.text("token"))
	}
}

func TestLifeOfALock(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		life(newReplica(t, peer()), newReplica(t, peer()))
	})
	t.Run("redis-server", func(t *testing.T) {
		server := redistest.Start(t)
		peer := func() driver.Store {
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			return testkit.Must(redisstore.New(rdb, nil))
		}
		life(newReplica(t, peer()), newReplica(t, peer()))
		redistest.Ran(t, server.Backend())
	})
}

// A lock that is not renewed is lost, and the next holder learns how it ended.
func TestLeaseThatRunsOut(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}).ok().text("token")
		time.Sleep(1100 * time.Millisecond)
		a.post("/v1/renew", object{"token": token}).refused(http.StatusGone, "LOCK_LOST")
		next := a.post("/v1/acquire", object{"key": key}).ok()
		if next.text("prior") != "lapsed" {
			t.Errorf("%v", next)
		}
		a.post("/v1/release", object{"token": token}).refused(http.StatusConflict, "LOCK_OWNERSHIP_MISMATCH")
		if strings.Contains(a.log.String(), "lock lost") {
			t.Errorf("the server tells the loss of a lock that is its client's: %s", a.log.String())
		}
	})
}

// A lock that another caller has ended has ended for its client too, and a release says so.
func TestReleaseOfALockThatHasEnded(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		token := a.post("/v1/acquire", object{"key": key}).ok().text("token")
		if err := a.locks.ForceRelease(t.Context(), key, joblock.Reason("by hand")); err != nil {
			t.Fatal(err)
		}
		o := a.post("/v1/release", object{"token": token}).ok()
		if !o.flag("already") || o.text("ended") != "forced" || o.text("reason") != "by hand" {
			t.Errorf("%v", o)
		}
		gone := a.post("/v1/renew", object{"token": token}).refused(http.StatusGone, "LOCK_ALREADY_RELEASED")
		if gone.text("ended") != "forced" {
			t.Errorf("%v", gone)
		}
		other, err := joblock.NewToken("never", "taken", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := other.MarshalText()
		a.post("/v1/release", object{"token": string(text)}).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
	})
}

func TestPermitsOfALimit(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		one := a.post("/v1/acquire", object{"key": key, "limit": 2}).ok()
		two := b.post("/v1/acquire", object{"key": key, "limit": 2}).ok()
		if one.text("key") == two.text("key") {
			t.Errorf("%v and %v", one, two)
		}
		a.post("/v1/acquire", object{"key": key, "limit": 2}).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
		b.post("/v1/release", object{"token": one.text("token")}).ok()
		a.post("/v1/acquire", object{"key": key, "limit": 2, "wait_ms": 1000}).ok()
		a.post("/v1/acquire", object{"key": key, "limit": 2}, with("Idempotency-Key", "x")).refused(http.StatusBadRequest, "LOCK_INVALID")
	})
}

// A key comes in the path, percent-encoded, or in the body. No path is redirected, because a redirection would be to
// another key.
func TestKeysInPathAndBody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		for path, want := range map[string]string{
			"a":                      "a",
			"a%2Fb":                  "a/b",
			"%2E%2E":                 "..",
			"%2E":                    ".",
			"a%2F%2Fb":               "a//b",
			"x%25231":                "x%231",
			"x%2531":                 "x%31",
			"%C3%A9":                 "é",
			"%FF":                    "",
			"%00":                    "",
			"%E2%80%8B":              "",
			"a%20b":                  "a b",
			"a+b":                    "a+b",
			"a%3Fb%3Dc":              "a?b=c",
			"a:b;c":                  "a:b;c",
			"%25keeper":              "",
			"status":                 "status",
			"acquire":                "acquire",
			strings.Repeat("k", 512): strings.Repeat("k", 512),
			strings.Repeat("k", 513): "",
		} {
			r := a.post("/v1/locks/"+path+"/acquire", object{})
			if want == "" {
				r.refused(http.StatusBadRequest, "LOCK_INVALID")
				continue
			}
			if got := r.ok(); got.text("key") != want {
				t.Errorf("%s: the key is %q, want %q", path, got.text("key"), want)
			}
			r.object()
			a.post("/v1/locks/"+path+"/release", object{"token": r.object().text("token")}).ok()
			body := a.post("/v1/acquire", object{"key": want}).ok()
			a.post("/v1/release", object{"token": body.text("token")}).ok()
		}
		for _, path := range []string{"/v1/locks/../acquire", "/v1/locks/./acquire", "/v1/locks//acquire", "//v1/acquire", "/v1//acquire", "/v1/locks/a//acquire"} {
			a.post(path, object{}).refused(http.StatusBadRequest, "REQUEST_INVALID")
		}
		for _, path := range []string{"/v1/locks/a/b/acquire", "/v1/locks/a/acquire/", "/v1/", "/", "/v2/acquire", "/v1/locks/a/steal", "/V1/acquire", "/v1/locks/%2F/acquire"} {
			a.post(path, object{}).refused(http.StatusNotFound, "NOT_FOUND")
		}
		a.post("/v1/locks/a/acquire", object{"key": "b"}).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.post("/v1/locks/a/acquire", object{"key": "a"}).ok()
		token := a.post("/v1/acquire", object{"key": "b"}).ok().text("token")
		a.post("/v1/locks/a/renew", object{"token": token}).refused(http.StatusBadRequest, "LOCK_INVALID")
	})
}

// The answer to each bad request says what is wrong, with the value and the bound, and the request changes nothing.
func TestBadRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		token := a.post("/v1/acquire", object{"key": "other"}).ok().text("token")
		for _, c := range []struct {
			path   string
			body   any
			status int
			code   string
			says   string
		}{
			{"acquire", object{}, 400, "LOCK_INVALID", "key is missing"},
			{"acquire", object{"key": ""}, 400, "LOCK_INVALID", "key is missing"},
			{"acquire", object{"key": "a\nb"}, 400, "LOCK_INVALID", "control character"},
			{"acquire", object{"key": key, "tll_ms": 1}, 400, "REQUEST_INVALID", "the field tll_ms is unknown; the fields are key, ttl_ms"},
			{"acquire", object{"key": key, "TTL_MS": 1}, 400, "REQUEST_INVALID", "the field TTL_MS is unknown"},
			{"acquire", object{"key": key, "\x1b[31m": 1}, 400, "REQUEST_INVALID", `the field \"\\x1b[31m\" is unknown`},
			{"acquire", `{"key":"a","key":"b"}`, 400, "REQUEST_INVALID", "the field key occurs twice"},
			{"acquire", object{"key": key, "ttl_ms": 0}, 400, "LOCK_INVALID", "ttl_ms is 0, must be from 1 to 86400000"},
			{"acquire", object{"key": key, "ttl_ms": -1}, 400, "LOCK_INVALID", "ttl_ms is -1"},
			{"acquire", object{"key": key, "ttl_ms": 86_400_001}, 400, "LOCK_INVALID", "must be from 1 to 86400000"},
			{"acquire", object{"key": key, "ttl_ms": 1.5}, 400, "REQUEST_INVALID", "ttl_ms is a number 1.5, must be a whole number"},
			{"acquire", object{"key": key, "ttl_ms": "1000"}, 400, "REQUEST_INVALID", "ttl_ms is a string, must be a whole number"},
			{"acquire", `{"key":"a","ttl_ms":1e99}`, 400, "REQUEST_INVALID", "ttl_ms is a number 1e99"},
			{"acquire", object{"key": 7}, 400, "REQUEST_INVALID", "key is a number, must be a text"},
			{"acquire", object{"key": key, "wait_ms": 60_001}, 400, "LOCK_INVALID", "wait_ms is 60001, must be from 0 to 60000"},
			{"acquire", object{"key": key, "limit": 257}, 400, "LOCK_INVALID", "limit is 257, must be from 1 to 256"},
			{"acquire", object{"key": key, "limit": 0}, 400, "LOCK_INVALID", "limit is 0"},
			{"acquire", object{"key": key, "holder": strings.Repeat("h", 257)}, 400, "LOCK_INVALID", "holder has 257 bytes, at most 256"},
			{"acquire", object{"key": key, "holder": "a\tb"}, 400, "LOCK_INVALID", "control character"},
			{"acquire", `{"key":"a"`, 400, "REQUEST_INVALID", "not one JSON object"},
			{"acquire", `{"key":"a"}{}`, 400, "REQUEST_INVALID", "not one JSON object"},
			{"acquire", `["a"]`, 400, "REQUEST_INVALID", "not one JSON object"},
			{"acquire", `null`, 400, "REQUEST_INVALID", "not one JSON object"},
			{"acquire", ``, 400, "REQUEST_INVALID", "not one JSON object"},
			{"acquire", "{\"key\":\"\xff\"}", 400, "REQUEST_INVALID", "not UTF-8"},
			{"acquire", `{"key":"` + strings.Repeat("a", maxBody) + `"}`, 413, "BODY_TOO_LARGE", "65536 bytes"},
			{"acquire", strings.Repeat("[", 60_000), 400, "REQUEST_INVALID", "not one JSON object"},
			{"acquire", `{"key":` + strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000) + `}`, 400, "REQUEST_INVALID", ""},
			{"renew", object{}, 400, "LOCK_INVALID", "token is missing"},
			{"renew", object{"token": "x"}, 400, "LOCK_INVALID", "token"},
			{"renew", object{"token": strings.Repeat("A", 4000)}, 400, "LOCK_INVALID", "2048"},
			{"renew", object{"token": token, "ttl_ms": 0}, 400, "LOCK_INVALID", "ttl_ms is 0"},
			{"renew", object{"token": token, "reserve_ms": 0}, 400, "LOCK_INVALID", "reserve_ms is 0, must be from 1 to"},
			{"release", object{"token": token, "reason": strings.Repeat("r", 257)}, 400, "LOCK_INVALID", "reason has 257 bytes"},
			{"park", object{"token": token, "reserve_ms": 0}, 400, "LOCK_INVALID", "reserve_ms is 0, must be from 1 to"},
			{"park", object{"token": token, "reserve_ms": 86_400_001}, 400, "LOCK_INVALID", "reserve_ms is 86400001, must be from 1 to 86400000"},
			{"renew", object{"token": token, "reserve_ms": 86_400_001}, 400, "LOCK_INVALID", "reserve_ms is 86400001, must be from 1 to 86400000"},
			{"resume", object{"token": token, "reserve_ms": 86_400_001}, 400, "LOCK_INVALID", "reserve_ms is 86400001, must be from 1 to 86400000"},
			{"hold", object{"token": token, "reserve_ms": 86_400_001}, 400, "LOCK_INVALID", "reserve_ms is 86400001, must be from 1 to 86400000"},
			{"park", object{"token": token, "job": "a\nb"}, 400, "LOCK_INVALID", "job has a control character"},
			{"resume", object{"token": token, "reserve_ms": -5}, 400, "LOCK_INVALID", "reserve_ms is -5"},
			{"hold", object{"key": key, "on_disconnect": "explode"}, 400, "LOCK_INVALID", "on_disconnect is explode, must be one of release, lapse, park"},
			{"hold", object{"key": key, "token": token}, 400, "LOCK_INVALID", "key is not for a hold with a token"},
			{"hold", object{"key": key, "job": "x"}, 400, "LOCK_INVALID", "job is for a hold with a token"},
		} {
			r := a.post("/v1/"+c.path, c.body)
			p := r.refused(c.status, c.code)
			if !strings.Contains(string(r.text), c.says) {
				t.Errorf("%s %.100v: %s, want %q", c.path, c.body, p.text("detail"), c.says)
			}
		}
		for _, change := range []func(*http.Request){
			func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") },
			func(r *http.Request) { r.Header.Del("Content-Type") },
			with("Content-Encoding", "gzip"),
		} {
			a.post("/v1/acquire", object{"key": key}, change).refused(http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
		}
		a.post("/v1/acquire", object{"key": key}, with("Content-Type", "x")).refused(http.StatusOK, "") // the first one counts
		for _, bad := range []string{"", strings.Repeat("x", 129), "é"} {
			a.post("/v1/acquire", object{"key": "free"}, with("Idempotency-Key", bad)).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
		a.post("/v1/acquire", object{"key": "free"}, with("Idempotency-Key", "a"), with("Idempotency-Key", "b")).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.post("/v1/hold", object{"key": "free"}, with("Idempotency-Key", "a")).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.post("/v1/hold", object{"key": "free"}, with("Accept", "text/html")).refused(http.StatusNotAcceptable, "NOT_ACCEPTABLE")
		for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS", "PATCH", "LOCK", "HEAD"} {
			r := a.do(method, "/v1/acquire", nil)
			if r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "POST" {
				t.Errorf("%s: %d %v", method, r.status, r.header)
			}
		}
		if r := a.do("POST", "/healthz", nil); r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%d %v", r.status, r.header)
		}
		a.wantState("free", joblock.StateFree)
		a.wantNoSecrets(token)
	})
}

// A store that does not answer is a 503, and what the call did take is released.
func TestStoreWithoutAnAnswer(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		token := a.post("/v1/acquire", object{"key": "other"}).ok().text("token")
		a.do("GET", "/readyz", nil).ok()
		a.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
		r := a.post("/v1/acquire", object{"key": key})
		p := r.refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		if !p.flag("retryable") || r.header.Get("Retry-After") != "1" {
			t.Errorf("%v %v", p, r.header)
		}
		time.Sleep(time.Second)
		a.wantState(key, joblock.StateFree)
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire, faultstore.Renew, faultstore.Release, faultstore.Park, faultstore.Resume, faultstore.Inspect)
		for path, body := range map[string]object{"renew": {"token": token}, "release": {"token": token}, "park": {"token": token}, "resume": {"token": token}, "acquire": {"key": key}} {
			p := a.post("/v1/"+path, body).refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
			if strings.Contains(p.text("detail"), "connection") {
				t.Errorf("%s tells about the store: %v", path, p)
			}
		}
		a.post("/v1/acquire", object{"key": key, "wait_ms": 10_000}).refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		a.do("GET", "/readyz", nil).refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		a.do("GET", "/healthz", nil).ok()
		a.store.Clear()
		a.wantNoSecrets(token)
	})
}

func store() driver.Store { return memoryStore() }
