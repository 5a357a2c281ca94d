package worker

import (
	"context"
	"sync"
)

// inflight counts what is under way, so that Close can wait for it. A WaitGroup does not
// do: attempts may begin while Close waits, and its Add must not race with Wait.
type inflight struct {
	closing context.Context // ends with close
	close   context.CancelFunc

	mu   sync.Mutex // guards the rest, and that nothing begins after close
	n    int
	zero chan struct{} // closed when n is back at 0; nil while nobody waits
}

func newInflight() *inflight {
	t := new(inflight)
	t.closing, t.close = context.WithCancel(context.Background())
	return t
}

// begin counts one more, or reports false after close.
func (t *inflight) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing.Err() != nil {
		return false
	}
	t.n++
	return true
}

// more counts one more, even after close: a part of something that is under way.
func (t *inflight) more() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *inflight) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// wait waits, after close, until everything has ended, or until ctx ends: then it returns
// ctx's cause.
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
