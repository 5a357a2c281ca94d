package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// A connection that begins after the file of the authorities has changed trusts the new ones. It speaks HTTP/2 as before.
func TestAuthoritiesThatChange(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.WantNil(t, "GenerateKey", err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	other, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	testkit.WantNil(t, "CreateCertificate", err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(der []byte) {
		t.Helper()
		testkit.WantNil(t, "WriteFile", os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	}
	write(other)
	c, err := New(Config{URLs: []string{srv.URL}, CAFile: file})
	testkit.WantNil(t, "New", err)
	defer func() { testkit.WantNil(t, "Close", c.Close(t.Context())) }()
	get := func() (string, error) {
		res, err := c.http.Get(srv.URL)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return string(text), err
	}
	if proto, err := get(); err == nil {
		t.Errorf("%s from a server whose authority is not in the file", proto)
	}
	write(srv.Certificate().Raw)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		proto, err := get()
		if err == nil {
			if proto != "HTTP/2.0" {
				t.Errorf("the connection speaks %s", proto)
			}
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal(err)
		}
	}
}
