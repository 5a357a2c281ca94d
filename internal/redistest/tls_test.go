//go:build servers

package redistest

import (
	"crypto/tls"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestServerSpeaksTLSWithThoseItKnows(t *testing.T) {
	s, secure := StartTLS(t)
	ping := func(c *tls.Config) error {
		rdb := redis.NewClient(&redis.Options{Addr: secure.Addr, TLSConfig: c, MaxRetries: -1, DialerRetries: 1})
		defer rdb.Close()
		return rdb.Ping(t.Context()).Err()
	}
	if err := ping(&tls.Config{RootCAs: secure.Roots, Certificates: []tls.Certificate{secure.Client}}); err != nil {
		t.Errorf("ping over TLS: %v\n%s", err, s.Log())
	}
	for name, c := range map[string]*tls.Config{
		"no TLS": nil, "no certificate": {RootCAs: secure.Roots}, "another authority": {Certificates: []tls.Certificate{secure.Client}},
	} {
		if err := ping(c); err == nil {
			t.Errorf("ping with %s was answered", name)
		}
	}
}
