//go:build servers

package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// jobs are the web side and the job side of the load.
type jobs struct {
	t         *testing.T
	load      *load
	places    chan struct{} // of which each job that is not done has one
	handed    *handoff.Client
	client    *asynq.Client
	inspector *asynq.Inspector
	server    *asynq.Server
	worker    *worker.Worker
	keeper    context.CancelFunc
	kept      chan error
}

func startJobs(t *testing.T, l *load, addr string, inFlight int) *jobs {
	t.Helper()
	opt := asynq.RedisClientOpt{Addr: addr}
	j := &jobs{
		t: t, load: l, places: make(chan struct{}, inFlight), kept: make(chan error, 1),
		client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt),
	}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	if j.handed, err = handoff.NewClient(l.lockers[0], j.client, j.inspector, &handoff.Config{Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	j.worker, err = worker.New(l.lockers[1], j.inspector, &worker.Config{Snooze: time.Second, Logger: quiet, Keeper: worker.KeeperConfig{Interval: 500 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.Use(j.worker.Middleware)
	mux.HandleFunc("job", j.handle)
	j.server = asynq.NewServer(opt, j.worker.Configure(asynq.Config{
		Concurrency:              32,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		TaskCheckInterval:        50 * time.Millisecond,
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		ShutdownTimeout:          10 * time.Second,
		LogLevel:                 asynq.FatalLevel,
	}))
	if err := j.server.Start(mux); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, j.keeper = context.WithCancel(context.Background())
	go func() { j.kept <- j.worker.RunKeeper(ctx) }()
	return j
}

// enqueue enqueues a job with a lock, as a request does or in one call, for keys of which
// some are wanted by several jobs.
func (j *jobs) enqueue() error {
	l := j.load
	select {
	case j.places <- struct{}{}:
	case <-l.feeding.Done():
		return nil
	}
	task := asynq.NewTask("job", nil, asynq.MaxRetry(100))
	err := func() error {
		if jitter.N(2) == 0 {
			_, err := j.handed.Enqueue(l.ctx, handoff.Unique{Key: joblock.Key("unique", fmt.Sprint(int(jitter.N(100))))}, task)
			return err
		}
		lock, err := l.lockers[0].TryAcquire(l.ctx, l.once("job"))
		if err != nil {
			return err
		}
		defer func() { _ = lock.Release(context.WithoutCancel(l.ctx)) }() // harmless after Enqueue
		_, err = j.handed.Enqueue(l.ctx, handoff.Carry(lock), task)
		return err
	}()
	if err == nil {
		l.enqueued.Add(1)
		return nil
	}
	<-j.places
	switch {
	case errors.Is(err, joblock.ErrHeld):
		l.refused.Add(1)
		return nil
	case joblock.CodeOf(err) == "": // asynq's own client had no answer in time
		l.unanswered.Add(1)
		return nil
	}
	return err
}

var errAgain = errors.New("once more")

func (j *jobs) handle(ctx context.Context, _ *asynq.Task) error {
	lock, ok := joblock.FromContext(ctx)
	if !ok {
		j.t.Error("a job came without its lock")
	}
	if lock.Err() != nil {
		return lock.Err()
	}
	if _, err := wait(ctx, jitter.N(2*time.Millisecond)); err != nil {
		return err
	}
	if jitter.N(10) == 0 {
		j.load.retried.Add(1)
		return errAgain
	}
	j.load.done.Add(1)
	select {
	case <-j.places:
	default: // it was done before, and its end got lost
	}
	return nil
}

// stop ends the job side, which is fed no more, once all jobs are done and the keeper has nothing left to look
// at, which index tells.
func (j *jobs) stop(index func() int64) {
	j.t.Helper()
	await(j.t, "all jobs to be done", func() (bool, string) {
		info, err := j.inspector.GetQueueInfo("default")
		if err != nil {
			return false, err.Error()
		}
		return info.Size == 0, fmt.Sprintf("%d are left, %d of them archived", info.Size, info.Archived)
	})
	await(j.t, "the index to be empty", func() (bool, string) {
		n := index()
		return n == 0, fmt.Sprintf("it has %d entries", n)
	})
	j.server.Shutdown()
	j.keeper()
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	defer cancel()
	if err := errors.Join(<-j.kept, j.worker.Close(ctx), j.handed.Close(ctx), j.client.Close(), j.inspector.Close()); err != nil {
		j.t.Errorf("stop the jobs: %v", err)
	}
}
