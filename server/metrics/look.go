package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// look is a value that is read from the store now and then, and shared by all scrapes.
type look[T any] struct {
	part  string
	every time.Duration
	most  time.Duration // bounds one reading
	read  func(ctx context.Context) (T, error)
	log   *slog.Logger

	mu      sync.Mutex
	value   *T
	at      time.Time     // when the latest reading ended
	running chan struct{} // closed at the end of the reading that is under way; nil if none is
	failed  int64
	silent  bool // the latest reading failed
}

// again is the age at which a failed reading is repeated, if every is longer.
const again = 5 * time.Second

// begin starts a reading, if the latest is too old and none is under way. The parameter run starts a function in a goroutine,
// and returns false if it cannot.
func (l *look[T]) begin(run func(func(ctx context.Context)) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	every := l.every
	if l.value == nil {
		every = min(every, again)
	}
	if l.running != nil || !l.at.IsZero() && time.Since(l.at) < every {
		return
	}
	done := make(chan struct{})
	if run(func(ctx context.Context) { l.do(ctx, done) }) {
		l.running = done
	} else {
		l.value = nil
	}
}

func (l *look[T]) do(ctx context.Context, done chan struct{}) {
	within, cancel := context.WithTimeout(ctx, l.most)
	defer cancel()
	value, err := l.read(within)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(done)
	l.at, l.running = time.Now(), nil
	if err == nil {
		l.value, l.silent = &value, false
		return
	}
	l.value = nil
	if ctx.Err() != nil {
		return
	}
	if l.failed++; !l.silent {
		l.log.Warn("metrics: the store could not be read, so metrics are missing", "part", l.part, "err", err)
	}
	l.silent = true
}

// latest returns the value of the latest reading, or nil if that failed. It waits for a reading that is under way until
// the channel late has a value.
func (l *look[T]) latest(late <-chan struct{}) *T {
	l.mu.Lock()
	running := l.running
	l.mu.Unlock()
	if running != nil {
		select {
		case <-running:
		case <-late:
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value
}

func (l *look[T]) failures() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.failed)
}
