package worker

import (
	"context"
	"sync"

	"github.com/joblock/toolkit/internal/crew"
)

// inflight counts activities, so that Worker.Close can wait until all activities have ended. A sync.WaitGroup
// would not do: background work may begin while Close waits, and WaitGroup.Add must not race with WaitGroup.Wait.
type inflight struct {
	closing context.Context    // ends when the function in the field close is called
	close   context.CancelFunc // makes the method begin refuse new activities
	crew    *crew.Crew         // has the goroutines of the method background

	mu   sync.Mutex // guards n
	n    int        // the number of activities
	zero *sync.Cond // signals that n is 0, or that the context of a waiting caller has ended
}

func newInflight() *inflight {
	t := new(inflight)
	t.closing, t.close = context.WithCancel(context.Background())
	t.crew = crew.New(t.closing)
	t.zero = sync.NewCond(&t.mu)
	return t
}

// begin counts a new activity. After the call of t.close, begin counts nothing and returns false.
func (t *inflight) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing.Err() != nil {
		return false
	}
	t.n++
	return true
}

// background counts f as an activity, even if the method begin would not, and calls f in another goroutine.
func (t *inflight) background(f func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	t.crew.Go(func() {
		defer t.end()
		f()
	})
}

func (t *inflight) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		t.zero.Broadcast()
	}
}

// wait waits until all activities have ended. If ctx ends first, wait returns the cause of ctx.
func (t *inflight) wait(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.zero.Broadcast()
	})()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n > 0 && ctx.Err() == nil {
		t.zero.Wait()
	}
	if t.n > 0 {
		return context.Cause(ctx)
	}
	return nil
}
