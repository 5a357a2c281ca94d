package redisstore

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// The error about a forged record names its key.
func TestErrorsNameTheKeyOfAHostileRecord(t *testing.T) {
	t.Parallel()
	k := newRealKit(t)
	locks, err := joblock.New(k.store, &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	defer locks.Close(ctx)
	refused := 0
	for name, fields := range spoiled {
		t.Run(name, func(t *testing.T) {
			term := k.spoil(t, name, fields)
			token, err := joblock.NewToken(name, term.Owner, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			seen := func(what string, err error) {
				t.Helper()
				if err == nil {
					return
				}
				refused++
				if !strings.Contains(err.Error(), `"`+name+`"`) || strings.Contains(err.Error(), "unexpected reply") {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err = locks.TryAcquire(ctx, name)
			seen("TryAcquire", err)
			_, err = locks.Acquire(ctx, name, joblock.MaxWait(10*time.Millisecond))
			seen("Acquire", err)
			_, err = locks.Resume(ctx, token)
			seen("Resume", err)
			_, err = singleflight.Do(ctx, locks, name, time.Minute, func(context.Context) (int, error) { return 1, nil }, joblock.MaxWait(10*time.Millisecond))
			seen("singleflight.Do", err)
			seen("Release", locks.Release(ctx, token))
			seen("ForceRelease", locks.ForceRelease(ctx, name, joblock.Reason("broken")))
			_, err = testkit.One(locks.Status(ctx, name))
			seen("Status", err)
			for _, err := range locks.List(ctx, joblock.ListOptions{Prefix: name, Ended: true}) {
				seen("List", err)
			}
		})
	}
	if refused < 2*len(spoiled) {
		t.Errorf("only %d calls were refused", refused)
	}
}

// Forged entries of the index are no locks.
func TestHostileIndex(t *testing.T) {
	k := newRealKit(t)
	ctx := context.Background()
	fill := func(scores map[string]string) {
		t.Helper()
		for member, score := range scores {
			if err := k.rdb.Do(ctx, "ZADD", k.index(0), score, member).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(map[string]string{
		"no key": "1", "": "-inf", "\n": "2", "q/1\nkey": "-1e300", "q/1\nlater": "inf", "\x00\xff": "0.5",
	})
	for round := range 3 {
		due, err := dueOf(ctx, k.store, 10, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		ours := slices.ContainsFunc(due, func(l driver.Entry) bool { return l.Key == "key" && l.Job == "q/1" })
		if ours != (round == 0) {
			t.Errorf("round %d: %+v is due", round, due)
		}
		if slices.ContainsFunc(due, func(l driver.Entry) bool {
			return l.Job != "q/1" && l != (driver.Entry{Mark: l.Mark, Settled: l.Settled})
		}) {
			t.Errorf("%+v is due, which no store has written", due)
		}
		if err := removeFrom(ctx, k.store, due); err != nil {
			t.Fatal(err)
		}
	}
}
