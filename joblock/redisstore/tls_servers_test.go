//go:build servers

package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// The connections that the Store makes itself, those for renewals and for pushes
// included, use the TLS of the client that it was given.
func TestLocksOverTLS(t *testing.T) {
	srv, secure := redistest.StartTLS(t)
	redistest.Ran(t, srv.Backend())
	client := func(t *testing.T, c *tls.Config) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: secure.Addr, TLSConfig: c})
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	certificates := []tls.Certificate{secure.Client}

	t.Run("all of it", func(t *testing.T) {
		t.Parallel()
		// The next look of the waiter is an hour away: a push has to notify it.
		cfg := &joblock.Config{Poll: time.Hour, TTL: 10 * time.Minute}
		locks := newLocker(t, client(t, &tls.Config{RootCAs: secure.Roots, Certificates: certificates}), cfg)
		first, err := locks.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := renew(first); err != nil {
			t.Errorf("renew: %v", err)
		}
		next := make(chan error, 1)
		go func() {
			lock, err := locks.Acquire(t.Context(), "k", joblock.MaxWait(time.Minute))
			if err == nil && lock.Fence() <= first.Fence() {
				t.Errorf("fence %d after %d", lock.Fence(), first.Fence())
			}
			if err == nil {
				err = lock.Release(t.Context())
			}
			next <- err
		}()
		awaitWaiter(t, locks, "k")
		if err := first.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		if err := <-next; err != nil {
			t.Errorf("the waiter: %v", err)
		}
	})

	for name, c := range map[string]struct {
		config *tls.Config
		cause  string
	}{
		"an authority that the client does not know": {&tls.Config{RootCAs: x509.NewCertPool(), Certificates: certificates}, "unknown authority"},
		"another name": {&tls.Config{RootCAs: secure.Roots, Certificates: certificates, ServerName: "redis.example"}, "redis.example"},
		// Of these the server says no more than that it closes the connection.
		"a client without a certificate": {&tls.Config{RootCAs: secure.Roots}, ""},
		"a client without TLS":           {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locks := newStranger(t, client(t, c.config), &joblock.Config{TTL: time.Second, CallTimeout: time.Minute})
			_, err := locks.TryAcquire(t.Context(), "other")
			wantUnavailable(t, "TryAcquire", err, c.cause)
		})
	}
}

// awaitWaiter waits until a caller is in line for key.
func awaitWaiter(t *testing.T, locks *joblock.Locker, key string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		st, err := testkit.One(locks.Status(t.Context(), key))
		if err != nil {
			t.Fatal(err)
		}
		if st.Waiters > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no line")
		}
	}
}
