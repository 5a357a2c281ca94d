package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/worker"
)

// durations reads how long tasks usually take, in whole seconds.
func (r *rig) durations() (table workerstats.Durations, of []time.Duration) {
	r.t.Helper()
	views, err := memo.Read(context.Background(), r.locks, keyspace.Durations)
	if err == nil {
		table, err = workerstats.DecodeDurations(views[0].Memo)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range table.Of(taskType) {
		of = append(of, d.Round(time.Second))
	}
	return table, of
}

// lengths is a handler whose runs take a set time.
type lengths struct {
	mu   sync.Mutex
	took time.Duration
	err  error
}

func (l *lengths) next(took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took, l.err = took, err
}

func (l *lengths) handle(context.Context, *asynq.Task) error {
	l.mu.Lock()
	took, err := l.took, l.err
	l.mu.Unlock()
	time.Sleep(took)
	return err
}

// How long attempts take that succeed can be read by everybody. The others do not count. No other job waits for that.
func TestHowLongTasksUsuallyTakeIsPublished(t *testing.T) {
	virtual(t, func(r *rig) {
		var l lengths
		r.serve(service{}, l.handle)
		number := 0
		run := func(took time.Duration, err error) {
			l.next(took, err)
			number++
			r.enqueue(fmt.Sprint("job", number), 0)
			time.Sleep(took + 2*time.Second)
		}
		run(3*time.Second, nil)
		run(5*time.Second, nil)
		if _, got := r.durations(); len(got) > 0 {
			t.Errorf("%v after %d jobs of the first minute, in which nothing is written", got, number)
		}
		time.Sleep(time.Minute)
		run(20*time.Second, fmt.Errorf("no: %w", asynq.SkipRetry))
		if _, got := r.durations(); len(got) > 0 {
			t.Errorf("%v after a job that has failed", got)
		}
		busy, err := r.locks.TryAcquire(context.Background(), keyspace.Durations, core.OwnKey)
		if err != nil {
			t.Fatal(err)
		}
		run(8*time.Second, nil) // another process is writing
		r.release(busy)
		time.Sleep(5 * time.Second)
		run(9*time.Second, nil)
		want := []time.Duration{3 * time.Second, 5 * time.Second, 8 * time.Second, 9 * time.Second}
		if _, got := r.durations(); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// A process writes once a minute, however many jobs it runs, and a write that fails delays no job.
func TestPublishingHowLongTasksTakeCostsNoJobAnything(t *testing.T) {
	virtual(t, func(r *rig) {
		var l lengths
		l.next(10*time.Millisecond, nil)
		srv := r.serve(service{}, l.handle)
		const minutes, each = 5, 20
		for i := range minutes * each {
			r.enqueue(fmt.Sprint("job", i), 0)
			time.Sleep(time.Minute / each)
		}
		table, got := r.durations()
		if table.Writes < minutes-2 || table.Writes > minutes || len(got) != workerstats.MostDurations {
			t.Errorf("%d writes in %d minutes, of %d lengths", table.Writes, minutes, len(got))
		}
		srv.Shutdown()
		r.closeWorker(srv.worker)
	})
}

// A task that gets its lock only in WithoutOverlapping counts as well, and once if it also carries a lock.
func TestHowLongTasksTakeThatMustNotOverlap(t *testing.T) {
	virtual(t, func(r *rig) {
		var l lengths
		l.next(time.Second, nil)
		r.serve(service{use: []func(*worker.Worker) asynq.MiddlewareFunc{func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(*asynq.Task) string { return "one" }, nil)
		}}}, l.handle)
		time.Sleep(2 * time.Minute)
		r.plain(1, "", 0)
		time.Sleep(10 * time.Second)
		r.enqueue("carries", 0)
		time.Sleep(time.Minute + 10*time.Second)
		r.enqueue("another", 0)
		time.Sleep(10 * time.Second)
		if _, got := r.durations(); len(got) != 3 {
			t.Errorf("%v of three jobs", got)
		}
	})
}
