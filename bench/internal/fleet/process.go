package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// keepEnv carries the orders of a process that is to run a keeper.
const keepEnv = "JOBLOCK_BENCH_KEEP"

// orders say what a keeper's process has to do.
type orders struct {
	Locks  string        `json:"locks"` // address of the locks' Redis
	Asynq  string        `json:"asynq"`
	Every  time.Duration `json:"every"`
	Share  float64       `json:"share"`
	Places int           `json:"places"` // worker.Config.Keepers
}

// State is what a keeper's process tells about itself.
type State struct {
	Stats worker.KeeperStats `json:"stats"`
	CPU   time.Duration      `json:"cpu"`  // processor time of the process
	Heap  int64              `json:"heap"` // bytes in use
}

// KeepIfAsked runs a keeper if this process was started by this package, and then does not
// return. Call KeepIfAsked first thing in main.
func KeepIfAsked() {
	text, asked := os.LookupEnv(keepEnv)
	if !asked {
		return
	}
	if err := keep(text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// keep runs a keeper until in ends, and answers each line of in with a State.
func keep(text string, in io.Reader, out io.Writer) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: o.Locks})
	defer rdb.Close()
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	locks, err := joblock.New(redisstore.New(rdb, nil), &joblock.Config{Logger: quiet})
	if err != nil {
		return err
	}
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: o.Asynq})
	defer inspector.Close()
	w, err := worker.New(locks, inspector, &worker.Config{Every: o.Every, Share: o.Share, Keepers: o.Places, Logger: quiet})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		s := State{Stats: w.KeeperStats()}
		if s.CPU, err = rig.CPU(); err == nil {
			s.Heap = rig.InUse()
			err = answers.Encode(s)
		}
		if err != nil {
			break
		}
	}
	stop()
	return errors.Join(err, <-done, locks.Close(context.Background()))
}

// process is another process with a keeper.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
}

func startKeeper(o orders) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), keepEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(out)
	return p, p.cmd.Start()
}

func (p *process) state() (s State, err error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return s, err
	}
	return s, p.answers.Decode(&s)
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // "already finished" is what is wanted
	_ = p.cmd.Wait()
}

// stop lets the keeper end.
func (p *process) stop() error { return errors.Join(p.in.Close(), p.cmd.Wait()) }
