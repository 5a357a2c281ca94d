package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The two fragments of docs/locks.md.

func nightly(ctx context.Context, locks *joblock.Locker, importPrices func(context.Context) error) error {
	err := locks.Do(ctx, "import", importPrices, joblock.MaxWait(0))
	if errors.Is(err, joblock.ErrHeld) { // or if the last run died, until its lease expires
		log.Print("skipped: ", err) // says who has it
		return nil
	}
	return err
}

func holder(ctx context.Context, locks *joblock.Locker) (string, error) {
	st, err := locks.Status(ctx, "import") // st[0].State, Holder, Lease, Fence
	if err != nil {
		return "", err
	}
	return st[0].Holder, nil
}

// A second import is skipped while the first one runs, and says who has the lock.
func TestNightly(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := joblock.New(store, &joblock.Config{Holder: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(context.Background())
	var said strings.Builder
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	failure := errors.New("no prices")
	err = nightly(t.Context(), locks, func(ctx context.Context) error {
		if who, err := holder(ctx, locks); who != "node-1" || err != nil {
			t.Errorf("held by %q, %v", who, err)
		}
		return errors.Join(failure, nightly(t.Context(), locks, func(context.Context) error {
			t.Error("the second runs while the first does")
			return nil
		}))
	})
	if !errors.Is(err, failure) || errors.Is(err, joblock.ErrHeld) || !strings.Contains(said.String(), "skipped: ") || !strings.Contains(said.String(), "node-1") {
		t.Errorf("%v, and the log says %q", err, said.String())
	}
}

// The work of two processes does not overlap, and one that need not wait does not fail.
func TestRun(t *testing.T) {
	addr := miniredis.RunT(t).Addr()
	started, finish := make(chan bool), make(chan bool)
	first := make(chan error, 1)
	go func() {
		first <- run(t.Context(), addr, func(context.Context) error {
			close(started)
			<-finish
			return nil
		})
	}()
	<-started
	second := make(chan error, 1)
	ran := false
	go func() {
		second <- run(t.Context(), addr, func(context.Context) error {
			ran = true
			return nil
		})
	}()
	select {
	case err := <-second:
		t.Fatalf("the second has not waited: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	for _, result := range []chan error{first, second} {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if !ran {
		t.Error("the second has not run")
	}
}
