package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// Between two that wait there may be any number of places that were given up.
func TestManyEmptyPlacesBetweenWaiters(t *testing.T) {
	ctx := context.Background()
	k := newRealKit(t)
	const ages = time.Hour // a busy machine takes its time
	join := func(key, call string) {
		t.Helper()
		r, err := k.Acquire(ctx, driver.AcquireRequest{
			Key: key, Owner: "owner of " + call, Nonce: call, TTL: ages, Retain: ages, Inbox: "inbox", Patience: ages,
		})
		wantOutcome(t, "join", r, err, driver.OutcomeHeld)
	}
	release := func(term driver.Term, want driver.Outcome) {
		t.Helper()
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, want)
	}
	of := func(key, call string) driver.Term {
		return driver.Term{Key: key, Owner: "owner of " + call, Grant: call}
	}
	check := func(key, owner string, waiters int) {
		t.Helper()
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		if err != nil || recs[0].Owner != owner || recs[0].Waiters != waiters {
			t.Errorf("owner %q with %d waiters, %v; want %q with %d", recs[0].Owner, recs[0].Waiters, err, owner, waiters)
		}
	}
	// Leaves "first", many empty places, "middle", as many again, and "last".
	gaps := func(key string) driver.Term {
		t.Helper()
		holder := of(key, "holder")
		r, err := k.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: holder.Owner, Nonce: holder.Grant, TTL: ages, Retain: ages})
		wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		join(key, "first")
		for _, end := range []string{"middle", "last"} {
			for before, n := "", 0; n < 1010; n++ {
				call := k.nonce()
				join(key, call)
				if before != "" {
					release(of(key, before), driver.OutcomeNotOwner)
				}
				if before = call; n == 1009 {
					join(key, end)
					release(of(key, call), driver.OutcomeNotOwner)
				}
			}
		}
		check(key, holder.Owner, 3)
		return holder
	}
	release(gaps("served"), driver.OutcomeOK)
	check("served", "owner of first", 2)
	release(of("served", "first"), driver.OutcomeOK)
	check("served", "owner of middle", 1)
	release(of("served", "middle"), driver.OutcomeOK)
	check("served", "owner of last", 0)

	holder := gaps("given up")
	release(of("given up", "first"), driver.OutcomeNotOwner)
	check("given up", holder.Owner, 2)
	release(of("given up", "last"), driver.OutcomeNotOwner)
	check("given up", holder.Owner, 1)
	join("given up", "another")
	release(holder, driver.OutcomeOK)
	check("given up", "owner of middle", 1)
	release(of("given up", "another"), driver.OutcomeNotOwner)
	check("given up", "owner of middle", 0)

	// A stranger removed one in the middle. Those behind it join again when they
	// ask, and until then the key is free.
	holder = gaps("middle gone")
	if err := k.rdb.HDel(ctx, k.name("middle gone"), "q1011").Err(); err != nil {
		t.Fatal(err)
	}
	release(holder, driver.OutcomeOK)
	release(of("middle gone", "first"), driver.OutcomeOK)
	check("middle gone", "owner of first", 0)
	r, err := k.Acquire(ctx, driver.AcquireRequest{
		Key: "middle gone", Owner: "owner of last", Nonce: "last", TTL: ages, Retain: ages, Inbox: "inbox", Patience: ages,
	})
	wantOutcome(t, "ask", r, err, driver.OutcomeOK)
}

// Whatever happens to those who wait, at the ends of the queue or in its middle, those who
// are left are served in turn, and what is known of the others is gone.
func TestQueuesOfThoseWhoComeAndGo(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		rnd := rand.New(rand.NewPCG(1, 2))
		holder := k.acquire("key")
		var line []string // as it should be
		came := 0
		for range 2000 {
			switch what := rnd.IntN(10); {
			case what < 5 || len(line) == 0:
				call := fmt.Sprintf("call %d", came)
				came++
				r, err := k.Acquire(ctx, driver.AcquireRequest{
					Key: "key", Owner: call, Nonce: call, TTL: long, Retain: long, Inbox: "inbox", Patience: long,
				})
				wantOutcome(t, "join", r, err, driver.OutcomeHeld)
				if r.Ahead < len(line) || (r.Ahead == 0) != (len(line) == 0) {
					t.Fatalf("%d are said to be before it, want %d at least", r.Ahead, len(line))
				}
				line = append(line, call)
			case what < 9:
				i := rnd.IntN(len(line))
				_, err := k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: "key", Owner: line[i], Grant: line[i]})})
				if err != nil {
					t.Fatal(err)
				}
				line = slices.Delete(line, i, i+1)
			default:
				rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(holder)})
				wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
				holder = driver.Term{Key: "key", Owner: line[0], Grant: line[0]}
				line = line[1:]
			}
			recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
			if err != nil || recs[0].Owner != holder.Owner || recs[0].Waiters != len(line) {
				t.Fatalf("owner %q with %d waiters, %v; want %q with %d", recs[0].Owner, recs[0].Waiters, err, holder.Owner, len(line))
			}
		}
		for _, next := range line {
			rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(holder)})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
			holder = driver.Term{Key: "key", Owner: next, Grant: next}
		}
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(holder)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		if kind := k.rdb.Type(ctx, k.name("key")).Val(); kind != "string" {
			t.Errorf("a %s is left of a queue that is over, want a string", kind)
		}
	})
}

// A later version may write more about a place. The waiter with such a place keeps it, and is served in turn.
func TestPlacesOfALaterVersionCount(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		holder := k.acquire("key")
		ask := func(call string, want int) {
			t.Helper()
			r, err := k.Acquire(ctx, driver.AcquireRequest{
				Key: "key", Owner: call, Nonce: call, TTL: long, Retain: long, Inbox: "inbox", Patience: long,
			})
			wantOutcome(t, "ask", r, err, driver.OutcomeHeld)
			if r.Ahead != want {
				t.Errorf("%q has %d ahead, want %d", call, r.Ahead, want)
			}
		}
		callers := []string{"0000000000000", "0000000000001", "0000000000002", "0000000000003"}
		more := func() { // as a later version would have written all places
			for field, text := range k.rdb.HGetAll(ctx, k.name("key")).Val() {
				if len(field) == 2 && field[0] == 'q' && !strings.HasSuffix(text, "more") {
					k.rdb.HSet(ctx, k.name("key"), field, text+"\nsomething\nmore")
				}
			}
		}
		for i, call := range callers {
			ask(call, i)
		}
		more()
		for i, call := range callers {
			ask(call, i) // the second time, this version writes the place
		}
		more()
		line, err := k.Line(ctx, driver.LineRequest{Key: "key", Limit: 10})
		if err != nil || len(line.Places) != len(callers) {
			t.Errorf("%d are in line, %v", len(line.Places), err)
		}
		ends := []driver.ReleaseKind{driver.ReleaseOwn, driver.ReleaseForced, driver.ReleaseOwn} // by two ways through the script
		for i, kind := range ends {
			req := k.release(holder)
			req.Kind = kind
			rs, err := k.Release(ctx, []driver.ReleaseRequest{req})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
			recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
			if err != nil || recs[0].Owner != callers[i] || recs[0].Waiters != len(callers)-1-i {
				t.Fatalf("owner %q with %d waiters, %v; want %q", recs[0].Owner, recs[0].Waiters, err, callers[i])
			}
			holder = driver.Term{Key: "key", Owner: callers[i], Grant: callers[i], Fence: recs[0].Fence}
		}
	})
}

// crowd is how many wait, or have died waiting: a process may have that many goroutines.
const crowd = 20_000

// stage makes a key that is held, and a queue of a crowd: as if they had joined, in a
// fraction of the time. The first dead of them keep their places no longer.
func (k *kit) stage(key string, dead int) driver.Term {
	k.t.Helper()
	term := k.acquire(key)
	k.writeRecord(k.name(key), recordText(k.readRecord(k.name(key))), "q", "0 0 0")
	err := k.rdb.Eval(context.Background(), `
for n = 0, ARGV[1] - 1 do
  local ends = n < tonumber(ARGV[2]) and '1' or '99999999999999'
  redis.call('HSET', KEYS[1], 'wcall ' .. n, n, 'q' .. n,
    ends .. '\n120001\n       60000\nowner of call ' .. n .. '\nholder\n\n\ncall ' .. n .. '\njoblock:inbox:crowd\n1795307164008897')
end
redis.call('HSET', KEYS[1], 'q', '0 ' .. ARGV[1] .. ' ' .. ARGV[1])
redis.call('PEXPIRE', KEYS[1], 3600000)`, []string{k.name(key)}, crowd, dead).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		k.t.Fatal(err)
	}
	return term
}

// between does something before a Store's second script, once.
type between struct {
	scripts int
	do      func()
}

func (h *between) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *between) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			if h.scripts++; h.scripts == 2 {
				h.do()
			}
		}
		return next(ctx, cmd)
	}
}

func (h *between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A release that leaves off goes on with the queue and does nothing else: the key may have
// had another owner meanwhile, and belong to an unrelated holder by then.
func TestReleaseThatGoesOnTakesNoOtherLock(t *testing.T) {
	ctx := context.Background()
	for name, change := range map[string]func(*driver.ReleaseRequest){
		"forced":   func(r *driver.ReleaseRequest) { r.Owner, r.Fence, r.Kind = "", 0, driver.ReleaseForced },
		"by owner": func(r *driver.ReleaseRequest) { r.Fence = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			k := newRealKit(t)
			peer := newKit(t, k.rdb)
			term := k.stage("key", crowd)
			peer.n.Store(1000)
			hook := &between{do: func() {
				rs, err := peer.Release(ctx, []driver.ReleaseRequest{peer.release(peer.acquire("key"))})
				wantOutcomes(t, "release by the next owner", rs, err, 1, driver.OutcomeOK)
				peer.acquire("key")
			}}
			for _, load := range []string{"a", "b"} { // the script is known from here on
				_, err := k.Release(ctx, []driver.ReleaseRequest{k.release(k.acquire(load))})
				if err != nil {
					t.Fatal(err)
				}
			}
			k.ops.(*redis.Client).AddHook(hook)
			req := k.release(term)
			change(&req)
			rs, err := k.Release(ctx, []driver.ReleaseRequest{req})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
			if hook.scripts < 2 {
				t.Fatalf("the release took %d scripts", hook.scripts)
			}
			recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
			if err != nil || recs[0].State != driver.StateHeld {
				t.Errorf("the key is %s, ended %q, %v; want it held by who has taken it since", recs[0].State, recs[0].Ended, err)
			}
		})
	}
}

// The Takes of a batch are served in their order, although the first of them only drops dead waiters.
func TestTakesOfABatchAfterManyDeadWaiters(t *testing.T) {
	ctx := context.Background()
	onBoth(t, func(t *testing.T, k *kit) {
		for _, dead := range []int{99, 100, 150, 250} {
			key := fmt.Sprint("key-", dead)
			k.acquire(key)
			take := func(name string, patience time.Duration) driver.TakeRequest {
				return driver.TakeRequest{
					Key: key, Owner: "owner of " + name, Nonce: "place of " + name, Job: "q/" + name,
					Reserve: long, Retain: long, Grace: long, Patience: patience,
				}
			}
			for n := range dead {
				r, err := k.Take(ctx, take(fmt.Sprint("dead-", n), time.Millisecond))
				wantOutcome(t, "line up", r, err, driver.OutcomeHeld)
			}
			// The holder's reservation has run out. A release would drop the dead.
			name := k.name(key)
			text := k.rdb.HGet(ctx, name, "s").Val()
			if err := k.rdb.HSet(ctx, name, "s", text[:len(text)-2*periodBytes]+fmt.Sprintf("%12d%12d", 1, 1)).Err(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
			var batch []driver.TakeRequest
			for n := range 4 {
				batch = append(batch, take(fmt.Sprint(n), long))
			}
			got, err := k.store.Take(ctx, batch)
			if err != nil || got[0].Outcome != driver.OutcomeOK {
				t.Errorf("%d dead: the first Take: %+v, %v, want the key", dead, got[0], err)
			}
			page, err := k.Line(ctx, driver.LineRequest{Key: key, Limit: 10})
			var line []string
			for _, p := range page.Places {
				line = append(line, p.Job)
			}
			if want := []string{"q/1", "q/2", "q/3"}; err != nil || !slices.Equal(line, want) {
				t.Errorf("%d dead: in line wait %q, %v, want %q", dead, line, err, want)
			}
		}
	})
}

// In a cluster the record of a key is always a hash. However waiters leave its queue, no field of theirs stays behind.
func TestWaitersLeaveNoFieldsBehind(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	ctx := context.Background()
	m := redistest.MiniServer(t)
	m.ClockTTL(false)
	now := time.UnixMicro(1_700_000_000_123_456)
	m.SetTime(now)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	k.hashes = true
	of := func(call string) driver.Term { return driver.Term{Key: "key", Owner: "owner of " + call, Grant: call} }
	release := func(term driver.Term, want driver.Outcome) {
		t.Helper()
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, want)
	}
	fields := func(when string, want ...string) {
		t.Helper()
		got, err := rdb.HKeys(ctx, k.name("key")).Result()
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s the record has the fields %q, %v; want %q", when, got, err, want)
		}
	}
	holder := k.acquire("key")
	for _, call := range []string{"a", "b", "c", "d", "e", "f"} {
		patience := long
		if call == "e" {
			patience = time.Second
		}
		r, err := k.Acquire(ctx, driver.AcquireRequest{
			Key: "key", Owner: of(call).Owner, Nonce: call, TTL: long, Retain: long, Inbox: "inbox", Patience: patience,
		})
		wantOutcome(t, "join", r, err, driver.OutcomeHeld)
	}
	fields("while six wait", "s", "q", "q0", "q1", "q2", "q3", "q4", "q5", "wa", "wb", "wc", "wd", "we", "wf")
	for _, call := range []string{"c", "d", "b"} {
		release(of(call), driver.OutcomeNotOwner)
	}
	fields("when three have left", "s", "q", "q0", "q4", "q5", "wa", "we", "wf", "g1", "g3")
	release(holder, driver.OutcomeOK)
	fields("when the first one has the key", "s", "q", "q4", "q5", "we", "wf")
	m.SetTime(now.Add(2 * time.Second)) // e is dead
	release(of("a"), driver.OutcomeOK)
	fields("when the last one has the key", "s")
	release(of("f"), driver.OutcomeOK)
}
