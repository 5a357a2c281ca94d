package toolkit_test

import (
	"testing"

	"go.uber.org/goleak"
)

// After many failed dials go-redis dials on, and notices within a second that its client was closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
