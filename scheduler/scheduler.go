package scheduler

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/spec"
)

const (
	maxScopeBytes = 32 // three times both, escaped, are a key
	maxNameBytes  = 128
)

// Scheduler runs jobs by the clock, each tick on one of the nodes that run the same
// jobs on the same store. Make one per process with New, and Run it.
type Scheduler struct {
	locks    *joblock.Locker
	cfg      Config
	clock    clock
	control  string        // key of the record with the orders
	program  string        // which this is
	wake     chan struct{} // has the loop look at the agenda
	slots    chan struct{} // one for each running function
	standbys chan struct{} // one for each job that this node is in line for

	mu      sync.Mutex // guards what follows
	jobs    map[string]*job
	agenda  agenda
	running bool            // Run is
	turns   *sync.WaitGroup // turns and standbys of this Run
	held    map[*job]*joblock.Lock
	orders  orders // as last read
	memo    []byte // that they were read from
	wrote   int    // how many orders this node has written
}

// New returns a Scheduler that claims ticks with locks; cfg must name a Scope. It returns
// joblock.ErrInvalid, naming the value and the bound, for nil locks and for a Config
// without a Scope or out of bounds. Nothing is sent to the store.
func New(locks *joblock.Locker, cfg *Config) (*Scheduler, error) {
	return newScheduler(locks, cfg, time.Now)
}

// newScheduler takes the node's clock: tests give each node its own.
func newScheduler(locks *joblock.Locker, cfg *Config, now func() time.Time) (*Scheduler, error) {
	if locks == nil {
		return nil, invalid("new scheduler", "", "the Locker is nil")
	}
	full := cfg.WithDefaults()
	if err := full.validate(); err != nil {
		return nil, err
	}
	return &Scheduler{
		locks:    locks,
		cfg:      *full,
		clock:    clock{local: now},
		control:  keyspace.Cron(joblock.Key(full.Scope)),
		program:  program(),
		wake:     make(chan struct{}, 1),
		slots:    make(chan struct{}, full.Runs),
		standbys: make(chan struct{}, full.Runs),
		jobs:     make(map[string]*job),
		held:     make(map[*job]*joblock.Lock),
	}, nil
}

// Func has fn run on one node for each tick of spec (see package spec). name is the job's
// in the whole cluster: 1 to 128 bytes of UTF-8.
//
// The context that fn is given carries the job's lock (joblock.FromContext) and the
// tick (TickFrom). It ends with cause joblock.ErrLost when the lock is lost, ErrStopped
// when Run's context ends, ErrOverlapped, or after Timeout. fn is waited for in any
// case: there are never two at work in one process. A node that stops marks the tick as
// interrupted, to be run by another, unless fn returns nil. fn must not release the lock
// nor hand it over: the tick would count as broken off.
//
// Func can be called before Run and while it runs. It returns joblock.ErrInvalid for a
// name that is bad or taken, a nil fn, a bad spec or option, and for a spec that has no ticks.
func (s *Scheduler) Func(name, spec string, fn func(ctx context.Context) error, opts ...Option) error {
	var run func(context.Context, Tick) error
	if fn != nil {
		run = func(ctx context.Context, _ Tick) error { return fn(ctx) }
	}
	return s.add("func", name, spec, run, options{}, opts)
}

// add registers a job.
func (s *Scheduler) add(op, name, text string, fn func(context.Context, Tick) error, o options, opts []Option) error {
	if err := s.check(op); err != nil {
		return err
	}
	if fn == nil {
		return invalid(op, name, "the function is nil")
	}
	if err := checkName(op, name); err != nil {
		return err
	}
	CatchUpOne()(&o)
	for _, opt := range opts {
		if opt == nil {
			return invalid(op, name, "an option is nil")
		}
		opt(&o)
	}
	if err := o.validate(op, name); err != nil {
		return err
	}
	if !o.hasZone {
		o.zone = s.cfg.Zone
	}
	parsed, err := spec.Parse(text, o.zone)
	if err != nil {
		return invalid(op, name, "%w", err)
	}
	if full := parsed.String(); len(full) > spec.MaxBytes { // with the zone, whose name may be anything
		return invalid(op, name, "spec %.80q has %d bytes with its zone, at most %d are allowed", full, len(full), spec.MaxBytes)
	}
	if parsed.Next(time.Unix(0, 0)).IsZero() {
		return invalid(op, name, "spec %q has no ticks", text)
	}
	j := &job{
		options: o, name: name, key: s.keyOf(name), spec: parsed, text: parsed.String(),
		delay: delayOf(name, o.jitter), fn: fn, index: -1, program: s.program,
	}
	j.print = j.fingerprint()
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.jobs[name]; other != nil {
		return invalid(op, name, "the name is taken by a job with spec %q, so it cannot be given to one with %q", other.text, j.text)
	}
	s.jobs[name] = j
	s.agenda.put(j, time.Time{})
	s.rouse()
	return nil
}

// keyOf returns the key of the job's lock.
func (s *Scheduler) keyOf(name string) string { return keyspace.Cron(joblock.Key(s.cfg.Scope, name)) }

// nameOf is keyOf backwards, false for what is no job's key in this scope.
func (s *Scheduler) nameOf(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, s.control+":")
	if !ok {
		return "", false
	}
	name, err := url.PathUnescape(rest)
	return name, err == nil && s.keyOf(name) == key
}

// check refuses a Scheduler that was not made by New.
func (s *Scheduler) check(op string) error {
	if s == nil || s.locks == nil {
		return invalid(op, "", "the Scheduler is nil or was not made by New")
	}
	return nil
}

func checkName(op, name string) error {
	switch {
	case name == "":
		return invalid(op, "", "the name of the job is empty")
	case len(name) > maxNameBytes:
		return invalid(op, shorten(name, 40), "the name of the job has %d bytes, at most %d are allowed", len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return invalid(op, "", "the name of the job is not valid UTF-8")
	}
	return nil
}

// rouse has the loop look at the agenda.
func (s *Scheduler) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// lookAt has the loop look at j at the given time by the store's clock, or at once if
// there is a new order for it, which may have come while it was not on the agenda.
func (s *Scheduler) lookAt(j *job, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if order := s.orders.Jobs[j.name]; order.Fence != j.heed {
		j.heed, at = order.Fence, time.Time{}
	}
	j.busy = false
	s.agenda.put(j, at)
	s.rouse()
}

// errRunning is returned by a second Run.
var errRunning = errors.New("scheduler: it is running already")
