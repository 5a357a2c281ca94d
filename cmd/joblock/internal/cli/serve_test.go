//go:build linux

package cli

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// serverProcess is a process of "joblock serve".
type serverProcess struct {
	*process
	url    string
	token  string // the bearer token of a client
	client *http.Client
}

// serve starts "joblock serve" with flags, and waits until it listens.
func (s *stage) serve(flags ...string) *serverProcess {
	s.Helper()
	if !slices.Contains(flags, "--listen") {
		flags = append(flags, "--listen", "127.0.0.1:0")
	}
	args := append([]string{"serve", "--drain-timeout", "30s"}, flags...)
	if !slices.Contains(flags, "--demo") {
		args = append(args, "--prefix", s.prefix())
	}
	p := &serverProcess{process: s.launch("serve", s.joblock(args...)), client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}}
	s.Cleanup(p.client.CloseIdleConnections)
	s.until("serve listens", func() bool {
		select {
		case <-p.done:
			s.Fatalf("serve has ended: %s", p.stderr)
		default:
		}
		return strings.HasSuffix(p.stdout.String(), "\n")
	})
	var ok bool
	if p.url, ok = strings.CutPrefix(strings.TrimSpace(p.stdout.String()), "export "+envServer+"="); !ok {
		s.Fatalf("serve wrote %q", p.stdout)
	}
	return p
}

type object = map[string]any

// ask sends a request, and returns the status and the object of the answer.
func (p *serverProcess) ask(method, path string, body any) (int, object) {
	p.Helper()
	res, err := p.send(method, path, body)
	if err != nil {
		p.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.Fatal(err)
	}
	o := object{}
	_ = json.Unmarshal(text, &o)
	return res.StatusCode, o
}

func (p *serverProcess) send(method, path string, body any) (*http.Response, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(p.Context(), method, p.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if p.token != "" {
		r.Header.Set("Authorization", "Bearer "+p.token)
	}
	return p.client.Do(r)
}

// wants sends a request whose answer has the status.
func (p *serverProcess) wants(status int, method, path string, body any) object {
	p.Helper()
	got, o := p.ask(method, path, body)
	if got != status {
		p.Errorf("%s %s: %d %v, want %d", method, path, got, o, status)
	}
	return o
}

// streams begins a hold, and returns the lines of the stream.
func (p *serverProcess) streams(body object) (next func(kind string) object) {
	p.Helper()
	return p.streamsAt("/v1/hold", body)
}

func (p *serverProcess) streamsAt(path string, body object) (next func(kind string) object) {
	p.Helper()
	res, err := p.send(http.MethodPost, path, body)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = res.Body.Close() })
	lines := bufio.NewScanner(res.Body)
	return func(kind string) object {
		p.Helper()
		for lines.Scan() {
			var o object
			if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
				p.Fatal(err)
			}
			if o["type"] == kind {
				return o
			}
		}
		p.Fatalf("the stream has ended without %s: %v", kind, lines.Err())
		return nil
	}
}

// certificate writes a new certificate for localhost, and returns the names of its files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject:  pkix.Name{CommonName: "localhost"}, // without one, curl takes no authority
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// account makes an account with "token new", and returns its token.
func account(t *testing.T, file, name, scopes string, flags ...string) string {
	t.Helper()
	a := ask(t, append([]string{"token", "new", "--name", name, "--scopes", scopes, "--accounts", file}, flags...)...).wants(exitOK)
	return strings.TrimSpace(a.out)
}

// Each row is what can happen around "joblock serve".
func TestServe(t *testing.T) {
	redis := redistest.Start(t)
	for name, row := range map[string]func(*stage){
		"a lock by HTTP, and TERM": func(s *stage) {
			p := s.serve()
			lock := p.wants(200, "POST", "/v1/acquire", object{"key": key, "ttl_ms": 60_000})
			if st := s.status(); st.State != joblock.StateHeld || !strings.Contains(st.Holder, "joblock serve") {
				s.Errorf("%+v", st)
			}
			p.wants(200, "GET", "/readyz", nil)
			p.signal(syscall.SIGTERM)
			p.exits(0)
			if s.status().State != joblock.StateHeld {
				s.Error("the end of the server has ended a lock")
			}
			again := s.serve()
			again.wants(200, "POST", "/v1/release", object{"token": lock["token"]})
			for _, said := range []string{p.stderr.String(), again.stderr.String()} {
				if strings.Contains(said, lock["token"].(string)) {
					s.Errorf("the log has the token: %s", said)
				}
			}
		},
		"a task with a lock": func(s *stage) {
			p := s.serve()
			done := p.wants(201, "POST", "/v1/enqueue", object{"key": key, "type": "export", "queue": s.Name(), "task_id": "1"})
			if st := s.status(); st.State != joblock.StateParked || done["task_id"] != "1" {
				s.Errorf("%v; the lock: %+v", done, st)
			}
		},
		"a deploy with streams": func(s *stage) {
			a, b := s.serve(), s.serve()
			next := a.streams(object{"key": key, "ttl_ms": 30_000})
			next("lock-acquired")
			rival := s.start("b", "obeys", "--ttl", "60s")
			s.inLine(1)
			a.signal(syscall.SIGTERM)
			token := next("draining")["token"]
			a.exits(0)
			if st := s.status(); st.State != joblock.StateParked {
				s.Errorf("%+v, want the lock to be parked", st)
			}
			b.streams(object{"token": token})("lock-acquired")
			if st := s.status(); st.State != joblock.StateHeld || st.Waiters != 1 {
				s.Errorf("%+v, want it held, with the same waiter", st)
			}
			rival.signal(syscall.SIGTERM)
			rival.exits(143)
		},
		"kill -9": func(s *stage) {
			p := s.serve()
			p.streams(object{"key": key, "ttl_ms": 2000})("lock-acquired")
			p.signal(syscall.SIGKILL)
			p.exits(-9)
			s.until("the lock is free", func() bool { return s.status().State == joblock.StateFree })
		},
		"a second TERM": func(s *stage) {
			p := s.serve("--drain-delay", "10m")
			p.signal(syscall.SIGTERM)
			s.until("it is not ready", func() bool { status, _ := p.ask("GET", "/readyz", nil); return status == 503 })
			p.wants(200, "POST", "/v1/acquire", object{"key": key}) // short requests are still served
			p.signal(syscall.SIGTERM)
			p.exits(143)
		},
		"a client that is not done in time": func(s *stage) {
			p := s.serve("--drain-timeout", "300ms")
			conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
			if err != nil {
				s.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\nExpect: 100-continue\r\n\r\n")
			if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil { // "100 Continue": the handler reads the body
				s.Fatal(err)
			}
			p.signal(syscall.SIGTERM)
			p.exits(70)
			p.says("shutdown failed")
		},
		"--check": func(s *stage) {
			p := s.serve()
			listen := strings.TrimPrefix(p.url, "http://")
			check := func(code int, says string) {
				c := s.launch("check", s.joblock("serve", "--check", "--listen", listen))
				c.exits(code)
				c.says(says)
			}
			check(0, "")
			s.proxy.Refuse()
			s.until("it is not ready", func() bool { status, _ := p.ask("GET", "/readyz", nil); return status == 503 })
			check(69, "is not ready: 503")
			p.wants(200, "GET", "/healthz", nil)
			s.proxy.Heal()
			s.until("it is ready", func() bool { status, _ := p.ask("GET", "/readyz", nil); return status == 200 })
			p.signal(syscall.SIGINT)
			p.exits(0)
			check(69, "no answer")
		},
		"Redis comes later": func(s *stage) {
			s.proxy.Refuse()
			p := s.serve("--timeout", "300ms")
			p.wants(503, "POST", "/v1/acquire", object{"key": key})
			s.proxy.Heal()
			s.until("a lock is granted", func() bool { status, _ := p.ask("POST", "/v1/acquire", object{"key": key}); return status == 200 })
		},
		"TLS and accounts, beyond this machine": func(s *stage) {
			cert, certKey := certificate(s.T)
			file := filepath.Join(s.TempDir(), "accounts.json")
			billing := account(s.T, file, "billing", "lock,read", "--prefixes", "billing:,export:", "--expires", "1h")
			p := s.serve("--listen", ":0", "--cert", cert, "--key", certKey, "--accounts", file, "--log-format", "json", "--scope", "shop")
			p.wants(401, "GET", "/v1/me", nil)
			p.token = billing
			me := p.wants(200, "GET", "/v1/me", nil)
			if me["id"] != "billing" || fmt.Sprint(me["scopes"]) != "[read lock]" || me["expires"] == nil {
				s.Errorf("%v", me)
			}
			p.wants(200, "POST", "/v1/acquire", object{"key": key})
			p.wants(403, "POST", "/v1/acquire", object{"key": "other"})
			p.token = account(s.T, file, "ops", "operate")
			s.until("the new account is known", func() bool { status, _ := p.ask("GET", "/v1/me", nil); return status == 200 })
			if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), billing) || strings.Contains(p.stderr.String(), billing) {
				s.Errorf("%v, or a file or the log has a token: %s %s", err, text, p.stderr)
			}
			listen := ":" + p.url[strings.LastIndex(p.url, ":")+1:]
			s.launch("check", s.joblock("serve", "--check", "--listen", listen, "--cert", cert, "--key", certKey)).exits(0)
		},
		"other lock APIs": func(s *stage) {
			p := s.serve("--dapr", "redis=dapr:", "--saasignal", "--terraform", "--dapr-alpha2", "/v1.0-alpha2=shop:", "--dapr-alpha2", "/v1.0-alpha2-b=b:",
				"--dapr-alpha2-stream", "/streams/dapr=stream:", "--dapr-max-hold", "2s", "--forrst", "/rpc")
			held := func(key string) joblock.Status {
				st, err := s.locks.Status(s.Context(), key)
				if err != nil {
					s.Fatal(err)
				}
				return st[0]
			}
			first := p.wants(200, "POST", "/v1.0-alpha2/lock/r", object{"ttl": "1s"})
			p.wants(409, "POST", "/v1.0-alpha2/lock/r", object{"ttl": "1s", "immediate": true})
			p.wants(200, "POST", "/v1.0-alpha2-b/lock/r", object{"ttl": "1m"})
			if st := held("shop:r"); st.State != joblock.StateHeld {
				s.Errorf("%+v", st)
			}
			p.wants(404, "DELETE", "/v1.0-alpha2/lock/r", object{"lockID": "1.1.x"})
			s.until("a lock without an unlock has ended", func() bool { return held("shop:r").State == joblock.StateFree })
			p.wants(404, "DELETE", "/v1.0-alpha2/lock/r", object{"lockID": first["lockID"]})
			p.streamsAt("/streams/dapr/lock/r", object{"ttl": "10s"})("lock-acquired")
			if st := held("stream:r"); st.State != joblock.StateHeld {
				s.Errorf("%+v", st)
			}
			call := object{"protocol": object{"name": "forrst", "version": "0.1.0"}, "id": "1", "call": object{
				"function": "urn:cline:forrst:ext:atomic-lock:fn:status", "version": "1.0.0", "arguments": object{"key": "lock:a"},
			}}
			if o := p.wants(200, "POST", "/rpc", call); fmt.Sprint(o["result"].(object)["locked"]) != "false" {
				s.Errorf("%v", o)
			}
			p.wants(404, "POST", "/rpc/x", call)
			if o := p.wants(200, "POST", "/v1.0-alpha1/lock/redis", object{"resourceId": "r", "lockOwner": "me", "expiryInSeconds": 60}); o["success"] != true {
				s.Errorf("%v", o)
			}
			p.wants(200, "POST", "/infra/locks/a/acquire", object{"ttl_ms": 1000, "holder_id": "me"})
			p.wants(200, "LOCK", "/terraform/network", object{"ID": "1", "Who": "me"})
			p.wants(400, "GET", "/terraform/../v1/me", nil)
			p.wants(200, "POST", "/v1/acquire", object{"key": key})
			plain := s.serve("--pages=false")
			for _, path := range []string{"/v1.0-alpha1/lock/redis", "/infra/locks/a/acquire", "/v1.0-alpha2/lock/r", "/rpc"} {
				plain.wants(404, "POST", path, object{})
			}
		},
		"pages for people": func(s *stage) {
			p := s.serve("--host", "locks.internal")
			for host, status := range map[string]int{"locks.internal": 200, "evil.example": 421} {
				r, err := http.NewRequest(http.MethodGet, p.url+"/", nil)
				if err != nil {
					s.Fatal(err)
				}
				r.Host = host
				res, err := p.client.Do(r)
				if err != nil {
					s.Fatal(err)
				}
				_ = res.Body.Close()
				if res.StatusCode != status || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
					s.Errorf("%s: %s %s, want %d", host, res.Status, res.Header.Get("Content-Type"), status)
				}
			}
		},
		"the keeper": func(s *stage) {
			p := s.serve("--keeper")
			s.until("a keeper works", func() bool {
				_, o := p.ask("GET", "/v1/keeper", nil)
				places, _ := o["places"].([]any)
				return len(places) == 1 && places[0].(object)["works"] == true
			})
			p.signal(syscall.SIGTERM)
			p.exits(0)
		},
		"--demo": func(s *stage) {
			p := s.serve("--demo")
			p.wants(200, "GET", "/v1/lock?key=deploy:shop", nil)
			s.until("cron jobs are seen", func() bool {
				_, o := p.ask("GET", "/v1/cron", nil)
				items, _ := o["items"].([]any)
				return len(items) == 5
			})
			p.signal(syscall.SIGINT)
			p.exits(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis))
		})
	}
}

func TestServeOfBadUsage(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	bad := filepath.Join(t.TempDir(), "accounts.json")
	if err := os.WriteFile(bad, []byte(`{"accounts":[{"id":"a"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cert, certKey := certificate(t)
	for _, row := range []struct {
		code int
		says string
		args []string
	}{
		{64, "too many", []string{"x"}},
		{64, "host:port", []string{"--listen", "7420"}},
		{64, "every caller is admitted", []string{"--listen", ":0"}},
		{64, "every caller is admitted", []string{"--listen", ":0", "--cert", cert, "--key", certKey}},
		{64, "must be used together", []string{"--cert", cert}},
		{64, "the certificate", []string{"--cert", certKey, "--key", certKey}},
		{64, "neither a regular file nor a pipe", []string{"--cert", "/dev/zero", "--key", "/dev/zero"}},
		{64, "neither a regular file nor a pipe", []string{"--accounts", "/dev/zero"}},
		{64, "whose writer has not finished", []string{"--cert", pipe, "--key", pipe}},
		{64, "whose writer has not finished", []string{"--accounts", pipe}},
		{64, "--accounts", []string{"--accounts", bad}},
		{64, "--accounts", []string{"--accounts", bad + "x"}},
		{64, "--max-wait is 2h", []string{"--max-wait", "2h"}},
		{64, "--max-ttl is 1s", []string{"--max-ttl", "1s"}},
		{64, "Config.Rate", []string{"--rate", "-1"}},
		{64, "Config.MaxWaiting ", []string{"--max-waiting", "-1"}},
		{64, "NAME=PREFIX", []string{"--dapr", "x"}},
		{64, "twice", []string{"--dapr", "x=a", "--dapr", "x=b"}},
		{64, "PATH=PREFIX", []string{"--dapr-alpha2", "/x"}},
		{64, "must be like /locks", []string{"--dapr-alpha2", "x="}},
		{64, "must be like /locks", []string{"--dapr-alpha2-stream", "/x/=y"}},
		{64, "must be like /locks", []string{"--forrst", "/a/../v1"}},
		{64, "must be like /locks", []string{"--forrst", "/"}},
		{64, "\"/v1\" already", []string{"--forrst", "/v1/locks"}},
		{64, "\"/b\" already", []string{"--forrst", "/b", "--forrst", "/b"}},
		{64, "\"/a\" already", []string{"--dapr-alpha2", "/a=x", "--dapr-alpha2-stream", "/a/b=y"}},
		{64, "--dapr-max-hold is 1ms", []string{"--dapr-alpha2", "/a=x", "--dapr-max-hold", "1ms"}},
		{64, "needs --dapr-alpha2", []string{"--dapr-max-hold", "1m"}},
		{64, "--server makes no sense", []string{"--server", "http://localhost:7420"}},
		{64, "--server-token-file makes no sense", []string{"--server-token-file", "x"}},
		{64, "--log-format", []string{"--log-format", "x"}},
		{64, "--log-level", []string{"--log-level", "x"}},
		{64, "--demo", []string{"--demo", "--keeper"}},
		{64, "--metrics-listen is \"9090\", must be host:port", []string{"--metrics-listen", "9090"}},
		{64, "asks for no token", []string{"--listen", "127.0.0.1:0", "--metrics-listen", ":0"}},
		{64, "asks for no token", []string{"--listen", "127.0.0.1:0", "--metrics-listen", "metrics.example:0"}},
		{64, "--metrics-groups", []string{"--metrics-groups", "each"}},
		{70, "--metrics-listen: listen", []string{"--listen", "127.0.0.1:0", "--metrics-listen", taken.Addr().String()}},
		{64, "--drain-delay", []string{"--drain-delay", "-1s"}},
		{64, "password", []string{"--redis", "redis://:secret@localhost"}},
		{70, "address already in use", []string{"--listen", taken.Addr().String()}},
	} {
		t.Run(strings.Join(row.args, " "), func(t *testing.T) {
			t.Parallel()
			s := &stage{T: t, res: newResource(t)}
			p := s.launch("serve", s.joblockAt("redis://127.0.0.1:1", append([]string{"serve"}, row.args...)...))
			p.exits(row.code)
			p.says(row.says)
			if p.stdout.String() != "" {
				t.Errorf("it wrote %q", p.stdout)
			}
		})
	}
}

func TestTokenNew(t *testing.T) {
	dir := t.TempDir()
	file, out := filepath.Join(dir, "accounts.json"), filepath.Join(dir, "token")
	first := ask(t, "token", "new", "--name", "a", "--scopes", "lock").wants(exitOK)
	lines := strings.Split(strings.TrimSpace(first.out), "\n")
	var line fileAccount
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "jl_a_") || json.Unmarshal([]byte(lines[1]), &line) != nil || len(line.SHA256) != 64 || strings.Contains(lines[1], lines[0]) {
		t.Errorf("%q", first.out)
	}
	if err := os.WriteFile(file, []byte(`{"accounts":[`+lines[1]+`]}`), 0o640); err != nil {
		t.Fatal(err)
	}
	ask(t, "token", "new", "--name", "b", "--scopes", "lock,read", "--prefixes", "x:", "--queues", "q", "--expires", "2999-01-02",
		"--accounts", file, "--out", out).wants(exitOK).lacks("jl_")
	token, err := os.ReadFile(out)
	if info, serr := os.Stat(out); err != nil || serr != nil || info.Mode().Perm() != 0o600 || !strings.HasPrefix(string(token), "jl_b_") {
		t.Errorf("%v %v %q", err, serr, token)
	}
	before, err := os.ReadFile(file)
	if info, serr := os.Stat(file); err != nil || serr != nil || info.Mode().Perm() != 0o640 ||
		!strings.Contains(string(before), line.SHA256) || !strings.Contains(string(before), `"2999-01-02T00:00:00Z"`) {
		t.Errorf("%v %v %s", err, serr, before)
	}
	// A prefix that covers more than it seems to is said.
	ask(t, "token", "new", "--name", "c", "--scopes", "lock", "--prefixes", "billing:,ab").wants(exitOK, "ab covers longer names too, such as the key abx:1; end it with a separator, such as ab:").lacks("billing: covers")
	for says, args := range map[string][]string{
		"required":               {"--name", "x"},
		"character 'X'":          {"--name", "X", "--scopes", "lock"},
		"the scope is \"fly\"":   {"--name", "x", "--scopes", "fly"},
		"prefixes has no prefix": {"--name", "x", "--scopes", "lock", "--prefixes", "a,"},
		"in the future":          {"--name", "x", "--scopes", "lock", "--expires", "-1h"},
		"must be a length":       {"--name", "x", "--scopes", "lock", "--expires", "soon"},
		"the id b appears twice": {"--name", "b", "--scopes", "lock", "--accounts", file, "--out", out + "2"},
		"already exists":         {"--name", "x", "--scopes", "lock", "--accounts", file, "--out", out},
		"no such file":           {"--name", "x", "--scopes", "lock", "--accounts", filepath.Join(dir, "none", "f")},
	} {
		ask(t, append([]string{"token", "new"}, args...)...).wants(exitUsage, says).lacks("jl_x")
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v; a refused account has changed the file: %s", err, after)
	}
	if _, err := os.Stat(out + "2"); err == nil {
		t.Error("a token without an account is left")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%v, files: %v", err, left)
	}
}

// Many at a time add accounts to a file, and none is lost.
func TestTokenNewAtTheSameTime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "accounts.json")
	const n = 8
	made := make(chan bool, n)
	for i := range n {
		go func() {
			for {
				var out bytes.Buffer
				code := Main([]string{"joblock", "token", "new", "--name", fmt.Sprint("a", i), "--scopes", "lock", "--accounts", file}, strings.NewReader(""), &out, &out)
				if code != exitBusy {
					made <- code == exitOK
					return
				}
			}
		}()
	}
	ok := 0
	for range n {
		if <-made {
			ok++
		}
	}
	var all struct{ Accounts []fileAccount }
	text, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(text, &all) != nil || len(all.Accounts) != ok || ok != n {
		t.Errorf("%v; %d made, the file: %s", err, ok, text)
	}
}
