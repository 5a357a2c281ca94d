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

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Recorder makes calls and records their outcomes. It is safe for concurrent use.
type Recorder struct {
	name string

	mu  sync.Mutex // guards the fields below
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

// Acquire calls locks.Acquire.
func (r *Recorder) Acquire(ctx context.Context, locks Acquirer, key string, opts ...joblock.AcquireOption) (*Holding, error) {
	call := now()
	lock, err := locks.Acquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return r.granted(Event{Kind: Acquired, Call: call}, lock), nil
}

// Resume calls Locker.Resume with Reserve(reserve) and ForJob(job).
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
	e.Key, e.Chain, e.Fence, e.TTL = lock.Key(), (*core.Lock)(lock).Digest(), lock.Fence(), (*core.Lock)(lock).TTL()
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

// Take takes the key of token for job, or a place in the line of the key: see core.Locker. waits says which. After
// ErrUnavailable it is unknown which: ask again.
func (r *Recorder) Take(ctx context.Context, locks *joblock.Locker, token joblock.Token, job string, reserve, patience time.Duration) (waits bool, err error) {
	e := Event{Kind: TakeBegun, Key: token.Key(), Chain: core.Token(token).Digest(), Call: now(), Job: job, Reserve: reserve}
	r.write(e)
	taken := (*core.Locker)(locks).Take(ctx, "take", []core.Take{{
		Key: e.Key, Job: job, Reserve: reserve, Patience: patience, Token: (*core.Token)(&token),
	}})[0]
	e.At = now()
	switch {
	case taken.Err != nil:
		return false, taken.Err
	case taken.Waits != nil:
		e.Kind, e.Since = Waiting, taken.Waits.Since.UnixNano()
	default:
		e.Kind, e.Fence = Taken, taken.Token.Fence()
	}
	r.write(e)
	return taken.Waits != nil, nil
}

// passing returns a function for a call that reports the jobs to which it gives a key, or nil if granted is nil.
// record records those jobs, and passes them on to granted.
func (r *Recorder) passing(granted core.Granted) (_ core.Granted, record func()) {
	if granted == nil {
		return nil, func() {}
	}
	var next []Event
	call := now()
	return func(key, job string) {
			next = append(next, Event{Kind: Passed, Key: key, Job: job, Call: call})
		}, func() {
			for _, e := range next {
				e.At = now()
				r.write(e)
				granted(e.Key, e.Job)
			}
		}
}

// PassOn calls core.Locker.PassOn. granted, which may be nil, receives the jobs that get slots.
func (r *Recorder) PassOn(ctx context.Context, locks *joblock.Locker, slots []string, granted core.Granted) error {
	granted, record := r.passing(granted)
	err := (*core.Locker)(locks).PassOn(ctx, "pass on", slots, granted)
	record()
	return err
}

// Free does what jobs.Free does, for one lock or one place in a line. granted, which may be nil, receives the job that
// gets the key.
func (r *Recorder) Free(ctx context.Context, locks *joblock.Locker, key, job string, fence int64, granted core.Granted) error {
	e := Event{Kind: FreeBegun, Key: key, Holding: r.id(), Call: now(), Job: job, Fence: fence}
	r.write(e)
	granted, record := r.passing(granted)
	err := (*core.Locker)(locks).FreeJobs(ctx, granted, []core.JobRelease{{Key: key, Job: job, Fence: fence, Reason: "its job is gone"}})[0]
	record()
	switch {
	case err == nil:
		r.write(Event{Kind: Freed, Key: key, Holding: e.Holding, Call: e.Call, At: now()})
	case !errors.Is(err, joblock.ErrUnavailable):
		r.write(Event{Kind: Refused, Key: key, Holding: e.Holding, Call: e.Call, At: now()})
	}
	return err
}

// Reserve does what jobs.Reserve does, for one key. granted, which may be nil, receives the job that gets the key.
// res.For must not be 0: the Recorder does not know the default.
func (r *Recorder) Reserve(ctx context.Context, locks *joblock.Locker, res jobs.Reservation, granted core.Granted) error {
	call := now()
	granted, record := r.passing(granted)
	err := (*core.Locker)(locks).ReserveForJobs(ctx, granted, []core.Reservation{core.Reservation(res)})[0]
	record()
	if err == nil {
		r.write(Event{Kind: Reserved, Key: res.Key, Call: call, At: now(), Job: res.Job, Reserve: res.For})
	}
	return err
}

// Force calls Locker.ForceRelease. Wait for its answer: what a ForceRelease without an answer does to later holders is
// not recorded.
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
	own       string        // the job that it belongs to
	job       string        // of the last Park
	reclaimed int64         // when the first Reclaim without an answer was called
}

// Look returns Lock.Err: nil while the lock is held and trusted.
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

// Renew calls Lock.Renew, and then Look.
func (h *Holding) Renew(ctx context.Context) error {
	err := h.Lock.Renew(ctx)
	return errors.Join(err, h.Look())
}

// Park calls Lock.Park for a job. reserve must not be 0, as in Reserve.
func (h *Holding) Park(ctx context.Context, reserve time.Duration, job string) (joblock.Token, error) {
	call := now()
	h.job = job
	h.write(Event{Kind: ParkBegun, Call: call, Reserve: reserve, Job: job, Back: h.own})
	token, err := h.Lock.Park(ctx, joblock.Reserve(reserve), joblock.ForJob(job))
	switch {
	case err == nil:
		h.write(Event{Kind: Parked, Call: call, At: now(), Fence: core.Token(token).Fence()})
	case !errors.Is(err, joblock.ErrUnavailable):
		h.write(Event{Kind: Refused, Call: call, At: now()})
	}
	return token, err
}

// Reclaim calls Lock.Reclaim. After success use the Holding that it returns instead of h.
func (h *Holding) Reclaim(ctx context.Context) (*Holding, error) {
	h.reclaimed = cmp.Or(h.reclaimed, now()) // a repeated call finds the grant of the first one
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

// Release calls Lock.Release. granted, which may be nil, receives the job that gets the key.
func (h *Holding) Release(ctx context.Context, granted core.Granted) error {
	call := now()
	h.write(Event{Kind: ReleaseBegun, Call: call})
	granted, record := h.r.passing(granted)
	err := (*core.Lock)(h.Lock).Release(ctx, core.Release{Granted: granted})
	record()
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
