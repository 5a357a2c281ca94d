package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// A server that lets anybody in, or whose tokens would travel in the clear, listens on loopback only.
func TestListen(t *testing.T) {
	path, _ := accountsFile(t, `"scopes": ["lock"]`)
	open, closed := newReplica(t, store()).s, newReplica(t, store(), withAccounts(t, path)).s
	for _, c := range []struct {
		s    *Server
		cfg  ListenConfig
		says string // "": allowed
	}{
		{open, ListenConfig{Address: "127.0.0.1:0"}, ""},
		{open, ListenConfig{Address: "localhost:0"}, ""},
		{open, ListenConfig{Address: ":0"}, "every caller is admitted"},
		{open, ListenConfig{Address: "0.0.0.0:0"}, "every caller is admitted"},
		{open, ListenConfig{Address: "0.0.0.0:0", Insecure: true}, ""},
		{closed, ListenConfig{Address: "0.0.0.0:0"}, "in the clear"},
		{closed, ListenConfig{Address: "example.com:0"}, "in the clear"},
		{closed, ListenConfig{Address: "127.0.0.1:0"}, ""},
		{closed, ListenConfig{Address: "8080"}, "must be host:port"},
		{closed, ListenConfig{Address: "127.0.0.1:0", CertFile: "x"}, "must be set together"},
		{closed, ListenConfig{Address: "127.0.0.1:0", ClientCAFile: "x"}, "needs CertFile"},
		{closed, ListenConfig{Address: "127.0.0.1:0", CertFile: path, KeyFile: path}, "the certificate"},
	} {
		l, err := c.s.Listen(c.cfg)
		if l != nil {
			testkit.WantNil(t, "Close", l.Close())
		}
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.says)
		}
	}
}

// Over TLS, on a real socket, a client is known by its certificate or by its token, with HTTP/1.1 and with HTTP/2.
func TestServeOverTLS(t *testing.T) {
	dir := t.TempDir()
	ca, caKey := issue(t, dir, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	issue(t, dir, "server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ca, caKey)
	issue(t, dir, "client", &x509.Certificate{DNSNames: []string{"billing.internal"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca, caKey)
	path, token := accountsFile(t, `"certificate": "billing.internal", "scopes": ["lock"]`)
	a := newReplica(t, store(), withAccounts(t, path))
	file := func(name string) string { return filepath.Join(dir, name) }
	l, err := a.s.Listen(ListenConfig{Address: "127.0.0.1:0", CertFile: file("server.pem"), KeyFile: file("server.key"), ClientCAFile: file("ca.pem")})
	testkit.WantNil(t, "Listen", err)
	hs := HTTPServer(a.s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	defer func() {
		_ = hs.Close()
		<-served
	}()
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	pair, err := tls.LoadX509KeyPair(file("client.pem"), file("client.key"))
	testkit.WantNil(t, "LoadX509KeyPair", err)
	for name, c := range map[string]struct {
		certs  []tls.Certificate
		bearer string
		http2  bool
		status int
	}{
		"certificate":            {[]tls.Certificate{pair}, "", false, 200},
		"certificate, HTTP/2":    {[]tls.Certificate{pair}, "", true, 200},
		"token":                  {nil, token, false, 200},
		"token, HTTP/2":          {nil, token, true, 200},
		"neither":                {nil, "", true, 401},
		"certificate, bad token": {[]tls.Certificate{pair}, token + "x", true, 401},
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: c.certs}, ForceAttemptHTTP2: c.http2}
		client := &http.Client{Transport: transport, Timeout: hang}
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+l.Addr().String()+"/v1/me", nil)
		testkit.WantNil(t, "NewRequest", err)
		if c.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+c.bearer)
		}
		res, err := client.Do(r)
		testkit.WantNil(t, name, err)
		_ = res.Body.Close()
		if res.StatusCode != c.status || (res.ProtoMajor == 2) != c.http2 {
			t.Errorf("%s: %s %s", name, res.Proto, res.Status)
		}
		transport.CloseIdleConnections()
	}
}

// A connection that comes after the files of the certificate have changed gets the new one. Half a change does no harm.
func TestCertificateThatChanges(t *testing.T) {
	dir := t.TempDir()
	ca, caKey := issue(t, dir, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	own := func() *x509.Certificate { return &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}} }
	first, _ := issue(t, dir, "server", own(), ca, caKey)
	file := func(name string) string { return filepath.Join(dir, name) }
	a := newReplica(t, store())
	l, err := a.s.Listen(ListenConfig{Address: "127.0.0.1:0", CertFile: file("server.pem"), KeyFile: file("server.key")})
	testkit.WantNil(t, "Listen", err)
	hs := HTTPServer(a.s)
	hs.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	defer func() {
		_ = hs.Close()
		<-served
	}()
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	shown := func() *x509.Certificate {
		t.Helper()
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots})
		testkit.WantNil(t, "Dial", err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0]
	}
	if !shown().Equal(first) {
		t.Error("the certificate is not that of the files")
	}
	second, _ := issue(t, dir, "server", own(), ca, caKey)
	for began := time.Now(); !shown().Equal(second); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > hang {
			t.Fatal("the certificate stays that from before")
		}
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(file("server.key"), []byte("half"), 0o600))
	for began := time.Now(); !strings.Contains(a.log.String(), "changed certificate is invalid"); time.Sleep(20 * time.Millisecond) {
		if !shown().Equal(second) || time.Since(began) > hang {
			t.Fatal("half a change counts, or is not reported")
		}
	}
}

// A connection that comes after the file of the clients' authorities has changed is judged by the new ones, also if it
// would resume a session from before. A bad change does no harm.
func TestAuthoritiesThatChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	authority := func(name string) (*x509.Certificate, *ecdsa.PrivateKey) {
		return issue(t, dir, name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	}
	old, oldKey := authority("old")
	fresh, freshKey := authority("fresh")
	_, _ = issue(t, dir, "server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, old, oldKey)
	for name, ca := range map[string]*x509.Certificate{"before": old, "after": fresh} {
		_, _ = issue(t, dir, name, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca, map[string]*ecdsa.PrivateKey{"before": oldKey, "after": freshKey}[name])
	}
	text := func(name string) []byte {
		text, err := os.ReadFile(file(name))
		testkit.WantNil(t, "ReadFile", err)
		return text
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(file("clients.pem"), text("old.pem"), 0o600))
	a := newReplica(t, store())
	l, err := a.s.Listen(ListenConfig{Address: "127.0.0.1:0", CertFile: file("server.pem"), KeyFile: file("server.key"), ClientCAFile: file("clients.pem")})
	testkit.WantNil(t, "Listen", err)
	hs := HTTPServer(a.s)
	hs.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	defer func() {
		_ = hs.Close()
		<-served
	}()
	roots := x509.NewCertPool()
	roots.AddCert(old)
	sessions := tls.NewLRUClientSessionCache(4)
	// accepted asks with the certificate called name. With TLS 1.3 a refusal comes after the handshake.
	accepted := func(name string) (ok, resumed bool) {
		t.Helper()
		pair, err := tls.LoadX509KeyPair(file(name+".pem"), file(name+".key"))
		testkit.WantNil(t, "LoadX509KeyPair", err)
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ClientSessionCache: sessions,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }})
		if err != nil {
			return false, false
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		_, err = io.ReadAll(conn)
		return err == nil, conn.ConnectionState().DidResume
	}
	if ok, _ := accepted("before"); !ok {
		t.Error("the certificate is not accepted")
	}
	if ok, resumed := accepted("before"); !ok || !resumed {
		t.Errorf("%t, %t, want a session that is resumed", ok, resumed)
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(file("clients.pem"), []byte("half"), 0o600))
	for began := time.Now(); !strings.Contains(a.log.String(), "changed client CA file is invalid"); time.Sleep(20 * time.Millisecond) {
		if ok, _ := accepted("before"); !ok || time.Since(began) > hang {
			t.Fatal("half a change counts, or is not reported")
		}
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(file("clients.pem"), text("fresh.pem"), 0o600))
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if ok, _ := accepted("before"); !ok {
			break
		}
		if time.Since(began) > hang {
			t.Fatal("the authorities stay those from before")
		}
	}
	sessions = tls.NewLRUClientSessionCache(4)
	if ok, _ := accepted("after"); !ok {
		t.Error("a certificate of the new authority is not accepted")
	}
}

// issue writes a certificate and its key into dir.
func issue(t *testing.T, dir, name string, template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.WantNil(t, "GenerateKey", err)
	template.Subject, template.SerialNumber = pkix.Name{CommonName: name}, big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	testkit.WantNil(t, "CreateCertificate", err)
	cert, err := x509.ParseCertificate(der)
	testkit.WantNil(t, "ParseCertificate", err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	testkit.WantNil(t, "MarshalPKCS8PrivateKey", err)
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		testkit.WantNil(t, "WriteFile", os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600))
	}
	return cert, key
}
