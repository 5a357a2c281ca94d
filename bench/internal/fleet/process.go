package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
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
func KeepIfAsked() { rig.PlayChild(keepEnv, keep) }

// keep runs a keeper until in ends, and answers each line of in with a State.
func keep(o orders, in io.Reader, answers *json.Encoder) error {
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
type process struct{ *rig.Child }

func startKeeper(o orders) (*process, error) {
	c, err := rig.StartChild(context.Background(), keepEnv, o, os.Stderr)
	return &process{c}, err
}

func (p *process) state() (s State, err error) {
	if _, err := io.WriteString(p.In, "\n"); err != nil {
		return s, err
	}
	return s, p.Answers.Decode(&s)
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.Cmd.Process.Kill() // "already finished" is what is wanted
	_ = p.Cmd.Wait()
}

// stop lets the keeper end.
func (p *process) stop() error { return errors.Join(p.In.Close(), p.Cmd.Wait()) }
