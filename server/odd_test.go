package server

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Requests that are odd, but not all of them wrong: what is answered, and which key is held afterwards. No other key is.
func TestOddRequests(t *testing.T) {
	const (
		line  = "POST /v1/acquire HTTP/1.1\r\n"
		host  = "Host: localhost\r\n"
		kind  = "Content-Type: application/json\r\nConnection: close\r\n"
		whole = line + host + kind
	)
	body := `{"key":"` + key + `","ttl_ms":2000}`
	sized := fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body))
	chunked := "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(body), body)
	at := func(path string) []string {
		return []string{"POST " + path + " HTTP/1.1\r\n" + host + kind + "Content-Length: 15\r\n\r\n" + `{"ttl_ms":2000}`}
	}
	for name, c := range map[string]struct {
		send   []string
		status string // of the first answer; "": none
		says   string // what comes after its first line
		held   string // the key
	}{
		// Bodies and their lengths.
		"Expect":                             {[]string{whole + "Expect: 100-continue\r\n" + sized, body}, "100", `"token"`, key},
		"Expect, and no body":                {[]string{whole + "Expect: 100-continue\r\n" + sized}, "100", "REQUEST_TIMEOUT", ""},
		"Expect, and another type":           {[]string{line + host + "Expect: 100-continue\r\nConnection: close\r\n" + sized}, "415", "UNSUPPORTED_MEDIA_TYPE", ""},
		"Expect, and a huge body":            {[]string{whole + "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"}, "413", "BODY_TOO_LARGE", ""},
		"Expect of something else":           {[]string{whole + "Expect: a-miracle\r\n" + sized + body}, "417", "", ""},
		"a length below that of the body":    {[]string{line + host + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" + body}, "400", "400 Bad Request", ""},
		"a length above that of the body":    {[]string{whole + "Content-Length: 99\r\n\r\n" + body}, "408", "REQUEST_TIMEOUT", ""},
		"a length with a sign":               {[]string{whole + "Content-Length: +2\r\n\r\n{}"}, "400", "", ""},
		"a length in hexadecimal":            {[]string{whole + "Content-Length: 0x2\r\n\r\n{}"}, "400", "", ""},
		"a length beyond all numbers":        {[]string{whole + "Content-Length: 99999999999999999999\r\n\r\n{}"}, "400", "", ""},
		"a body without a length":            {[]string{whole + "\r\n" + body}, "400", "REQUEST_INVALID", ""},
		"a body behind a GET":                {[]string{"GET /v1/lock?key=" + key + " HTTP/1.1\r\n" + host + kind + sized + body}, "200", `"free"`, ""},
		"chunks":                             {[]string{whole + chunked + "0\r\n\r\n"}, "200", `"token"`, key},
		"chunks without an end":              {[]string{whole + chunked}, "408", "REQUEST_TIMEOUT", ""},
		"another coding":                     {[]string{whole + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"}, "501", "", ""},
		"the coding twice":                   {[]string{whole + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, "501", "", ""},
		"the coding with a tab":              {[]string{whole + "Transfer-Encoding: \tchunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)}, "200", `"token"`, key},
		"a compressed body":                  {[]string{whole + "Content-Encoding: gzip\r\n" + sized + body}, "415", "Content-Encoding", ""},
		"a trailer with an Idempotency-Key":  {[]string{whole + "Trailer: Idempotency-Key\r\n" + chunked + "0\r\nIdempotency-Key: a\r\n\r\n"}, "200", `"token"`, key},
		"an unannounced trailer":             {[]string{whole + chunked + "0\r\nIdempotency-Key: x\r\nAuthorization: Bearer x\r\n\r\n"}, "200", `"token"`, key},
		"a flood of trailers":                {[]string{whole + chunked + "0\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 100) + "\r\n"}, "400", "REQUEST_INVALID", ""},
		"lists in lists":                     {[]string{whole + "Content-Length: 60000\r\n\r\n" + strings.Repeat("[", 60_000)}, "400", "REQUEST_INVALID", ""},
		"a number beyond all numbers":        {[]string{whole + "Content-Length: 28\r\n\r\n" + `{"key":"x","ttl_ms":1e99999}`}, "400", "REQUEST_INVALID", ""},
		"a name in another case":             {[]string{whole + "Content-Length: 11\r\n\r\n" + `{"KEY":"x"}`}, "400", "unknown", ""},
		"two objects":                        {[]string{whole + "Content-Length: 22\r\n\r\n" + `{"key":"x"}{"key":"y"}`}, "400", "not one JSON object", ""},
		"a byte order mark":                  {[]string{whole + "Content-Length: 14\r\n\r\n" + "\xef\xbb\xbf" + `{"key":"x"}`}, "400", "not one JSON object", ""},
		"UTF-16":                             {[]string{whole + "Content-Length: 4\r\n\r\n{\x00}\x00"}, "400", "REQUEST_INVALID", ""},
		"no UTF-8":                           {[]string{whole + "Content-Length: 11\r\n\r\n" + "{\"key\":\"\xff\"}"}, "400", "not UTF-8", ""},
		"a control character in a key":       {[]string{whole + "Content-Length: 16\r\n\r\n" + `{"key":"\u0000"}`}, "400", "LOCK_INVALID", ""},
		"a request that another one follows": {[]string{line + host + "Content-Type: application/json\r\n" + sized + body + "GET /healthz HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"}, "200", `"status":"ok"`, key},

		// Targets.
		"a proxy's request for the server":  {[]string{"POST http://localhost/v1/acquire HTTP/1.1\r\n" + host + kind + sized + body}, "200", `"token"`, key},
		"a proxy's request for another one": {[]string{"POST http://elsewhere/v1/acquire HTTP/1.1\r\n" + host + kind + sized + body}, "421", "HOST_UNKNOWN", ""},
		"another name":                      {[]string{line + "Host: elsewhere\r\n" + kind + sized + body}, "421", "HOST_UNKNOWN", ""},
		"a name with a user":                {[]string{line + "Host: localhost@elsewhere\r\n" + kind + sized + body}, "400", "", ""},
		"two names":                         {[]string{line + host + host + kind + sized + body}, "400", "", ""},
		"no name":                           {[]string{line + kind + sized + body}, "400", "", ""},
		"%2F":                               {at("/v1/locks/a%2Fb/acquire"), "200", `"token"`, "a/b"},
		"%2f..%2f":                          {at("/v1/locks/a%2f..%2fhealthz/acquire"), "200", `"token"`, "a/../healthz"},
		"%2E%2E":                            {at("/v1/locks/%2E%2E/acquire"), "200", `"token"`, ".."},
		"%252F":                             {at("/v1/locks/a%252Fb/acquire"), "200", `"token"`, "a%2Fb"},
		"%00":                               {at("/v1/locks/a%00b/acquire"), "400", "LOCK_INVALID", ""},
		"%0D%0A":                            {at("/v1/locks/a%0D%0AX:%20y/acquire"), "400", "LOCK_INVALID", ""},
		"%FF":                               {at("/v1/locks/%FF/acquire"), "400", "LOCK_INVALID", ""},
		"an overlong slash":                 {at("/v1/locks/a%C0%AFb/acquire"), "400", "LOCK_INVALID", ""},
		"..":                                {at("/v1/locks/x/../acquire"), "400", "REQUEST_INVALID", ""},
		"//":                                {at("/v1//acquire"), "400", "REQUEST_INVALID", ""},
		"// in front":                       {at("//v1/acquire"), "400", "REQUEST_INVALID", ""},
		"/./":                               {at("/v1/./acquire"), "400", "REQUEST_INVALID", ""},
		"a slash at the end":                {at("/v1/acquire/"), "404", "NOT_FOUND", ""},
		"an encoded slash of the route":     {at("/v1%2Facquire"), "404", "NOT_FOUND", ""},
		"an encoded letter of the route":    {at("/v1/locks/" + key + "/%61cquire"), "200", `"token"`, key},
		"a backslash":                       {at(`/v1\acquire`), "404", "NOT_FOUND", ""},
		"another case":                      {at("/V1/acquire"), "404", "NOT_FOUND", ""},
		"a parameter in the path":           {at("/v1/acquire;x=y"), "404", "NOT_FOUND", ""},
		"a bare percent sign":               {at("/v1/locks/%/acquire"), "400", "", ""},
		"an empty key":                      {at("/v1/locks//acquire"), "400", "REQUEST_INVALID", ""},

		// Heads.
		"a header with a bare return":   {[]string{line + host + "X: a\rb\r\n" + kind + sized + body}, "400", "", ""},
		"a header with a zero":          {[]string{line + host + "X: a\x00b\r\n" + kind + sized + body}, "400", "", ""},
		"a space before the colon":      {[]string{line + host + kind + "Content-Length : 2\r\n\r\n{}"}, "400", "", ""},
		"a folded header":               {[]string{line + host + "X: a\r\n b\r\n" + kind + sized + body}, "200", `"token"`, key},
		"HTTP/1.0":                      {[]string{"POST /v1/acquire HTTP/1.0\r\n" + kind + sized + body}, "200", `"token"`, key},
		"HTTP/3.0":                      {[]string{"POST /v1/acquire HTTP/3.0\r\n" + host + kind + sized + body}, "505", "", ""},
		"HTTP/0.9":                      {[]string{"POST /v1/acquire\r\n\r\n"}, "400", "", ""},
		"an upgrade to WebSocket":       {[]string{whole + "Upgrade: websocket\r\n" + sized + body}, "200", `"token"`, key},
		"an upgrade to HTTP/2":          {[]string{line + host + "Content-Type: application/json\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings, close\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n" + sized + body}, "200", `"token"`, key},
		"another method in a header":    {[]string{"GET /v1/acquire HTTP/1.1\r\n" + host + "X-HTTP-Method-Override: POST\r\n" + kind + sized + body}, "405", "METHOD_NOT_ALLOWED", ""},
		"two Idempotency-Keys":          {[]string{whole + "Idempotency-Key: a\r\nIdempotency-Key: b\r\n" + sized + body}, "400", "Idempotency-Key", ""},
		"an Idempotency-Key of 2 KB":    {[]string{whole + "Idempotency-Key: " + strings.Repeat("x", 2000) + "\r\n" + sized + body}, "400", "Idempotency-Key", ""},
		"a line of 1 MB without an end": {[]string{strings.Repeat("x", 1<<20)}, "431", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a := newReplica(t, store(), func(cfg *Config) { cfg.Hosts = nil })
				status, rest := a.raw(c.send...)
				got := ""
				if parts := strings.Fields(status); len(parts) > 1 {
					got = parts[1]
				}
				if got != c.status || !strings.Contains(rest, c.says) {
					t.Errorf("%q, %q; want %s with %q", status, rest, c.status, c.says)
				}
				taken := false
				for st, err := range a.locks.List(t.Context(), joblock.ListOptions{}) {
					testkit.WantNil(t, "List", err)
					if taken = taken || st.Key == c.held; st.Key != c.held {
						t.Errorf("%s is %s", st.Key, st.State)
					}
				}
				if c.held != "" && c.status != "100" && !taken && !strings.Contains(rest, "expires_at") {
					t.Errorf("%s is not held", c.held)
				}
				time.Sleep(3 * time.Second)
				for st := range a.locks.List(t.Context(), joblock.ListOptions{}) {
					t.Errorf("%s is %s after its lease", st.Key, st.State)
				}
			})
		})
	}
}

// An HTTP/2 client that resets its requests as fast as it sends them gets no lock for longer than the TTL, and the other
// clients are served.
func TestRapidReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		h := a.shut()
		for i := range 3000 {
			stream := h.next
			h.send("/v1/acquire", fmt.Sprintf(`{"key":"reset:%d","ttl_ms":2000,"wait_ms":1000}`, i))
			h.frame(http2Reset, 0, stream, 0, 0, 0, 8)
			if i%500 == 0 {
				a.post("/v1/release", object{"token": a.post("/v1/acquire", object{"key": key}).ok().text("token")}).ok()
			}
		}
		synctest.Wait()
		a.post("/v1/acquire", object{"key": key, "ttl_ms": 1000}).ok()
		time.Sleep(3 * time.Second)
		for st, err := range a.locks.List(t.Context(), joblock.ListOptions{}) {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// A client that has sent more behind the request of its stream, and then vanishes, is noticed all the same: the server
// cannot read on to see the end of the connection.
func TestStreamWithMoreBehindIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		conn, err := a.pipes.dial(t.Context(), "", "")
		testkit.WantNil(t, "dial", err)
		const body, ttl = `{"key":"` + key + `","ttl_ms":6000}`, 6 * time.Second
		go func() {
			_, _ = fmt.Fprintf(conn, "POST /v1/hold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			_, _ = io.WriteString(conn, "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\n")
		}()
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, conn)
		}()
		time.Sleep(10 * time.Second)
		a.wantState(key, joblock.StateHeld)
		_ = conn.Close()
		<-read
		time.Sleep(ttl)
		a.wantState(key, joblock.StateFree)
	})
}

// The time that a client takes to send its body is no time of its lock.
func TestBodyThatComesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		body := `{"key":"` + key + `","ttl_ms":30000}`
		head := fmt.Sprintf("POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", len(body))
		began := time.Now()
		_, rest := a.raw(head, body[:3], body[3:9], body[9:]) // a second between the parts
		_, text, _ := strings.Cut(rest, "\r\n\r\n")
		o := (&reply{T: t, status: 200, text: []byte(text)}).ok()
		trusted := began.Add(time.Duration(o.number("elapsed_ms")+o.number("valid_ms")) * time.Millisecond)
		if o.number("elapsed_ms") < 3000 || o.number("valid_ms") > 30_000 {
			t.Errorf("%v", o)
		}
		time.Sleep(time.Until(trusted) - time.Millisecond)
		a.wantState(key, joblock.StateHeld)
	})
}
