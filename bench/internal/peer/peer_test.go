package peer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// hang bounds what is expected to happen.
const hang = 30 * time.Second

func TestEveryPeerExcludesAndHandsOver(t *testing.T) {
	srv, err := rig.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range All() {
		t.Run(string(name), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), hang)
			defer cancel()
			var wire rig.Wire
			a, b := open(t, name, srv, &wire), open(t, name, srv, &wire)
			key := "key:" + string(name)
			held, err := a.Acquire(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if r, ok := held.(Refresher); ok {
				if err := r.Refresh(ctx, time.Minute); err != nil {
					t.Errorf("refresh: %v", err)
				}
			}
			if l, ok := held.(Loser); ok && l.Lost() {
				t.Error("lost just after it was acquired")
			}

			brief, stop := context.WithTimeout(ctx, 50*time.Millisecond)
			defer stop()
			if _, err := b.Acquire(brief, key); err == nil {
				t.Fatal("a second holder was granted the lock")
			}
			granted := make(chan error, 1)
			go func() {
				second, err := b.Acquire(ctx, key)
				if err == nil {
					err = second.Release(ctx)
				}
				granted <- err
			}()
			if err := held.Release(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-granted; err != nil {
				t.Errorf("after the release: %v", err)
			}
			if wire.Count().Commands == 0 {
				t.Error("the wire has seen no command")
			}
		})
	}
}

func TestRedsyncTellsOfALockThatIsGone(t *testing.T) {
	if err := okOr(false, nil); !errors.Is(err, errNotHeld) {
		t.Errorf("got %v", err)
	}
}

func TestUnknownPeerIsRefused(t *testing.T) {
	if _, err := Open("nobody", Options{}); err == nil {
		t.Error("no error")
	}
}

func open(t *testing.T, name Name, srv *rig.Server, wire *rig.Wire) Peer {
	t.Helper()
	p, err := Open(name, Options{Addr: srv.Addr(), Wire: wire, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
