package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/joblock"
)

// The subjects of the section on slots.
const (
	nobodyWaits = "nobody waits"
	someWait    = "jobs of a sequence wait"
)

// columnDeliveries is a title that Aims names.
const columnDeliveries = "deliveries of jobs that wait"

// otherQueue is the queue of the tasks beside the sequence.
const otherQueue = "others"

func slotCase(s Scale) string {
	return fmt.Sprintf("%d wait in one sequence, %d others run", s.Slots.Waiting, s.Slots.Others)
}

func (b *Bench) slots(ctx context.Context) (*report.Section, error) {
	c := slotCase(b.Scale)
	s := &report.Section{
		Name:  "slots",
		Title: "Jobs that wait beside jobs that run",
		Note: "One worker (concurrency 1), two queues of the same priority. In one of them wait the jobs of a sequence whose key somebody holds. " +
			fmt.Sprintf("The tasks of the other queue do nothing, and have no locks. Rounds: %d.", b.Scale.Few()),
		Base: nobodyWaits,
		Columns: []report.Column{
			{Title: columnProcessed, Ratio: true},
			{Title: columnDeliveries, Fold: report.Max},
		},
	}
	b.say("%s, %s", s.Name, c)
	return s, eachRound(ctx, b, b.Scale.Few(), []string{nobodyWaits, someWait}, func(_ int, subject string) error {
		perSecond, deliveries, err := b.slotRound(ctx, subject == someWait)
		if err == nil {
			s.Add(c, subject, perSecond, float64(deliveries))
		}
		return err
	})
}

// slotRound returns how many of the other tasks were run per second, and how often a worker took a task of the
// sequence from its queue.
func (b *Bench) slotRound(ctx context.Context, wait bool) (perSecond float64, deliveries int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := b.newJobKit()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	if wait {
		lock, err := k.locks.TryAcquire(ctx, "slots", joblock.NoRenew(), joblock.TTL(patience))
		if err != nil {
			return 0, 0, err
		}
		if err := k.enqueueLines(ctx, []string{lock.Key()}, b.Scale.Slots.Waiting); err != nil {
			return 0, 0, err
		}
	}
	n := b.Scale.Slots.Others
	for range n {
		if _, err := k.client.EnqueueContext(ctx, asynq.NewTask(otherType, nil), asynq.Queue(otherQueue)); err != nil {
			return 0, 0, err
		}
	}

	var left, delivered atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	server, mux := k.server(unlocked, asynq.Config{Concurrency: 1, Queues: map[string]int{"default": 1, otherQueue: 1}})
	mux.HandleFunc(otherType, func(context.Context, *asynq.Task) error {
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	})
	deliver := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == jobType {
			delivered.Add(1)
		}
		return mux.ProcessTask(ctx, task)
	})
	runtime.GC() // else what the enqueues have left is collected while the clock runs
	start := time.Now()
	if err := server.Start(deliver); err != nil {
		return 0, 0, err
	}
	defer server.Shutdown()
	select {
	case <-done:
		return rate(n, start), delivered.Load(), nil
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("%d of %d others were not run: %w", left.Load(), n, context.Cause(ctx))
	}
}
