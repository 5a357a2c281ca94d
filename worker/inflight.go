package worker

import (
	"context"
	"sync"
)

// inflight counts activities, so that Close can wait for their ends. A sync.WaitGroup cannot do this: background work
// may begin while Close waits, and WaitGroup.Add must not race with WaitGroup.Wait.
type inflight struct {
	closing context.Context // ends when close is called
	close   context.CancelFunc

	mu   sync.Mutex // guards n and zero
	n    int
	zero chan struct{} // closed when n is back at 0; nil while nobody waits
}

func newInflight() *inflight {
	t := new(inflight)
	t.closing, t.close = context.WithCancel(context.Background())
	return t
}

// begin counts a new activity. After close, begin counts nothing and returns false.
func (t *inflight) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing.Err() != nil {
		return false
	}
	t.n++
	return true
}

// background counts f as an activity, even after close, and calls f in a goroutine.
func (t *inflight) background(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	go func() {
		defer t.end()
		f()
	}()
}

// end ends the count of one activity.
func (t *inflight) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// wait waits until all activities have ended. If ctx ends first, wait returns the cause of ctx.
func (t *inflight) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
