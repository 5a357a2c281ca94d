package worker_test

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// TestMain has the garbage collected less often than usual: miniredis builds a Lua state for each call of a script.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	goleak.VerifyTestMain(m)
}
