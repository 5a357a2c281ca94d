package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
)

// A call is a request that is being served.
type call struct {
	s     *Server
	m     *mount
	w     *writer // points to own
	r     *http.Request
	id    string // of the request, for logs
	began time.Time
	timed bool // the connection has a deadline for the body
	known bool // the caller was admitted
	whole bool // the body was read to its end

	// Fields for the log.
	route  string
	who    Principal
	key    string
	code   string // of the problem, or ""
	detail error  // the error behind a 500 or 503

	// Fields for the answer that a route returns; see on.
	status int    // 0 means 200
	fence  int64  // of the header Joblock-Fence, unless 0
	etag   string // of the header ETag, unless ""

	own    writer
	values [4]string // values of headers; see header
	used   int       // how many of values there are
}

// writer records the status and the length of an answer.
type writer struct {
	http.ResponseWriter
	c      *call
	status int
	bytes  int64
}

func (w *writer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap implements what http.ResponseController needs.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (m *mount) newCall(w http.ResponseWriter, r *http.Request) *call {
	c := &call{s: m.s, m: m, r: r, id: strconv.FormatUint(rand.Uint64(), 36), began: time.Now()}
	c.own = writer{ResponseWriter: w, c: c}
	c.w = &c.own
	h := w.Header()
	c.header(h, "Joblock-Request", c.id)
	h["X-Content-Type-Options"] = noSniff
	if r.ContentLength != 0 {
		// Before net/http sends the answer, it reads the rest of a body that no route has read, so that needs a deadline.
		// Not every ResponseWriter has deadlines.
		c.timed = http.NewResponseController(w).SetReadDeadline(c.began.Add(m.s.cfg.BodyTimeout)) == nil
	}
	return c
}

// Header values that all answers share. An Add to one of them allocates another slice.
var (
	noSniff  = []string{"nosniff"}
	noStore  = []string{"no-store"}
	typeJSON = []string{jsonType}
)

const jsonType = "application/json"

// header sets a header; name must be in canonical form. The first few values need no allocation.
func (c *call) header(h http.Header, name, value string) {
	if c.used == len(c.values) {
		h[name] = []string{value}
		return
	}
	c.values[c.used] = value
	c.used++
	h[name] = c.values[c.used-1 : c.used : c.used]
}

// caught answers the request if its handler has panicked.
func (c *call) caught() {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v)
	}
	c.s.cfg.Logger.Error("server: a handler panicked", "request", c.id, "route", c.route, "panic", v, "stack", string(debug.Stack()))
	if c.w.status == 0 {
		c.refuse(problem.New(http.StatusInternalServerError, problem.Internal, "a fault of the server, which its log describes"))
		return
	}
	panic(http.ErrAbortHandler) // the client must not mistake a part of an answer for the whole answer
}

// serve authorizes the call and runs the route.
func (c *call) serve(r route) {
	if r.scope != 0 {
		if p := c.authorize(r.scope); p != nil {
			c.refuse(p)
			return
		}
	}
	a, err := r.do(c)
	switch {
	case err != nil:
		c.refuse(c.problemOf(err))
	case a != nil:
		c.answer(a)
	}
}

// An answer is what a route returns. A route that has written its answer itself returns nil.
type answer struct {
	status int
	fence  int64  // of the header Joblock-Fence, unless 0
	etag   string // of the header ETag, unless ""
	body   any
}

// answerTimeout bounds how long a client may take to read an answer.
const answerTimeout = 10 * time.Second

func (c *call) answer(a *answer) {
	e := encoders.Get().(*encoder)
	defer e.free()
	if err := e.json.Encode(a.body); err != nil {
		c.refuse(c.problemOf(fmt.Errorf("encode the answer: %w", err)))
		return
	}
	h := c.w.Header()
	if a.fence != 0 {
		c.header(h, fenceHeader, strconv.FormatInt(a.fence, 10))
	}
	if a.etag != "" {
		c.header(h, etagHeader, a.etag)
	}
	c.write(a.status, jsonType, e.text.Bytes())
}

// writeJSON writes v, of a type that can always be encoded. Otherwise it panics.
func (c *call) writeJSON(status int, contentType string, v any) {
	e := encoders.Get().(*encoder)
	defer e.free()
	if err := e.json.Encode(v); err != nil {
		panic(err)
	}
	c.write(status, contentType, e.text.Bytes())
}

// An encoder has the text of one answer at a time.
type encoder struct {
	text bytes.Buffer
	json *json.Encoder // into text
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.json = json.NewEncoder(&e.text)
	return e
}}

// free returns the encoder to the pool, unless its buffer is large: the pool would keep that memory for small answers.
func (e *encoder) free() {
	const most = 16 << 10
	if e.text.Cap() <= most {
		e.text.Reset()
		encoders.Put(e)
	}
}

// writeEmpty writes an answer without a body.
func (c *call) writeEmpty(status int) {
	c.w.Header().Set("Cache-Control", "no-store")
	c.send(func() { c.w.WriteHeader(status) })
}

// write writes a whole answer.
func (c *call) write(status int, contentType string, text []byte) {
	h := c.w.Header()
	if contentType == jsonType {
		h["Content-Type"] = typeJSON
	} else {
		h.Set("Content-Type", contentType)
	}
	h["Cache-Control"] = noStore
	c.header(h, "Content-Length", strconv.Itoa(len(text)))
	c.send(func() {
		c.w.WriteHeader(status)
		_, _ = c.w.Write(text) // the client may have disconnected
	})
}

// send calls write, which writes a whole answer, and bounds how long the client may take to read it. Even a small answer
// needs the bound: a client can fill the buffers with many requests, or allow no bytes on an HTTP/2 stream.
func (c *call) send(write func()) {
	rc := http.NewResponseController(c.w)
	from := time.Now()
	if c.r.ContentLength != 0 && !c.whole {
		from = c.began.Add(c.s.cfg.BodyTimeout) // net/http reads the rest of the body first
	}
	bounded := rc.SetWriteDeadline(from.Add(answerTimeout)) == nil // not every ResponseWriter has deadlines
	defer c.strange(rc.SetWriteDeadline)()
	write()
	if !c.known && c.r.ProtoMajor > 1 {
		_ = rc.Flush() // otherwise net/http waits for the client after the handler has returned, when no limit counts that
	}
	if bounded && c.r.ProtoMajor == 1 {
		// If the deadline stayed set, it would abort the connection's next answer, perhaps another handler's. The
		// deadline of an HTTP/2 stream ends with the stream, and must last until net/http has sent what it buffers.
		_ = rc.Flush()
		_ = rc.SetWriteDeadline(time.Time{})
	}
}

// refuse answers with an error.
func (c *call) refuse(p *problem.Problem) {
	c.code = p.Code
	if p.Status == http.StatusUnauthorized {
		c.w.Header().Set("WWW-Authenticate", `Bearer realm="joblock"`)
	}
	if p.RetryAfter > 0 {
		c.w.Header().Set("Retry-After", strconv.FormatInt(wholeSeconds(p.RetryAfter), 10))
	}
	c.m.refuse(c, p)
}

// asProblem writes a problem as an RFC 9457 object.
func asProblem(c *call, p *problem.Problem) {
	p.Type, p.Instance = "urn:joblock:problem:"+p.Code, "urn:joblock:request:"+c.id
	c.writeJSON(p.Status, "application/problem+json", p)
}

func (c *call) count() {
	c.s.cfg.Meter.Request(MeteredRequest{c.route, c.r.Method, c.w.status, c.code, c.elapsed()})
}

func (c *call) log() {
	level := slog.LevelInfo
	if c.w.status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	logger := c.s.cfg.Logger
	if !logger.Enabled(context.Background(), level) {
		return
	}
	now := time.Now()
	attrs := [11]slog.Attr{
		slog.String("request", c.id), slog.String("method", problem.Shown(c.r.Method)), slog.String("route", c.route),
		slog.Int("status", c.w.status), slog.String("principal", c.who.ID), slog.String("remote", c.r.RemoteAddr),
		slog.Int64("bytes", c.w.bytes), slog.Duration("duration", now.Sub(c.began)),
	}
	n := 8
	add := func(a slog.Attr) {
		attrs[n] = a
		n++
	}
	if c.key != "" {
		add(slog.String("key", c.key))
	}
	if c.code != "" {
		add(slog.String("code", c.code))
	}
	if c.detail != nil {
		add(slog.Any("err", c.detail))
	}
	line := slog.NewRecord(now, level, "server: request", requestLine) // Logger.LogAttrs would walk the stack for each line
	line.AddAttrs(attrs[:n]...)
	_ = logger.Handler().Handle(context.Background(), line) // a Logger ignores its handler's errors, too
}

// requestLine is the source position that a handler with AddSource logs for a request.
var requestLine = func() uintptr {
	var pcs [1]uintptr
	runtime.Callers(1, pcs[:])
	return pcs[0]
}()

// ended reports whether the client has disconnected.
func (c *call) ended() bool { return c.r.Context().Err() != nil }

// elapsed returns the time since the request arrived.
func (c *call) elapsed() time.Duration { return time.Since(c.began) }

// lasting returns a context for work that must not end with the request.
func (c *call) lasting() context.Context { return context.WithoutCancel(c.r.Context()) }

// useKey records the key of the call, and refuses one that the caller may not use.
func (c *call) useKey(key string) error {
	if err := c.s.in.Check("request", key); err != nil {
		return err
	}
	if !c.who.mayUse(key) {
		return problem.New(http.StatusForbidden, problem.Forbidden, "the caller may not use this key")
	}
	if !isToken(key) { // a token must not get into the log
		c.key = key
	}
	return nil
}

// isToken reports whether text is the text form of a token.
func isToken(text string) bool {
	if !strings.HasPrefix(text, tokenHead) {
		return false // true of almost all keys
	}
	_, err := joblock.ParseToken(text)
	return err == nil
}

// tokenHead begins the text form of every token: it encodes the first two bytes of the binary form, see Token.
const tokenHead = "lQ"

// bindJob refuses to bind a lock of the caller to a job if the caller may not act on its task. A caller without AllKeys may
// bind the lock only to a task that carries the key.
func (c *call) bindJob(job, key string) error {
	if err := c.useJob(job); err != nil || job == "" || c.who.AllKeys {
		return err
	}
	if _, _, ok := envelope.ParseJob(job); !ok {
		return noJob(job)
	}
	keys, err := c.s.desk.Carried(c.r.Context(), job)
	if err != nil {
		return taskProblem(err)
	}
	if !slices.Contains(keys, key) {
		return problem.New(http.StatusForbidden, problem.Forbidden, "the job has no task that carries the key: a caller with prefixes binds a lock only to a task that does")
	}
	return nil
}

// useJob refuses a job in a queue that the caller may not use.
func (c *call) useJob(job string) error {
	if job == "" || c.who.AllQueues {
		return nil
	}
	queue, _, ok := envelope.ParseJob(job)
	if !ok {
		return noJob(job)
	}
	if !c.who.mayEnqueueIn(queue) {
		return foreignQueue()
	}
	return nil
}

func noJob(job string) error {
	return problem.New(http.StatusBadRequest, problem.Invalid, "job is %s, must be queue/taskID", problem.Shown(job))
}

// keyFrom returns the key of the path or, if the path has none, other: the key of the body or the query.
func (c *call) keyFrom(other string) (string, error) {
	key := c.r.PathValue("key")
	switch {
	case key == "" && other == "":
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "key is missing")
	case key == "":
		key = other
	case other != "" && other != key:
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "the path and the body name different keys")
	}
	return key, c.useKey(key)
}

// tokenFrom parses the token of a body. If the path has a key, it must be the token's key.
func (c *call) tokenFrom(text string) (joblock.Token, error) {
	if text == "" {
		return joblock.Token{}, problem.New(http.StatusBadRequest, problem.Invalid, "token is missing")
	}
	token, err := joblock.ParseToken(text)
	if err != nil {
		var e *joblock.Error
		_ = errors.As(err, &e)
		return joblock.Token{}, problem.New(http.StatusBadRequest, problem.Invalid, "token is bad: %s", e.Detail)
	}
	if key := c.r.PathValue("key"); key != "" && key != token.Key() {
		return joblock.Token{}, problem.New(http.StatusBadRequest, problem.Invalid, "the token and the path are for different keys")
	}
	return token, c.useKey(token.Key())
}

// errGone is the error of a wait whose client has disconnected. Such a request gets no answer.
var errGone = errors.New("the client is gone")
