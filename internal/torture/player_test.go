//go:build unix

package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

const (
	planEnv = "JOBLOCK_TORTURE_PLAN"

	ttl  = 500 * time.Millisecond
	hold = 800 * time.Millisecond // of reservations
	poll = 200 * time.Millisecond

	users = 8 // in each process
	keys  = 8 // at a time

	// era is how long keys are in use before others take their place: what is asked
	// of a search through all orders is then bounded, however long a run is.
	era = 3 * time.Second

	tokenList = "tokens"  // what was parked and waits to be resumed by anybody
	refusals  = "refused" // how many writes the guard has refused
)

var config = joblock.Config{
	TTL: ttl, Hold: hold, Poll: poll, CallTimeout: ttl, Retain: time.Minute,
	Logger: slog.New(slog.DiscardHandler), // losing locks is what it is all about
}

// plan is what a process is to do, given as JSON.
type plan struct {
	Name    string
	Addr    string // of its proxy
	Direct  string // of the server
	History string // the file to write it to
	Seed    uint64
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
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr, DialTimeout: ttl})
	direct := redis.NewClient(&redis.Options{Addr: p.Direct, MaxRetries: -1})
	locks, err := joblock.New(redisstore.New(rdb, nil), &config)
	if err != nil {
		return err
	}
	pl := &player{rec: history.NewRecorder(file, p.Name), locks: locks, direct: direct}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range users {
		wg.Go(func() {
			u := &user{player: pl, dice: rand.New(rand.NewPCG(p.Seed, uint64(i)))}
			for ctx.Err() == nil {
				u.once(ctx)
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	wg.Wait()
	closing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(locks.Close(closing), rdb.Close(), direct.Close(), pl.rec.Err(), file.Close())
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// player is what the users of a process share.
type player struct {
	rec    *history.Recorder
	locks  *joblock.Locker
	direct *redis.Client // unharmed, for what is no lock
}

// user is a goroutine that uses locks.
type user struct {
	*player
	dice *rand.Rand
}

func (u *user) upTo(d time.Duration) time.Duration { return time.Duration(u.dice.Int64N(int64(d) + 1)) }
func (u *user) oneIn(n int) bool                   { return u.dice.IntN(n) == 0 }

// once gets a lock, or fails to, and uses it.
func (u *user) once(ctx context.Context) {
	if u.oneIn(3) {
		if h, any := u.resume(ctx); h != nil {
			u.use(ctx, h, true)
			return
		} else if any {
			return
		}
	}
	if h := u.acquire(ctx); h != nil {
		u.use(ctx, h, false)
	}
}

// acquire gets a lock in one of the ways there are; nil if not.
func (u *user) acquire(ctx context.Context) *history.Holding {
	wait := joblock.MaxWait(3 * ttl)
	switch u.dice.IntN(8) {
	case 0:
		wait = joblock.MaxWait(0)
	case 1: // gives up in the middle
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, u.upTo(ttl/4))
		defer cancel()
	}
	key := fmt.Sprintf("k%d.%d", time.Now().UnixNano()/int64(era), u.dice.IntN(keys))
	h, err := u.rec.Acquire(ctx, u.locks, key, wait)
	if err != nil {
		pause(ctx, u.upTo(5*time.Millisecond))
		return nil
	}
	return h
}

// resume continues a lock that somebody has parked; false if there is none.
func (u *user) resume(ctx context.Context) (h *history.Holding, any bool) {
	text, err := u.direct.LPop(ctx, tokenList).Result()
	if err != nil {
		return nil, false
	}
	token, err := joblock.ParseToken(text)
	if err != nil {
		fmt.Println("a token was damaged:", err)
		return nil, true
	}
	h, err = u.rec.Resume(ctx, u.locks, token, hold)
	if errors.Is(err, joblock.ErrBusy) || errors.Is(err, joblock.ErrUnavailable) {
		u.pass(token) // like a queue that delivers again
		pause(ctx, u.upTo(10*time.Millisecond))
	}
	return h, true
}

// pass leaves a token to whoever takes it.
func (u *user) pass(token joblock.Token) {
	text, err := token.MarshalText()
	if err != nil {
		fmt.Println("a token has no text:", err)
		return
	}
	// Detached, or a lock parked at the end would need its whole reservation. A token
	// that gets lost all the same is a job that gets lost.
	_ = u.direct.RPush(context.Background(), tokenList, text).Err()
}

// use works under a lock, well-behaved or not, until it is over.
func (u *user) use(ctx context.Context, h *history.Holding, resumed bool) {
	stay := u.upTo(20 * time.Millisecond)
	if u.oneIn(5) || resumed && u.oneIn(3) {
		stay = u.upTo(3 * ttl / 2)
	}
	for end := time.Now().Add(stay); ctx.Err() == nil && time.Now().Before(end); {
		u.write(ctx, h)
		if u.oneIn(8) {
			_ = h.Renew(ctx)
		}
		pause(ctx, u.upTo(10*time.Millisecond))
		if h.Look() != nil {
			break
		}
	}
	switch fate := u.dice.IntN(20); {
	case fate == 0:
		h.Lock.StopRenewing() // and forgets it
	case fate < 3, resumed && fate < 7: // only the latter can have a next attempt
		u.haunt(ctx, h)
	case fate < 12:
		u.park(ctx, h)
	default:
		_ = h.Release(ctx)
	}
}

// park hands the lock over, now and then by a queue that delivers twice.
func (u *user) park(ctx context.Context, h *history.Holding) {
	token, err := h.Park(ctx, joblock.ParkOptions{Hold: hold})
	if err != nil {
		_ = h.Release(ctx)
		return
	}
	if u.oneIn(3) {
		pause(ctx, u.upTo(hold)) // the job has to wait for its turn
	}
	u.pass(token)
	if u.oneIn(3) {
		u.pass(token)
	}
}

// haunt goes on when the lock is lost, and others may have it.
func (u *user) haunt(ctx context.Context, h *history.Holding) {
	u.pass(h.Lock.Token()) // a next attempt of the same job
	h.Lock.StopRenewing()
	for end := time.Now().Add(2 * ttl); h.Look() == nil && ctx.Err() == nil && time.Now().Before(end); {
		pause(ctx, ttl/10)
	}
	pause(ctx, u.upTo(ttl/2))
	u.write(ctx, h)
	_ = h.Renew(ctx)
	_ = h.Release(ctx)
}

// guard is a resource that refuses small fences. Of those that it accepts it notes
// whose turn it is.
const guard = `
local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < seen then return redis.call('INCR', KEYS[3]) end
redis.call('SET', KEYS[1], ARGV[1])
local line = ARGV[1] .. ' ' .. ARGV[2]
if redis.call('LINDEX', KEYS[2], -1) ~= line then redis.call('RPUSH', KEYS[2], line) end
return 0`

const guardLog = "guard-log:"

// write is a write to the resource that the lock protects.
func (u *user) write(ctx context.Context, h *history.Holding) {
	key := h.Lock.Key()
	_ = u.direct.Eval(ctx, guard, []string{"guard:" + key, guardLog + key, refusals}, h.Lock.Fence(), h.ID).Err()
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
