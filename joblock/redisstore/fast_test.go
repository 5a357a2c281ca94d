package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/storemodel"
	"github.com/joblock/toolkit/joblock/driver"
)

// fastStore turns the calls of a test into those for which the scripts have a short way: it
// gives every nonce the length that those of package joblock have, and a release a Brief that changes nothing. A Resume asks
// only for a memo that there is.
type fastStore struct {
	driver.Store
	tick func() // called before a call that takes, resumes or releases; nil: something else moves the clock
}

// ticked is the Store after a tick: the short ways need a clock that has moved since the last term began.
func (s fastStore) ticked() driver.Store {
	if s.tick != nil {
		s.tick()
	}
	return s.Store
}

func fastName(nonce string) string {
	if nonce == "" {
		return ""
	}
	return fmt.Sprintf("%13s", nonce)
}

func fastAll[R any](reqs []R, change func(*R)) []R {
	all := append([]R(nil), reqs...)
	for i := range all {
		change(&all[i])
	}
	return all
}

func (s fastStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	req.Nonce = fastName(req.Nonce)
	return s.ticked().Acquire(ctx, req)
}

func (s fastStore) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	return s.ticked().Take(ctx, fastAll(reqs, func(r *driver.TakeRequest) { r.Nonce = fastName(r.Nonce) }))
}

func (s fastStore) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	return s.ticked().Resume(ctx, fastAll(reqs, func(r *driver.ResumeRequest) {
		r.Nonce = fastName(r.Nonce)
		if recs, err := s.Store.Inspect(ctx, driver.InspectRequest{Keys: []string{r.Key}, Memo: true}); err == nil && len(recs[0].Memo) == 0 {
			r.Memo = false
		}
	}))
}

func (s fastStore) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	return s.Store.Park(ctx, fastAll(reqs, func(r *driver.ParkRequest) { r.Nonce, r.Grant = fastName(r.Nonce), fastName(r.Grant) }))
}

func (s fastStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return s.Store.Renew(ctx, fastAll(reqs, func(r *driver.RenewRequest) { r.Grant = fastName(r.Grant) }))
}

func (s fastStore) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return s.ticked().Release(ctx, fastAll(reqs, func(r *driver.ReleaseRequest) {
		r.Nonce, r.Grant = fastName(r.Nonce), fastName(r.Grant)
		if r.Brief == 0 {
			r.Brief = r.Retain
		}
	}))
}

func (s fastStore) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	return s.Store.Reserve(ctx, fastAll(reqs, func(r *driver.ReserveRequest) { r.Nonce = fastName(r.Nonce) }))
}

func (s fastStore) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	req.Places = fastAll(req.Places, func(nonce *string) { *nonce = fastName(*nonce) })
	return s.Store.Inspect(ctx, req)
}

func (s fastStore) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	return s.Store.Subscribe(ctx, inbox, func(p driver.Push) {
		p.Nonce = strings.TrimLeft(p.Nonce, " ")
		deliver(p)
	})
}

// mixedStore sends each call through one of some Stores, the same one each time that a test runs.
type mixedStore struct {
	driver.Store // listens
	all          []driver.Store
	rnd          *rand.Rand
}

func newMixedStore(listens driver.Store, all ...driver.Store) mixedStore {
	return mixedStore{listens, all, rand.New(rand.NewPCG(1, 0))}
}

func (s mixedStore) any() driver.Store { return s.all[s.rnd.IntN(len(s.all))] }

func (s mixedStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return s.any().Acquire(ctx, req)
}

func (s mixedStore) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	return s.any().Take(ctx, reqs)
}

func (s mixedStore) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	return s.any().Resume(ctx, reqs)
}

func (s mixedStore) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	return s.any().Park(ctx, reqs)
}

func (s mixedStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return s.any().Renew(ctx, reqs)
}

func (s mixedStore) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return s.any().Release(ctx, reqs)
}

func (s mixedStore) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	return s.any().Reserve(ctx, reqs)
}

// Records that clients of one server and of a cluster write in turn are of all kinds.
func TestMixedKindsFollowTheModel(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	h := miniHarness(t)
	one := h.Store.(*store)
	cluster := newKit(t, one.ops).store
	giveTime(t, cluster, one.ops)
	cluster.joint, cluster.hashes = false, true // as of a client that is not a *redis.Client
	h.Store = newMixedStore(fastStore{Store: one}, fastStore{Store: one}, fastStore{Store: cluster})
	storemodel.Run(t, h)
}

// A release that the stage fast pass handles leaves the same record, and answers and publishes the same, as one that
// goes through the general stages.
func TestFastPassesAreLikeTheGeneralStages(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 1))
	m := redistest.MiniServer(t)
	m.ClockTTL(false)
	start := time.UnixMicro(1_700_000_000_123_456)
	m.SetTime(start)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	k.hashes = true // so half of the records, those with a memo or an 'h', are of other kinds
	ctx := context.Background()
	var messages []<-chan *redis.Message
	for _, heard := range []*redis.PubSub{
		rdb.Subscribe(ctx, k.channel("mine"), k.channel("other"), k.jobs(), "end"),
		rdb.PSubscribe(ctx, k.channel("unheard"), "end"), // which do not count as subscriptions to the channels
	} {
		defer heard.Close()
		if _, err := heard.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		messages = append(messages, heard.Channel())
	}
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	granted, jobs := 0, 0
	for i := range share(600) {
		now := start.Add(time.Duration(i) * time.Hour)
		m.SetTime(now)
		key := fmt.Sprint("key ", i)
		k.hashes = rnd.IntN(2) == 0
		ttl := []time.Duration{time.Millisecond, 900 * time.Millisecond, time.Second, long}[rnd.IntN(4)]
		holder := driver.AcquireRequest{Key: key, Owner: "owner", Nonce: fastName(k.nonce()), TTL: ttl, Retain: long, Holder: "a host"}
		r, err := k.Acquire(ctx, holder)
		wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		last := pick("", fastName("last"), "short")
		if last != "" {
			rs, err := k.Release(ctx, []driver.ReleaseRequest{{
				Term: driver.Term{Key: key, Owner: "owner", Fence: r.Fence}, Nonce: last, Retain: long, Reason: pick("", "why"),
			}})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
			now = now.Add(time.Duration(rnd.IntN(2)) * time.Microsecond) // if the clock stands still, the fence runs ahead
			m.SetTime(now)
			holder.Nonce = pick(fastName(k.nonce()), "short")
			r, err = k.Acquire(ctx, holder)
			wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		}
		if rnd.IntN(3) == 0 {
			rs, err := k.Renew(ctx, []driver.RenewRequest{{Term: driver.Term{Key: key, Owner: "owner", Fence: r.Fence}, TTL: ttl, Retain: long, Memo: []byte("memo")}})
			wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
		}
		var calls []driver.Term
		for n := range rnd.IntN(5) {
			patience := []time.Duration{time.Millisecond, time.Minute, long}[rnd.IntN(3)]
			if rnd.IntN(3) == 0 {
				wait := driver.TakeRequest{
					Key: key, Owner: fmt.Sprint("waiter ", n), Nonce: pick(fastName(fmt.Sprint("wait ", n)), fastName(fmt.Sprint("wait ", n)), fmt.Sprint("w", n)),
					Job: fmt.Sprint("q/", n), Reserve: time.Duration(1+rnd.IntN(100)) * time.Second, Retain: time.Duration(1+rnd.IntN(600)) * time.Second,
					Grace: time.Second, Holder: pick("", "a host"), Patience: patience,
				}
				r, err := k.Take(ctx, wait)
				wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
				calls = append(calls, driver.Term{Key: key, Owner: wait.Owner, Grant: wait.Nonce})
				continue
			}
			wait := driver.AcquireRequest{
				Key: key, Owner: fmt.Sprint("waiter ", n), Nonce: pick(fastName(fmt.Sprint("wait ", n)), fastName(fmt.Sprint("wait ", n)), fmt.Sprint("w", n)),
				TTL: time.Duration(1+rnd.IntN(100)) * time.Second, Retain: time.Duration(1+rnd.IntN(600)) * time.Second,
				Holder: pick("", "a host"), Inbox: pick("mine", "other", "unheard"), Patience: patience,
			}
			r, err := k.Acquire(ctx, wait)
			wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
			calls = append(calls, driver.Term{Key: key, Owner: wait.Owner, Grant: wait.Nonce})
		}
		for _, wait := range calls {
			if rnd.IntN(4) == 0 {
				leave := k.release(wait)
				if _, err := k.Release(ctx, []driver.ReleaseRequest{leave}); err != nil {
					t.Fatal(err)
				}
			}
		}
		now = now.Add([]time.Duration{0, time.Microsecond, time.Millisecond, time.Millisecond, time.Second}[rnd.IntN(5)])
		m.SetTime(now)
		release := driver.ReleaseRequest{
			Term:  driver.Term{Key: key, Owner: pick("owner", "owner", "owner", "another"), Fence: r.Fence - int64(rnd.IntN(5)/4)},
			Nonce: pick(fastName("this"), fastName("this"), fastName("last")), Retain: long, Brief: time.Second, Reason: pick("", "why"),
		}
		release.Done = release.Reason != "" && rnd.IntN(2) == 0
		listener := pick("", "\n", "\n"+strings.Repeat("5", proofKeyBytes), k.channel("mine")+"\n", k.channel("mine")+"\n"+strings.Repeat("a", proofKeyBytes), "\n\n1", k.channel("other")+"\n\n1")

		// The same call on a copy, with arguments that fast pass leaves to the others.
		copied := "copy of " + key
		kind, life := rdb.Type(ctx, k.prefix+key).Val(), rdb.PTTL(ctx, k.prefix+key).Val()
		if kind == "hash" {
			rdb.HSet(ctx, k.prefix+copied, rdb.HGetAll(ctx, k.prefix+key).Val())
		} else {
			rdb.Set(ctx, k.prefix+copied, rdb.Get(ctx, k.prefix+key).Val(), 0)
		}
		rdb.PExpire(ctx, k.prefix+copied, life)
		run := func(key string, short bool) string {
			req := release
			req.Key = key
			c := k.releaseCall(&req, listener)
			if !short && release.Reason == "" {
				if listener == "" {
					c.str(listener)
				}
				c.str("").str("R")
			}
			if !short {
				c.str("").str("0").flag(false)
			}
			a := releaseScript.run(ctx, k.store.calls, c.cmd(ctx))
			if list, ok := a.val.([]any); ok && len(list) == 3 {
				granted++
			} else if ok && len(list) == 2 {
				if _, job := list[1].(string); job {
					jobs++
				}
			}
			state := fmt.Sprintf("answer %q, %v\nlives for %s\n", a.val, a.err, rdb.PTTL(ctx, k.prefix+key).Val())
			if kind := rdb.Type(ctx, k.prefix+key).Val(); kind == "hash" {
				state += fmt.Sprintf("%q\n", rdb.HGetAll(ctx, k.prefix+key).Val()) // fmt sorts the fields
			} else {
				state += fmt.Sprintf("%s %q\n", kind, rdb.Get(ctx, k.prefix+key).Val())
			}
			rdb.Publish(ctx, "end", "")
			for _, heard := range messages {
				for p := range heard {
					if p.Channel == "end" {
						break
					}
					granted++
					state += fmt.Sprintf("published to %q: %q\n", p.Channel, p.Payload)
				}
			}
			return strings.ReplaceAll(state, "copy of ", "") // what is published about a job names the key
		}
		if short, general := run(key, true), run(copied, false); short != general {
			t.Fatalf("seed %d, key %d: the short way leads to\n%s\nthe general way to\n%s", seed, i, short, general)
		}
	}
	if want := share(100); jobs < want {
		t.Errorf("%d jobs got the key, want %d: the test shows less than it should", jobs, want)
	}
	if want := share(300); granted < want {
		t.Errorf("%d grants were published, want %d: the test shows less than it should", granted, want)
	}
}
