package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/files"
)

// Pool is a file of CA certificates, in PEM form. Make a Pool with OpenPool. A Pool is safe for concurrent use.
//
// The file is reloaded at most a second after it has changed, when a caller asks for the CA certificates. While the file
// is invalid or cannot be read, the previous ones stay in use. A file that is not regular, such as a pipe, is read once.
type Pool struct {
	file string
	tell func(error)

	mu      sync.Mutex // guards what follows
	pool    *x509.CertPool
	checked time.Time
	seen    [1]state
	err     error // why the changed file could not be read, or nil
}

// OpenPool reads the file. tell, unless nil, is called with nil after a changed file was reloaded, and with the error if
// it cannot be read, once for each error.
func OpenPool(file string, tell func(error)) (*Pool, error) {
	if tell == nil {
		tell = func(error) {}
	}
	p := &Pool{file: file, tell: tell, checked: time.Now()}
	if err := p.read(files.Patience); err != nil {
		return nil, err
	}
	return p, nil
}

// Get returns the CA certificates. It returns the same pool as before unless they have changed.
func (p *Pool) Get() *x509.CertPool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.checked) >= checkEvery {
		p.checked = now
		if !stand(p.seen[:], p.file) {
			p.again()
		}
	}
	return p.pool
}

// Dial returns a function that connects to servers, and verifies them with the current CA certificates. base has the rest
// of the configuration.
func (p *Pool) Dial(dialer net.Dialer, base *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		secure := base.Clone()
		secure.RootCAs = p.Get()
		return (&tls.Dialer{NetDialer: &dialer, Config: secure}).DialContext(ctx, network, addr)
	}
}

// again reloads the file and calls tell.
func (p *Pool) again() {
	before := p.pool
	err := p.read(0)
	switch {
	case err == nil && p.pool.Equal(before):
		p.pool = before
		if p.err != nil {
			p.tell(nil)
		}
	case err == nil:
		p.tell(nil)
	case p.err == nil || p.err.Error() != err.Error():
		p.tell(err)
	}
	p.err = err
}

// read reads the file; see files.Read for patience. After an error the previous CA certificates stay in use.
func (p *Pool) read(patience time.Duration) error {
	p.seen = [1]state{}
	text, seen, err := readFile(p.file, patience)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s has no certificate in PEM form", p.file)
	}
	p.pool, p.seen = pool, [1]state{seen}
	return nil
}
