//go:build servers

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// flightEnv names the server on which TestSingleFlightCallers is one process of
// several.
const flightEnv = "JOBLOCK_E2E_FLIGHT"

// callers is how many each process has.
const callers = 25

// flight is a result, computed where it says.
type flight struct {
	Run int64
	Pid int
}

// fly is one caller. What it computes takes until the test says go.
func fly(ctx context.Context, rdb *redis.Client, locks *joblock.Locker) (flight, error) {
	return singleflight.Do(ctx, locks, "flight", time.Hour, func(ctx context.Context) (flight, error) {
		run, err := rdb.Incr(ctx, "runs").Result()
		if err == nil {
			err = rdb.BLPop(ctx, time.Minute, "go").Err()
		}
		return flight{Run: run, Pid: os.Getpid()}, err
	})
}

// sayGo lets the caller that computes go on when all others wait.
func sayGo(t *testing.T, rdb *redis.Client, locks *joblock.Locker, all int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		st, err := testkit.One(locks.Status(t.Context(), "flight"))
		if err != nil {
			t.Fatal(err)
		}
		if st.State == joblock.StateHeld && st.Waiters == all-1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, %d wait; want %d", st.State, st.Waiters, all-1)
		}
	}
	if err := rdb.RPush(t.Context(), "go", "go").Err(); err != nil {
		t.Fatal(err)
	}
}

// The callers of one process: of the only one, or of one of several, started by
// TestSingleFlightComputesOnceInFourProcesses.
func TestSingleFlightCallers(t *testing.T) {
	addr := os.Getenv(flightEnv)
	alone := addr == ""
	if alone {
		addr = redistest.Start(t).Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	locks := newLocks(t, addr, nil)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			if got, err := fly(t.Context(), rdb, locks); err != nil || got.Run != 1 {
				t.Errorf("caller %d: %+v, error %v", i, got, err)
			}
		})
	}
	if alone {
		sayGo(t, rdb, locks, callers)
	}
	wg.Wait()
}

func TestSingleFlightComputesOnceInFourProcesses(t *testing.T) {
	server := redistest.Start(t)
	rdb, locks := server.Client(t), newLocks(t, server.Addr(), nil)
	const processes = 4
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // of a test that has failed: its context ends them
	pids := make([]int, processes)
	for i := range processes {
		p := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSingleFlightCallers$", "-test.count=1")
		p.Env = append(os.Environ(), flightEnv+"="+server.Addr())
		var out bytes.Buffer // exec writes to it from one goroutine when both are the same
		p.Stdout, p.Stderr = &out, &out
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		pids[i] = p.Process.Pid
		wg.Go(func() {
			if err := p.Wait(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, &out)
			}
		})
	}
	sayGo(t, rdb, locks, processes*callers)
	wg.Wait()

	got, err := fly(t.Context(), rdb, locks)
	if err != nil || got.Run != 1 {
		t.Errorf("afterwards: %+v, error %v", got, err)
	}
	if !slices.Contains(pids, got.Pid) {
		t.Errorf("computed in process %d, not in one of %v", got.Pid, pids)
	}
	if runs, err := rdb.Get(t.Context(), "runs").Int(); err != nil || runs != 1 {
		t.Errorf("computed %d times, error %v; want once", runs, err)
	}
}
