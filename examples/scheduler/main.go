// Scheduler shows who runs what: three scheduler processes on one terminal, one of which
// is killed in the middle of a job, and one stopped.
//
//	go run ./examples/scheduler
//	go run ./examples/scheduler -redis localhost:6379
//
// It ends by itself, with exit code 1 if anything it shows did not happen. This file plays
// the story; node.go is what an application has.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	addr := flag.String("redis", "", "host:port of a Redis to use instead of the embedded one")
	name := flag.String("node", "", "be one of the nodes, with this name")
	scope := flag.String("scope", fmt.Sprintf("example-%d", os.Getpid()), "what the nodes have in common")
	flag.Parse()
	err := error(nil)
	if *name != "" {
		err = node(*addr, *scope, *name)
	} else {
		err = story(os.Stdout, *addr, *scope)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheduler:", err)
		os.Exit(1)
	}
}

// story starts the nodes, and ends two of them while they run the job "report".
func story(out io.Writer, addr, scope string) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 90*time.Second, errors.New("the story took too long"))
	defer cancel()
	if addr == "" {
		embedded := miniredis.NewMiniRedis()
		embedded.ClockTTL(true)
		if err := embedded.Start(); err != nil {
			return err
		}
		defer embedded.Close()
		addr = embedded.Addr()
	}
	lines := make(chan string)
	nodes := make(map[string]*exec.Cmd)
	for _, name := range []string{"a", "b", "c"} {
		cmd := exec.CommandContext(ctx, os.Args[0], "-node", name, "-redis", addr, "-scope", scope)
		cmd.Cancel = func() error { return cmd.Process.Kill() }
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() { cancel(); _ = cmd.Wait() }()
		nodes[name] = cmd
		go func() {
			for in := bufio.NewScanner(pipe); in.Scan(); {
				select {
				case lines <- in.Text():
				case <-ctx.Done():
				}
			}
		}()
	}
	start := time.Now()
	say := func(text string) { fmt.Fprintf(out, "%5.1fs  %s\n", time.Since(start).Seconds(), text) }
	// until prints the nodes' lines, up to the one that has text in it, and returns the
	// node that printed it.
	until := func(text string) (string, error) {
		for {
			select {
			case line := <-lines:
				say(line)
				if strings.Contains(line, text) {
					return line[:1], nil
				}
			case <-ctx.Done():
				return "", fmt.Errorf("waiting for %q: %w", text, context.Cause(ctx))
			}
		}
	}
	for _, act := range []struct {
		wait, what string
		end        func(*os.Process) error
	}{
		{"report half done", "is killed, as by kill -9: its lease of 2s has to run out", (*os.Process).Kill},
		{"report taken over", "is interrupted: it hands over at once", func(p *os.Process) error { return p.Signal(os.Interrupt) }},
		{"report taken over", "finishes", nil},
		{"report done", "has done it", nil},
	} {
		name, err := until(act.wait)
		if err != nil {
			return err
		}
		say("-- " + name + " " + act.what)
		if act.end != nil {
			if err := act.end(nodes[name].Process); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out)
	return show(ctx, out, addr, scope)
}
