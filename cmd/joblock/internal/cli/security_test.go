package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
)

// A command that goes on for long trusts whom --tls-ca names by now: new connections follow the file, those that are open
// stay, and a bad file changes nothing and is logged.
func TestAuthoritiesOfRedisThatChange(t *testing.T) {
	t.Parallel()
	_, files := redistest.StartTLS(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.WantNil(t, "GenerateKey", err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	testkit.WantNil(t, "CreateCertificate", err)
	other := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write := func(text []byte) { testkit.WantNil(t, "WriteFile", os.WriteFile(ca, text, 0o600)) }
	write(other)
	var read, bad atomic.Int64
	s := &server{ca: ca, cert: files.ClientFile, key: files.ClientKeyFile, url: "rediss://" + files.Addr, timeout: 5 * time.Second, changed: func(flags string, err error) {
		if flags != "--tls-ca" {
			t.Errorf("changed: %s", flags)
		}
		if err != nil {
			bad.Add(1)
			return
		}
		read.Add(1)
	}}
	ping := func() error {
		rdb, err := s.client(os.Getenv)
		testkit.WantNil(t, "client", err)
		defer rdb.Close()
		return rdb.Ping(context.Background()).Err()
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what + ": not within 30 s")
			}
		}
	}
	if ping() == nil {
		t.Error("a server whose authority is not in the file")
	}
	open, err := s.client(os.Getenv)
	testkit.WantNil(t, "client", err)
	defer open.Close()
	authorities, err := os.ReadFile(files.RootsFile)
	testkit.WantNil(t, "ReadFile", err)
	write(authorities)
	until("the server is trusted", func() bool { return open.Ping(context.Background()).Err() == nil })
	testkit.WantNil(t, "a new connection", ping())
	write([]byte("nothing"))
	until("the bad file is logged", func() bool {
		testkit.WantNil(t, "with a bad file", ping())
		return bad.Load() == 1
	})
	write(other)
	until("the server is not trusted any more", func() bool { return ping() != nil })
	testkit.WantNil(t, "the connection that is open", open.Ping(context.Background()).Err())
	if read.Load() != 2 || bad.Load() != 1 {
		t.Errorf("reported %d changes that count and %d that do not, want 2 and 1", read.Load(), bad.Load())
	}
}
