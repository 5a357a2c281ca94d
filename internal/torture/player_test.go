//go:build servers && unix

package torture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
)

const (
	planEnv = "JOBLOCK_TORTURE_PLAN"

	// ttl is a lease on one server, and what faults last goes by it.
	ttl = 500 * time.Millisecond

	grace = 50 * time.Millisecond  // until a keeper looks at a job's lock
	later = 300 * time.Millisecond // until it does again

	users = 8        // in each process
	keys  = 8        // at a time
	quiet = 8 * keys // keys without waiters at a time: so many that a process often comes back to a key of its own

	slotsOfAKey = 3 // in which jobs run that stand in the line of the key

	permits = 3 // of each key that is used with Limit
	limits  = 2 // at a time

	tokenList = "tokens"  // what was parked and waits to be resumed by anybody
	jobToken  = "token:"  // before the name of a job in line: its token
	refusals  = "refused" // how many writes the guard has refused

	nativeCalls    = "native calls"    // how many calls went without a script, of processes that were not killed
	nativeRefusals = "native refusals" // how many were tried so, but went on by script
)

// pace is how long things last.
type pace struct {
	TTL  time.Duration
	Hold time.Duration // of reservations
	Poll time.Duration

	// Era is how long keys are in use before others take their place: what is asked
	// of a search through all orders is then bounded, however long a run is.
	Era time.Duration
}

var (
	fast = pace{TTL: ttl, Hold: 800 * time.Millisecond, Poll: 200 * time.Millisecond, Era: 3 * time.Second}

	// slow has leases that outlast a fail-over: a grant that was lost in it is given to
	// another while its holder trusts it.
	slow = pace{TTL: 4 * time.Second, Hold: 2 * time.Second, Poll: 400 * time.Millisecond, Era: 12 * time.Second}
)

func (p pace) config() *joblock.Config {
	return &joblock.Config{
		TTL: p.TTL, Reserve: p.Hold, Poll: p.Poll, CallTimeout: ttl, Retain: time.Minute, JobGrace: grace,
		Logger: slog.New(slog.DiscardHandler), // losing locks is what it is all about
	}
}

// settled is more than it takes until everything has run out that a process can have
// left: a lease behind a reservation, a place in a queue behind a lease, and a reservation
// for a job that has waited behind it.
func (p pace) settled() time.Duration { return 3*(p.TTL+p.Hold) + 3*p.Poll }

// patience is how long a job's place lasts unless it is asked for again.
func (p pace) patience() time.Duration { return p.TTL }

// lockKey is one of the keys that are in use now, quietKey one of those without waiters, limitKey one of those with permits.
func (p pace) lockKey(dice *rand.Rand) string  { return p.key("k", dice.IntN(keys)) }
func (p pace) quietKey(dice *rand.Rand) string { return p.key("q", dice.IntN(quiet)) }
func (p pace) limitKey(dice *rand.Rand) string { return p.key("l", dice.IntN(limits)) }

func (p pace) key(kind string, n int) string {
	return fmt.Sprintf("%s%d.%d", kind, time.Now().UnixNano()/int64(p.Era), n)
}

// plan is what a process is to do, given as JSON.
type plan struct {
	Name     string
	Kind     kind
	Pace     pace
	Entry    []string          // where to begin: the server, the sentinels, the nodes
	Via      map[string]string // the proxy before each server
	Replicas int
	Scripts  bool   // makes no native calls; see scriptsEvery
	Ledger   string // a server for what is no lock
	History  string // the file to write it to
	Seed     uint64
}

// play is the process. It ends when its input does, and then prints nothing but what
// went wrong.
func play(text string) int {
	var p plan
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		err = p.play()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func (p *plan) play() error {
	redis.SetLogger(silence{}) // dead connections are what it is all about
	file, err := os.OpenFile(p.History, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	rdb := p.client()
	direct := redis.NewClient(&redis.Options{Addr: p.Ledger, MaxRetries: -1})
	store := testkit.Must(redisstore.New(rdb, &redisstore.Config{Replicas: p.Replicas, ScriptsOnly: p.Scripts}))
	locks, err := joblock.New(store, p.Pace.config())
	if err != nil {
		return err
	}
	pl := &player{pace: p.Pace, rec: history.NewRecorder(file, p.Name), locks: locks, direct: direct}
	ctx, stop := context.WithCancel(context.Background())
	for range 20 { // a Store asks whether the server can do without scripts after its first calls
		if lock, err := locks.TryAcquire(ctx, "first of "+p.Name); err == nil {
			_ = lock.Release(ctx)
		}
	}
	var wg sync.WaitGroup
	for i := range users {
		wg.Go(func() {
			u := &user{player: pl, dice: rand.New(rand.NewPCG(p.Seed, uint64(i)))}
			for ctx.Err() == nil {
				u.once(ctx)
			}
		})
	}
	if stop, err := jobs.Listen(ctx, locks, func(g jobs.Granted) { go pl.deliver(g.Key, g.Job) }); err == nil {
		defer stop() // without it the job gets its turn only when it asks
	}
	wg.Go(func() { (&user{player: pl, dice: rand.New(rand.NewPCG(p.Seed, users))}).keep(ctx) })
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	wg.Wait()
	made, refused := store.(interface{ NativeCalls() (made, refused int64) }).NativeCalls()
	noted := errors.Join(direct.IncrBy(context.Background(), nativeCalls, made).Err(), direct.IncrBy(context.Background(), nativeRefusals, refused).Err())
	closing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	closed := locks.Close(closing)
	if errors.Is(closed, joblock.ErrUnavailable) {
		closed = nil // no answer within a CallTimeout, as after a fail-over; what is left then must end by itself
	}
	return errors.Join(noted, closed, rdb.Close(), direct.Close(), pl.rec.Err(), file.Close())
}

// client goes through the proxies, wherever it is sent on to.
func (p *plan) client() redis.UniversalClient {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{Timeout: ttl}).DialContext(ctx, network, cmp.Or(p.Via[addr], addr))
	}
	switch p.Kind {
	case sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: p.Entry, Dialer: dial, DialTimeout: ttl})
	case cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.Entry, Dialer: dial, DialTimeout: ttl})
	}
	return redis.NewClient(&redis.Options{Addr: p.Entry[0], Dialer: dial, DialTimeout: ttl})
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
