package scheduler

import (
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/roster"
	"github.com/joblock/toolkit/scheduler/spec"
)

// Scheduler executes jobs by the clock. Make one Scheduler per process with New, register jobs with Func and Task, and
// call Run. A Scheduler is safe for concurrent use.
type Scheduler struct {
	locks     *joblock.Locker
	cfg       Config
	clock     storeClock
	scope     string          // Config.Scope as a part of a key
	ordersKey string          // the key of the record with the orders
	program   string          // the path of the module that registers the jobs
	woken     chan struct{}   // ends a sleep of the loop
	changed   chan struct{}   // makes keepRoster act
	slots     chan struct{}   // has an element for each running function
	standbys  chan struct{}   // has an element for each job for whose lock this node waits
	started   *sync.WaitGroup // the goroutines of this Run; only Run uses it

	// enlisting has an element while keepRoster writes pages of names, which may take as long as the store takes: so it is
	// no mutex. Forget waits for keepRoster. An execution does not.
	enlisting chan struct{}

	listing sync.Mutex       // guards the three fields below
	listed  map[string]int64 // the day on which this node last saw to it that the job's name is on its page
	found   map[string]int64 // the day that the page had for the name of a job before this node wrote it again
	doubts  int              // how often something was taken out of listed

	mu         sync.Mutex // guards the fields below
	jobs       map[string]*job
	lanes      map[string]bool // the keys of lanes in which this node executes a job, or for which it waits
	leaving    map[string]*job // removed jobs that are still busy
	due        dueHeap
	undated    bool           // jobs were registered before this node knew the store's clock, and have no registration.since
	untold     []string       // jobs whose spec this node has put into force and has not told the others about; see ledger.AddName
	telling    bool           // a goroutine is at work that empties untold
	running    bool           // Run is running
	nodeID     string         // of this node's record, from the begin of Run on
	record     *joblock.Lock  // of this node's record; nil: this node has had none in this Run
	quiet      time.Time      // until when this node does not put its specs into force for a node that is not up
	apart      []roster.Apart // what this node's record tells
	held       map[*joblock.Lock]*job
	parsed     map[string]spec.Spec // the results of the method parse
	orders     ledger.Orders        // as this node last read them
	ordersRead bool                 // this node has read the orders
	ordersErr  error                // why this node could not read the orders when it last tried; or nil
	ordersMemo []byte               // the memo from which the field orders was decoded
	wrote      time.Time            // when this node last wrote an order, by its own clock
}

// New returns a Scheduler that claims ticks with the Locker in the parameter locks. New sends nothing to the store. New
// returns joblock.ErrInvalid if locks is nil, cfg has no Scope, or a field of cfg is out of bounds. The error names the
// value and the bound.
func New(locks *joblock.Locker, cfg *Config) (*Scheduler, error) {
	if locks == nil {
		return nil, invalid("new", "", "the Locker is nil")
	}
	full := cfg.withDefaults()
	if err := full.validate(); err != nil {
		return nil, err
	}
	return &Scheduler{
		locks:     locks,
		cfg:       *full,
		clock:     storeClock{local: time.Now},
		scope:     joblock.Key(full.Scope),
		ordersKey: keyspace.Cron(joblock.Key(full.Scope)),
		program:   program(),
		woken:     make(chan struct{}, 1),
		changed:   make(chan struct{}, 1),
		enlisting: make(chan struct{}, 1),
		slots:     make(chan struct{}, full.Concurrency),
		standbys:  make(chan struct{}, full.Concurrency),
		listed:    make(map[string]int64),
		found:     make(map[string]int64),
		jobs:      make(map[string]*job),
		lanes:     make(map[string]bool),
		leaving:   make(map[string]*job),
		held:      make(map[*joblock.Lock]*job),
		parsed:    make(map[string]spec.Spec),
	}, nil
}

func (s *Scheduler) check(op string) error {
	if s == nil || s.locks == nil {
		return invalid(op, "", "the Scheduler is nil or was not made by New")
	}
	return nil
}

func (s *Scheduler) keyOf(name string) string { return keyspace.Cron(joblock.Key(s.cfg.Scope, name)) }

// lockOptions returns the options of every lock. Retain keeps the ledger longer than the longest pause between two
// ticks. MaxRenew allows functions that run for long.
func (s *Scheduler) lockOptions() []joblock.TryOption {
	return []joblock.TryOption{
		door.OwnKey[joblock.Option](), joblock.Holder(s.cfg.Node),
		memo.WithGrant(), joblock.Retain(driver.MaxPeriod), joblock.MaxRenew(driver.MaxPeriod),
	}
}

func (s *Scheduler) waitOptions() (opts []joblock.AcquireOption) {
	for _, opt := range s.lockOptions() {
		opts = append(opts, opt)
	}
	return opts
}
