package joblock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
)

// Locker takes locks in a Store and keeps them alive. Make one per process and
// store with New, share it freely, and Close it when the process stops.
type Locker struct {
	store   driver.Store
	cfg     Config
	engine  *engine
	janitor *janitor
	inbox   *inbox
	forced  *forcedWatch
	seals   *seal.Ring
	bounds  bounds
	now     func() time.Time // time.Now, but for tests of a clock that jumps

	panicked atomic.Bool // the Observer has panicked, and that was logged

	mu      sync.Mutex     // orders closing and waiters
	closing chan struct{}  // closed when Close has begun
	waiters sync.WaitGroup // calls that wait for a lock
	closed  chan struct{}  // closed when Close has ended
}

// New returns a Locker on store; cfg may be nil. It sends nothing to the store.
// ErrInvalid, which names the value and the bound: store is nil or reports itself
// unusable (see driver.Validator), or a value of cfg is out of bounds.
//
// The Locker owns the Store from here on and closes it in Close. To share a Redis
// between Lockers, share the client, not the Store.
func New(store driver.Store, cfg *Config) (*Locker, error) {
	if v := reflect.ValueOf(store); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, invalid("new", "", "store is nil")
	}
	if v, ok := store.(driver.Validator); ok {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	}
	full := cfg.withDefaults()
	if err := full.validate(); err != nil {
		return nil, err
	}
	if full.TTL < time.Second {
		full.Logger.Warn("joblock: a TTL below one second leaves little room for a slow network", "ttl", full.TTL)
	}
	return newLocker(store, full, time.Now), nil
}

func newLocker(store driver.Store, cfg *Config, now func() time.Time) *Locker {
	l := &Locker{
		store:   store,
		cfg:     *cfg,
		bounds:  bounds{timeout: cfg.CallTimeout},
		now:     now,
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
	l.engine = newEngine(l)
	l.janitor = newJanitor(l)
	l.inbox = newInbox(l)
	l.forced = newForcedWatch(l)
	l.seals = newRing(l)
	return l
}

// Close stops renewing. Then it waits, as long as ctx lasts, for the renewals under
// way, for waiters to leave their queues, and for the clean-up of calls whose outcome
// was unknown.
//
// Locks still held are given up, not released: their contexts are cancelled at once
// with cause ErrLost, and the store frees them when their leases end. To release them,
// do so before Close.
//
// Every later call on the Locker returns ErrClosed. A second Close waits for the first,
// as long as its own ctx lasts, and returns nil. If ctx ends first, Close returns its
// cause and leaves the rest of the work to the ends of the leases. If the store does
// not answer, Close returns ErrUnavailable after about twice Config.CallTimeout,
// whatever ctx says.
func (l *Locker) Close(ctx context.Context) error {
	const op = "close"
	if l == nil || l.store == nil {
		return l.open(op, "")
	}
	l.mu.Lock()
	first := l.open(op, "") == nil
	if first {
		close(l.closing)
	}
	l.mu.Unlock()
	if !first {
		return closedOr(ctx, l.closed)
	}
	defer close(l.closed)
	l.seals.Close()
	err := errors.Join(
		l.engine.stop(ctx),
		await(ctx, l.seals.Wait),
		await(ctx, l.waiters.Wait), // they are leaving their queues
		l.janitor.stop(ctx),
	)
	l.inbox.close()
	l.forced.close()
	l.bounds.close()
	if cerr := l.store.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("joblock: close store: %w", cerr))
	}
	return err
}

// enter counts a call that waits, until waiters.Done. ErrClosed once Close was called.
func (l *Locker) enter(op, key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.open(op, key)
	if err == nil {
		l.waiters.Add(1)
	}
	return err
}

// await returns when wait does, or when ctx ends, with its cause. wait must end by
// itself within Config.CallTimeout.
func await(ctx context.Context, wait func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	return closedOr(ctx, done)
}

// closedOr returns nil when done is closed, or the cause of ctx when ctx ends before.
func closedOr(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open returns ErrClosed once Close was called.
func (l *Locker) open(op, key string) error {
	if l == nil || l.store == nil {
		return invalid(op, key, "the Locker is nil or was not made by New")
	}
	select {
	case <-l.closing:
		return &Error{Code: codeClosed, Op: op, Key: key}
	default:
		return nil
	}
}

// check returns ErrClosed once Close was called, and ErrInvalid for a key that nobody can have.
func (l *Locker) check(op string, keys ...string) error {
	if err := l.open(op, only(keys)); err != nil {
		return err
	}
	for _, key := range keys {
		if err := checkKey(op, key); err != nil {
			return err
		}
	}
	return nil
}

// call runs f with ctx bounded by Config.CallTimeout; its errors are those of
// unanswered. If ctx has ended before, nothing is sent and the error is that of ended.
func (l *Locker) call(ctx context.Context, op, key string, f func(context.Context) error) error {
	if cause := context.Cause(ctx); cause != nil {
		return ended(op, key, cause)
	}
	bounded, done := l.bounds.bound(ctx)
	defer done()
	if err := f(bounded); err != nil {
		return unanswered(op, key, context.Cause(ctx), err)
	}
	return nil
}

// ask is the method call for one method of the store. With an error the answer is zero. A zero Reply means no answer.
func ask[Q, A any](ctx context.Context, l *Locker, op, key string, method func(context.Context, Q) (A, error), req Q) (answer A, err error) {
	err = l.call(ctx, op, key, func(ctx context.Context) error {
		a, err := method(ctx, req)
		if err == nil {
			answer = a
		}
		return err
	})
	return answer, err
}

// only returns the element of a list of one, and otherwise the zero T.
func only[T any](list []T) (one T) {
	if len(list) == 1 {
		one = list[0]
	}
	return one
}

// newOwner makes a random UUIDv4, as uuid.New does with one allocation more.
func newOwner() string {
	var id uuid.UUID
	_, _ = rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// newNonce identifies one call across re-sends. It need not be secret, only
// different from the other calls on the same key.
func newNonce() string { return strconv.FormatUint(mathrand.Uint64(), 36) }
