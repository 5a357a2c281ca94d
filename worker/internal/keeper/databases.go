package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/workerstats"
)

// databases are the asynq databases of Config.Inspectors. Concurrent calls are safe.
type databases struct {
	cfg Config

	mu        sync.Mutex           // guards the fields below
	queues    map[string]bool      // the queues that were found in one of the databases
	strangers map[string]time.Time // by queue that was never found: when a lookup last met a job of the queue
}

// task looks up the task that job names.
func (d *databases) task(job string) (finding, error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return finding{kind: foreign}, nil
	}
	f, err := d.find(queue, id)
	if err != nil || f.kind != absent {
		return f, err
	}
	// asynq may still enqueue the aggregate of a group, as long as the members exist.
	if lead, ok := envelope.LeadOf(id); ok {
		l, err := d.find(queue, lead)
		if err != nil || l.state == asynq.TaskStateAggregating {
			return l, err
		}
	}
	// A step of a chain may be about to enqueue the next one, to which it has handed its locks.
	if link, ok := chain.ParseID(id); ok {
		p, err := d.before(link, queue)
		if err != nil || p.kind == alive {
			p.waits = false
			return p, err
		}
	}
	return f, nil
}

// before looks up the step of the chain before the one in link, which is in queue. If link does not have the queue of
// the earlier step, before looks in all queues. That is rare: it happens only for a lock whose task does not exist.
func (d *databases) before(link chain.Link, queue string) (best finding, err error) {
	ids, first := link.Before()
	queues := []string{link.Queue}
	if !first {
		queues = append(queues, queue)
		for _, in := range d.cfg.Inspectors {
			all, err := in.Queues()
			if err != nil {
				return best, err
			}
			queues = append(queues, all...)
		}
	}
	slices.Sort(queues)
	for _, q := range slices.Compact(queues) {
		for _, id := range ids {
			f, err := d.find(q, id)
			if err != nil || f.kind == alive {
				return f, err
			}
		}
	}
	return best, nil
}

// find looks up a task in each asynq database of Config.Inspectors. It returns the finding of the highest findingKind.
// If a database does not answer, find fails, unless another database says that the task is alive.
func (d *databases) find(queue, id string) (finding, error) {
	best := finding{kind: foreign}
	var failed error
	for _, inspector := range d.cfg.Inspectors {
		f, err := d.lookUp(inspector, queue, id)
		switch {
		case err != nil:
			failed = fmt.Errorf("task %s: %w", envelope.Job(queue, id), err)
		case f.kind == alive:
			return d.met(queue, f), nil
		case f.kind > best.kind:
			best = f
		}
	}
	if failed != nil {
		return finding{}, failed
	}
	return d.met(queue, best), nil
}

// knows remembers that a queue exists.
func (d *databases) knows(queue string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues[queue] = true
}

// met returns f. If f shows that the queue exists, met remembers it. If f says that no database has the queue, but the
// queue existed before, it was deleted with all tasks, and met returns a finding of the kind absent.
func (d *databases) met(queue string, f finding) finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case f.kind != foreign:
		d.queues[queue] = true
	case d.queues[queue]:
		return finding{kind: absent, reason: reasonNoQueue}
	default:
		if _, known := d.strangers[queue]; known || len(d.strangers) < workerstats.MostQueues {
			d.strangers[queue] = time.Now()
		}
	}
	return f
}

// strangerFor is the number of intervals for which the figures name an unknown queue after a lookup has last met it.
const strangerFor = 10

// unknown returns the queues that none of the databases has, as far as lookups have recently met jobs of them.
func (d *databases) unknown(now time.Time) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.strangers, func(queue string, met time.Time) bool {
		return d.queues[queue] || now.Sub(met) > strangerFor*d.cfg.Interval
	})
	return slices.Sorted(maps.Keys(d.strangers))
}

// lookUp looks up a task in one asynq database. Only the timeouts of the inspector's Redis client bound lookUp.
func (d *databases) lookUp(inspector *asynq.Inspector, queue, id string) (finding, error) {
	info, err := inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound):
		return finding{kind: foreign}, nil
	case errors.Is(err, asynq.ErrTaskNotFound):
		return finding{kind: absent, reason: reasonAbsent}, nil
	case err != nil:
		return finding{}, err
	}
	f := finding{kind: ended, state: info.State, info: info, in: inspector}
	switch info.State {
	case asynq.TaskStateArchived:
		f.reason, f.snoozed = reasonArchived, d.cfg.Snoozed(info)
	case asynq.TaskStateCompleted:
		f.reason = reasonCompleted
	default:
		f.kind, f.delay = alive, max(0, time.Until(info.NextProcessAt))
		f.waits = jobline.Waits(envelope.MayWait(info.Headers), info)
	}
	return f, nil
}

// concurrency is the largest number of concurrent lookups. A lookup takes one or two round trips. Eight lookups
// keep the link busy, but not the server.
const concurrency = 8

// each calls f for the numbers 0 to n-1, in up to eight goroutines. When ctx ends, it returns the cause of ctx without
// waiting for running calls of f: after an error, f may still be running.
func each(ctx context.Context, n int, f func(i int)) error {
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(concurrency, n) {
		calls.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
