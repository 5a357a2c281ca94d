package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
)

// Locker is joblock.Locker.
type Locker struct {
	store    driver.Store // nil if this Locker was not made by New
	cfg      Config
	engine   *engine
	janitor  *janitor
	inbox    *inbox
	seals    *seal.Ring
	set      *controls.Reader // what operators have set
	contexts callContexts
	now      func() time.Time // time.Now, except in tests of a clock that jumps

	panicked atomic.Bool // a panic of the Observer was logged

	mu       sync.Mutex      // guards doubtful, and lets no call be added to waiters after closing is closed
	doubtful map[string]bool // the keys that doubt has logged
	closing  chan struct{}   // closed when Close has begun
	waiters  sync.WaitGroup  // calls that wait for a lock
	closed   chan struct{}   // closed when Close has ended
}

// New returns a Locker on store. cfg may be nil.
func New(store driver.Store, cfg *Config) (*Locker, error) {
	if v := reflect.ValueOf(store); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, Invalid("new", "", "store is nil")
	}
	full := cfg.withDefaults()
	if err := full.validate(); err != nil {
		return nil, err
	}
	if full.TTL < time.Second {
		full.Logger.Warn("joblock: a TTL below one second leaves little room for a slow network", "ttl", full.TTL)
	}
	return newLocker(store, full), nil
}

func newLocker(store driver.Store, cfg *Config) *Locker {
	l := &Locker{store: store, cfg: *cfg, contexts: callContexts{timeout: cfg.CallTimeout}, now: cfg.Now}
	l.doubtful = make(map[string]bool)
	l.closing, l.closed = make(chan struct{}), make(chan struct{})
	l.engine, l.janitor, l.inbox = newEngine(l), newJanitor(l), newInbox(l)
	l.seals = newRing(l)
	l.set = controls.NewReader(l.readControls)
	return l
}

// Close is joblock.Locker.Close.
func (l *Locker) Close(ctx context.Context) error {
	const op = "close"
	if l.zero() {
		return l.open(op, "")
	}
	l.mu.Lock()
	first := l.open(op, "") == nil
	if first {
		close(l.closing)
	}
	l.mu.Unlock()
	if !first {
		return sleep.Until(ctx, l.closed)
	}
	defer close(l.closed)
	l.seals.Close()
	var err, cut error // cut: ctx has ended first, which is reported once
	for _, wait := range []func(context.Context) error{
		l.engine.stop,
		func(ctx context.Context) error { return sleep.While(ctx, l.seals.Wait) },
		func(ctx context.Context) error { return sleep.While(ctx, l.waiters.Wait) }, // they leave their queues because of closing
		l.janitor.stop,
	} {
		if e := wait(ctx); e != nil && errors.Is(e, context.Cause(ctx)) {
			cut = fmt.Errorf("joblock: %s: %w", op, e)
		} else {
			err = errors.Join(err, e)
		}
	}
	err = errors.Join(err, cut)
	l.inbox.close()
	l.engine.watching.Wait()
	l.contexts.close()
	if cerr := l.store.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("joblock: close store: %w", cerr))
	}
	return err
}

// Enter returns ErrClosed after Close. If err is nil, Close waits for the call of done.
func (l *Locker) Enter(op, key string) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(op, key); err != nil {
		return nil, err
	}
	l.waiters.Add(1)
	return l.waiters.Done, nil
}

// open returns ErrClosed after Close, and ErrInvalid for a Locker that was not made by New.
func (l *Locker) open(op, key string) error {
	if l.zero() {
		return Invalid(op, key, "the Locker is nil or was not made by New")
	}
	select {
	case <-l.closing:
		return &Error{Code: driver.CodeClosed, Op: op, Key: key}
	default:
		return nil
	}
}

// zero reports whether l is nil or was not made by New.
func (l *Locker) zero() bool { return l == nil || l.store == nil }

// refuseAll sets all errs to the error of a Locker that was not made by New.
func (l *Locker) refuseAll(op string, tokens []Token, errs []error) []error {
	for i, token := range tokens {
		errs[i] = l.open(op, token.key)
	}
	return errs
}

// Check returns ErrClosed after Close, and ErrInvalid for a bad key or a Locker that was not made by New.
func (l *Locker) Check(op string, keys ...string) error {
	if err := l.open(op, only(keys)); err != nil {
		return err
	}
	for _, key := range keys {
		if err := CheckKey(op, key); err != nil {
			return err
		}
	}
	return nil
}

// call runs f with a child of ctx that ends after Config.CallTimeout. If f fails, unanswered makes the error. If ctx
// has already ended, f does not run, and ended makes the error.
func (l *Locker) call(ctx context.Context, op, key string, f func(context.Context) error) error {
	if cause := context.Cause(ctx); cause != nil {
		return ended(op, key, cause)
	}
	bounded, done := l.contexts.bound(ctx)
	defer done()
	if err := f(bounded); err != nil {
		return l.unanswered(op, key, context.Cause(ctx), err)
	}
	return nil
}

// Call runs f with the store and a context that ends after Config.CallTimeout. It turns an error of f into an
// ErrUnavailable about key. If ctx has already ended, it does not run f and returns ctx's cause. Call Check first.
func (l *Locker) Call(ctx context.Context, op, key string, f func(ctx context.Context, store driver.Store) error) error {
	return l.call(ctx, op, key, func(ctx context.Context) error { return f(ctx, l.store) })
}

// Store returns the store, or nil for a Locker that is nil or was not made by New.
func (l *Locker) Store() driver.Store {
	if l == nil {
		return nil
	}
	return l.store
}

// Parts is driver.Store.Parts, or 0 for a Locker that is nil or was not made by New.
func (l *Locker) Parts() int {
	if l == nil || l.store == nil {
		return 0
	}
	return l.store.Parts()
}

// Settings returns the configuration with its defaults, or the zero Config for a nil Locker.
func (l *Locker) Settings() Config {
	if l == nil {
		return Config{}
	}
	return l.cfg
}

// Owns reports whether this Locker made k, which may be nil.
func (l *Locker) Owns(k *Lock) bool { return l != nil && !k.none() && k.l == l }

// Trusted returns for how long a lock whose lease lasts ttl is trusted: ttl less the margin; see Config.Margin.
func (l *Locker) Trusted(ttl time.Duration) time.Duration { return ttl - l.cfg.margin(ttl) }

// Now returns the time of the Locker's clock, with a monotonic reading.
func (l *Locker) Now() time.Time { return l.now() }

// ask calls a method of the store with req, by Locker.call. On error the answer is the zero A. A zero driver.Reply
// means no answer.
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

// askAll is ask for a batch of requests. A request that already has an error is not sent, and a request without an
// answer gets one. The other requests have their answers.
func askAll[Q any](
	ctx context.Context, l *Locker, op string, reqs []Q, errs []error, keyOf func(*Q) string,
	method func(context.Context, []Q) ([]driver.Reply, error),
) (replies []driver.Reply) {
	bad := func(err error) bool { return err != nil }
	if slices.ContainsFunc(errs, bad) {
		good, at := make([]Q, 0, len(reqs)), make([]int, 0, len(reqs))
		for i, req := range reqs {
			if errs[i] == nil {
				good, at = append(good, req), append(at, i)
			}
		}
		replies = make([]driver.Reply, len(reqs))
		failed := make([]error, len(good))
		for n, r := range askAll(ctx, l, op, good, failed, keyOf, method) {
			replies[at[n]], errs[at[n]] = r, failed[n]
		}
		return replies
	}
	cause := context.Cause(ctx)
	if len(reqs) == 0 || cause != nil {
		for i := range reqs {
			errs[i] = ended(op, keyOf(&reqs[i]), cause)
		}
		return make([]driver.Reply, len(reqs))
	}
	bounded, done := l.contexts.bound(ctx)
	defer done()
	replies, failed := inBatches(bounded, reqs, method)
	for i, r := range replies {
		if failed != nil && r.Outcome == driver.OutcomeUnknown {
			errs[i] = l.unanswered(op, keyOf(&reqs[i]), context.Cause(ctx), failed)
		}
	}
	return replies
}

// inBatches calls a method of the store with at most driver.MaxBatch requests at a time. There is a reply for each
// request. The reply to a request without an answer is zero. The error is that of the first call that failed, but the
// error of a call without an answer takes precedence over a refusal by the server. After a call that used up the time
// of ctx, the later calls fail at once.
func inBatches[Q any](
	ctx context.Context, reqs []Q, method func(context.Context, []Q) ([]driver.Reply, error),
) (replies []driver.Reply, failed error) {
	if len(reqs) <= driver.MaxBatch {
		replies, failed = method(ctx, reqs)
		if len(replies) == len(reqs) {
			return replies, failed
		}
		return make([]driver.Reply, len(reqs)), failed
	}
	for batch := range slices.Chunk(reqs, driver.MaxBatch) {
		part, err := inBatches(ctx, batch, method)
		replies = append(replies, part...)
		if failed == nil || err != nil && errors.Is(failed, driver.ErrRefused) && !errors.Is(err, driver.ErrRefused) {
			failed = err
		}
	}
	return replies, failed
}

// only returns list[0] if len(list) == 1, else the zero value.
func only[T any](list []T) (one T) {
	if len(list) == 1 {
		one = list[0]
	}
	return one
}

// newOwner returns a random UUIDv4. uuid.New does the same with one more allocation.
func newOwner() string {
	var id uuid.UUID
	_, _ = rand.Read(id[:]) // rand.Read never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// newNonce returns a name for one call and its repeats. The name need not be secret, only different from the names of
// other calls on the same key. A nonce has 13 bytes: redisstore is faster with nonces of that length.
func newNonce() string {
	const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
	var name [13]byte
	n := mathrand.Uint64()
	for i := range name {
		name[i], n = alphabet[n%36], n/36
	}
	return string(name[:])
}
