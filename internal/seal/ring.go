package seal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// refresh is how often a Ring in use reads the store's keys again, in the background. After a flush of the store,
	// a new process may lack the older processes' keys for that time.
	refresh = 10 * time.Second

	// readPause is the minimum time between two readings of the store: all unknown keys together cause one reading per
	// readPause.
	readPause = time.Second

	// maxStrangers is how many names of unknown keys a Ring remembers.
	maxStrangers = 64
)

// Config has the sources of a Ring's keys.
type Config struct {
	// Load reads the store's keys; see driver.Store.SealKeys. When ctx has ended, as after Ring.Close, Load must return
	// an error at once.
	Load func(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error)

	// Sources lists secrets. A nil element stands for the store's keys. Every source verifies; the first source seals.
	Sources [][]byte

	// Where returns a name of the store, for people.
	Where func() string
}

// Ring has the keys of a process. It reads the store's keys when a key is first needed, and again in the background while
// it is in use, so sealing and opening take no round trip. It forgets a key only after a reading without that key, and
// each reading restores the keys that the store has lost.
type Ring struct {
	cfg     Config
	secrets []signer // from Sources
	first   *signer  // seals; nil if the store's newest key seals
	stored  bool     // the store's keys verify too
	fresh   [driver.SealKeyBytes]byte

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	busy sync.WaitGroup // the readings

	mu          sync.Mutex // guards what follows
	closed      bool
	keys        []driver.SealKey     // nil before the first reading that was answered
	signers     []signer             // of keys
	readings    int64                // begun so far
	answered    int64                // the number of the latest reading that was answered
	lastReading time.Time            // when the latest reading began
	reading     *reading             // the one under way, or nil
	strangers   map[string]time.Time // by name of an unknown key: when a reading did not find the key
}

// reading is one call of Config.Load.
type reading struct {
	number int64
	done   chan struct{} // closed when err is set
	err    error
}

// NewRing returns a Ring. NewRing reads nothing yet.
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

// Where returns Config.Where().
func (r *Ring) Where() string { return r.cfg.Where() }

// Ready returns the error that Seal would return.
func (r *Ring) Ready(ctx context.Context) error {
	_, err := r.current(ctx)
	return err
}

// Seal returns the sealed text. Errors are those of the store.
func (r *Ring) Seal(ctx context.Context, text string) (string, error) {
	signers, err := r.current(ctx)
	if err != nil {
		return "", err
	}
	newest := &signers[len(signers)-1]
	return cmp.Or(r.first, newest).seal(newest.id, text), nil
}

// Derive returns 32 bytes derived from text and from the key that Seal uses. Only processes that have this key can derive
// the same bytes, and no sealed text contains them. Errors are those of the store.
func (r *Ring) Derive(ctx context.Context, text string) ([]byte, error) {
	signers, err := r.current(ctx)
	if err != nil {
		return nil, err
	}
	return cmp.Or(r.first, &signers[len(signers)-1]).derive("derive.", text), nil
}

// Opened is a text whose seal was found genuine.
type Opened struct {
	Text string
	// Elsewhere is true if the text was sealed with a configured secret, by a process that uses another store.
	Elsewhere bool
}

// Open verifies a sealed text. For an unknown key it asks the store, which takes about a second at most while the store
// answers. Errors are ErrMalformed, ErrNewer, ErrUnknownKey, ErrMismatch and those of the store.
func (r *Ring) Open(ctx context.Context, sealed string) (Opened, error) {
	return r.open(ctx, sealed, true)
}

// OpenKnown is Open without asking the store: for an unknown key it returns ErrUnknownKey at once.
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
			if time.Since(r.lastReading) >= refresh {
				r.beginLocked() // the next caller gets the answer; after Close no answer is needed
			}
			signers := r.signers
			r.mu.Unlock()
			return signers, nil
		}
		l := r.beginLocked()
		r.mu.Unlock()
		if err := l.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// find returns the store's key with this id. ErrUnknownKey means, if ask is false, that the last reading had no such key;
// if ask is true, that the store had no such key at most readPause ago.
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
		if r.answered > met { // a reading that began after this call of find has not found id
			if len(r.strangers) >= maxStrangers {
				clear(r.strangers)
			}
			r.strangers[strings.Clone(id)] = time.Now() // id is a part of a header, which may be large
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
		_, l.err = r.cfg.Load(r.ctx, driver.SealKeysRequest{})
		close(l.done)
		return l
	}
	r.reading = l
	req := driver.SealKeysRequest{Known: r.keys, Fresh: r.fresh}
	r.busy.Go(func() {
		keys, err := r.cfg.Load(r.ctx, req)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.keys, r.answered = slices.Clone(keys), l.number
			r.signers = make([]signer, len(keys)) // not in place: other goroutines read the old slice
			for i, k := range keys {
				r.signers[i] = newSigner(k.Secret[:])
			}
		}
		l.err, r.reading = err, nil
		close(l.done)
	})
	return l
}

// wait returns the reading's error when the reading has ended, or ctx's cause if ctx ends first.
func (l *reading) wait(ctx context.Context) error {
	if err := sleep.Until(ctx, l.done); err != nil {
		return err
	}
	return l.err
}

// Close cancels the reading under way; Wait waits for its end. A closed Ring can still seal and open with the keys that
// it knows.
func (r *Ring) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
}

// Wait waits until no reading is under way. Call Close first.
func (r *Ring) Wait() { r.busy.Wait() }
