//go:build unix

package torture

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs this binary either as the test or, when that has started it again with
// a plan, as one of its processes.
func TestMain(m *testing.M) {
	if plan := os.Getenv(planEnv); plan != "" {
		os.Exit(play(plan))
	}
	// go-redis probes a dead server for up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
