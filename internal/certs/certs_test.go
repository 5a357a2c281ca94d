package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// A shelf has the two files of a Pair, and what the Pair has reported.
type shelf struct {
	*testing.T
	cert, key string
	names     []net.IP // in the certificates that make returns
	told      []error
}

func newShelf(t *testing.T) *shelf {
	dir := t.TempDir()
	return &shelf{T: t, cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
}

// make returns a certificate with a number that is valid for so long, and its key.
func (s *shelf) make(number int64, valid time.Duration) (cert, key []byte) {
	s.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.WantNil(s, "GenerateKey", err)
	template := &x509.Certificate{SerialNumber: big.NewInt(number), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid), IPAddresses: s.names}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testkit.WantNil(s, "CreateCertificate", err)
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.WantNil(s, "MarshalPKCS8PrivateKey", err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})
}

func (s *shelf) write(name string, text []byte) {
	s.Helper()
	testkit.WantNil(s, "WriteFile", os.WriteFile(name, text, 0o600))
}

func (s *shelf) open() *Pair {
	s.Helper()
	p, err := Open(s.cert, s.key, func(err error) { s.told = append(s.told, err) })
	testkit.WantNil(s, "Open", err)
	return p
}

// wants looks at the files after the pause between two looks.
func (s *shelf) wants(p *Pair, number int64) {
	s.Helper()
	p.mu.Lock()
	p.checked = time.Time{}
	p.mu.Unlock()
	got, err := p.Get()
	testkit.WantNil(s, "Get", err)
	if got.Leaf.SerialNumber.Int64() != number {
		s.Errorf("the certificate has the number %s, want %d", got.Leaf.SerialNumber, number)
	}
}

// The certificate is that of the files. Half a change counts for nothing.
func TestChangedFiles(t *testing.T) {
	s := newShelf(t)
	cert, key := s.make(1, time.Hour)
	s.write(s.cert, cert)
	s.write(s.key, key)
	p := s.open()
	s.wants(p, 1)
	cert, key = s.make(2, time.Hour)
	s.write(s.cert, cert)
	s.wants(p, 1) // with the key of the first one
	s.wants(p, 1)
	if len(s.told) != 1 || s.told[0] == nil {
		t.Errorf("got %v, want one reason", s.told)
	}
	s.write(s.key, key)
	s.wants(p, 2)
	if len(s.told) != 2 || s.told[1] != nil {
		t.Errorf("got %v, want nil at last", s.told)
	}
	testkit.WantNil(t, "Remove", os.Remove(s.key))
	s.wants(p, 2)
	if len(s.told) != 3 || !errors.Is(s.told[2], fs.ErrNotExist) {
		t.Errorf("got %v", s.told)
	}
	cert, key = s.make(3, time.Hour)
	for name, text := range map[string][]byte{s.cert: cert, s.key: key} { // as a Kubernetes volume does: another file
		s.write(name+".new", text)
		testkit.WantNil(t, "Rename", os.Rename(name+".new", name))
	}
	s.wants(p, 3)
}

// A change is seen that leaves the size and the time of the files as they were, as the clocks of file systems are coarse.
func TestChangeInTheSameInstant(t *testing.T) {
	s := newShelf(t)
	at := time.Now()
	write := func(number int64) {
		t.Helper()
		cert, key := s.make(number, time.Hour)
		for name, text := range map[string][]byte{s.cert: cert, s.key: key} {
			s.write(name, append(text, bytes.Repeat([]byte("\n"), 2000-len(text))...))
			testkit.WantNil(t, "Chtimes", os.Chtimes(name, at, at))
		}
	}
	write(1)
	p := s.open()
	write(2)
	s.wants(p, 2)
}

// The files are not looked at more often than need be.
func TestLooksAreRare(t *testing.T) {
	s := newShelf(t)
	cert, key := s.make(1, time.Hour)
	s.write(s.cert, cert)
	s.write(s.key, key)
	p := s.open()
	p.checked = time.Now().Add(time.Hour) // just looked
	cert, key = s.make(2, time.Hour)
	s.write(s.cert, cert)
	s.write(s.key, key)
	if got, err := p.Get(); err != nil || got.Leaf.SerialNumber.Int64() != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// A certificate that has expired is not used in silence.
func TestExpired(t *testing.T) {
	s := newShelf(t)
	cert, key := s.make(1, -time.Minute)
	s.write(s.cert, cert)
	s.write(s.key, key)
	p := s.open()
	s.wants(p, 1) // it is what the files say
	s.write(s.key, []byte("nothing"))
	p.checked = time.Time{}
	if got, err := p.Get(); err == nil {
		t.Errorf("%v, want why the files cannot be read", got)
	}
}

func TestBadFiles(t *testing.T) {
	s := newShelf(t)
	if _, err := Open(s.cert, s.key, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	cert, _ := s.make(1, time.Hour)
	_, key := s.make(2, time.Hour)
	s.write(s.cert, cert)
	s.write(s.key, key)
	if _, err := Open(s.cert, s.key, nil); err == nil {
		t.Error("a certificate with the key of another one")
	}
}
