package controls

import (
	"context"
	"sync"
	"time"
)

// MaxAge is for how long a Reader uses what it has read.
const MaxAge = time.Second

// Record is the registry as the store has it.
type Record struct {
	Memo    []byte
	Written time.Time // zero if it was never written
	Now     time.Time // the store's clock; zero if it was never written
}

// Reader reads the registry for all parts of a process, at most once in MaxAge.
type Reader struct {
	read func(context.Context) (Record, error)

	mu      sync.Mutex // guards the fields below
	set     *Set       // never changed
	asked   time.Time
	reading chan struct{} // closed at the end of the read under way; nil if none is
}

// NewReader returns a Reader that reads the record with read.
func NewReader(read func(context.Context) (Record, error)) *Reader { return &Reader{read: read} }

// Get returns the registry as it was at most MaxAge ago. If the store does not answer, Get returns what was read last,
// or an empty Set. The caller must not change the Set.
func (r *Reader) Get(ctx context.Context) *Set {
	r.mu.Lock()
	set, reading := r.set, r.reading
	if set != nil && (reading != nil || time.Since(r.asked) < MaxAge) {
		r.mu.Unlock()
		return set
	}
	if reading != nil {
		r.mu.Unlock()
		<-reading
		return r.latest()
	}
	done := make(chan struct{})
	r.reading, r.asked = done, time.Now()
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.reading = nil
		r.mu.Unlock()
		close(done)
	}()
	_, _ = r.Fresh(context.WithoutCancel(ctx)) // bounded by the Locker
	return r.latest()
}

func (r *Reader) latest() *Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		return new(Set)
	}
	return r.set
}

// Fresh reads the registry now.
func (r *Reader) Fresh(ctx context.Context) (*Set, error) {
	asked := time.Now()
	rec, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	set, err := Decode(rec.Memo)
	if err != nil {
		return nil, err
	}
	if set.written = rec.Written; !rec.Now.IsZero() {
		set.ahead = rec.Now.Sub(asked)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !asked.Before(r.asked) || r.set == nil {
		r.set, r.asked = &set, asked
	}
	return &set, nil
}

// Limit returns the value that an operator has set for the limit with this name, or code if there is none or if name is
// "".
func (r *Reader) Limit(ctx context.Context, name string, code int) int {
	if name == "" {
		return code
	}
	if l := r.Get(ctx).Named(name); l != nil {
		return l.Value
	}
	return code
}
