package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// look returns the authorities after the pause between two looks at the file.
func look(p *Pool) *x509.CertPool {
	p.mu.Lock()
	p.checked = time.Time{}
	p.mu.Unlock()
	return p.Get()
}

// poolOf returns the authorities of texts in PEM form.
func poolOf(texts ...[]byte) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, text := range texts {
		pool.AppendCertsFromPEM(text)
	}
	return pool
}

// The authorities are those of the file, or those from before while the file is bad. What happened to a change is reported
// once.
func TestPoolThatChanges(t *testing.T) {
	s := newShelf(t)
	first, _ := s.make(1, time.Hour)
	second, _ := s.make(2, time.Hour)
	both := append(append([]byte{}, first...), second...)
	s.write(s.cert, first)
	p, err := OpenPool(s.cert, func(err error) { s.told = append(s.told, err) })
	testkit.WantNil(t, "OpenPool", err)
	for _, c := range []struct {
		name string
		do   func()
		want *x509.CertPool
		told func(error) bool // nil: nothing
	}{
		{"as it was read", func() {}, poolOf(first), nil},
		{"the same again", func() { s.write(s.cert, first) }, poolOf(first), nil},
		{"both, for a rotation", func() { s.write(s.cert, both) }, poolOf(first, second), isNil},
		{"empty", func() { s.write(s.cert, nil) }, poolOf(first, second), isBad},
		{"empty still", func() {}, poolOf(first, second), nil},
		{"no certificate", func() { s.write(s.cert, []byte("-----BEGIN CERTIFICATE-----\n")) }, poolOf(first, second), nil}, // the same reason
		{"a key", func() { _, key := s.make(3, time.Hour); s.write(s.cert, key) }, poolOf(first, second), nil},
		{"missing", func() { testkit.WantNil(t, "Remove", os.Remove(s.cert)) }, poolOf(first, second), func(err error) bool { return errors.Is(err, fs.ErrNotExist) }},
		{"missing still", func() {}, poolOf(first, second), nil},
		{"there again, as it was", func() { s.write(s.cert, both) }, poolOf(first, second), isNil},
		{"another file in its place", func() {
			s.write(s.cert+".new", second)
			testkit.WantNil(t, "Rename", os.Rename(s.cert+".new", s.cert))
		}, poolOf(second), isNil},
		{"a directory", func() {
			testkit.WantNil(t, "Remove", os.Remove(s.cert))
			testkit.WantNil(t, "Mkdir", os.Mkdir(s.cert, 0o700))
		}, poolOf(second), isBad},
	} {
		s.told = nil
		c.do()
		if !look(p).Equal(c.want) {
			t.Errorf("%s: other authorities", c.name)
		}
		if bad := c.told == nil && len(s.told) > 0 || c.told != nil && (len(s.told) != 1 || !c.told(s.told[0])); bad {
			t.Errorf("%s: got %v", c.name, s.told)
		}
	}
}

func isNil(err error) bool { return err == nil }
func isBad(err error) bool { return err != nil }

// The pool is the same one, as sessions depend on it, while the authorities are the same.
func TestPoolThatStays(t *testing.T) {
	s := newShelf(t)
	text, _ := s.make(1, time.Hour)
	s.write(s.cert, text)
	p, err := OpenPool(s.cert, nil)
	testkit.WantNil(t, "OpenPool", err)
	before := p.Get()
	s.write(s.cert, append([]byte("# a comment\n"), text...))
	if look(p) != before {
		t.Error("another pool, with the same authorities")
	}
	s.write(s.cert, []byte("nothing")) // and nothing is reported
	if look(p) != before {
		t.Error("another pool while the file is bad")
	}
	other, _ := s.make(2, time.Hour)
	s.write(s.cert, other)
	p.checked = time.Now().Add(time.Hour) // just looked
	if p.Get() != before {
		t.Error("the file was looked at again at once")
	}
}

func TestBadPool(t *testing.T) {
	s := newShelf(t)
	if _, err := OpenPool(s.cert, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	_, key := s.make(1, time.Hour)
	for name, text := range map[string][]byte{"empty": nil, "text": []byte("nothing"), "a key": key} {
		s.write(s.cert, text)
		if p, err := OpenPool(s.cert, nil); err == nil {
			t.Errorf("%s: %v", name, p.pool)
		}
	}
	if _, err := OpenPool(filepath.Dir(s.cert), nil); err == nil {
		t.Error("a directory")
	}
}

// Each connection trusts the authorities of its time.
func TestDial(t *testing.T) {
	s := newShelf(t)
	s.names = []net.IP{net.IPv4(127, 0, 0, 1)}
	cert, key := s.make(1, time.Hour)
	other, _ := s.make(2, time.Hour)
	pair, err := tls.X509KeyPair(cert, key)
	testkit.WantNil(t, "X509KeyPair", err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	testkit.WantNil(t, "Listen", err)
	var group sync.WaitGroup
	defer group.Wait()
	defer l.Close()
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	})
	s.write(s.cert, other)
	p, err := OpenPool(s.cert, nil)
	testkit.WantNil(t, "OpenPool", err)
	base := &tls.Config{MinVersion: tls.VersionTLS12}
	dial := p.Dial(net.Dialer{}, base)
	for _, c := range []struct {
		name string
		file []byte
		want bool
	}{{"another", other, false}, {"its own", cert, true}, {"a bad file", []byte("nothing"), true}, {"another again", other, false}} {
		s.write(s.cert, c.file)
		look(p)
		conn, err := dial(context.Background(), "tcp", l.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		var unknown x509.UnknownAuthorityError
		if (err == nil) != c.want || !c.want && !errors.As(err, &unknown) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if base.RootCAs != nil {
		t.Error("the base was changed")
	}
}
