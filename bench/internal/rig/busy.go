package rig

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
)

// busyEnv marks the process that keeps a core busy.
const busyEnv = "JOBLOCK_BENCH_BUSY"

// SpinIfAsked keeps one core busy until standard input ends, if this process was started by
// KeepBusy, and then does not return. Call SpinIfAsked first thing in main, and in TestMain.
func SpinIfAsked() {
	if _, asked := os.LookupEnv(busyEnv); !asked {
		return
	}
	runtime.GOMAXPROCS(1)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the process that has started this one
		os.Exit(0)
	}()
	for n := 0; ; n++ { // the waste is the purpose
	}
}

// KeepBusy starts a process that keeps one core busy. stop ends that process.
func KeepBusy() (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), busyEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(in.Close(), cmd.Wait()) }, nil
}
