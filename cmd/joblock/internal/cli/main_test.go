//go:build linux

package cli

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The tests of "run" start this program again: as joblock if envAs is set, and as the command under joblock if the
// first argument is asCommand.
const (
	envAs     = "JOBLOCK_TEST_AS_JOBLOCK"
	asCommand = "test-command"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asCommand {
		command(os.Args[2:])
	}
	if len(os.Args) > 2 && os.Args[1] == asRole {
		playRole(os.Args[2])
	}
	if os.Getenv(envAs) != "" {
		os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	// Tests that are started by nohup ignore HUP, and so does all that they start. Signals with a handler, however, are
	// not ignored by programs that are started.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	goleak.VerifyTestMain(m)
}
