// Package e2e proves what takes several packages, a real redis-server and more
// than one process to show.
package e2e

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roles are what another process of a test may be. A role returns the exit code of its process.
var roles = map[string]func() int{"hold": playHold}

// TestMain runs this binary either as the tests or, when a test has started it
// again with a role, as the other process of that test.
func TestMain(m *testing.M) {
	if role := os.Getenv("JOBLOCK_E2E_ROLE"); role != "" {
		play := roles[role]
		if play == nil {
			fmt.Fprintln(os.Stderr, "unknown role", role)
			os.Exit(2)
		}
		os.Exit(play())
	}
	// With the race detector every other process would sleep for a second before it ends.
	if err := os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	// go-redis probes a dead server for up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
