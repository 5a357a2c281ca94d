// Package certs loads certificates and CA files, and reloads them when the files change.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/files"
)

const (
	// checkEvery is the minimum time between two checks of the files.
	checkEvery = time.Second

	// settled is how old a change must be before an unchanged modification time means an unchanged file: file systems
	// have coarse clocks.
	settled = 2 * time.Second
)

// Pair is a certificate and its key in two files, in PEM form. Make a Pair with Open. A Pair is safe for concurrent use.
//
// The files are reloaded at most a second after they have changed, when a caller asks for the certificate. While the two
// don't match or cannot be read, the previous certificate stays in use as long as it is valid. A file that is not
// regular, such as a pipe, is read once.
type Pair struct {
	certFile, keyFile string
	tell              func(error)

	mu      sync.Mutex // guards what follows
	pair    *tls.Certificate
	checked time.Time
	seen    [2]state
	err     error // why the changed files could not be read, or nil
}

// A state identifies the version of a file that was read.
type state struct {
	info fs.FileInfo
	read time.Time
}

// Open reads the two files. tell, unless nil, is called with nil after changed files were reloaded, and with the error if
// they cannot be read, once for each error.
func Open(certFile, keyFile string, tell func(error)) (*Pair, error) {
	if tell == nil {
		tell = func(error) {}
	}
	p := &Pair{certFile: certFile, keyFile: keyFile, tell: tell, checked: time.Now()}
	if err := p.read(files.Patience); err != nil {
		return nil, err
	}
	return p, nil
}

// Get returns the certificate. If the files are bad and the previous certificate has expired, it returns the error of
// reading the files.
func (p *Pair) Get() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.checked) >= checkEvery {
		p.checked = now
		if !p.stands() {
			p.again()
		}
	}
	if p.err != nil && now.After(p.pair.Leaf.NotAfter) {
		return nil, p.err
	}
	return p.pair, nil
}

// again reloads the files and calls tell.
func (p *Pair) again() {
	before := p.pair
	err := p.read(0)
	switch {
	case err == nil && (p.err != nil || !before.Leaf.Equal(p.pair.Leaf)):
		p.tell(nil)
	case err != nil && (p.err == nil || p.err.Error() != err.Error()):
		p.tell(err)
	}
	p.err = err
}

// stands reports whether the files are certainly unchanged.
func (p *Pair) stands() bool { return stand(p.seen[:], p.certFile, p.keyFile) }

// stand reports whether the named files are certainly the same as when they were seen.
func stand(seen []state, names ...string) bool {
	for i, name := range names {
		was := seen[i]
		if was.info == nil {
			return false
		}
		if !was.info.Mode().IsRegular() {
			return true
		}
		is, err := os.Stat(name)
		if err != nil || !os.SameFile(was.info, is) || was.info.Size() != is.Size() || !was.info.ModTime().Equal(is.ModTime()) ||
			was.read.Sub(is.ModTime()) < settled {
			return false
		}
	}
	return true
}

// read reads the files; see files.Read for patience. After an error the previous certificate stays in use.
func (p *Pair) read(patience time.Duration) error {
	p.seen = [2]state{}
	var texts [2][]byte
	var seen [2]state
	for i, name := range []string{p.certFile, p.keyFile} {
		var err error
		if texts[i], seen[i], err = readFile(name, patience); err != nil {
			return err
		}
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err == nil && pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err != nil {
		return fmt.Errorf("%s and %s: %w", p.certFile, p.keyFile, err)
	}
	p.pair, p.seen = &pair, seen
	return nil
}

// maxFile is how many bytes of a file are read. The CA certificates of a system have about 250 kB.
const maxFile = 8 << 20

// readFile reads a file. It takes the state before the read, so that a change during the read is noticed.
func readFile(name string, patience time.Duration) (text []byte, s state, err error) {
	s.read = time.Now()
	text, s.info, err = files.Read(name, maxFile, patience)
	return text, s, err
}

// ForServer implements tls.Config.GetCertificate.
func (p *Pair) ForServer(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.Get() }

// ForClient implements tls.Config.GetClientCertificate.
func (p *Pair) ForClient(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.Get() }
