//go:build unix

package torture

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// TestMain runs this binary either as the test or, when that has started it again with
// a plan, as one of its processes.
func TestMain(m *testing.M) {
	if plan := os.Getenv(planEnv); plan != "" {
		os.Exit(play(plan))
	}
	redis.SetLogger(silence{}) // of fail-overs
	// go-redis probes a dead server for up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
