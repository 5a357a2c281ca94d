//go:build servers && unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// player is what the users of a process share.
type player struct {
	pace
	rec    *history.Recorder
	locks  *joblock.Locker
	direct *redis.Client // unharmed, for what is no lock
}

// user is a goroutine that uses locks.
type user struct {
	*player
	dice *rand.Rand
	jobs int

	granted core.Granted // receives the jobs to which the present use gives a key; nil: the Locker announces them
}

func (u *user) upTo(d time.Duration) time.Duration { return time.Duration(u.dice.Int64N(int64(d) + 1)) }
func (u *user) oneIn(n int) bool                   { return u.dice.IntN(n) == 0 }

// once gets a lock, or fails to, and uses it.
func (u *user) once(ctx context.Context) {
	if u.granted = nil; !u.oneIn(3) {
		u.granted = u.deliver
	}
	if u.oneIn(6) {
		u.lineUp(ctx)
		return
	}
	if u.oneIn(3) {
		if h, job, any := u.resume(ctx); h != nil {
			u.use(ctx, h, job, true)
			return
		} else if any {
			return
		}
	}
	if h := u.acquire(ctx); h != nil {
		u.use(ctx, h, "", false)
	}
}

// acquire gets a lock in one of the ways there are; nil if not.
func (u *user) acquire(ctx context.Context) *history.Holding {
	opts := []joblock.AcquireOption{joblock.MaxWait(3 * u.TTL)}
	switch u.dice.IntN(8) {
	case 0:
		opts[0] = joblock.MaxWait(0)
	case 1: // gives up in the middle
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, u.upTo(u.TTL/4))
		defer cancel()
	}
	key, locks := u.lockKey(u.dice), history.Acquirer(u.locks)
	if u.oneIn(5) {
		key, locks = u.limitKey(u.dice), limit.New(u.locks, permits)
	}
	if u.oneIn(3) { // without waiters calls need no script, if the server has SET with IFEQ
		key, locks, opts[0] = u.quietKey(u.dice), u.locks, joblock.MaxWait(0)
	}
	h, err := u.rec.Acquire(ctx, locks, key, opts...)
	if err != nil {
		pause(ctx, u.upTo(5*time.Millisecond))
		return nil
	}
	return h
}

// resume continues a lock that was parked; false if there is none.
func (u *user) resume(ctx context.Context) (h *history.Holding, job string, any bool) {
	entry, err := u.direct.LPop(ctx, tokenList).Result()
	if err != nil {
		return nil, "", false
	}
	job, text, _ := strings.Cut(entry, " ")
	token, err := joblock.ParseToken(text)
	if err != nil {
		fmt.Println("a token was damaged:", err)
		return nil, "", true
	}
	as := job
	if u.oneIn(20) {
		as = "q/another" // has no business with it, unless the lock is bound to no job
	}
	h, err = u.rec.Resume(ctx, u.locks, token, u.Hold, as)
	if errors.Is(err, joblock.ErrBusy) || errors.Is(err, joblock.ErrUnavailable) || err != nil && as != job {
		u.pass(job, token) // like a queue that delivers again
		pause(ctx, u.upTo(10*time.Millisecond))
	}
	return h, job, true
}

// pass leaves the token of a job, which may be "", for any user to take.
func (u *user) pass(job string, token joblock.Token) {
	text, err := token.MarshalText()
	if err != nil {
		fmt.Println("a token has no text:", err)
		return
	}
	// Detached, or a lock parked at the end would need its whole reservation. A token
	// that gets lost all the same is a job that gets lost.
	_ = u.direct.RPush(context.Background(), tokenList, job+" "+string(text)).Err()
}

func (u *user) newJob() string {
	u.jobs++
	return fmt.Sprintf("q/%d.%d.%d", os.Getpid(), u.dice.Uint32(), u.jobs)
}

// lineUp takes a key for a job, or a place in the line of the key, and asks until the job's
// turn has come: the job then has the key, or another slot of the key. Some jobs leave, and
// some are forgotten. Any player that gets the signal of a job's turn may deliver the job: see deliver.
func (u *user) lineUp(ctx context.Context) {
	job, key := u.newJob(), u.lockKey(u.dice)
	token := u.newToken(key)
	if text, err := token.MarshalText(); err == nil {
		_ = u.direct.Set(ctx, jobToken+job, text, time.Minute).Err()
	}
	for end := time.Now().Add(4 * u.TTL); ctx.Err() == nil && time.Now().Before(end); pause(ctx, u.upTo(u.TTL/4)) {
		waits, err := u.rec.Take(ctx, u.locks, token, job, u.Hold, u.patience())
		switch {
		case errors.Is(err, joblock.ErrUnavailable):
			continue
		case err != nil:
			return // another user runs the job
		case !waits:
			if u.oneIn(3) {
				u.deliver(key, job)
			} else if h, err := u.rec.Resume(ctx, u.locks, token, u.Hold, job); err == nil {
				u.use(ctx, h, job, true)
			}
			return
		}
		if u.oneIn(3) {
			_ = u.rec.PassOn(ctx, u.locks, jobline.SlotKeys(key, 2, slotsOfAKey), u.granted)
		}
		if u.oneIn(2) && u.runInSlot(ctx, token, job) {
			return
		}
		switch u.dice.IntN(40) {
		case 0:
			return // and forgets the job
		case 1:
			_ = u.rec.Free(ctx, u.locks, key, job, 0, u.granted)
			return
		case 2: // has no business in this place, unless the place has ended
			_, _ = u.rec.Take(ctx, u.locks, u.newToken(key), job, u.Hold, u.patience())
		case 3:
			u.deliver(key, job) // too early, perhaps
		}
	}
}

// runInSlot runs a job that has got a slot other than the first, and whose place is gone.
func (u *user) runInSlot(ctx context.Context, token joblock.Token, job string) bool {
	got, err := jobline.SlotsOf(ctx, u.locks, token, job, jobline.SlotKeys(token.Key(), 2, slotsOfAKey))
	if err != nil || len(got) == 0 {
		return false
	}
	h, err := u.rec.Resume(ctx, u.locks, joblock.Token(core.Token(token).OfSlot(got[0].Key)), u.Hold, job)
	if err != nil {
		return false
	}
	u.use(ctx, h, job, true)
	return true
}

// newToken returns a token that no other user has.
func (u *user) newToken(key string) joblock.Token {
	token, err := joblock.NewToken(key, fmt.Sprintf("%d.%d", u.dice.Uint64(), u.dice.Uint64()), u.TTL)
	if err != nil {
		panic(err)
	}
	return token
}

// deliver has a user run a job that waited in line and got key, which may be a slot.
func (p *player) deliver(key, job string) {
	text, err := p.direct.Get(context.Background(), jobToken+job).Result()
	if err != nil {
		return
	}
	token, err := joblock.ParseToken(text)
	if err != nil {
		fmt.Println("a token was damaged:", err)
		return
	}
	if again, err := joblock.Token(core.Token(token).OfSlot(key)).MarshalText(); err == nil {
		_ = p.direct.RPush(context.Background(), tokenList, job+" "+string(again)).Err()
	}
}

// use works under a lock, well-behaved or not, until it is over.
func (u *user) use(ctx context.Context, h *history.Holding, job string, resumed bool) {
	stay := u.upTo(20 * time.Millisecond)
	if u.oneIn(5) || resumed && u.oneIn(3) {
		stay = u.upTo(3 * u.TTL / 2)
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
		(*core.Lock)(h.Lock).StopRenewing() // and forgets it
	case fate < 3, resumed && fate < 7: // only the latter can have a next attempt
		u.haunt(ctx, h, job)
	case fate < 12:
		u.park(ctx, h, job)
	default:
		_ = h.Release(ctx, u.granted)
	}
}

// park hands the lock over, to the next attempt of its job or to another, now and then
// by a queue that delivers twice, and now and then by one that fails.
func (u *user) park(ctx context.Context, h *history.Holding, job string) {
	if job == "" && !u.oneIn(3) || u.oneIn(4) {
		job = u.newJob()
	}
	token, err := h.Park(ctx, u.Hold, job)
	if errors.Is(err, joblock.ErrUnavailable) && u.oneIn(2) {
		token, err = h.Park(ctx, u.Hold, job)
	}
	if err != nil {
		_ = h.Release(ctx, u.granted)
		return
	}
	late := u.oneIn(3)
	if !late {
		u.pass(job, token)
	}
	if u.oneIn(4) {
		u.reclaim(ctx, h, job)
	}
	if late {
		pause(ctx, u.upTo(u.Hold)) // the job has to wait for its turn
		u.pass(job, token)
	}
	if u.oneIn(3) {
		u.pass(job, token)
	}
}

// reclaim takes back what was parked, and uses it for a moment.
func (u *user) reclaim(ctx context.Context, h *history.Holding, job string) {
	again, err := h.Reclaim(ctx)
	if errors.Is(err, joblock.ErrUnavailable) {
		again, err = h.Reclaim(ctx)
	}
	if err != nil {
		return
	}
	u.write(ctx, again)
	pause(ctx, u.upTo(10*time.Millisecond))
	if again.Look() == nil {
		u.write(ctx, again)
	}
	switch u.dice.IntN(4) {
	case 0:
		(*core.Lock)(again.Lock).StopRenewing() // for the job, which can have it when this lease is over
	case 1:
		u.haunt(ctx, again, job)
	default:
		_ = again.Release(ctx, u.granted)
	}
}

// haunt goes on when the lock is lost, and others may have it.
func (u *user) haunt(ctx context.Context, h *history.Holding, job string) {
	u.pass(job, h.Lock.Token()) // a next attempt of the same job
	(*core.Lock)(h.Lock).StopRenewing()
	for end := time.Now().Add(2 * u.TTL); h.Look() == nil && ctx.Err() == nil && time.Now().Before(end); {
		pause(ctx, u.TTL/10)
	}
	pause(ctx, u.upTo(u.TTL/2))
	u.write(ctx, h)
	_ = h.Renew(ctx)
	_ = h.Release(ctx, u.granted)
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
