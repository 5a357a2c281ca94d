//go:build servers && unix

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
	// With the race detector every process would sleep for a second before it ends.
	if err := os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	// go-redis probes a dead server for up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
