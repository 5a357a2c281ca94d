package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Recorder makes calls and records their outcomes. It is safe for concurrent use.
type Recorder struct {
	name string

	mu  sync.Mutex // guards what follows
	w   io.Writer
	n   int
	err error
}

// NewRecorder returns a Recorder. Its holdings are called name/1, name/2, …, so the names
// of Recorders must differ. Each event is one Write, as soon as it has happened, so that
// a file has it after a kill.
func NewRecorder(w io.Writer, name string) *Recorder { return &Recorder{name: name, w: w} }

// Err returns the first error of the writer.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *Recorder) write(e Event) {
	line, err := json.Marshal(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && err == nil {
		_, err = r.w.Write(append(line, '\n'))
	}
	r.err = errors.Join(r.err, err)
}

// Acquirer is a joblock.Locker, or a limit.Limit.
type Acquirer interface {
	Acquire(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error)
}

// Acquire is locks.Acquire.
func (r *Recorder) Acquire(ctx context.Context, locks Acquirer, key string, opts ...joblock.AcquireOption) (*Holding, error) {
	call := now()
	lock, err := locks.Acquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return r.granted(Event{Kind: Acquired, Call: call}, lock), nil
}

// Resume is Locker.Resume with Reserve(reserve) and ForJob(job).
func (r *Recorder) Resume(ctx context.Context, locks *joblock.Locker, token joblock.Token, reserve time.Duration, job string) (*Holding, error) {
	call := now()
	lock, err := locks.Resume(ctx, token, joblock.Reserve(reserve), joblock.ForJob(job))
	if err != nil {
		return nil, err
	}
	return r.granted(Event{Kind: Resumed, Call: call, Reserve: reserve, Job: job}, lock), nil
}

func (r *Recorder) granted(e Event, lock *joblock.Lock) *Holding {
	e.At, e.Trust = now(), lock.ExpiresAt().UnixNano()
	e.Key, e.Chain, e.Fence, e.TTL = lock.Key(), door.IdentityOf(lock).Digest(), lock.Fence(), door.IdentityOf(lock).TTL
	e.Holding = r.id()
	r.write(e)
	own := e.Job
	if e.Kind == Reclaimed {
		own = e.Back
	}
	return &Holding{Lock: lock, ID: e.Holding, r: r, trust: e.Trust, reserve: e.Reserve, own: own}
}

func (r *Recorder) id() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return fmt.Sprintf("%s/%d", r.name, r.n)
}

// Take takes the key of token for job, or a place in the line of the key: see door.Locker.
// The result waits says which. An ErrUnavailable leaves it open: ask again.
func (r *Recorder) Take(ctx context.Context, locks *joblock.Locker, token joblock.Token, job string, reserve, patience time.Duration) (waits bool, err error) {
	e := Event{Kind: TakeBegun, Key: token.Key(), Chain: door.IdentityOf(token).Digest(), Call: now(), Job: job, Reserve: reserve}
	r.write(e)
	taken := door.Of(locks).Take(ctx, "take", []door.Take{{
		Key: e.Key, Job: job, Reserve: reserve, Patience: patience, Token: token,
	}})[0]
	e.At = now()
	switch {
	case taken.Err != nil:
		return false, taken.Err
	case taken.Waits != nil:
		e.Kind, e.Since = Waiting, taken.Waits.Since.UnixNano()
	default:
		e.Kind, e.Fence = Taken, door.IdentityOf(taken.Token).Fence
	}
	r.write(e)
	return taken.Waits != nil, nil
}

// passing returns a context in which a call tells which jobs it has given a key to. The function told records them.
func (r *Recorder) passing(ctx context.Context) (_ context.Context, told func()) {
	if door.Starter(ctx) == nil {
		return ctx, func() {}
	}
	var next []Event
	call, start := now(), door.Starter(ctx)
	ctx = door.WithStarter(ctx, func(key, job string) {
		next = append(next, Event{Kind: Passed, Key: key, Job: job, Call: call})
	})
	return ctx, func() {
		for _, e := range next {
			e.At = now()
			r.write(e)
			start(e.Key, e.Job)
		}
	}
}

// PassOn is door.Locker.PassOn. A Starter in ctx is told of the jobs that get slots.
func (r *Recorder) PassOn(ctx context.Context, locks *joblock.Locker, slots []string) error {
	ctx, told := r.passing(ctx)
	err := door.Of(locks).PassOn(ctx, "pass on", slots)
	told()
	return err
}

// Free is jobs.Free of one lock, or of one place in a line. A Starter in ctx is told of the job that gets the key.
func (r *Recorder) Free(ctx context.Context, locks *joblock.Locker, key, job string, fence int64) error {
	e := Event{Kind: FreeBegun, Key: key, Holding: r.id(), Call: now(), Job: job, Fence: fence}
	r.write(e)
	ctx, told := r.passing(ctx)
	err := jobs.Free(ctx, locks, jobs.Release{Key: key, Job: job, Fence: fence, Reason: "its job is gone"})[0]
	told()
	switch {
	case err == nil:
		r.write(Event{Kind: Freed, Key: key, Holding: e.Holding, Call: e.Call, At: now()})
	case !errors.Is(err, joblock.ErrUnavailable):
		r.write(Event{Kind: Refused, Key: key, Holding: e.Holding, Call: e.Call, At: now()})
	}
	return err
}

// Reserve is jobs.Reserve for one key. res.For must not be 0: the Recorder does not know
// the default.
func (r *Recorder) Reserve(ctx context.Context, locks *joblock.Locker, res jobs.Reservation) error {
	call := now()
	ctx, told := r.passing(ctx)
	err := jobs.Reserve(ctx, locks, res)[0]
	told()
	if err == nil {
		r.write(Event{Kind: Reserved, Key: res.Key, Call: call, At: now(), Job: res.Job, Reserve: res.For})
	}
	return err
}

// Force is Locker.ForceRelease. Wait for its answer: what a ForceRelease without an answer
// does to later holders is not recorded.
func (r *Recorder) Force(ctx context.Context, locks *joblock.Locker, key string) error {
	call := now()
	err := locks.ForceRelease(ctx, key, joblock.Reason("forced"))
	if err == nil {
		r.write(Event{Kind: Forced, Key: key, Call: call, At: now()})
	}
	return err
}

// Holding is a lock whose use is recorded. Use it from one goroutine. Do not call Look or
// Renew after Park or Release.
type Holding struct {
	Lock *joblock.Lock
	ID   string // the Holding of its events

	r         *Recorder
	trust     int64
	lost      bool
	reserve   time.Duration // of the Resume
	own       string        // the job that it is of
	job       string        // of the last Park
	reclaimed int64         // when the first Reclaim without an answer was called
}

// Look is Lock.Err: nil while the lock is held and trusted.
func (h *Holding) Look() error {
	call := now()
	if err := h.Lock.Err(); err != nil {
		if !h.lost {
			h.lost = true
			h.write(Event{Kind: Lost, Call: call, At: now()})
		}
		return err
	}
	// Read after Err, so that the deadline is not before the one that Err used.
	if trust := h.Lock.ExpiresAt().UnixNano(); trust != h.trust || call > trust {
		h.trust = trust
		h.write(Event{Kind: Trusted, Call: call, At: now(), Trust: trust})
	}
	return nil
}

// Renew is Lock.Renew, and a Look.
func (h *Holding) Renew(ctx context.Context) error {
	err := h.Lock.Renew(ctx)
	return errors.Join(err, h.Look())
}

// Park is Lock.Park for a job. reserve must not be 0, as in Reserve.
func (h *Holding) Park(ctx context.Context, reserve time.Duration, job string) (joblock.Token, error) {
	call := now()
	h.job = job
	h.write(Event{Kind: ParkBegun, Call: call, Reserve: reserve, Job: job, Back: h.own})
	token, err := h.Lock.Park(ctx, joblock.Reserve(reserve), joblock.ForJob(job))
	switch {
	case err == nil:
		h.write(Event{Kind: Parked, Call: call, At: now(), Fence: door.IdentityOf(token).Fence})
	case !errors.Is(err, joblock.ErrUnavailable):
		h.write(Event{Kind: Refused, Call: call, At: now()})
	}
	return token, err
}

// Reclaim is Lock.Reclaim. After success use the Holding that it returns instead of h.
func (h *Holding) Reclaim(ctx context.Context) (*Holding, error) {
	h.reclaimed = cmp.Or(h.reclaimed, now()) // a repeated call finds the grant of the one before
	h.write(Event{Kind: ReclaimBegun, Call: h.reclaimed, Job: h.job, Back: h.own})
	err := h.Lock.Reclaim(ctx)
	if err == nil {
		again := h.r.granted(Event{Kind: Reclaimed, Call: h.reclaimed, Reserve: h.reserve, Job: h.job, Back: h.own}, h.Lock)
		h.write(Event{Kind: Answered, Call: h.reclaimed, At: now()})
		return again, nil
	}
	if !errors.Is(err, joblock.ErrUnavailable) {
		h.write(Event{Kind: Refused, Call: h.reclaimed, At: now()})
		h.reclaimed = 0
	}
	return nil, err
}

// Release is Lock.Release.
func (h *Holding) Release(ctx context.Context) error {
	call := now()
	h.write(Event{Kind: ReleaseBegun, Call: call})
	ctx, told := h.r.passing(ctx)
	err := h.Lock.Release(ctx)
	told()
	switch {
	case err == nil:
		h.write(Event{Kind: Released, Call: call, At: now()})
	case errors.Is(err, joblock.ErrUnavailable), errors.Is(err, joblock.ErrLost):
		// The outcome is unknown: the release of a lost lock is sent all the same.
	default:
		h.write(Event{Kind: Refused, Call: call, At: now()})
	}
	return err
}

func (h *Holding) write(e Event) {
	e.Key, e.Holding = h.Lock.Key(), h.ID
	h.r.write(e)
}

func now() int64 { return time.Now().UnixNano() }
