//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// newLocks returns a Locker on the server at addr, closed with the test.
func newLocks(t *testing.T, addr string, cfg *joblock.Config) *joblock.Locker {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(locks.Close(context.Background()), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	return locks
}

func init() {
	for name, play := range map[string]func() int{
		"resume":   playResume,
		"sched":    playSched,
		"fill":     func() int { return playPolicy("fill") },
		"several":  func() int { return playPolicy("several") },
		"steered":  func() int { return playSteered("steered") },
		"failing":  func() int { return playSteered("failing") },
		"deadline": func() int { return playSteered("deadline") },
		"spec":     playSpec,
		"rules":    playRules,
		"queue":    playQueue,
		"worker":   func() int { return playWorker(runWorker) },
		"line":     func() int { return playWorker(runLineWorker) },
		"force":    playForce,
	} {
		roles[name] = play
	}
}

// playResume resumes the token that it was given as text, waits for a line on its input, and releases.
func playResume() int {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	err := func() (err error) {
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &neverDue)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, locks.Close(ctx)) }()
		token, err := joblock.ParseToken(os.Getenv("JOBLOCK_E2E_TOKEN"))
		if err != nil {
			return err
		}
		lock, err := locks.Resume(ctx, token)
		if err != nil {
			return err
		}
		fmt.Println("resumed", lock.Fence())
		var line string
		fmt.Scanln(&line)
		return lock.Release(ctx, joblock.Reason("done elsewhere"))
	}()
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	fmt.Println("released")
	return 0
}

// A lock taken here and resumed in another process is out of this process's
// hands.
func TestTokenMovesLockToAnotherProcess(t *testing.T) {
	server := redistest.Start(t)
	locks := newLocks(t, server.Addr(), nil)
	ctx := t.Context()
	lock, err := locks.Acquire(ctx, "export:acct-7")
	if err != nil {
		t.Fatal(err)
	}
	taken := lock.Fence()
	token, err := lock.Park(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, err := token.MarshalText()
	if err != nil {
		t.Fatal(err)
	}

	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "JOBLOCK_E2E_ROLE=resume",
		"JOBLOCK_E2E_REDIS="+server.Addr(), "JOBLOCK_E2E_TOKEN="+string(text))
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	var fence int64
	if _, err := fmt.Fscanf(out, "resumed %d\n", &fence); err != nil {
		t.Fatal(err)
	}
	if fence <= core.Token(token).Fence() || core.Token(token).Fence() <= taken {
		t.Errorf("fences %d, %d, %d do not grow", taken, core.Token(token).Fence(), fence)
	}

	// The first process can do nothing, and nothing changes.
	before := record(t, server, "export:acct-7")
	if err := lock.Renew(ctx); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("Renew: %v, want ErrNotOwner", err)
	}
	if err := lock.Release(ctx); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("Release: %v, want ErrNotOwner", err)
	}
	if _, err := lock.Park(ctx); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("Park: %v, want ErrNotOwner", err)
	}
	if _, err := locks.Resume(ctx, token); !errors.Is(err, joblock.ErrBusy) {
		t.Errorf("Resume: %v, want ErrBusy", err)
	}
	if _, err := locks.TryAcquire(ctx, "export:acct-7"); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("TryAcquire: %v, want ErrHeld", err)
	}
	if after := record(t, server, "export:acct-7"); after != before {
		t.Errorf("the record changed:\n%s\nto\n%s", before, after)
	}

	fmt.Fprintln(in, "go on")
	var last strings.Builder
	buf := make([]byte, 256)
	for {
		n, err := out.Read(buf)
		last.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if err := other.Wait(); err != nil || strings.TrimSpace(last.String()) != "released" {
		t.Fatalf("other process: %v, said %q", err, last.String())
	}
	var e *joblock.Error
	if _, err := locks.Resume(ctx, token); !errors.As(err, &e) || e.Code != joblock.CodeOf(joblock.ErrAlreadyReleased) || e.Reason != "done elsewhere" {
		t.Errorf("Resume after the release: %v, want ErrAlreadyReleased with its reason", err)
	}
}

// record reads the raw record. A renewal by the other process would change it, and is
// never due.
func record(t *testing.T, server *redistest.Server, key string) string {
	t.Helper()
	text, err := server.Client(t).Get(context.Background(), "joblock:"+key).Result() // no waiters: it is a string
	if err != nil {
		t.Fatalf("no record: %v", err)
	}
	return text
}

// While Redis is away for longer than the TTL the work is cancelled in time, nothing
// blocks forever, and afterwards the key can be had again.
func TestRedisAwayForLongerThanTTL(t *testing.T) {
	for _, tt := range []struct {
		name       string
		away, back func(*redistest.Server)
	}{
		{"hangs", (*redistest.Server).Stop, (*redistest.Server).Cont},
		{"dies", (*redistest.Server).Kill, (*redistest.Server).Restart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			locks := newLocks(t, server.Addr(), &joblock.Config{TTL: time.Second, CallTimeout: 500 * time.Millisecond})
			lock, err := locks.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			first := lock.Fence()
			ctx, stop := lock.Context(t.Context())
			defer stop()

			tt.away(server)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), joblock.ErrLost) {
				t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
			}
			// That this is in time is shown in virtual time, in package joblock; here
			// a busy machine may look late.
			t.Logf("got %v before the trust deadline", time.Until(lock.ExpiresAt()))
			for name, call := range map[string]func() error{
				"TryAcquire": func() error { _, err := locks.TryAcquire(t.Context(), "other"); return err },
				"Status":     func() error { _, err := testkit.One(locks.Status(t.Context(), "k")); return err },
			} {
				if err := call(); !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("%s: %v, want ErrUnavailable", name, err)
				}
			}
			if err := lock.Release(t.Context()); !errors.Is(err, joblock.ErrLost) {
				t.Errorf("Release: %v, want ErrLost", err)
			}

			tt.back(server)
			lock, err = locks.Acquire(t.Context(), "k", joblock.MaxWait(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if lock.Fence() <= first {
				t.Errorf("fence %d after the outage, had %d before", lock.Fence(), first)
			}
			if err := lock.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
