//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// playForce is a process that takes the lock on "k" away.
func playForce() int {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), nil)
	if err == nil {
		err = errors.Join(locks.ForceRelease(context.Background(), "k", joblock.Reason("stuck")), locks.Close(context.Background()))
	}
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

// A lock that another process takes away is lost long before its next renewal, and
// the one that waits for it gets it.
func TestForceReleaseNotifiesAnotherProcessAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	// The first renewal is 20 minutes away; without the push this would hang.
	locks := newLocks(t, server.Addr(), &joblock.Config{TTL: time.Hour, WatchForced: true})
	waiter := newLocks(t, server.Addr(), nil)
	lock, err := locks.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := lock.Context(t.Context())
	defer stop()
	await(t, "the subscription", func() bool {
		n, err := server.Client(t).PubSubNumSub(t.Context(), "joblock:forced").Result()
		return err == nil && n["joblock:forced"] == 1
	})
	next := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(t.Context(), "k", joblock.MaxWait(60*time.Second))
		next <- err
	}()
	awaitWaiters(t, waiter, "k", 1)

	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "JOBLOCK_E2E_ROLE=force", "JOBLOCK_E2E_REDIS="+server.Addr())
	if out, err := other.CombinedOutput(); err != nil {
		t.Fatalf("other process: %v, said %q", err, out)
	}
	select {
	case <-ctx.Done():
	case <-time.After(60 * time.Second):
		t.Fatal("the holder's context did not end")
	}
	// By the time that it looks the key is the waiter's, and the record tells of no one else.
	if cause := context.Cause(ctx); !errors.Is(cause, joblock.ErrLost) {
		t.Errorf("cause %v, want lost", cause)
	}
	if err := <-next; err != nil {
		t.Errorf("the waiter: %v", err)
	}
}
