package server

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// TestMain runs this binary either as the tests or, when a test has started it again with a plan, as a server.
func TestMain(m *testing.M) {
	if plan := os.Getenv(planEnv); plan != "" {
		os.Exit(runPlan(plan))
	}
	redis.SetLogger(silence{}) // dead connections are what some tests are about
	// go-redis probes a dead server for up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
