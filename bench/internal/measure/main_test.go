package measure

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ContendIfAsked() // hand-overs start this binary again
	goleak.VerifyTestMain(m)
}
