package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
)

const key = "export:acct-7"

// noJobs stands for a handoff.Client that is not called.
var noJobs = new(handoff.Client)

func packageComment(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A replica is a Server on a Locker of its own, and a client of that Server.
type replica struct {
	*testing.T
	s      *Server
	locks  *joblock.Locker
	store  *faultstore.Store
	log    *testkit.Log
	client *http.Client
	pipes  *pipes
	bearer string
}

// newReplica starts a replica on store. The connections are in memory, and have no buffers.
func newReplica(t *testing.T, store driver.Store, change ...func(*Config)) *replica {
	t.Helper()
	a := &replica{T: t, store: faultstore.New(store), log: &testkit.Log{}, pipes: newPipes()}
	var err error
	a.locks, err = joblock.New(a.store, &joblock.Config{Holder: "server", Logger: a.log.JSON()})
	testkit.WantNil(t, "New", err)
	cfg := Config{Locks: a.locks, Authorize: Anyone(), Hosts: []string{"*"}, Logger: a.log.JSON(), MaxWait: time.Minute}
	for _, f := range change {
		f(&cfg)
	}
	a.s, err = New(cfg)
	testkit.WantNil(t, "New", err)
	hs := HTTPServer(a.s)
	hs.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(a.pipes)
	}()
	transport := &http.Transport{DialContext: a.pipes.dial}
	a.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		transport.CloseIdleConnections()
		testkit.WantNil(t, "Close", a.s.Close(ctx))
		_ = hs.Close()
		<-served
		testkit.WantNil(t, "Close of the Locker", a.locks.Close(ctx))
	})
	return a
}

// eachStore runs f in virtual time, on memstore and on miniredis. The function peer returns another store with the same
// locks.
func eachStore(t *testing.T, f func(t *testing.T, peer func() driver.Store)) {
	t.Run("memstore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			one := memstore.New(&memstore.Config{Silent: true})
			f(t, func() driver.Store { return shared{one} })
		})
	})
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mini := redistest.Mini(t)
			f(t, func() driver.Store { return testkit.Must(redisstore.New(redistest.MiniClient(t, mini), nil)) })
			redistest.Ran(t, redistest.MiniBackend())
		})
	})
}

// bubble runs f in virtual time, on memstore.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// shared is a store that no Locker closes.
type shared struct{ driver.Store }

func (shared) Close() error { return nil }

// listed returns what a Principal may use: what a header of the request lists, or everything without the header.
func listed(r *http.Request, header string) (names []string, all bool) {
	names = strings.Fields(r.Header.Get(header))
	return names, len(names) == 0
}

// A reply is an answer, read to its end.
type reply struct {
	*testing.T
	status int
	header http.Header
	text   []byte
}

// with changes a request.
func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

// try sends a request, and checks the answer against openapi.json.
func (a *replica) try(ctx context.Context, method, path string, body any, change ...func(*http.Request)) (*reply, error) {
	a.Helper()
	r, sent := a.request(ctx, method, path, body, change...)
	res, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	checkAnswer(a.T, r, sent, res, text)
	return &reply{a.T, res.StatusCode, res.Header, text}, nil
}

func (a *replica) request(ctx context.Context, method, path string, body any, change ...func(*http.Request)) (*http.Request, []byte) {
	a.Helper()
	var sent []byte
	switch b := body.(type) {
	case nil:
	case string:
		sent = []byte(b)
	default:
		var err error
		sent, err = json.Marshal(b)
		testkit.WantNil(a, "Marshal", err)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, bytes.NewReader(sent))
	testkit.WantNil(a, "NewRequest", err)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if a.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+a.bearer)
	}
	for _, f := range change {
		f(r)
	}
	return r, sent
}

// serve answers a request, whose body is sent, without a connection.
func (a *replica) serve(r *http.Request, sent []byte) *reply {
	a.Helper()
	w := httptest.NewRecorder()
	a.s.ServeHTTP(w, r)
	res := w.Result()
	checkAnswer(a.T, r, sent, res, w.Body.Bytes())
	return &reply{a.T, res.StatusCode, res.Header, w.Body.Bytes()}
}

func checkAnswer(t *testing.T, r *http.Request, sent []byte, res *http.Response, text []byte) {
	t.Helper()
	doc, err := theDocument()
	testkit.WantNil(t, "openapi.json", err)
	if r.Method == http.MethodHead {
		return
	}
	if err := doc.check(r.Method, r.URL.EscapedPath(), sent, res.StatusCode, res.Header, text); err != nil {
		t.Errorf("%s %s %s: %v", r.Method, r.URL, sent, err)
	}
	if res.Header.Get("Joblock-Request") == "" {
		t.Errorf("%s %s: the answer has no Joblock-Request", r.Method, r.URL)
	}
}

// do is try for requests that have an answer.
func (a *replica) do(method, path string, body any, change ...func(*http.Request)) *reply {
	a.Helper()
	r, err := a.try(a.Context(), method, path, body, change...)
	if err != nil {
		a.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

func (a *replica) post(path string, body any, change ...func(*http.Request)) *reply {
	a.Helper()
	return a.do(http.MethodPost, path, body, change...)
}

// ok ends the test unless the status is 200 or 201, and returns the object of the answer.
func (r *reply) ok() object {
	r.Helper()
	if r.status != http.StatusOK && r.status != http.StatusCreated {
		r.Fatalf("%d: %s", r.status, r.text)
	}
	return r.object()
}

func (r *reply) object() object {
	r.Helper()
	var o object
	if err := json.Unmarshal(r.text, &o); err != nil {
		r.Fatalf("%v in %s", err, r.text)
	}
	return o
}

// refused fails the test unless the answer is a problem with the status and the code. It returns the problem.
func (r *reply) refused(status int, code string) object {
	r.Helper()
	o := object{}
	if r.status >= 400 {
		o = r.object()
	}
	if r.status != status || o.text("code") != code {
		r.Errorf("%d %s, want %d %s", r.status, r.text, status, code)
	}
	return o
}

// object is the object of an answer.
type object map[string]any

func (o object) text(name string) string { s, _ := o[name].(string); return s }
func (o object) number(name string) int64 {
	n, _ := o[name].(float64)
	return int64(n)
}
func (o object) flag(name string) bool { b, _ := o[name].(bool); return b }

// status returns the status of a key.
func (a *replica) status(key string) joblock.Status {
	a.Helper()
	st, err := a.locks.Status(context.Background(), key)
	testkit.WantNil(a, "Status", err)
	return st[0]
}

func (a *replica) wantState(key string, want joblock.State) joblock.Status {
	a.Helper()
	st := a.status(key)
	if st.State != want {
		a.Errorf("%s is %s, want %s: %+v", key, st.State, want, st)
	}
	return st
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.done)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A hold is the client of a stream.
type hold struct {
	*replica
	cancel context.CancelFunc
	res    *http.Response
	sent   []byte
	read   bytes.Buffer // what has come; may be read when lines is closed
	lines  chan object
}

// hold begins a stream, and reads its lines. The answer must be 200.
func (a *replica) hold(body object, change ...func(*http.Request)) *hold {
	a.Helper()
	h := a.holdUnread(body, change...)
	go h.pump()
	return h
}

// holdUnread begins a stream whose lines are not read until pump is called.
func (a *replica) holdUnread(body object, change ...func(*http.Request)) *hold {
	a.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, sent := a.request(ctx, http.MethodPost, "/v1/hold", body, change...)
	res, err := a.client.Do(r)
	testkit.WantNil(a, "hold", err)
	h := &hold{replica: a, cancel: cancel, res: res, sent: sent, lines: make(chan object, 10_000)}
	a.Cleanup(h.leave)
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		a.Fatalf("hold: %d %s", res.StatusCode, text)
	}
	return h
}

func (h *hold) leave() {
	h.cancel()
	_ = h.res.Body.Close()
}

// pump reads lines to the end of the stream.
func (h *hold) pump() {
	defer close(h.lines)
	lines := bufio.NewScanner(io.TeeReader(h.res.Body, &h.read))
	for lines.Scan() {
		text := strings.TrimPrefix(lines.Text(), "data: ")
		if text == "" || strings.HasPrefix(text, "event: ") {
			continue
		}
		var o object
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			h.Errorf("%v in %q", err, text)
			return
		}
		h.lines <- o
	}
}

// line returns the next line, nil at the end of the stream. At the end all lines are checked against openapi.json.
func (h *hold) line() object {
	h.Helper()
	if o, ok := <-h.lines; ok {
		return o
	}
	checkAnswer(h.T, h.res.Request, h.sent, h.res, h.read.Bytes())
	return nil
}

// until returns the next line of a type.
func (h *hold) until(kind string) object {
	h.Helper()
	for range 1000 { // pings come forever, and in virtual time at once
		o := h.line()
		if o == nil {
			h.Fatalf("the stream has ended without %q: %s", kind, h.read.String())
		}
		if o.text("type") == kind {
			return o
		}
	}
	h.Fatalf("the stream goes on without %q", kind)
	return nil
}

// ended checks that the stream is over.
func (h *hold) ended() {
	h.Helper()
	if o := h.line(); o != nil {
		h.Errorf("the stream goes on with %v", o)
	}
}

// wantNoSecrets fails the test if the log or an answer has one of the tokens.
func (a *replica) wantNoSecrets(secrets ...string) {
	a.Helper()
	for _, s := range secrets {
		if s != "" && strings.Contains(a.log.String(), s) {
			a.Errorf("the log has the secret %s:\n%s", s, a.log.String())
		}
	}
}

func sprint(v ...any) string { return fmt.Sprint(v...) }

func memoryStore() driver.Store { return memstore.New(&memstore.Config{Silent: true}) }
