package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
)

// Apart gives the server and the child the first processor, and this process and what it starts from then on the second.
// So what the child sees of the server does not depend on the processor time of this process: on a real site the two are on
// different machines. With one processor, or without taskset, nothing changes. Restore gives this process all processors
// again.
func (s *Server) Apart(ctx context.Context, child *Child) (restore func() error, err error) {
	restore = func() error { return nil }
	taskset, err := exec.LookPath("taskset")
	if err != nil || runtime.NumCPU() < 2 {
		return restore, nil
	}
	pin := func(processors string, pid int) error {
		out, err := exec.Command(taskset, "-a", "-p", "-c", processors, strconv.Itoa(pid)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("taskset: %w: %s", err, out)
		}
		return nil
	}
	server, err := s.pid(ctx)
	if err != nil {
		return restore, err
	}
	pid, err := strconv.Atoi(server)
	if err != nil {
		return restore, err
	}
	self := os.Getpid()
	restore = func() error { return pin(fmt.Sprintf("0-%d", runtime.NumCPU()-1), self) }
	if err := errors.Join(pin("0", pid), pin("0", child.Cmd.Process.Pid), pin("1", self)); err != nil {
		return restore, errors.Join(err, restore())
	}
	return restore, nil
}
