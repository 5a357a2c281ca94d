package server

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/certs"
)

// ListenConfig says where a Server listens.
type ListenConfig struct {
	// Address is host:port. An empty host means every interface, which is not loopback.
	Address string

	// CertFile and KeyFile have the certificate and the key of the server, in PEM form. Set both or neither. Connections
	// that begin more than a second after the files change get the new certificate. While the files are bad, for example
	// because only one of the two has been replaced, the previous certificate stays in use, and this is logged once.
	CertFile, KeyFile string

	// ClientCAFile has the certificate authorities of accepted client certificates, in PEM form. A client may also
	// connect without a certificate, and send a token. A changed file is reloaded like CertFile and KeyFile. Open
	// connections stay.
	ClientCAFile string

	// Insecure allows an address that is not loopback without TLS or without an Authorizer, for example behind a proxy
	// that has both. With the Authorizer Anyone, set Config.Hosts to the host names that the proxy sends.
	Insecure bool
}

// Listen returns a listener. Without TLS, or with the Authorizer Anyone, Listen refuses an address that is not
// loopback, unless Insecure is set. The error says what is missing.
func (s *Server) Listen(cfg ListenConfig) (net.Listener, error) {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("server: the address is %q, must be host:port: %w", cfg.Address, err)
	}
	secure, err := cfg.tls(s.cfg.Logger)
	if err != nil {
		return nil, err
	}
	if !cfg.Insecure && !loopback(host) {
		if s.cfg.anyone() {
			return nil, fmt.Errorf("server: %s is not a loopback address, and every caller is admitted: set an Authorizer", cfg.Address)
		}
		if secure == nil {
			return nil, fmt.Errorf("server: %s is not a loopback address, and tokens would travel in the clear: set CertFile and KeyFile", cfg.Address)
		}
	}
	l, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, nil
}

func (cfg *ListenConfig) tls(logger *slog.Logger) (*tls.Config, error) {
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("server: CertFile and KeyFile must be set together")
	}
	if cfg.CertFile == "" {
		if cfg.ClientCAFile != "" {
			return nil, errors.New("server: ClientCAFile needs CertFile and KeyFile")
		}
		return nil, nil
	}
	pair, err := certs.Open(cfg.CertFile, cfg.KeyFile, func(err error) {
		if err != nil {
			logger.Error("server: the changed certificate is invalid; the previous one stays in use", "err", err)
			return
		}
		logger.Info("server: reloaded the certificate", "path", cfg.CertFile)
	})
	if err != nil {
		return nil, fmt.Errorf("server: the certificate: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.ForServer, NextProtos: []string{"h2", "http/1.1"}}
	if cfg.ClientCAFile == "" {
		return c, nil
	}
	authorities, err := certs.OpenPool(cfg.ClientCAFile, func(err error) {
		if err != nil {
			logger.Error("server: the changed client CA file is invalid; the previous one stays in use", "err", err)
			return
		}
		logger.Info("server: reloaded the client CA file", "path", cfg.ClientCAFile)
	})
	if err != nil {
		return nil, fmt.Errorf("server: client CA file: %w", err)
	}
	c.ClientAuth = tls.VerifyClientCertIfGiven
	c.GetConfigForClient = perPool(c.Clone(), authorities)
	return c, nil
}

// perPool returns a tls.Config.GetConfigForClient that verifies clients with the current client CAs. After a change of the
// CAs it makes a Config with new session keys, so that no earlier session is resumed: each certificate is verified again.
func perPool(base *tls.Config, authorities *certs.Pool) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	var mu sync.Mutex // guards what follows
	var of *tls.Config
	return func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool := authorities.Get()
		mu.Lock()
		defer mu.Unlock()
		if of == nil || of.ClientCAs != pool {
			var key [32]byte
			if _, err := rand.Read(key[:]); err != nil {
				return nil, err
			}
			of = base.Clone()
			of.ClientCAs = pool
			of.SetSessionTicketKeys([][32]byte{key})
		}
		return of, nil
	}
}

// loopback reports whether host is reachable only from this machine. A name other than localhost may resolve to anything.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// maxStreams is how many requests a client may have under way over one HTTP/2 connection; for more, clients open another
// connection. A request of an unknown caller whose body never ends takes up to streamBytes before gate sees it, so
// maxStreams times maxUnknownConns of them must fit into the memory of a small container.
const (
	maxStreams  = 25
	streamBytes = 30_000
)

// HTTPServer returns an http.Server for h, which is the Server or a handler in which the Server is mounted. The package
// comment lists its limits. It speaks HTTP/1.1 and HTTP/2, with and without TLS. A program that serves more than 500
// clients with other handlers should use an http.Server of its own, because their connections count as those of unknown
// callers.
func HTTPServer(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	open := newConns(maxConns, maxUnknownConns)
	return &http.Server{
		ConnContext: open.open, ConnState: open.changed,
		Handler: open.gate(h), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: 256 << 10, MaxReceiveBufferPerStream: maxBody,
			SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: answerTimeout,
		},
	}
}
