package seal

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"
)

const (
	// refresh is how often a Ring in use reads the store's keys again, in the
	// background: how long after a flush of the store those who come new may find none
	// of the keys that others go on using.
	refresh = 10 * time.Second

	// lookPause lies between two looks at the store: what a flood of unknown keys costs.
	lookPause = time.Second

	// maxStrangers bounds the names of unknown keys that are remembered.
	maxStrangers = 64
)

// Config is what a Ring works with.
type Config struct {
	// Load reads the keys that live with the locks, oldest first and at least one; see
	// driver.Store.SealKeys. After Close it returns an error at once.
	Load func(ctx context.Context, known []Key, fresh [KeyBytes]byte) ([]Key, error)

	// Sources seal and verify; the first one seals. nil stands for the store's keys.
	Sources [][]byte

	// Where says which store it is, for people.
	Where func() string
}

// Ring has the keys of a process. It reads those of the store when one is needed first,
// and again in the background while it is in use; so sealing and opening take no round
// trip. It never forgets a key before it has asked the store again, and puts back what
// the store has lost.
type Ring struct {
	cfg     Config
	secrets []signer // of Sources that are not nil
	first   *signer  // that seals; nil: the store's newest
	stored  bool     // the store's keys verify too
	fresh   [KeyBytes]byte

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	busy sync.WaitGroup // the looks

	mu        sync.Mutex // guards what follows
	closed    bool
	keys      []Key // of the store; nil before the first look that was answered
	signers   []signer
	looks     int64 // begun so far
	answered  int64 // the latest look that was answered
	lastLook  time.Time
	look      *look                // under way
	strangers map[string]time.Time // when a look has not found the key of that name
}

// look is one reading of the keys.
type look struct {
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

// Ready returns nil if Seal would: for a check beforehand.
func (r *Ring) Ready(ctx context.Context) error {
	_, err := r.current(ctx)
	return err
}

// Seal seals text. Errors are those of the store.
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
	// Elsewhere is true if the sealer looks at another store, and only a secret that
	// was configured says that it is one of ours.
	Elsewhere bool
}

// Open verifies a sealed text. A key that is not known is looked for in the store, for
// a second or so at the most while that answers.
func (r *Ring) Open(ctx context.Context, sealed string) (Opened, error) {
	return r.open(ctx, sealed, true)
}

// OpenKnown is Open without such a look.
func (r *Ring) OpenKnown(ctx context.Context, sealed string) (Opened, error) {
	return r.open(ctx, sealed, false)
}

func (r *Ring) open(ctx context.Context, sealed string, look bool) (Opened, error) {
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
		_, err := r.find(ctx, f.store, look)
		return Opened{Text: f.text, Elsewhere: errors.Is(err, ErrUnknownKey)}, nil
	}
	if !r.stored {
		return Opened{}, ErrUnknownKey
	}
	s, err := r.find(ctx, f.key, look)
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
			if time.Since(r.lastLook) >= refresh {
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

// find returns the store's key of that name. Where it may look, ErrUnknownKey is the
// store's word of now, or of not longer than lookPause ago.
func (r *Ring) find(ctx context.Context, id string, look bool) (signer, error) {
	if _, err := r.current(ctx); err != nil {
		return signer{}, err
	}
	r.mu.Lock()
	met := r.looks
	r.mu.Unlock()
	for {
		r.mu.Lock()
		for _, s := range r.signers {
			if s.id == id {
				r.mu.Unlock()
				return s, nil
			}
		}
		if at, seen := r.strangers[id]; !look || seen && time.Since(at) < lookPause {
			r.mu.Unlock()
			return signer{}, ErrUnknownKey
		}
		if r.answered > met { // by a look that began when id had been met
			if len(r.strangers) >= maxStrangers {
				clear(r.strangers)
			}
			r.strangers[id] = time.Now()
			r.mu.Unlock()
			return signer{}, ErrUnknownKey
		}
		l, pause := r.look, lookPause-time.Since(r.lastLook)
		if l == nil && pause <= 0 {
			l = r.beginLocked()
		}
		r.mu.Unlock()
		if l == nil {
			if err := sleep(ctx, pause); err != nil {
				return signer{}, err
			}
			continue
		}
		if err := l.wait(ctx); err != nil && (l.number > met || ctx.Err() != nil) {
			return signer{}, err
		}
	}
}

// beginLocked begins a look, or joins that under way.
func (r *Ring) beginLocked() *look {
	if r.look != nil {
		return r.look
	}
	r.looks++
	r.lastLook = time.Now()
	l := &look{number: r.looks, done: make(chan struct{})}
	if r.closed {
		_, l.err = r.cfg.Load(r.ctx, nil, r.fresh)
		close(l.done)
		return l
	}
	r.look = l
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
		l.err, r.look = err, nil
		close(l.done)
	})
	return l
}

// wait returns the look's error, or that of ctx.
func (l *look) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the look under way; Wait waits for it. What the Ring knows it goes on
// sealing and opening with.
func (r *Ring) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
}

// Wait returns when no look is under way, after Close.
func (r *Ring) Wait() { r.busy.Wait() }
