package redisstore

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/storemodel"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/storetest"
)

// hintingStore hands the Hint of each OK back with later releases of the term, as joblock does. It keeps Hints that a
// renewal has made useless. The Store of each call makes it without Lua if that is possible at all, whatever happened
// before.
type hintingStore struct {
	driver.Store
	own *store

	mu    *sync.Mutex
	hints map[hinted]string
}

type hinted struct {
	key   string
	fence int64
}

func newHintingStore(s driver.Store) hintingStore {
	own := s.(*store)
	own.native.able.Store(true)
	return hintingStore{s, own, new(sync.Mutex), make(map[hinted]string)}
}

// native forgets what would send the next calls by script.
func (s hintingStore) native() driver.Store {
	s.own.native.pause.Store(0)
	for i := range s.own.native.contended {
		s.own.native.contended[i].Store(0)
	}
	s.own.native.mu.Lock()
	defer s.own.native.mu.Unlock()
	maps.DeleteFunc(s.own.native.ended, func(_ string, e endedRecord) bool { return e.text == "" })
	return s.Store
}

func (s hintingStore) keep(key string, r *driver.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Hint != "" {
		s.hints[hinted{key, r.Fence}] = r.Hint
		r.Hint = ""
	}
}

func (s hintingStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	// Few tests need the memo, and all ask for it. A call that does goes by script.
	bare := false
	if recs, err := s.Inspect(ctx, driver.InspectRequest{Keys: []string{req.Key}, Memo: true}); req.Memo && err == nil {
		bare = len(recs[0].Memo) == 0
	}
	req.Memo = req.Memo && !bare
	r, err := s.native().Acquire(ctx, req)
	if now, failed := s.own.ops.Time(ctx).Result(); bare && r.Outcome == driver.OutcomeOK && failed == nil {
		r.Now = now
	}
	s.keep(req.Key, &r)
	return r, err
}

func (s hintingStore) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	rs, err := s.native().Resume(ctx, reqs)
	for i := range rs {
		s.keep(reqs[i].Key, &rs[i])
	}
	return rs, err
}

func (s hintingStore) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	reqs = fastAll(reqs, func(r *driver.ReleaseRequest) {
		s.mu.Lock()
		r.Hint = s.hints[hinted{r.Key, r.Fence}]
		s.mu.Unlock()
	})
	return s.native().Release(ctx, reqs)
}

// wantNative fails the test if fewer calls went without Lua than want.
func wantNative(t *testing.T, s driver.Store, want int64) {
	t.Helper()
	made, refused := nativeCalls(s)
	t.Logf("%d calls without Lua, %d were refused", made, refused)
	if !t.Failed() && made < want {
		t.Errorf("%d calls went without Lua, want %d: the test shows less than it should", made, want)
	}
}

// nativeMini is miniHarness of a server that has IFEQ.
func nativeMini(t *testing.T) *storetest.Harness {
	m := redistest.MiniServer(t)
	redistest.SetIFEQ(t, m)
	return miniHarnessOn(t, m)
}

// Calls without Lua follow the model while the clock is set forward and back.
func TestNativeCallsFollowTheModel(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	h := nativeMini(t)
	s := h.Store
	h.Store = fastStore{Store: newHintingStore(s)}
	storemodel.Run(t, h)
	wantNative(t, s, 1)
}

// Processes that make calls without Lua, and others that make all calls by script, have the same locks.
func TestMixedCallsFollowTheModel(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	h := nativeMini(t)
	s := h.Store
	scripts := must(newStore(s.(*store).app, &Config{ScriptsOnly: true}))
	t.Cleanup(func() { scripts.Close() })
	other := newKit(t, s.(*store).app).store
	h.Store = newMixedStore(fastStore{Store: s},
		fastStore{Store: newHintingStore(s)}, fastStore{Store: newHintingStore(other)}, fastStore{Store: scripts})
	storemodel.Run(t, h)
	wantNative(t, s, 0)
}

// A call without Lua answers, and leaves behind, what the script would, while the clock is set forward and back, calls are
// repeated, and the caller's Hint is an old one. The clock has whole milliseconds: the fences are then the same too.
func TestNativeCallsDoAsTheScripts(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	ctx := context.Background()
	var made int64
	for seed := range uint64(share(30)) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		one, two := nativeMini(t), nativeMini(t)
		s, plain := newHintingStore(one.Store), two.Store.(*store)
		plain.native.off = true
		both := func(d time.Duration) {
			one.Advance(d)
			two.Advance(d)
		}
		both(-456 * time.Microsecond)
		fences := map[string][]int64{}
		var again func() (driver.Reply, driver.Reply)
		for step := range 150 {
			key := []string{"a", "b", driver.SlotKey("a", 2)}[rnd.IntN(9)/4]
			period := func() time.Duration { return time.Duration(1+rnd.IntN(300)) * time.Millisecond }
			term := driver.Term{Key: key, Owner: []string{"me", "me", "me", "you"}[rnd.IntN(4)]}
			if n := len(fences[key]); n > 0 {
				term.Fence = fences[key][max(0, n-1-rnd.IntN(6)/4)]
			}
			nonce := fastName(strconv.Itoa(step))
			if rnd.IntN(12) == 0 {
				nonce = strconv.Itoa(step)
			}
			what := ""
			switch n := rnd.IntN(12); {
			case n < 4:
				what = "acquire"
				req := driver.AcquireRequest{Key: key, Owner: term.Owner, Nonce: nonce, TTL: period(), Retain: period(), Holder: "host " + nonce}
				if rnd.IntN(12) == 0 {
					req.Inbox, req.Patience = "inbox", period()
				}
				again = func() (driver.Reply, driver.Reply) {
					r1, err1 := s.Acquire(ctx, req)
					r2, err2 := plain.Acquire(ctx, req)
					if err := errors.Join(err1, err2); err != nil {
						t.Fatal(err)
					}
					if r1.Outcome == driver.OutcomeOK {
						fences[key] = append(fences[key], r1.Fence)
					}
					return r1, r2
				}
			case n < 8:
				what = "release"
				req := driver.ReleaseRequest{Term: term, Nonce: nonce, Retain: period(), Done: rnd.IntN(6) == 0}
				if rnd.IntN(2) == 0 {
					req.Brief = period()
				}
				if rnd.IntN(4) == 0 {
					req.Reason = "why"
				}
				if rnd.IntN(6) == 0 {
					req.Job = "q/1"
				}
				again = func() (driver.Reply, driver.Reply) {
					rs1, err1 := s.Release(ctx, []driver.ReleaseRequest{req})
					rs2, err2 := plain.Release(ctx, []driver.ReleaseRequest{req})
					if err := errors.Join(err1, err2); err != nil {
						t.Fatal(err)
					}
					return rs1[0], rs2[0]
				}
			case n == 8:
				what = "renew"
				req := driver.RenewRequest{Term: term, TTL: period(), Retain: period()}
				again = func() (driver.Reply, driver.Reply) {
					rs1, err1 := s.Renew(ctx, []driver.RenewRequest{req})
					rs2, err2 := plain.Renew(ctx, []driver.RenewRequest{req})
					if err := errors.Join(err1, err2); err != nil {
						t.Fatal(err)
					}
					return rs1[0], rs2[0]
				}
			case n == 9:
				both(time.Duration(rnd.IntN(500)-100) * time.Millisecond)
				continue
			case n == 10:
				both(time.Duration(rnd.IntN(4)) * time.Millisecond)
				continue
			default:
				if what = "again"; again == nil {
					continue
				}
			}
			r1, r2 := again()
			in := driver.InspectRequest{Keys: []string{key}}
			rec1, err1 := s.Inspect(ctx, in)
			rec2, err2 := plain.Inspect(ctx, in)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			life1, life2 := s.own.ops.PTTL(ctx, s.own.name(key)).Val(), plain.ops.PTTL(ctx, plain.name(key)).Val()
			if !reflect.DeepEqual(r1, r2) || !reflect.DeepEqual(rec1, rec2) || life1 != life2 {
				t.Fatalf("seed %d, step %d, %s: without Lua\n%+v\n%+v, to live %s\nby script\n%+v\n%+v, to live %s", seed, step, what, r1, rec1, life1, r2, rec2, life2)
			}
		}
		n, _ := nativeCalls(one.Store)
		made += n
	}
	if want := int64(share(160)); made < want {
		t.Errorf("%d calls went without Lua, want %d: the test shows less than it should", made, want)
	}
}

// A lock that is taken, freed and taken again by one Store, as most are, needs no script at all. It has the fences, and is
// remembered as long, as by script, also if the clock is set back in between.
func TestNativeCallsOfAKeyThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	ctx := context.Background()
	one, two := nativeMini(t), nativeMini(t)
	s, plain := newHintingStore(one.Store), two.Store.(*store)
	plain.native.off = true
	stores := []driver.Store{s, plain}
	both := func(d time.Duration) {
		one.Advance(d)
		two.Advance(d)
	}
	both(-456 * time.Microsecond)
	jumps := []time.Duration{0, time.Millisecond, -time.Millisecond, -300 * time.Millisecond, 200 * time.Millisecond, -2 * time.Second, time.Second}
	n := 0
	for _, held := range jumps {
		for _, free := range jumps {
			n++
			key := "k" + strconv.Itoa(n)
			var got, want []any
			acquire := func(nonce string) (fence int64) {
				for i, st := range stores {
					r, err := st.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "me", Nonce: fastName(nonce + key), TTL: time.Minute, Retain: time.Minute})
					if err != nil || r.Outcome != driver.OutcomeOK {
						t.Fatalf("%+v, %v", r, err)
					}
					if fence = r.Fence; i == 0 {
						got = append(got, r)
					} else {
						want = append(want, r)
					}
				}
				return fence
			}
			first := acquire("a")
			both(held)
			for _, st := range stores {
				rs, err := st.Release(ctx, []driver.ReleaseRequest{{
					Term: driver.Term{Key: key, Owner: "me", Fence: first}, Nonce: fastName("r" + key), Retain: time.Hour, Brief: 10 * time.Second,
				}})
				if err != nil || rs[0].Outcome != driver.OutcomeOK {
					t.Fatalf("%+v, %v", rs, err)
				}
			}
			got = append(got, s.own.ops.PTTL(ctx, s.own.name(key)).Val())
			want = append(want, plain.ops.PTTL(ctx, plain.name(key)).Val())
			both(free)
			if next := acquire("b"); next <= first {
				t.Errorf("held %s, free %s: fence %d after %d", held, free, next, first)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("held %s, free %s: without Lua\n%+v\nby script\n%+v", held, free, got, want)
			}
		}
	}
	wantNative(t, one.Store, int64(2*n))
}

// The record of this package is, byte for byte, that of the scripts.
func TestRecordsAreThoseOfTheScripts(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		const seed = 11
		rnd := rand.New(rand.NewPCG(seed, 1))
		texts := 0
		for range 300 {
			key := string(rune('a' + rnd.IntN(5)))
			owner := []string{"one", "another"}[rnd.IntN(2)]
			k.random(ctx, rnd, key, owner)
			text, err := k.rdb.Get(ctx, k.name(key)).Result()
			if err != nil {
				continue
			}
			texts++
			rec, ok := readRecord(text)
			if !ok || rec.text() != text {
				t.Fatalf("seed %d: the script has written\n%q, read as\n%q, %t", seed, text, rec.text(), ok)
			}
		}
		if texts < 200 {
			t.Errorf("compared %d records: the test shows less than it should", texts)
		}
	})
}

// random makes some call about key.
func (k *kit) random(ctx context.Context, rnd *rand.Rand, key, owner string) {
	nonce := fastName(k.nonce())
	job := []string{"", "q/1"}[rnd.IntN(2)]
	var err error
	switch rnd.IntN(7) {
	case 0, 1:
		_, err = k.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: owner, Nonce: nonce, TTL: long, Retain: long, Holder: "a host"})
	case 2:
		_, err = k.Take(ctx, driver.TakeRequest{Key: key, Owner: owner, Nonce: nonce, Job: "q/1", Reserve: long, Retain: long, Grace: long})
	case 3:
		_, err = k.Resume(ctx, driver.ResumeRequest{Key: key, Owner: owner, Nonce: nonce, Job: job, TTL: long, Retain: long, Reserve: long, Holder: "its host"})
	case 4, 5:
		_, err = k.store.Release(ctx, []driver.ReleaseRequest{{
			Term: driver.Term{Key: key, Owner: owner}, Nonce: nonce, Retain: long, Job: job, Done: job != "", Reason: []string{"", "why"}[rnd.IntN(2)],
		}})
	case 6:
		_, err = k.store.Release(ctx, []driver.ReleaseRequest{{Term: driver.Term{Key: key}, Nonce: nonce, Retain: long, Kind: driver.ReleaseForced}})
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// nativeCalls returns what NativeCalls of s returns.
func nativeCalls(s driver.Store) (made, refused int64) { return s.(*store).NativeCalls() }
