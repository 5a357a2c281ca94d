package compat

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/server"
)

// daprRoute reads a route of the proposal: "**POST /lock/<resource-id>**", and the names of the fields of its body.
func daprRoute(t *testing.T, text string) (method, path string, fields []string) {
	t.Helper()
	m := regexp.MustCompile(`\*\*(\w+) (/lock/)<resource-id>\*\*`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no route: %s", text)
	}
	body, _, _ := strings.Cut(text, "Response")
	for _, f := range regexp.MustCompile("- `(\\w+)`: (?:bool|string)").FindAllStringSubmatch(body, -1) {
		fields = append(fields, f[1])
	}
	return m[1], m[2], fields
}

// daprBody returns a body with the fields of the proposal, in its order.
func daprBody(t *testing.T, fields []string, values object) string {
	t.Helper()
	if len(fields) != len(values) {
		t.Fatalf("the document has the fields %v, not %v", fields, values)
	}
	var parts []string
	for _, name := range fields {
		text, err := json.Marshal(values[name])
		if _, known := values[name]; !known || err != nil {
			t.Fatalf("the document has the field %s: %v", name, err)
		}
		parts = append(parts, fmt.Sprintf("%q:%s", name, text))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func daprLocksOf(t *testing.T, s *server.Server, cfg DaprAlpha2Config) http.Handler {
	t.Helper()
	h, err := DaprAlpha2(s, cfg)
	testkit.WantNil(t, "DaprAlpha2", err)
	return h
}

// recorder is an httptest.ResponseRecorder that can be read while it is written.
type recorder struct {
	mu sync.Mutex
	w  *httptest.ResponseRecorder
}

func (r *recorder) Header() http.Header { return r.w.Header() }
func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.w.WriteHeader(status)
}
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.w.Write(p)
}
func (r *recorder) Flush() {}
func (r *recorder) text() (int, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.w.Code, r.w.Body.String()
}

// daprStream is a client of option 2, without a network.
type daprStream struct {
	*recorder
	hangUp context.CancelFunc
	over   chan struct{}
}

func openDaprStream(t *testing.T, h http.Handler, path, body string, header http.Header) *daprStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	st := &daprStream{&recorder{w: httptest.NewRecorder()}, cancel, make(chan struct{})}
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)).WithContext(ctx)
	for name, values := range header {
		r.Header[name] = values
	}
	go func() {
		defer close(st.over)
		h.ServeHTTP(st, r)
	}()
	return st
}

// types returns the types of the lines so far.
func (st *daprStream) types(t *testing.T) (types []string) {
	t.Helper()
	_, text := st.text()
	for text := range strings.Lines(text) {
		var l daprLine
		testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(text), &l))
		types = append(types, l.Type)
	}
	return types
}

func TestDaprAlpha2Examples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, audit := audited(t)
		a := newReplica(t, memoryStore(), people(map[string]server.Scope{"app": server.ScopeLock, "other": server.ScopeLock, "ops": server.ScopeOperate}), audit)
		one, two := daprLocksOf(t, a.s, DaprAlpha2Config{Prefix: "shop:"}), daprLocksOf(t, a.s, DaprAlpha2Config{Prefix: "shop:", Stream: true})
		v := newVisitor(t, one, "dapr-alpha2.txt")
		locked, notFound := "", ""
		for _, m := range regexp.MustCompile(`(Err\w+)\s+= errors.New\("([^"]+)"\)`).FindAllStringSubmatch(v.example("Components interface, errors"), -1) {
			if m[1] == "ErrResourceLocked" {
				locked = m[2]
			} else {
				notFound = m[2]
			}
		}
		sent := func(method, path, body, who string) string { return method + " " + path + " " + body + " as " + who }
		try := func(section, method, path, body, who, says string, status int, has string) *httptest.ResponseRecorder {
			t.Helper()
			w := v.send(method, path, asPerson(who), body)
			if w.Code != status || !strings.Contains(w.Body.String(), has) || status == 204 && w.Body.Len() > 0 {
				t.Errorf("%s: %d %s, want %d %s", sent(method, path, body, who), w.Code, w.Body, status, has)
			}
			v.note(section, sent(method, path, body, who), says, w.Code, w.Body.String())
			return w
		}
		lockID := func(w *httptest.ResponseRecorder) string {
			t.Helper()
			o := (&reply{t, w.Code, w.Header(), w.Body.Bytes()}).ok()
			if len(o) != 1 || o.text("lockID") == "" {
				t.Errorf("%v", o)
			}
			return o.text("lockID")
		}

		// Option 1.
		const lock, unlock = "Option 1, HTTP, Lock", "Option 1, HTTP, Unlock and Force Unlock"
		method, path, fields := daprRoute(t, v.example(lock))
		del, _, delFields := daprRoute(t, v.example(unlock))
		path += "order-7"
		waiting := daprBody(t, fields, object{"immediate": false, "ttl": "30s"})
		at := daprBody(t, fields, object{"immediate": true, "ttl": "30s"})
		drop := func(force bool, id string) string {
			return daprBody(t, delFields, object{"force": force, "lockID": id})
		}
		id := lockID(try(lock, method, path, waiting, "app", "`lockID`: string", 200, "lockID"))
		try(lock, method, path, at, "other", "immediate: an error right away; ErrResourceLocked", 409, locked)
		time.Sleep(10 * time.Minute) // the server renews
		a.wantState("shop:order-7", joblock.StateHeld)
		try(unlock, del, path, drop(false, "1.1.x"), "other", "another lock ID: ErrLockNotFound", 404, notFound)
		next := make(chan *httptest.ResponseRecorder, 1)
		go func() { next <- v.send(method, path, asPerson("other"), waiting) }()
		synctest.Wait()
		try(unlock, del, path, drop(false, id), "app", "No response", 204, "")
		w := <-next
		v.note(lock, sent(method, path, waiting, "other"), "blocks until the lock is free (which was unlocked just before)", w.Code, w.Body.String())
		nextID := lockID(w)
		try(unlock, del, path, drop(false, id), "app", "not the present lock: ErrLockNotFound", 404, notFound)
		try(unlock, del, path, drop(true, ""), "other", "force, without the right", 403, "FORBIDDEN")
		try(unlock, del, path, drop(true, ""), "ops", "No response", 204, "")
		try(unlock, del, path, drop(true, ""), "ops", "not locked: ErrLockNotFound", 404, notFound)
		try(unlock, del, path, drop(false, nextID), "other", "the lock was forced: ErrLockNotFound", 404, notFound)
		zero := lockID(try(lock, method, path, daprBody(t, fields, object{"immediate": true, "ttl": "0s"}), "app", "ttl <= 0: the default TTL", 200, ""))
		try(unlock, del, path, drop(false, zero), "app", "No response", 204, "")
		time.Sleep(time.Minute) // for the renewal after the forced unlock

		// Option 2.
		v.h = two
		const stream, force = "Option 2, HTTP, Lock", "Option 2, HTTP, Force Unlock"
		method, path, fields = daprRoute(t, v.example(stream))
		path += "order-8"
		waiting, at = daprBody(t, fields, object{"immediate": false, "ttl": "30s"}), daprBody(t, fields, object{"immediate": true, "ttl": "30s"})
		messages := regexp.MustCompile("`(\\{\"type\".*?\\})\\\\n`").FindAllStringSubmatch(v.example(stream), -1)
		if len(messages) != 3 {
			t.Fatalf("%v", messages)
		}
		holder := openDaprStream(t, v.h, path, waiting, asPerson("app"))
		time.Sleep(10 * time.Second)
		status, lines := holder.text()
		v.note(stream, sent(method, path, waiting, "app"), "`"+messages[0][1]+"` and `"+messages[2][1]+"`", status, lines)
		first, rest, _ := strings.Cut(strings.TrimSpace(lines), "\n")
		wantFields(t, stream, first, messages[0][1])
		wantFields(t, stream, rest, messages[2][1])
		w = try(stream, method, path, at, "other", "immediate: an error right away, and the stream is closed: `"+messages[1][1]+"`", 409, locked)
		wantFields(t, stream, w.Body.String(), strings.Replace(messages[1][1], "<error-message>", locked, 1))
		del, _, delFields = daprRoute(t, v.example(force))
		if len(delFields) > 0 {
			t.Errorf("%v", delFields)
		}
		w = v.send(del, path, http.Header{"Authorization": {"Bearer ops"}}, "")
		v.want(force, w, 204, "")
		v.note(force, del+" "+path+" as ops", "No response", w.Code, w.Body.String())
		<-holder.over
		_, text := holder.text()
		last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]
		wantFields(t, stream, last, `{"type":"error"}`)
		v.note(stream, "(the same stream)", "the lock is lost: an error, and the stream is closed", 0, last)
		holder = openDaprStream(t, v.h, path, waiting, asPerson("app"))
		synctest.Wait()
		a.wantState("shop:order-8", joblock.StateHeld)
		holder.hangUp()
		<-holder.over
		a.wantState("shop:order-8", joblock.StateFree)
		v.note(stream, "(the client disconnects)", "the lock is to be relinquished", 0, "the key is free")

		// What is not HTTP.
		for _, c := range [][2]string{
			{"Components interface, Store", "The store of a server is a joblock.Locker: Lock is Acquire, TryLock is TryAcquire, RenewLock is Lock.Renew, Unlock is Release"},
			{"Option 1, gRPC", "no gRPC; the same three calls over HTTP are above"},
			{"Option 2, gRPC", "no gRPC; the same two calls over HTTP are above"},
		} {
			v.example(c[0])
			v.rows = append(v.rows, "| "+c[0]+" | – | – | "+c[1]+" |")
		}
		v.done("dapr-alpha2")
		a.wantNoSecrets(id, nextID, zero)
	})
}

// A lock of option 1 lives until it is unlocked, through any replica, and never longer than MaxHold and a lease.
func TestDaprAlpha2Hold(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		cfg := DaprAlpha2Config{MaxHold: 5 * time.Minute}
		one, two := &visitor{T: t, h: daprLocksOf(t, a.s, cfg)}, &visitor{T: t, h: daprLocksOf(t, b.s, cfg)}
		header := http.Header{"Content-Type": {"application/json"}}
		lock := func(v *visitor) string {
			t.Helper()
			w := v.send("POST", "/lock/r", header, `{"immediate":true,"ttl":"6s"}`)
			return (&reply{t, w.Code, w.Header(), w.Body.Bytes()}).ok().text("lockID")
		}
		unlock := func(v *visitor, id string, want int) {
			t.Helper()
			if w := v.send("DELETE", "/lock/r", header, `{"lockID":"`+id+`"}`); w.Code != want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, want)
			}
		}

		t.Log("unlocked through another replica")
		id := lock(one)
		time.Sleep(time.Minute)
		a.wantState("r", joblock.StateHeld)
		unlock(two, id, 204)
		a.wantState("r", joblock.StateFree)
		unlock(one, id, 404)
		time.Sleep(10 * time.Second) // the first replica finds out

		t.Log("forgotten")
		lock(one)
		began := time.Now()
		for a.status("r").Locked() {
			if time.Since(began) > 5*time.Minute+7*time.Second {
				t.Fatal("the lock lives longer than MaxHold and a lease")
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < 5*time.Minute {
			t.Errorf("the lock was free after %s", took)
		}

		t.Log("of a replica that dies")
		lock(one)
		time.Sleep(time.Minute)
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew, faultstore.Release, faultstore.Park, faultstore.Acquire)
		began = time.Now()
		w := two.send("POST", "/lock/r", header, `{"ttl":"6s"}`)
		if took := time.Since(began); w.Code != 200 || took > 6*time.Second+100*time.Millisecond {
			t.Errorf("%d after %s: %s", w.Code, took, w.Body)
		}
		unlock(two, (&reply{t, w.Code, w.Header(), w.Body.Bytes()}).ok().text("lockID"), 204)
		a.store.Clear()

		t.Log("of a replica that closes")
		id = lock(one)
		time.Sleep(2 * time.Minute)
		testkit.WantNil(t, "Close", a.s.Close(t.Context()))
		a.wantState("r", joblock.StateParked)
		time.Sleep(time.Minute)
		if w := two.send("POST", "/lock/r", header, `{"immediate":true}`); w.Code != 409 {
			t.Errorf("another caller got the lock: %d %s", w.Code, w.Body)
		}
		if w := one.send("POST", "/lock/r", header, `{}`); w.Code != 503 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		unlock(two, strings.Replace(id, id[len(id)-4:], "0000", 1), 404)
		unlock(two, id, 204)
		if w := two.send("POST", "/lock/r", header, ``); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		a.wantNoSecrets(id)
		b.wantNoSecrets(id)
	})
}

// A lock that a closing replica has parked ends too, even if no client unlocks it.
func TestDaprAlpha2DrainEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, memoryStore())
		v := &visitor{T: t, h: daprLocksOf(t, a.s, DaprAlpha2Config{MaxHold: time.Minute})}
		if w := v.send("POST", "/lock/r", nil, ``); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		testkit.WantNil(t, "Close", a.s.Close(t.Context()))
		a.wantState("r", joblock.StateParked)
		time.Sleep(91 * time.Second) // MaxHold and a lease
		a.wantState("r", joblock.StateFree)
	})
}

// The rights of the caller bound the wait and the renewal. The bounds on waits count locks too.
func TestDaprAlpha2Bounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		expires := time.Now().Add(time.Minute)
		var fired atomic.Bool
		a := newReplica(t, memoryStore(), func(cfg *server.Config) {
			cfg.Authorize = server.AuthorizeFunc(func(r *http.Request) (server.Principal, error) {
				who := server.Principal{ID: r.Header.Get("Authorization"), Scopes: server.ScopeLock, Prefixes: []string{"p:"}, AllQueues: true}
				if who.ID == "short" {
					who.Expires = expires
				}
				if who.ID == "bob" && fired.Load() {
					return who, server.ErrUnauthorized
				}
				return who, r.Context().Err() // as of an server.Authorizer that looks into a database
			})
			cfg.MaxWaitingEach = 2
		})
		v := &visitor{T: t, h: daprLocksOf(t, a.s, DaprAlpha2Config{})}
		as := func(who string) http.Header {
			return http.Header{"Authorization": {who}, "Content-Type": {"application/json"}}
		}
		want := func(who, path, body string, status int) *httptest.ResponseRecorder {
			t.Helper()
			ctx, end := context.WithCancel(t.Context()) // as net/http ends it with the request
			defer end()
			w := v.sendIn(ctx, "POST", "/lock/"+path, as(who), body)
			if w.Code != status {
				t.Errorf("%s %s %s: %d %s, want %d", who, path, body, w.Code, w.Body, status)
			}
			return w
		}
		want("long", "other", `{}`, 403)
		want("long", "p:a", `{}`, 200)
		held := want("long", "p:b", `{}`, 200)
		want("long", "p:c", `{}`, 429)
		id := (&reply{t, held.Code, held.Header(), held.Body.Bytes()}).ok().text("lockID")
		if w := v.send("DELETE", "/lock/p:b", as("long"), `{"lockID":"`+id+`"}`); w.Code != 204 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		synctest.Wait()
		want("long", "p:c", `{}`, 200)

		want("short", "p:d", `{"ttl":"6s"}`, 200)
		want("short", "p:a", `{}`, 401) // waits for a minute
		if took := time.Since(expires); took < 0 || took > time.Second {
			t.Errorf("%s", took)
		}
		time.Sleep(7 * time.Second)
		a.wantState("p:d", joblock.StateFree)
		a.wantState("p:a", joblock.StateHeld)

		// An account that is gone renews no lock.
		want("bob", "p:e", `{"ttl":"6s"}`, 200)
		time.Sleep(5 * time.Minute)
		a.wantState("p:e", joblock.StateHeld)
		fired.Store(true)
		time.Sleep(recheckEvery + 7*time.Second)
		a.wantState("p:e", joblock.StateFree)

		if _, err := DaprAlpha2(a.s, DaprAlpha2Config{MaxHold: time.Millisecond}); !strings.Contains(fmt.Sprint(err), "MaxHold is 1ms") {
			t.Errorf("%v", err)
		}
	})
}

// A client that is gone leaves neither a place nor a lock.
func TestDaprAlpha2ClientThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, memoryStore())
		v := &visitor{T: t, h: daprLocksOf(t, a.s, DaprAlpha2Config{})}
		lock, err := a.locks.Acquire(t.Context(), "r")
		testkit.WantNil(t, "Acquire", err)
		ctx, hangUp := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			v.sendIn(ctx, "POST", "/lock/r", nil, "")
		}()
		synctest.Wait()
		if st := a.status("r"); st.Waiters != 1 {
			t.Errorf("%+v", st)
		}
		hangUp()
		<-over
		time.Sleep(time.Second)
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
		if st := a.wantState("r", joblock.StateFree); st.Waiters != 0 {
			t.Errorf("%+v", st)
		}
		// The client is gone just when it has got the lock.
		gone, leave := context.WithCancel(t.Context())
		locks, err := joblock.New(shared{a.store}, &joblock.Config{Logger: a.log.JSON(), Observer: func(e event.Event) {
			if e.Kind == event.Acquired {
				leave()
			}
		}})
		testkit.WantNil(t, "New", err)
		other, err := server.New(server.Config{Locks: locks, Authorize: server.Anyone(), Hosts: []string{"*"}, Logger: a.log.JSON()})
		testkit.WantNil(t, "New", err)
		v.h = daprLocksOf(t, other, DaprAlpha2Config{})
		v.sendIn(gone, "POST", "/lock/r", nil, "")
		if st := a.wantState("r", joblock.StateFree); st.Reason != "the client is gone" {
			t.Errorf("%+v", st)
		}
		testkit.WantNil(t, "Close", other.Close(t.Context()))
		testkit.WantNil(t, "Close", locks.Close(t.Context()))
	})
}

func TestDaprAlpha2Errors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, memoryStore())
		one, two := daprLocksOf(t, a.s, DaprAlpha2Config{}), daprLocksOf(t, a.s, DaprAlpha2Config{Stream: true})
		for _, c := range []struct {
			method, path, body string
			status             int
			has                string
		}{
			{"POST", "/lock/r", `{`, 400, "failed deserializing HTTP body"},
			{"POST", "/lock/r", `null`, 400, "failed deserializing HTTP body"},
			{"POST", "/lock/r", `{"immediate":"yes"}`, 400, "failed deserializing HTTP body"},
			{"POST", "/lock/r", `{"ttl":"30"}`, 400, "ttl is 30, must be a duration such as 30s"},
			{"POST", "/lock/r", `{"ttl":"1us"}`, 400, "at least 1ms"},
			{"POST", "/lock/r", `{"ttl":"25h"}`, 400, "at most 24h0m0s"},
			{"POST", "/lock/" + strings.Repeat("r", 513), `{}`, 400, "513 bytes"},
			{"POST", "/lock/a%00", `{}`, 400, "U+0000"},
			{"POST", "/lock/", `{}`, 404, "nothing at this path"},
			{"GET", "/lock/r", ``, 405, "must be DELETE, POST"},
		} {
			for what, h := range map[string]http.Handler{"ERR_": one, `"type":"error"`: two} {
				v := &visitor{T: t, h: h}
				w := v.send(c.method, c.path, http.Header{"Content-Type": {"application/json"}}, c.body)
				if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) || c.status == 400 && !strings.Contains(w.Body.String(), what) {
					t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.has)
				}
			}
		}
		v := &visitor{T: t, h: one}
		header := http.Header{"Content-Type": {"application/json"}}
		for body, status := range map[string]int{``: 400, `{}`: 400, `{"lockID":"x"}`: 404, `{"lockID":"1.1."}`: 404, `{"force":1}`: 400} {
			if w := v.send("DELETE", "/lock/r", header, body); w.Code != status {
				t.Errorf("DELETE %s: %d %s, want %d", body, w.Code, w.Body, status)
			}
		}
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire, faultstore.Release, faultstore.Inspect)
		if w := v.send("POST", "/lock/r", nil, ""); w.Code != 503 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := v.send("DELETE", "/lock/r", header, `{"lockID":"1.rs.x"}`); w.Code != 503 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		a.store.Clear()
		v.h = two
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		if w := v.send("POST", "/lock/r", nil, ""); w.Code != 503 || !strings.Contains(w.Body.String(), `"type":"error"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		a.store.Clear()
	})
}

// Pings come in time, a client in line gets them too, and every end of a stream is reported in the words of the proposal.
func TestDaprAlpha2Stream(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a, b := newReplica(t, peer()), newReplica(t, peer())
		one, two := daprLocksOf(t, a.s, DaprAlpha2Config{Stream: true}), daprLocksOf(t, b.s, DaprAlpha2Config{Stream: true})
		header := http.Header{"Content-Type": {"application/json"}}
		holder := openDaprStream(t, one, "/lock/r", `{"ttl":"8s"}`, header)
		time.Sleep(time.Second)
		waiter := openDaprStream(t, two, "/lock/r", `{"ttl":"8s"}`, header)
		time.Sleep(20 * time.Second)
		if got := strings.Join(holder.types(t), " "); !strings.HasPrefix(got, "lock-acquired ping") || strings.Count(got, "ping") < 8 {
			t.Errorf("%s", got)
		}
		if got := strings.Join(waiter.types(t), " "); strings.ReplaceAll(strings.ReplaceAll(got, "ping", ""), " ", "") != "" || strings.Count(got, "ping") < 8 {
			t.Errorf("%s", got)
		}

		t.Log("the server closes: the lock stays until its lease ends")
		before := a.wantState("r", joblock.StateHeld)
		testkit.WantNil(t, "Close", a.s.Close(t.Context()))
		<-holder.over
		if _, text := holder.text(); !strings.HasSuffix(text, `{"type":"error","error":"the server is closing, and the lock ends with its lease"}`+"\n") {
			t.Errorf("%s", text)
		}
		time.Sleep(time.Second)
		if st := a.wantState("r", joblock.StateHeld); st.Fence != before.Fence {
			t.Errorf("%+v", st)
		}
		time.Sleep(10 * time.Second)
		if got := strings.Join(waiter.types(t), " "); !strings.Contains(got, "lock-acquired ping") {
			t.Errorf("%s", got)
		}

		t.Log("the store is away: the loss is signalled before the lease ends")
		b.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew, faultstore.Release)
		began := time.Now()
		<-waiter.over
		if _, text := waiter.text(); time.Since(began) > 8*time.Second || !strings.Contains(text, `{"type":"error","error":"the lock is lost: no renewal was answered`) {
			t.Errorf("%s after %s", text, time.Since(began))
		}
		b.store.Clear()
		if n := strings.Count(a.log.String()+b.log.String(), "over HTTP/1.1"); n != 2 {
			t.Errorf("%d warnings of HTTP/1.1, want one for each replica", n)
		}
	})
}

// On a real connection: HTTP/2, as the proposal advises, and a client that hangs up.
func TestDaprAlpha2OverHTTP2(t *testing.T) {
	t.Parallel()
	a := newReplica(t, memoryStore())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.WantNil(t, "Listen", err)
	hs := server.HTTPServer(http.StripPrefix("/v1.0-alpha2", daprLocksOf(t, a.s, DaprAlpha2Config{Stream: true})))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer func() {
		client.CloseIdleConnections()
		_ = hs.Close()
		<-served
	}()
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.Addr().String()+"/v1.0-alpha2/lock/r", strings.NewReader(`{"ttl":"3s"}`))
	testkit.WantNil(t, "NewRequest", err)
	r.Header.Set("Content-Type", "application/json")
	res, err := client.Do(r)
	testkit.WantNil(t, "Do", err)
	defer res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%s %d %v", res.Proto, res.StatusCode, res.Header)
	}
	lines := bufio.NewScanner(res.Body)
	for _, want := range []string{`{"type":"lock-acquired"}`, `{"type":"ping"}`, `{"type":"ping"}`} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, want %q: %v", lines.Text(), want, lines.Err())
		}
	}
	a.wantState("r", joblock.StateHeld)
	hangUp()
	free, err := a.locks.Acquire(t.Context(), "r", joblock.MaxWait(hang))
	testkit.WantNil(t, "Acquire", err)
	testkit.WantNil(t, "Release", free.Release(t.Context()))
}
