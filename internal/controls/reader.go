package controls

import (
	"context"
	"fmt"
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
	failed  error         // of the last read; of use while set is nil
}

// NewReader returns a Reader that reads the record with read.
func NewReader(read func(context.Context) (Record, error)) *Reader { return &Reader{read: read} }

// Get returns the registry as it was at most MaxAge ago. If the registry cannot be read, Get returns what was read
// last, or a Set that is Unread. The caller must not change the Set.
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
	_, err := r.Fresh(context.WithoutCancel(ctx)) // bounded by the Locker
	r.mu.Lock()
	r.failed = err
	r.mu.Unlock()
	return r.latest()
}

func (r *Reader) latest() *Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		return &Set{Unread: r.failed}
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
		return nil, fmt.Errorf("joblock: what operators have set cannot be read, a newer version may have written it: %w", err)
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

// Limit returns the value that an operator has set for the limit with this name, or most if the value is larger.
// Without such a value, or if name is "", Limit returns code, the limit in the program.
func (r *Reader) Limit(ctx context.Context, name string, code, most int) int {
	if name == "" {
		return code
	}
	if l := r.Get(ctx).Named(name); l != nil {
		return min(l.Value, most)
	}
	return code
}
