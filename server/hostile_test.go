package server

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// raw sends bytes on a connection of their own, and returns the status line and the rest of what comes within a minute.
func (a *replica) raw(send ...string) (status, rest string) {
	a.Helper()
	conn, err := a.pipes.dial(a.Context(), "", "")
	testkit.WantNil(a, "dial", err)
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	written := make(chan struct{})
	defer func() { <-written }()
	go func() {
		defer close(written)
		for _, part := range send {
			if _, err := io.WriteString(conn, part); err != nil {
				return // the server has closed the connection
			}
			time.Sleep(time.Second)
		}
	}()
	r := bufio.NewReader(conn)
	status, _ = r.ReadString('\n')
	text, _ := io.ReadAll(r)
	_ = conn.Close()
	return strings.TrimSpace(status), string(text)
}

// Whatever a client sends, it gets an answer or is cut off, and holds nothing.
func TestHostileClients(t *testing.T) {
	const head = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	body := `{"key":"` + key + `"}`
	for name, c := range map[string]struct {
		send   []string
		status string // "": the connection ends without an answer; "*": with a 400, or without an answer
		says   string
	}{
		"a body that does not come":        {[]string{head + "Content-Length: 100\r\n\r\n"}, "408", "REQUEST_TIMEOUT"},
		"a body that comes byte by byte":   {append([]string{head + "Content-Length: 100\r\n\r\n"}, strings.Split(body+strings.Repeat(" ", 50), "")...), "408", "REQUEST_TIMEOUT"},
		"a body that is announced as huge": {[]string{head + "Content-Length: 9999999999\r\n\r\n"}, "413", "BODY_TOO_LARGE"},
		"a huge body in chunks":            {[]string{head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("8000\r\n"+strings.Repeat("x", 0x8000)+"\r\n", 4)}, "413", "BODY_TOO_LARGE"},
		"a chunk without an end":           {[]string{head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"}, "400", ""},
		"a length that is no number":       {[]string{head + "Content-Length: -1\r\n\r\n" + body}, "400", ""},
		"length and chunks":                {[]string{head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, "400", ""},
		"two lengths":                      {[]string{head + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"}, "400", ""},
		"a body that ends early":           {[]string{head + "Content-Length: 5\r\n\r\n{"}, "408", ""},
		"many headers":                     {[]string{head + strings.Repeat("X-Flood: "+strings.Repeat("x", 500)+"\r\n", 100) + "\r\n"}, "431", ""},
		"a header that does not end":       {[]string{"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nX: "}, "", ""},
		"headers that come slowly":         {append([]string{"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\n"}, strings.Split(strings.Repeat("X-Slow: x\r\n", 10), "")...), "*", ""},
		"no HTTP":                          {[]string{"\x16\x03\x01\x02\x00\x01\x00"}, "400", ""},
		"a path that is not encoded":       {[]string{"GET /v1/locks/a\x01b HTTP/1.1\r\nHost: localhost\r\n\r\n"}, "400", ""},
		"a bad escape":                     {[]string{"POST /v1/locks/%zz/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"}, "400", ""},
		"a star":                           {[]string{"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"}, "200", ""},
		"another star":                     {[]string{"POST * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"}, "400", ""},
		"a proxy's request":                {[]string{"GET http://elsewhere/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"}, "200", ""},
		"CONNECT":                          {[]string{"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere:443\r\nConnection: close\r\n\r\n"}, "400", ""},
		"a method of 100 KB":               {[]string{strings.Repeat("A", 100_000) + " / HTTP/1.1\r\nHost: localhost\r\n\r\n"}, "431", ""},
		"a key of 10 KB in the path":       {[]string{"POST /v1/locks/" + strings.Repeat("k", 10_000) + "/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"}, "400", "LOCK_INVALID"},
		"another host":                     {[]string{"POST /v1/acquire HTTP/1.1\r\nHost: \x00\r\n\r\n"}, "400", ""},
		"HTTP/1.0":                         {[]string{"GET /healthz HTTP/1.0\r\n\r\n"}, "200", "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a := newReplica(t, store())
				status, rest := a.raw(c.send...)
				got := ""
				if parts := strings.Fields(status); len(parts) > 1 {
					got = parts[1]
				}
				if c.status == "*" && (got == "" || got == "400") {
					got = c.status
				}
				if got != c.status || !strings.Contains(rest, c.says) {
					t.Errorf("%q, %q; want %s with %q", status, rest, c.status, c.says)
				}
				if st := a.status(key); st.Locked() || st.Waiters != 0 {
					t.Errorf("%+v", st)
				}
				for st, err := range a.locks.List(t.Context(), joblock.ListOptions{}) {
					t.Errorf("%+v, %v", st, err)
				}
			})
		})
	}
}

// A client that vanishes at any moment of its request holds nothing for longer than the TTL.
func TestClientThatVanishes(t *testing.T) {
	request := "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 38\r\n\r\n" +
		`{"key":"` + key + `","ttl_ms":2000}`
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		for n := range len(request) + 1 {
			conn, err := a.pipes.dial(t.Context(), "", "")
			testkit.WantNil(t, "dial", err)
			_, _ = io.WriteString(conn, request[:n])
			_ = conn.Close()
		}
		time.Sleep(2 * time.Second)
		a.wantState(key, joblock.StateFree)
	})
}

// A handler that panics is a 500, which tells nothing, and the log has the reason.
func TestPanicIsA500(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { panic("secret reason") })
		})
		r := a.do(http.MethodGet, "/v1/me", nil)
		r.refused(http.StatusInternalServerError, "INTERNAL")
		if strings.Contains(string(r.text), "secret") || !strings.Contains(a.log.String(), "secret reason") {
			t.Errorf("%s; the log: %s", r.text, a.log.String())
		}
	})
}
