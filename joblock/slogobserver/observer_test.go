package slogobserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/slogobserver"
)

// newLog returns a logger without times, and what it has written.
func newLog(level slog.Level) (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), &out
}

func TestEveryFieldIsLogged(t *testing.T) {
	log, out := newLog(slog.LevelDebug)
	observe := slogobserver.New(log, nil)
	observe(event.Event{
		Kind: event.Lost, Key: "k", Owner: "#0123", Fence: 7, Holder: "web-1", Job: "q/1", Reason: "why",
		Err: errors.New("cause"), Waited: time.Second, Held: 2 * time.Second, Late: 3 * time.Second,
		Remaining: 4 * time.Second, Prior: driver.EndedLapsed, Recovered: true, Locks: 5,
	})
	observe(event.Event{Kind: event.Contended})
	const want = `level=WARN msg="joblock: lost" key=k owner=#0123 fence=7 holder=web-1 job=q/1 reason=why ` +
		"waited=1s held=2s late=3s remaining=4s prior=lapsed recovered=true locks=5 err=cause\n" +
		`level=DEBUG msg="joblock: contended"` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestLevels(t *testing.T) {
	log, out := newLog(slog.LevelDebug)
	observe := slogobserver.New(log, nil)
	for kind := event.Acquired; kind <= event.RateLimited; kind++ {
		observe(event.Event{Kind: kind})
	}
	observe(event.Event{Kind: event.Resumed, Recovered: true})
	const want = `level=DEBUG msg="joblock: acquired"
level=DEBUG msg="joblock: contended"
level=DEBUG msg="joblock: gave up"
level=DEBUG msg="joblock: resumed"
level=DEBUG msg="joblock: reclaimed"
level=DEBUG msg="joblock: parked"
level=DEBUG msg="joblock: released"
level=WARN msg="joblock: lost"
level=WARN msg="joblock: renewed late"
level=WARN msg="joblock: renewal unanswered"
level=INFO msg="joblock: released by token"
level=INFO msg="joblock: freed"
level=INFO msg="joblock: forced"
level=WARN msg="joblock: cleanup failed"
level=WARN msg="joblock: fell back"
level=WARN msg="joblock: overran"
level=DEBUG msg="joblock: rate limited"
level=INFO msg="joblock: resumed" recovered=true
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	log, out = newLog(slog.LevelInfo)
	observe = slogobserver.New(log, &slogobserver.Config{Level: func(e event.Event) slog.Level {
		if e.Kind == event.Acquired {
			return slog.LevelError
		}
		return slogobserver.Level(e)
	}})
	observe(event.Event{Kind: event.Acquired})
	observe(event.Event{Kind: event.Released})
	if got, want := out.String(), "level=ERROR msg=\"joblock: acquired\"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWhatIsNotLoggedCostsNothing(t *testing.T) {
	log, _ := newLog(slog.LevelWarn)
	observe := slogobserver.New(log, nil)
	event := event.Event{Kind: event.Acquired, Key: "key", Waited: time.Second, Err: joblock.ErrHeld}
	if n := testing.AllocsPerRun(100, func() { observe(event) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDefaultLogger(t *testing.T) {
	log, out := newLog(slog.LevelDebug)
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(log)
	slogobserver.New(nil, &slogobserver.Config{})(event.Event{Kind: event.Parked})
	if !strings.Contains(out.String(), "joblock: parked") {
		t.Errorf("the default logger has %q", out)
	}
}

func TestNoOwnerIsLogged(t *testing.T) {
	log, out := newLog(slog.LevelDebug)
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}),
		&joblock.Config{Observer: slogobserver.New(log, nil)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	const owner = "S3CRET"
	lock, err := locks.TryAcquire(ctx, "key", joblock.Owner(owner))
	if err != nil {
		t.Fatal(err)
	}
	_, refused := locks.TryAcquire(ctx, "key", joblock.Owner(owner))
	token, err := lock.Park(ctx, joblock.ForJob("q/1"))
	if err := errors.Join(err, locks.Release(ctx, token), locks.Close(ctx)); err != nil || refused == nil {
		t.Fatal(err, refused)
	}
	text, err := token.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{owner, string(text), fmt.Sprintf("%x", owner)} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q is in\n%s", secret, out)
		}
	}
	if n := strings.Count(out.String(), "owner="+(*core.Lock)(lock).Digest()); n != 4 {
		t.Errorf("%d lines with the digest, want 4:\n%s", n, out)
	}
}
