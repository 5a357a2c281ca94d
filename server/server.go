package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/server/internal/problem"
)

// Config configures a Server. Locks and Authorize are required. The zero value of any other field means its default.
type Config struct {
	// Locks is the Locker that takes the locks. Close does not close it: close the Server first, then Locks.
	Locks *joblock.Locker

	// Jobs enqueues tasks that carry locks. Without Jobs there is no route /v1/enqueue.
	Jobs *handoff.Client

	// Authorize identifies the caller of each request: an *Accounts, an AuthorizeFunc, or Anyone().
	Authorize Authorizer

	// Hosts are the host names under which clients reach the Server, without ports; "*" allows every name. A request with
	// another Host is answered 421, except at /healthz, /readyz and /openapi.json. Default: every name. But with the
	// Authorizer Anyone the default is localhost and the loopback addresses, so that no web page can take locks through
	// its visitor's browser.
	Hosts []string

	// MaxWait bounds wait_ms, from a second to an hour. Default 45 s: a request that waits sends nothing, and many
	// proxies give up after 50 s or a minute. A stream may wait longer.
	MaxWait time.Duration

	// MaxWaiting is how many requests may wait for locks in this process, streams included. A request beyond that does
	// not wait: it gets its lock if that is free. Default 10,000.
	MaxWaiting int

	// MaxWaitingEach is MaxWaiting for one principal. Default 1,000.
	MaxWaitingEach int

	// MaxLocksEach is how many locks one principal may have without a stream, held or reserved, as far as this process
	// has granted or renewed them. Locks of jobs do not count. Default 10,000.
	MaxLocksEach int

	// Rate is how many requests a principal may send per second over time, and Burst is how many at once. Default: no
	// limit; with a Rate, the default of Burst is one second's requests.
	Rate  float64
	Burst int

	// BodyTimeout is how long a client may take to send its body, from 100 ms to an hour. Default 10 s.
	BodyTimeout time.Duration

	// Store, unless nil, is the store of Locks, made by redisstore.New. The doctor checks its servers.
	Store driver.Store

	// Databases are the asynq databases whose tasks have locks. Without Databases the state of jobs is not shown.
	Databases []Database

	// CronScopes are the scopes of cron jobs that callers may see and control: scheduler.Config.Scope. Default none.
	CronScopes []string

	// Redis, unless nil, is where the actions of operators are recorded, in a stream at Prefix. Without Redis every
	// action is refused. The journal of package joblock/journal is read from it, too. Prefix defaults to the prefix of
	// Store, or to "joblock:" without Store.
	Redis  redis.UniversalClient
	Prefix string

	// Meter, unless nil, counts what the Server does, and Metrics, unless nil, serves GET /metrics. Package server/metrics has
	// both.
	Meter   Meter
	Metrics http.Handler

	// Logger gets a line for each request, and the errors behind a 500 or a 503. No line has a token. Default
	// slog.Default().
	Logger *slog.Logger
}

// Database is a database of asynq.
type Database struct {
	Name      string // for display
	Inspector *asynq.Inspector
}

// Server is an http.Handler for locks; see the package comment. Make a Server with New, and Close it before its Locker.
type Server struct {
	cfg    Config
	in     *core.Locker
	desk   *ops.Desk
	own    *mount // the routes of the Server itself
	quotas *quotas

	sites     *sites
	attempts  *attempts
	strangers strangers
	ready     readiness

	follows atomic.Int64 // how many executions the Server waits for; see await

	closing context.Context // ends when Close begins
	close   context.CancelFunc

	mu   sync.Mutex     // ensures that nothing is added to busy after closing has ended
	busy sync.WaitGroup // waits and streams
}

// New returns a Server, and sends nothing to the store. The error names the field that is missing or out of bounds, and
// matches joblock.ErrInvalid.
func New(cfg Config) (*Server, error) {
	err := (*core.Locker)(cfg.Locks).Check("new")
	if err != nil {
		return nil, fmt.Errorf("server: Config.Locks: %w", err)
	}
	if cfg.Authorize == nil {
		return nil, invalid("Config.Authorize is nil; server.Anyone() admits every caller")
	}
	cfg.MaxWait = cmp.Or(cfg.MaxWait, 45*time.Second)
	cfg.MaxWaiting = cmp.Or(cfg.MaxWaiting, 10_000)
	cfg.MaxWaitingEach = cmp.Or(cfg.MaxWaitingEach, 1000)
	cfg.MaxLocksEach = cmp.Or(cfg.MaxLocksEach, 10_000)
	cfg.BodyTimeout = cmp.Or(cfg.BodyTimeout, 10*time.Second)
	if cfg.Burst == 0 {
		cfg.Burst = max(1, int(cfg.Rate))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Meter == nil {
		cfg.Meter = NoMeter{}
	}
	for _, d := range []struct {
		name           string
		d, least, most time.Duration
	}{
		{"Config.MaxWait", cfg.MaxWait, time.Second, time.Hour},
		{"Config.BodyTimeout", cfg.BodyTimeout, 100 * time.Millisecond, time.Hour},
	} {
		if d.d < d.least || d.d > d.most {
			return nil, invalid("%s is %s, must be from %s to %s", d.name, d.d, d.least, d.most)
		}
	}
	for _, n := range []struct {
		name string
		n    int
	}{{"Config.MaxWaiting", cfg.MaxWaiting}, {"Config.MaxWaitingEach", cfg.MaxWaitingEach}, {"Config.MaxLocksEach", cfg.MaxLocksEach}, {"Config.Burst", cfg.Burst}} {
		if n.n < 1 {
			return nil, invalid("%s is %d, must be at least 1", n.name, n.n)
		}
	}
	if !(cfg.Rate >= 0 && cfg.Rate <= 1e6) {
		return nil, invalid("Config.Rate is %v, must be from 0 to 1000000", cfg.Rate)
	}
	if _, ok := cfg.Store.(prefixed); cfg.Store != nil && !ok {
		return nil, invalid("Config.Store is a %T, must come from redisstore.New", cfg.Store)
	}
	s := &Server{cfg: cfg, in: (*core.Locker)(cfg.Locks), quotas: newQuotas(cfg), attempts: newAttempts()}
	if s.sites, err = newSites(cfg); err != nil {
		return nil, err
	}
	desk := cfg.desk()
	desk.Follow, desk.Logger = s.await, cfg.Logger
	if s.desk, err = ops.New(desk); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.own = s.mount(s.routes(), asProblem)
	return s, nil
}

// auditTimeout bounds a call that records an action, or reads the journal.
const auditTimeout = 3 * time.Second

// prefixed is implemented by the stores of redisstore.New. A Prefix other than the store's would look for the record of
// actions in the wrong place.
type prefixed interface{ Prefix() string }

func (cfg *Config) desk() ops.Config {
	acted := func(action, outcome string) { cfg.Meter.Action(MeteredAction{action, outcome}) }
	d := ops.Config{Locks: cfg.Locks, Scopes: cfg.CronScopes, Acted: acted}
	if cfg.Store != nil {
		d.Check = func(ctx context.Context) (redisstore.Report, error) { return redisstore.Check(ctx, cfg.Store) }
	}
	for _, db := range cfg.Databases {
		of := ops.Database{Name: db.Name}
		if db.Inspector != nil {
			of.Asynq = db.Inspector
		}
		d.Databases = append(d.Databases, of)
	}
	if cfg.Redis != nil {
		prefix := cmp.Or(cfg.Prefix, keyspace.DefaultPrefix)
		if own, ok := cfg.Store.(prefixed); ok && cfg.Prefix == "" {
			prefix = own.Prefix()
		}
		d.Audit = ops.NewAudit(cfg.Redis, prefix, auditTimeout)
		d.Journal = ops.NewJournal(cfg.Redis, prefix, auditTimeout)
	}
	return d
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("server: %w", core.Invalid("new", "", format, args...))
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.own.ServeHTTP(w, r) }

// errClosing is the cause of a wait that Close ends.
var errClosing = errors.New("the server is closing")

// Close ends all waits with 503 and all streams with a line "draining". It returns when they have ended, or with the
// cause of ctx if ctx ends first. Short requests are still served until the http.Server is shut down, so call Close
// first, then Shutdown, then Close of the Locker. A second Close waits too.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	return sleep.While(ctx, s.busy.Wait)
}

const (
	followFor  = 24 * time.Hour // how long the Server waits for the end of an execution that it triggered
	followMost = 100            // how many executions it waits for; each costs Redis a read every second
)

// await runs wait in a goroutine of its own, until Close begins. If followMost waits run already, it does not run wait,
// and returns an error that says so.
func (s *Server) await(wait func(context.Context)) error {
	if s.follows.Add(1) > followMost {
		s.follows.Add(-1)
		return fmt.Errorf("the server is already waiting for %d runs to end", followMost)
	}
	done, err := s.enter()
	if err != nil {
		s.follows.Add(-1)
		return errClosing
	}
	go func() {
		defer done()
		defer s.follows.Add(-1)
		ctx, cancel := context.WithTimeout(s.closing, followFor)
		defer cancel()
		wait(ctx)
	}()
	return nil
}

// begin calls enter, and also reports the wait or the stream to the Meter.
func (s *Server) begin(stream bool) (done func(), err error) {
	left, err := s.enter()
	if err != nil {
		return nil, err
	}
	s.cfg.Meter.Waiting(MeteredWait{Stream: stream})
	return func() {
		s.cfg.Meter.Waiting(MeteredWait{Stream: stream, Ended: true})
		left()
	}, nil
}

// enter counts a wait or a stream until done is called. After Close the error has the code LOCK_CLOSED.
func (s *Server) enter() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, problem.Closing()
	}
	s.busy.Add(1)
	return s.busy.Done, nil
}
