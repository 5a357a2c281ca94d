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

// Config configures a Server. Locks and Authorize are required. The zero value of each other field means its default.
type Config struct {
	// Locks takes the locks. The Server does not close Locks: close the Server first, then Locks.
	Locks *joblock.Locker

	// Jobs enqueues tasks that carry locks. Without Jobs there is no route /v1/enqueue.
	Jobs *handoff.Client

	// Authorize names the caller of each request: an *Accounts, an AuthorizeFunc, or Anyone().
	Authorize Authorizer

	// Hosts are the names under which the Server is reached, without ports; "*" is every name. A request with another Host
	// is answered 421, except at /healthz, /readyz and /openapi.json. Default: with the Authorizer Anyone localhost and
	// the addresses of the loopback interface, so that no page of a web site can take locks through its visitor's
	// browser; otherwise every name.
	Hosts []string

	// MaxWait bounds wait_ms, from a second to an hour. Default 45 s: a request that waits is silent, and many proxies give
	// up after 50 s or a minute. A stream may wait longer.
	MaxWait time.Duration

	// MaxWaiting bounds how many requests wait for their locks, and how many streams there are, both together, in this
	// process. A request beyond the bound does not wait: it is served if its lock is free. Default 10,000.
	MaxWaiting int

	// MaxWaitingEach is MaxWaiting for one principal. Default 1,000.
	MaxWaitingEach int

	// MaxLocksEach bounds how many locks without a stream one principal has, held and reserved, as far as this process has
	// granted or renewed them and they have not ended. Locks of jobs are not counted. Default 10,000.
	MaxLocksEach int

	// Rate bounds how many requests a principal sends per second over time, and Burst how many at once. Default no
	// bound; with a Rate, the default of Burst is one second's requests.
	Rate  float64
	Burst int

	// BodyTimeout is how long a client may take to send its body, from 100 ms to an hour. Default 10 s.
	BodyTimeout time.Duration

	// Store, unless nil, is the store of Locks, made by redisstore.New. The doctor looks at its servers.
	Store driver.Store

	// Databases are the databases of asynq whose tasks have locks. Without Databases the state of jobs is not known.
	Databases []Database

	// CronScopes are the scopes of cron jobs that callers may see and control: scheduler.Config.Scope. Default none.
	CronScopes []string

	// Redis, unless nil, records the actions of operators, in a stream at Prefix. Without Redis every action is refused.
	// The journal of package joblock/journal is read there, too. The default of Prefix is that of Store, or without Store
	// "joblock:".
	Redis  redis.UniversalClient
	Prefix string

	// Meter, unless nil, counts what the Server does, and Metrics, unless nil, serves GET /metrics. Package server/metrics has
	// both.
	Meter   Meter
	Metrics http.Handler

	// Logger gets a line for each request, and the faults behind a 500 and a 503. No line has a token. Default
	// slog.Default().
	Logger *slog.Logger
}

// Database is a database of asynq.
type Database struct {
	Name      string // for people
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

	follows atomic.Int64 // how many executions are waited for; see await

	closing context.Context // ends when Close begins
	close   context.CancelFunc

	mu   sync.Mutex     // so that nothing is added to busy after closing has ended
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
		return nil, invalid("Config.Authorize is nil; server.Anyone() lets all callers in")
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

// prefixed is a store from redisstore.New. With the prefix of another one, the record of actions would be looked for in the
// wrong place.
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

// errClosing is the cause with which Close ends a wait.
var errClosing = errors.New("the server is closing")

// Close ends all waits with 503 and all streams with a line "draining", and returns when they have ended, or the cause
// of ctx if ctx ends first. Short requests are served until the http.Server is shut down, so call Close first, then
// Shutdown, then Close of the Locker. A second Close waits too.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	return sleep.While(ctx, s.busy.Wait)
}

const (
	followFor  = 24 * time.Hour // how long the Server waits for the end of an execution that it has asked for
	followMost = 100            // for how many it waits at a time; each wait costs Redis a read every second
)

// await runs wait in a goroutine of its own, until Close begins. Beyond followMost, wait is not run, and the error says
// why.
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

// enter counts a wait or a stream, until the call of done. After Close the error is a LOCK_CLOSED.
func (s *Server) enter() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, problem.Closing()
	}
	s.busy.Add(1)
	return s.busy.Done, nil
}
