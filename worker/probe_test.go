package worker_test

import (
	"context"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// run is what a handler saw of one call.
type run struct {
	id      string
	retried int
	budget  int // what asynq.GetMaxRetry said
	fence   int64
}

// probe is a handler that takes notes.
type probe struct {
	mu   sync.Mutex
	runs []run
	live map[string]int // by task
	peak int            // the most calls for one task at once
	told []telling
}

// telling is what an ErrorHandler was called with.
type telling struct {
	err     error
	retried int
	budget  int
}

// handler calls f with the number of the call, counted from 1.
func (p *probe) handler(f func(ctx context.Context, n int) error) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		n, id := p.enter(ctx)
		defer p.leave(id)
		return f(ctx, n)
	}
}

func (p *probe) enter(ctx context.Context) (int, string) {
	id, _ := asynq.GetTaskID(ctx)
	r := run{id: id}
	r.retried, _ = asynq.GetRetryCount(ctx)
	r.budget, _ = asynq.GetMaxRetry(ctx)
	if lock, ok := joblock.FromContext(ctx); ok {
		r.fence = lock.Fence()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = append(p.runs, r)
	if p.live == nil {
		p.live = make(map[string]int)
	}
	p.live[id]++
	p.peak = max(p.peak, p.live[id])
	return len(p.runs), id
}

func (p *probe) leave(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[id]--
}

func (p *probe) all() []run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]run(nil), p.runs...)
}

func (p *probe) count() int { return len(p.all()) }

// running returns how many calls are under way.
func (p *probe) running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, m := range p.live {
		n += m
	}
	return n
}

func (p *probe) most() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peak
}

// ear is an ErrorHandler that takes notes.
func (p *probe) ear() asynq.ErrorHandler {
	return asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, err error) {
		tell := telling{err: err}
		tell.retried, _ = asynq.GetRetryCount(ctx)
		tell.budget, _ = asynq.GetMaxRetry(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.told = append(p.told, tell)
	})
}

func (p *probe) heard() []telling {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]telling(nil), p.told...)
}
