//go:build servers

package redisstore

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// Redis compares texts in scripts as the locale of its environment says, and in most locales the spaces at the front of
// a number do not make it smaller. A server that a distribution's service starts has such a locale.
func TestShortLeaseIsTakenUpInAnyLocale(t *testing.T) {
	locales := t.TempDir()
	if out, err := osexec.Command("localedef", "-i", "en_US", "-f", "ISO-8859-1", filepath.Join(locales, "en_US")).CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("localedef: %v: %s; .ci/setup.sh installs what it needs", err, out)
		}
		t.Skipf("localedef: %v: %s; it needs Debian's packages libc-bin and locales", err, out)
	}
	t.Setenv("LOCPATH", locales)
	t.Setenv("LC_ALL", "en_US")
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	k := newKit(t, srv.Client(t))
	ctx := t.Context()
	holder := k.acquire("key")
	req := driver.AcquireRequest{
		Key: "key", Owner: "waiter", Nonce: "waits", TTL: 30 * time.Second, Retain: long, Inbox: "unheard", Patience: 9500 * time.Millisecond,
	}
	r, err := k.Acquire(ctx, req)
	wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
	rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(holder)})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	r, err = k.Acquire(ctx, req)
	wantOutcome(t, "ask", r, err, driver.OutcomeOK)
	if r.Lease <= 20*time.Second {
		t.Errorf("the waiter that asks has a lease of %s, want %s", r.Lease, req.TTL)
	}
}
