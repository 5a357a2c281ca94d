package rig

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	SpinIfAsked() // the busy process is this binary again
	PlayChild(echoEnv, echo)
	goleak.VerifyTestMain(m)
}
