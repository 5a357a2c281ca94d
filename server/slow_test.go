package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A body that no route reads has the time of any body: net/http reads the rest of it before the answer.
func TestUnreadBody(t *testing.T) {
	path, _ := accountsFile(t, `"scopes": ["lock"]`)
	const rest = " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
	for name, c := range map[string]struct {
		send   string
		change func(*Config)
		status string
	}{
		"no caller is needed": {"GET /healthz" + rest + "\r\n{", nil, "200"},
		"401":                 {"POST /v1/acquire" + rest + "\r\n{", withAccounts(t, path), "401"},
		"404":                 {"POST /nothing" + rest + "\r\n{", nil, "404"},
		"405":                 {"PUT /v1/acquire" + rest + "\r\n{", nil, "405"},
		"415":                 {"POST /v1/acquire" + rest + "\r\n{", nil, "415"},
		"413":                 {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", nil, "413"},
		"a bad path":          {"POST /v1/../x" + rest + "\r\n{", nil, "400"},
		"chunks":              {"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", nil, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				change := c.change
				if change == nil {
					change = func(*Config) {}
				}
				a := newReplica(t, store(), change)
				began := time.Now()
				status, _ := a.raw(c.send)
				if took := time.Since(began); !strings.HasPrefix(status, "HTTP/1.1 "+c.status) || took > 11*time.Second {
					t.Errorf("%q after %s", status, took)
				}
			})
		})
	}
}

// An answer that the client does not read is given up, however small the answer is.
func TestUnreadAnswer(t *testing.T) {
	for name, request := range map[string]string{
		"small": "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"large": "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"304":   "GET /v1/lock?key=held HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a := newReplica(t, store())
				a.post("/v1/acquire", object{"key": "held", "ttl_ms": 60_000}).ok()
				conn, err := a.pipes.dial(t.Context(), "", "")
				testkit.WantNil(t, "dial", err)
				defer conn.Close()
				_, err = io.WriteString(conn, request)
				testkit.WantNil(t, "Write", err)
				time.Sleep(answerTimeout + time.Second)
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				if n, err := conn.Read(make([]byte, 100)); n != 0 || !errors.Is(err, io.EOF) {
					t.Errorf("%d bytes, %v", n, err)
				}
			})
		})
	}
}

// shut is a client of HTTP/2 that allows the server to send no byte of any answer.
type shut struct {
	*replica
	conn   net.Conn
	next   uint32
	resets atomic.Int64 // how many streams the server has ended
}

func (a *replica) shut() *shut {
	a.Helper()
	conn, err := a.pipes.dial(a.Context(), "", "")
	testkit.WantNil(a, "dial", err)
	h := &shut{replica: a, conn: conn, next: 1}
	read := make(chan struct{})
	go func() {
		defer close(read)
		h.read()
	}()
	a.Cleanup(func() {
		_ = conn.Close()
		<-read
	})
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	testkit.WantNil(a, "Write", err)
	h.frame(http2Settings, 0, 0, 0, 4, 0, 0, 0, 0) // SETTINGS_INITIAL_WINDOW_SIZE = 0
	return h
}

const (
	http2Data, http2Headers, http2Reset, http2Settings, http2Ping = 0, 1, 3, 4, 6

	http2EndStream, http2Ack, http2EndHeaders = 1, 1, 4
)

func (h *shut) frame(kind, flags byte, stream uint32, payload ...byte) {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], stream)
	_, _ = h.conn.Write(append(head, payload...)) // the server may have closed the connection
}

// read answers what keeps the connection alive.
func (h *shut) read() {
	head := make([]byte, 9)
	for {
		if _, err := io.ReadFull(h.conn, head); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(h.conn, payload); err != nil {
			return
		}
		switch kind, ack := head[3], head[4]&http2Ack != 0; {
		case kind == http2Reset:
			h.resets.Add(1)
		case kind == http2Ping && !ack, kind == http2Settings && !ack:
			if kind == http2Settings {
				payload = nil
			}
			go h.frame(kind, http2Ack, 0, payload...) // the connection has no buffer
		}
	}
}

// send begins a request. Without a body it is a GET.
func (h *shut) send(path, body string) {
	method, flags := "GET", byte(http2EndHeaders|http2EndStream)
	if body != "" {
		method, flags = "POST", http2EndHeaders
	}
	h.headers(flags, method, path, "application/json")
	if body != "" {
		h.frame(http2Data, http2EndStream, h.next, []byte(body)...)
	}
	h.next += 2
}

func (h *shut) headers(flags byte, method, path, contentType string) {
	var block []byte
	for _, field := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", path}, {":authority", "localhost"}, {"content-type", contentType}} {
		block = append(block, 0, byte(len(field[0]))) // a literal with a new name
		block = append(append(block, field[0]...), byte(len(field[1])))
		block = append(block, field[1]...)
	}
	h.frame(http2Headers, flags, h.next, block...)
}

// An HTTP/2 client that keeps its connection alive and allows no byte of an answer holds no handler.
func TestAnswerThatHTTP2DoesNotAllow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		h := a.shut()
		for range 20 {
			h.send("/healthz", "")
			h.send("/openapi.json", "")
		}
		time.Sleep(answerTimeout + time.Second)
		if n := h.resets.Load(); n != 40 {
			t.Errorf("%d of 40 answers were given up", n)
		}
	})
}

// A stream whose client allows no byte ends after answerTimeout, however long its TTL, and holds up no Close.
func TestStreamThatHTTP2DoesNotAllow(t *testing.T) {
	for name, c := range map[string]struct {
		closes bool
		within time.Duration
	}{"open": {false, answerTimeout}, "closing": {true, closingWriteTimeout}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a := newReplica(t, store())
				a.shut().send("/v1/hold", `{"key":"`+key+`","ttl_ms":3600000}`)
				time.Sleep(time.Second / 2)
				a.wantState(key, joblock.StateHeld)
				began := time.Now()
				if c.closes {
					testkit.WantNil(t, "Close", a.s.Close(context.Background()))
				} else {
					time.Sleep(c.within)
				}
				synctest.Wait()
				a.wantState(key, joblock.StateFree)
				if took := time.Since(began); took > c.within {
					t.Errorf("after %s", took)
				}
			})
		})
	}
}

// A stream ends when the rights of its caller end, and its lock or its place in line is given up.
func TestStreamOfACallerWhoseRightsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		end := time.Now().Add(20 * time.Second)
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) {
				return Principal{ID: "x", Scopes: ScopeLock, Expires: end, AllKeys: true, AllQueues: true}, nil
			})
		})
		one, two := a.hold(object{"key": key, "ttl_ms": 9000}), a.hold(object{"key": key, "ttl_ms": 9000})
		if o := one.until("lock-lost"); o.text("code") != "AUTH_REQUIRED" {
			t.Errorf("%v", o)
		}
		if o := two.until("error"); o.text("code") != "AUTH_REQUIRED" {
			t.Errorf("%v", o)
		}
		one.ended()
		two.ended()
		if st := a.wantState(key, joblock.StateHeld); st.Waiters != 0 || time.Now().After(end.Add(time.Second)) {
			t.Errorf("%+v", st)
		}
		time.Sleep(9 * time.Second) // until the client knows by its own clock that the lock is lost
		a.wantState(key, joblock.StateFree)
	})
}

// A token in the wrong place gets neither into the answer nor into the log.
func TestTokenInTheWrongPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		token := a.post("/v1/acquire", object{"key": "k", "ttl_ms": 9000}).ok().text("token")
		r := a.post("/v1/release", object{token: 1})
		r.refused(http.StatusBadRequest, "REQUEST_INVALID")
		if strings.Contains(string(r.text), token[:21]) {
			t.Errorf("%s", r.text)
		}
		a.post("/v1/acquire", object{"key": token}).ok()
		a.wantNoSecrets(token)
	})
}

// Null is no way to write that an account may use every key or every queue.
func TestAccountWithNull(t *testing.T) {
	for _, field := range []string{"prefixes", "queues"} {
		path, _ := accountsFile(t, `"scopes": ["lock"], "`+field+`": null`)
		if _, err := OpenAccounts(path, nil); err == nil || !strings.Contains(err.Error(), "null") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
