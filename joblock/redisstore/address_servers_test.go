//go:build servers

package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
)

// No call waits long before it reports a wrong address, Close included. The
// bounds are the package's own and some time for a busy machine.
func TestWrongAddressIsReportedInTime(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() }) // when the parallel tests are over
	closed.Close()
	for name, tc := range map[string]struct {
		addr, says string
		timeout    time.Duration
	}{
		"no listener": {closed.Addr().String(), "connection refused", 3 * time.Second}, // go-redis dials for 2 s
		"no answer":   {silent.Addr().String(), "deadline", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const slack = 30 * time.Second
			timeout := tc.timeout
			// Without the package's own bounds, each wait for a reply would take far longer than the slack.
			rdb := redis.NewClient(&redis.Options{Addr: tc.addr, ReadTimeout: time.Hour})
			defer rdb.Close()
			locks, err := joblock.New(must(newStore(rdb, nil)), &joblock.Config{CallTimeout: timeout, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err = locks.TryAcquire(context.Background(), "key")
			if d := time.Since(start); !errors.Is(err, joblock.ErrUnavailable) || !strings.Contains(err.Error(), tc.says) || d > timeout+timeout/8+slack {
				t.Errorf("TryAcquire: %v after %s, want it unavailable because of %q within %s", err, d, tc.says, timeout)
			}
			start = time.Now()
			err = locks.Close(context.Background())
			if d := time.Since(start); !errors.Is(err, joblock.ErrUnavailable) || d > 2*timeout+timeout/4+slack {
				t.Errorf("Close: %v after %s, want it unavailable within %s", err, d, 2*timeout)
			}
		})
	}
}
