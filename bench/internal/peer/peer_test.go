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
	srv := startServer(t)
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

func TestPublishPassesOnFromSeatToSeat(t *testing.T) {
	srv := startServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	var wire rig.Wire
	at := func(seat, seats int) Peer {
		p, err := Open(Publish, Options{Addr: srv.Addr(), Wire: &wire, TTL: time.Minute, Seat: seat, Seats: seats})
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
	acquire := func(p Peer, key string) Held {
		held, err := p.Acquire(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	release := func(h Held) {
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	begin, seats := at(0, 0), []Peer{at(0, 2), at(1, 2)}
	first := acquire(begin, "k")
	for i, p := range seats {
		release(acquire(p, "warm-up:"+string(rune('0'+i)))) // tells nobody
	}
	brief, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if _, err := seats[0].Acquire(brief, "k"); err == nil {
		t.Fatal("seat 0 went on before anybody told it")
	}
	release(first)
	for i := range 5 {
		release(acquire(seats[i%2], "k"))
	}
}

func TestCommandsAreWhatTheServerCounts(t *testing.T) {
	srv := startServer(t)
	for _, name := range All() {
		var wire rig.Wire
		p := open(t, name, srv, &wire)
		pair := func() {
			held, err := p.Acquire(t.Context(), "count:"+string(name))
			if err == nil {
				err = held.Release(t.Context())
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		count := func() int64 {
			u, err := srv.Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return u.Of(Commands(name)...).Number
		}
		pair() // connects, and loads scripts
		calls, sent := count(), wire.Count().Commands
		for range 10 {
			pair()
		}
		if calls, sent := count()-calls, wire.Count().Commands-sent; calls != sent || sent != 20 {
			t.Errorf("%s: the server counts %d calls of %q, for %d commands sent; want 20", name, calls, Commands(name), sent)
		}
	}
}

func startServer(t *testing.T) *rig.Server {
	t.Helper()
	srv, err := rig.Start(t.Context(), rig.DefaultProgram)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func open(t *testing.T, name Name, srv *rig.Server, wire *rig.Wire) Peer {
	t.Helper()
	p, err := Open(name, Options{Addr: srv.Addr(), Wire: wire, TTL: time.Minute, Again: 5 * time.Second})
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
