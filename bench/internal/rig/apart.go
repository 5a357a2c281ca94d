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

// Apart gives this process and the server the first processor, and returns the words that begin a command line which
// has the second processor for itself. So what a client sees of the server does not depend on the processor time that the
// command takes: on a real site the two are on different machines. With one processor, or without taskset, nothing
// changes, and the words are nil. Restore gives this process all processors again.
func (s *Server) Apart(ctx context.Context) (words []string, restore func() error, err error) {
	restore = func() error { return nil }
	taskset, err := exec.LookPath("taskset")
	if err != nil || runtime.NumCPU() < 2 {
		return nil, restore, nil
	}
	pin := func(processors, pid string) error {
		if out, err := exec.CommandContext(ctx, taskset, "-a", "-p", "-c", processors, pid).CombinedOutput(); err != nil {
			return fmt.Errorf("taskset: %w: %s", err, out)
		}
		return nil
	}
	server, err := s.pid(ctx)
	if err != nil {
		return nil, restore, err
	}
	self := strconv.Itoa(os.Getpid())
	restore = func() error { return pin(fmt.Sprintf("0-%d", runtime.NumCPU()-1), self) }
	if err := errors.Join(pin("0", server), pin("0", self)); err != nil {
		return nil, restore, errors.Join(err, restore())
	}
	return []string{taskset, "-c", "1"}, restore, nil
}
