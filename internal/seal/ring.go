package seal

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
)

const (
	// refresh is how often a Ring in use reads the store's keys again, in the background.
	// If the store is flushed, new processes may not know the older ones' keys for so long.
	refresh = 10 * time.Second

	// readPause lies between two readings of the store: unknown keys, however many, cost
	// one reading in it.
	readPause = time.Second

	// maxStrangers bounds the names of unknown keys that are remembered.
	maxStrangers = 64
)

// Config is what a Ring works with.
type Config struct {
	// Load reads the store's keys, oldest first and at least one; see
	// driver.Store.SealKeys. When ctx has ended, as it has after Ring.Close, Load must
	// return an error at once.
	Load func(ctx context.Context, known []Key, fresh [KeyBytes]byte) ([]Key, error)

	// Sources are secrets, or nil for the store's keys. All of them verify; the first one
	// seals.
	Sources [][]byte

	// Where says which store it is, for people.
	Where func() string
}

// Ring has the keys of a process. It reads the store's keys when one is first needed, and
// again in the background while it is in use. So sealing and opening take no round trip. It
// forgets a key only after the store was asked, and gives keys that the store has lost back
// to it.
type Ring struct {
	cfg     Config
	secrets []signer // from Sources
	first   *signer  // seals; nil if the store's newest key does
	stored  bool     // the store's keys verify too
	fresh   [KeyBytes]byte

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	busy sync.WaitGroup // the readings

	mu          sync.Mutex // guards what follows
	closed      bool
	keys        []Key // of the store; nil before the first reading that was answered
	signers     []signer
	readings    int64 // begun so far
	answered    int64 // the latest reading that was answered
	lastReading time.Time
	reading     *reading             // under way
	strangers   map[string]time.Time // by name of an unknown key: when a reading did not find it
}

// reading is one call of Config.Load.
type reading struct {
	number int64
	done   chan struct{} // closed when err is set
	err    error
}

// NewRing returns a Ring. Nothing is read yet.
func NewRing(cfg Config) *Ring {
	r := &Ring{cfg: cfg, strangers: make(map[string]time.Time)}
	for i, secret := range cfg.Sources {
		if secret == nil {
			r.stored = true
			continue
		}
		s := newSigner(secret)
		r.secrets = append(r.secrets, s)
		if i == 0 {
			r.first = &s
		}
	}
	_, _ = rand.Read(r.fresh[:]) // never fails
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Where says which store this is, for people.
func (r *Ring) Where() string { return r.cfg.Where() }

// Ready returns the error that Seal would return.
func (r *Ring) Ready(ctx context.Context) error {
	_, err := r.current(ctx)
	return err
}

// Seal seals text. Its errors are the store's.
func (r *Ring) Seal(ctx context.Context, text string) (string, error) {
	signers, err := r.current(ctx)
	if err != nil {
		return "", err
	}
	newest := signers[len(signers)-1]
	s := newest
	if r.first != nil {
		s = *r.first
	}
	return s.seal(frame{store: newest.id, text: text}).String(), nil
}

// Opened is what Open has found.
type Opened struct {
	Text string
	// Elsewhere is true if the sealer uses another store, and was recognised by a
	// configured secret.
	Elsewhere bool
}

// Open verifies a sealed text. It asks the store for an unknown key, which takes about a
// second at most while the store answers. Errors are ErrMalformed, ErrUnknownKey,
// ErrMismatch and those of the store.
func (r *Ring) Open(ctx context.Context, sealed string) (Opened, error) {
	return r.open(ctx, sealed, true)
}

// OpenKnown is Open without asking the store for an unknown key.
func (r *Ring) OpenKnown(ctx context.Context, sealed string) (Opened, error) {
	return r.open(ctx, sealed, false)
}

func (r *Ring) open(ctx context.Context, sealed string, ask bool) (Opened, error) {
	f, err := parse(sealed)
	if err != nil {
		return Opened{}, err
	}
	for _, s := range r.secrets {
		if s.id != f.key {
			continue
		}
		if err := s.check(f); err != nil {
			return Opened{}, err
		}
		_, err := r.find(ctx, f.store, ask)
		return Opened{Text: f.text, Elsewhere: errors.Is(err, ErrUnknownKey)}, nil
	}
	if !r.stored {
		return Opened{}, ErrUnknownKey
	}
	s, err := r.find(ctx, f.key, ask)
	if err == nil {
		err = s.check(f)
	}
	if err != nil {
		return Opened{}, err
	}
	return Opened{Text: f.text}, nil
}

// current returns the store's keys, oldest first.
func (r *Ring) current(ctx context.Context) ([]signer, error) {
	for {
		r.mu.Lock()
		if r.keys != nil {
			defer r.mu.Unlock()
			if time.Since(r.lastReading) >= refresh {
				r.beginLocked() // whoever asks next has the answer; after Close nobody needs it
			}
			return r.signers, nil
		}
		l := r.beginLocked()
		r.mu.Unlock()
		if err := l.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// find returns the store's key that has this id. If ask is false, ErrUnknownKey means that
// the key is not among those that were last read. If ask is true, it means that the store
// did not have the key when it was asked, at most readPause ago.
func (r *Ring) find(ctx context.Context, id string, ask bool) (signer, error) {
	if _, err := r.current(ctx); err != nil {
		return signer{}, err
	}
	r.mu.Lock()
	met := r.readings
	r.mu.Unlock()
	for {
		r.mu.Lock()
		for _, s := range r.signers {
			if s.id == id {
				r.mu.Unlock()
				return s, nil
			}
		}
		if at, seen := r.strangers[id]; !ask || seen && time.Since(at) < readPause {
			r.mu.Unlock()
			return signer{}, ErrUnknownKey
		}
		if r.answered > met { // by a reading that began after id was met
			if len(r.strangers) >= maxStrangers {
				clear(r.strangers)
			}
			r.strangers[id] = time.Now()
			r.mu.Unlock()
			return signer{}, ErrUnknownKey
		}
		l, pause := r.reading, readPause-time.Since(r.lastReading)
		if l == nil && pause <= 0 {
			l = r.beginLocked()
		}
		r.mu.Unlock()
		if l == nil {
			if err := sleep.For(ctx, pause); err != nil {
				return signer{}, err
			}
			continue
		}
		if err := l.wait(ctx); err != nil && (l.number > met || ctx.Err() != nil) {
			return signer{}, err
		}
	}
}

// beginLocked begins a reading, or joins the one under way.
func (r *Ring) beginLocked() *reading {
	if r.reading != nil {
		return r.reading
	}
	r.readings++
	r.lastReading = time.Now()
	l := &reading{number: r.readings, done: make(chan struct{})}
	if r.closed {
		_, l.err = r.cfg.Load(r.ctx, nil, r.fresh)
		close(l.done)
		return l
	}
	r.reading = l
	known := r.keys
	r.busy.Go(func() {
		keys, err := r.cfg.Load(r.ctx, known, r.fresh)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.keys, r.answered = keys, l.number
			r.signers = make([]signer, len(keys)) // a new one: others read the old one
			for i, k := range keys {
				r.signers[i] = newSigner(k.Secret[:])
			}
		}
		l.err, r.reading = err, nil
		close(l.done)
	})
	return l
}

// wait waits until the reading has ended, and returns its error. If ctx ends first, wait
// returns ctx's cause.
func (l *reading) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the reading under way; Wait waits for that. The Ring can still seal and open
// with the keys that it knows.
func (r *Ring) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
}

// Wait waits, after Close, until no reading is under way.
func (r *Ring) Wait() { r.busy.Wait() }
