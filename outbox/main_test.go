package outbox

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roles are what another process of a test may be. A role returns the exit code of its process.
var roles = map[string]func() int{}

// TestMain runs this binary either as the tests or, when a test has started it again with a role, as the other process
// of that test.
func TestMain(m *testing.M) {
	if role := os.Getenv("JOBLOCK_OUTBOX_ROLE"); role != "" {
		play := roles[role]
		if play == nil {
			fmt.Fprintln(os.Stderr, "unknown role", role)
			os.Exit(2)
		}
		os.Exit(play())
	}
	// go-redis probes a dead server for up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
