package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Child is this program, started once more by StartChild.
type Child struct {
	Cmd     *exec.Cmd
	In      io.WriteCloser
	Answers *json.Decoder // of what the child writes to standard output
}

// StartChild starts this program once more, with orders as JSON in the environment variable env. The child ends with
// ctx, as by a crash. What the child writes to standard error goes to stderr.
func StartChild(ctx context.Context, env string, orders any, stderr io.Writer) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(orders)
	if err != nil {
		return nil, err
	}
	c := &Child{Cmd: exec.CommandContext(ctx, self)}
	c.Cmd.Env = append(os.Environ(), env+"="+string(text))
	c.Cmd.Stderr = stderr
	c.Cmd.WaitDelay = time.Second
	if c.In, err = c.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.Answers = json.NewDecoder(bufio.NewReader(out))
	return c, c.Cmd.Start()
}

// PlayChild calls play and ends this process if StartChild has started this process with the environment variable env.
// Call PlayChild first thing in main, and in TestMain.
func PlayChild[Orders any](env string, play func(o Orders, in io.Reader, out *json.Encoder) error) {
	text, asked := os.LookupEnv(env)
	if !asked {
		return
	}
	var o Orders
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = play(o, os.Stdin, json.NewEncoder(os.Stdout))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", env, err)
		os.Exit(1)
	}
	os.Exit(0)
}
