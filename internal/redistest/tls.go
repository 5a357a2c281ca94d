package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TLS has what clients of a server with TLS need.
type TLS struct {
	Addr   string          // "127.0.0.1:port"
	Roots  *x509.CertPool  // vouches for the server
	Client tls.Certificate // a certificate of the authority that the server trusts

	// The same in files, in PEM form.
	RootsFile, ClientFile, ClientKeyFile string
}

// StartTLS is [Start] for a server that also speaks TLS, on a second port and with an authority made for the test. On
// that port, clients must show a certificate.
func StartTLS(t testing.TB, args ...string) (*Server, *TLS) {
	t.Helper()
	dir := t.TempDir()
	ca, caKey := certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "redistest"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	server, serverKey := certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	client, clientKey := certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, caKey)
	key, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	clientDER, err := x509.MarshalPKCS8PrivateKey(clientKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := write("ca.pem", "CERTIFICATE", ca.Raw)
	files := []string{
		"--tls-ca-cert-file", roots,
		"--tls-cert-file", write("server.pem", "CERTIFICATE", server.Raw),
		"--tls-key-file", write("server.key", "PRIVATE KEY", key),
	}
	out := &TLS{
		Roots:  x509.NewCertPool(),
		Client: tls.Certificate{Certificate: [][]byte{client.Raw}, PrivateKey: clientKey},

		RootsFile:     roots,
		ClientFile:    write("client.pem", "CERTIFICATE", client.Raw),
		ClientKeyFile: write("client.key", "PRIVATE KEY", clientDER),
	}
	out.Roots.AddCert(ca)
	s := start(t, nil, func() []string {
		port := freePort(t)
		out.Addr = loopback(port)
		return append(append([]string{"--tls-port", strconv.Itoa(port)}, files...), args...)
	})
	return s, out
}

// certificate makes a certificate that parent vouches for. Without a parent, the certificate vouches for itself.
func certificate(t testing.TB, c, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent, parentKey = c, key
	}
	// Valid from a day ago until a day from now: the clock may be set while the test runs.
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().AddDate(0, 0, -1), time.Now().AddDate(0, 0, 1)
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made, key
}
