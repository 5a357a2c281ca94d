package redisstore

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestScriptsNumberOutcomesAndStatesAsJoblockDoes(t *testing.T) {
	outcomes := []driver.Outcome{
		driver.OutcomeOK, driver.OutcomeHeld, driver.OutcomeBusy, driver.OutcomeNotFound,
		driver.OutcomeNotOwner, driver.OutcomeReleased, driver.OutcomeLapsed,
		driver.OutcomeWrongJob, driver.OutcomeForeign, driver.OutcomeFull,
	}
	states := []driver.State{driver.StateFree, driver.StateHeld, driver.StateParked, driver.StateOrphaned}
	checkConstants(t, "OK HELD BUSY NOT_FOUND NOT_OWNER RELEASED LAPSED WRONG_JOB FOREIGN FULL", outcomes)
	checkConstants(t, "ABSENT", []driver.Outcome{driver.OutcomeNotFound})
	checkConstants(t, "STATE_FREE STATE_HELD STATE_PARKED STATE_ORPHANED", states)
}

// keysOf has all scripts, each with how many keys the script names. The script that inspects many keys goes through
// all of them, and names none.
var keysOf = map[*script]int{
	acquireScript: 1, takeScript: 2, resumeScript: 2, parkScript: 2, renewScript: 1, releaseScript: 1, releaseSlotScript: 3,
	reserveScript: 2, inspectScript: 1, inspectManyScript: 0, lineScript: 1,
	bindScript: 1, dueScript: 1, settleScript: 1, sealScript: 1, rateScript: 1,
}

// sources returns the texts of all scripts.
func sources() string {
	var all strings.Builder
	for sc := range keysOf {
		all.WriteString(sc.source.(string))
	}
	return all.String()
}

// checkConstants compares the numbers that the scripts give to names.
func checkConstants[T ~uint8](t *testing.T, names string, want []T) {
	t.Helper()
	got := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^local ([A-Z_]+(?:, [A-Z_]+)*) = ([0-9]+(?:, [0-9]+)*)$`).FindAllStringSubmatch(sources(), -1) {
		values := strings.Split(m[2], ", ")
		for i, name := range strings.Split(m[1], ", ") {
			got[name] = values[i]
		}
	}
	for i, name := range strings.Fields(names) {
		if got[name] != strconv.Itoa(int(want[i])) {
			t.Errorf("the scripts have %q for %s, joblock has %d", got[name], name, want[i])
		}
	}
}

func TestOnlyTheGivenKeysAreTouched(t *testing.T) {
	comment := regexp.MustCompile(`(?m)--.*$`)
	for sc, keys := range keysOf {
		text := comment.ReplaceAllString(sc.source.(string), "")
		for _, m := range regexp.MustCompile(`redis\.p?call\('(\w+)'(, (?:key|set|index|KEYS\[[12]\]|unpack\(KEYS\)|unpack\(others\)))?[,)]`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains([]string{"TIME", "PUBLISH", "SPUBLISH", "PUBSUB"}, m[1]) && m[2] == "" {
				t.Errorf("%s: %s is called with something other than the key, the set or the index", sc.op, m[1])
			}
		}
		named := map[string]bool{}
		for _, m := range regexp.MustCompile(`KEYS\[(.*?)\]`).FindAllStringSubmatch(text, -1) {
			named[m[1]] = true
		}
		if sc == inspectManyScript {
			delete(named, "i") // from which its others are
		}
		for n := range keys {
			delete(named, strconv.Itoa(n+1))
		}
		if len(named) > 0 {
			t.Errorf("%s has %d keys, and also uses KEYS%v", sc.op, keys, slices.Sorted(maps.Keys(named)))
		}
	}
}

// renameScripts makes the scripts unknown to every server until the end of the test: each has a comment more.
func renameScripts(t *testing.T) {
	t.Helper()
	comment := fmt.Sprintf("\n-- %s %d\n", t.Name(), rand.Uint64())
	for sc := range keysOf {
		whole := *sc
		sc.source = sc.source.(string) + comment
		sc.sha = redis.NewScript(sc.source.(string)).Hash()
		t.Cleanup(func() { *sc = whole })
	}
}

// callsAfter makes calls of all kinds, each after one of flush, which makes the scripts unknown.
func callsAfter(t *testing.T, k *kit, flush func()) {
	ctx := context.Background()
	flush()
	a := k.acquire("a")
	flush()
	b := k.acquire("b")
	flush()
	rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(a), k.renewal(b)})
	wantOutcomes(t, "renew", rs, err, 2, driver.OutcomeOK)
	flush()
	r, err := k.Park(ctx, k.park(a))
	wantOutcome(t, "park", r, err, driver.OutcomeOK)
	flush()
	r, err = k.Resume(ctx, driver.ResumeRequest{Key: "a", Owner: a.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
	wantOutcome(t, "resume", r, err, driver.OutcomeOK)
	flush()
	if recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"a", "b", "c"}}); err != nil || recs[1].State != driver.StateHeld {
		t.Fatalf("inspect: %+v, %v", recs, err)
	}
	flush()
	a.Fence = r.Fence
	rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(a), k.release(b)})
	wantOutcomes(t, "release", rs, err, 2, driver.OutcomeOK)
	flush()
	rs, err = k.store.Take(ctx, []driver.TakeRequest{k.taking("a"), k.taking("b"), k.taking("c")})
	wantOutcomes(t, "take", rs, err, 3, driver.OutcomeOK)
}

func TestUnknownScriptsAreSentAlong(t *testing.T) {
	k := newRealKit(t)
	callsAfter(t, k, func() { renameScripts(t) })
}

func TestOneRoundTripPerCall(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	ctx := context.Background()

	renameScripts(t)
	// The first round makes the scripts known.
	for range 2 {
		seen := proxy.Times(1<<30, redistest.Named("evalsha", "eval", "script", "multi"), redistest.Pass())
		key := k.nonce()
		term := k.acquire(key)
		rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(term)})
		wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
		r, err := k.Park(ctx, k.park(term))
		wantOutcome(t, "park", r, err, driver.OutcomeOK)
		r, err = k.Resume(ctx, driver.ResumeRequest{Key: key, Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
		wantOutcome(t, "resume", r, err, driver.OutcomeOK)
		term.Fence = r.Fence
		rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		if got := seen.Hits(); strings.HasSuffix(key, "-1") {
			if got != 10 {
				t.Errorf("%d commands for 5 calls with unknown scripts, want 10", got)
			}
		} else if got != 5 {
			t.Errorf("%d commands for 5 calls, want 5", got)
		}
		seen.Disarm()
	}
}

// A lost reply makes go-redis send the command again by itself; the second run
// of the script must find the first.
func TestLostRepliesAreMadeGoodByTheResend(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	ctx := context.Background()
	// The scripts are made known first: a lost NOSCRIPT would prove nothing.
	warm := k.acquire("warm up")
	r, err := k.Park(ctx, k.park(warm))
	wantOutcome(t, "park", r, err, driver.OutcomeOK)
	r, err = k.Resume(ctx, driver.ResumeRequest{Key: warm.Key, Owner: warm.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
	wantOutcome(t, "resume", r, err, driver.OutcomeOK)
	warm.Fence = r.Fence
	rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(warm)})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	lose := func(key string) func() {
		f := proxy.Once(redistest.Mentioning(key), redistest.DropReply())
		return func() {
			t.Helper()
			if f.Hits() != 1 {
				t.Errorf("no reply was lost for %s", key)
			}
		}
	}
	fenceOf := func(key string) int64 {
		t.Helper()
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		return recs[0].Fence
	}

	lost := lose("joblock:job")
	term := k.acquire("job")
	lost()
	if got := fenceOf("job"); got != term.Fence {
		t.Errorf("acquire answered fence %d, the record has %d", term.Fence, got)
	}

	lost = lose("joblock:job")
	r, err = k.Park(ctx, k.park(term))
	wantOutcome(t, "park", r, err, driver.OutcomeOK)
	lost()
	if got := fenceOf("job"); got != r.Fence || got <= term.Fence {
		t.Errorf("park answered fence %d, the record has %d, before it was %d", r.Fence, got, term.Fence)
	}

	lost = lose("joblock:job")
	r, err = k.Resume(ctx, driver.ResumeRequest{Key: "job", Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
	wantOutcome(t, "resume", r, err, driver.OutcomeOK)
	lost()
	if got := fenceOf("job"); got != r.Fence {
		t.Errorf("resume answered fence %d, the record has %d", r.Fence, got)
	}

	term.Fence = r.Fence
	lost = lose("joblock:job")
	rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	lost()
}

// The renewal client does not send again: the connection breaks behind the
// second of four items.
func TestBatchKeepsTheAnswersItGot(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	ctx := context.Background()
	var reqs []driver.RenewRequest
	for _, key := range []string{"a", "b", "c", "d"} {
		reqs = append(reqs, k.renewal(k.acquire(key)))
	}
	rs, err := k.Renew(ctx, reqs)
	wantOutcomes(t, "renew", rs, err, 4, driver.OutcomeOK)

	proxy.Once(redistest.All(redistest.Named("evalsha"), redistest.Mentioning("joblock:c")), redistest.DropReply())
	rs, err = k.Renew(ctx, reqs)
	if err == nil {
		t.Fatal("renew of a broken batch gave no error")
	}
	want := []driver.Outcome{driver.OutcomeOK, driver.OutcomeOK, driver.OutcomeUnknown, driver.OutcomeUnknown}
	for i, r := range rs {
		if r.Outcome != want[i] {
			t.Errorf("item %d has outcome %d, want %d", i, r.Outcome, want[i])
		}
	}
	// One item is refused by the server, the others are not affected.
	proxy.Once(redistest.All(redistest.Named("evalsha"), redistest.Mentioning("joblock:b")), redistest.Fail("OOM command not allowed when used memory > 'maxmemory'."))
	rs, err = k.Renew(ctx, reqs)
	if err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatalf("renew gave error %v, want OOM", err)
	}
	for i, r := range rs {
		if got := r.Outcome == driver.OutcomeOK; got != (i != 1) {
			t.Errorf("item %d has outcome %d", i, r.Outcome)
		}
	}
}

func TestForeignValuesStayByteForByte(t *testing.T) {
	k := newRealKit(t)
	ctx := context.Background()
	plant := map[string]func(key string){
		"string": func(key string) { k.rdb.Set(ctx, key, "v", 0) },
		"list":   func(key string) { k.rdb.RPush(ctx, key, "v") },
		"hash":   func(key string) { k.rdb.HSet(ctx, key, "owner", "o", "nonce", "n", "lease", "1", "until", "2") },
	}
	for i, f := range []string{"", "abc", "-1", "1.5", "1e5", "0x10", "nan", "inf", " 7", "9007199254740991", "99999999999999999999"} {
		plant[fmt.Sprintf("hash with fence %d", i)] = func(key string) { k.rdb.HSet(ctx, key, "owner", "o", "fence", f) }
	}
	for name, put := range plant {
		t.Run(name, func(t *testing.T) {
			full := k.store.prefix + name
			put(full)
			before := k.rdb.Dump(ctx, full).Val()
			term := driver.Term{Key: name, Owner: "o", Fence: 1}
			r, err := k.Acquire(ctx, driver.AcquireRequest{Key: name, Owner: "o", Nonce: "n", TTL: long, Retain: long})
			wantOutcome(t, "acquire", r, err, driver.OutcomeForeign)
			r, err = k.Resume(ctx, driver.ResumeRequest{Key: name, Owner: "o", Nonce: "n", TTL: long, Retain: long})
			wantOutcome(t, "resume", r, err, driver.OutcomeForeign)
			r, err = k.Park(ctx, k.park(term))
			wantOutcome(t, "park", r, err, driver.OutcomeForeign)
			rs, err := k.Renew(ctx, []driver.RenewRequest{{Term: term, TTL: long, Retain: long, Memo: []byte{}}})
			wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeForeign)
			force := k.release(driver.Term{Key: name})
			force.Kind = driver.ReleaseForced
			rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(term), force})
			wantOutcomes(t, "release", rs, err, 2, driver.OutcomeForeign)
			recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{name}})
			if err != nil || recs[0].State != driver.StateForeign || recs[0].Key != name {
				t.Errorf("inspect: %+v, %v", recs, err)
			}
			if after := k.rdb.Dump(ctx, full).Val(); before == "" || after != before {
				t.Errorf("value was %q and is %q", before, after)
			}
			if ttl := k.rdb.PTTL(ctx, full).Val(); ttl != -1 {
				t.Errorf("value got a time to live: %v", ttl)
			}
		})
	}
}

func TestRecordIsPlainInRedisAndForgottenAfterRetain(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		term := k.acquire("plain")
		got := k.readRecord("joblock:plain")
		if got["kind"] != "jobh" || got["fence"] != strconv.FormatInt(term.Fence, 10) || got["owner"] != term.Owner || got["holder"] != "a host" {
			t.Errorf("record is %q", got)
		}
		for _, name := range []string{"first", "changed", "begun"} {
			if got[name] != got["fence"] {
				t.Errorf("%s is %q, want %q, the µs when it was granted", name, got[name], got["fence"])
			}
		}
		between := func(what string, lo, hi time.Duration) {
			t.Helper()
			if ttl := k.rdb.PTTL(ctx, "joblock:plain").Val(); ttl <= lo || ttl > hi {
				t.Errorf("after %s the record lives for %v, want above %v and up to %v", what, ttl, lo, hi)
			}
		}
		between("acquire", long, 2*long+time.Millisecond)
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		between("release", 0, long)
		got = k.readRecord("joblock:plain")
		if got["kind"] != "jobr" || got["owner"] != term.Owner || got["reason"] != "done" {
			t.Errorf("record after the release is %q", got)
		}
	})
}

func TestMillisRoundsUpAndNeverToZero(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		-time.Hour: 1, 0: 1, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
	} {
		if w := newCall(parkScript, "k").millis(d); w.nums[0] != want {
			t.Errorf("millis(%v) is %d, want %d", d, w.nums[0], want)
		}
	}
}

// Few arguments fit into the call's own allocation; the others have to arrive as well.
func TestCallKeepsMoreArgumentsThanItHasRoomFor(t *testing.T) {
	c := newCall(parkScript, "key")
	want := []string{"key"}
	for i := range 2 * len(c.room) {
		c.str(fmt.Sprint("text ", i)).int(int64(i))
		want = append(want, fmt.Sprint("text ", i), fmt.Sprint(i))
	}
	var got []string
	for _, arg := range c.cmd(t.Context()).Args()[keyAt:] {
		switch v := arg.(type) {
		case *string:
			got = append(got, *v)
		case *int64:
			got = append(got, fmt.Sprint(*v))
		default:
			got = append(got, fmt.Sprint(v))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

// A batch is one pipeline. What binds keys to jobs where scripts cannot write the index takes
// one more, and what recovers takes two.
func TestBatchesArePipelines(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	ctx := context.Background()
	for name, c := range map[string]struct {
		jointly            bool
		bind, unpark, late int // pipelines
	}{
		"jointly":             {true, 1, 1, 2},
		"one after the other": {false, 2, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := db.Client(t)
			var seen tracer
			rdb.AddHook(&seen)
			var k *kit
			if c.jointly {
				k = newKit(t, rdb)
			} else {
				k = newKit(t, wrapped{rdb})
			}
			keys := []string{name + " 1", name + " 2", name + " 3"}
			pipelines := func(what string, want int) {
				t.Helper()
				n := 0
				for _, cmd := range seen.take() {
					if cmd == "pipeline" {
						n++
					}
				}
				if n != want {
					t.Errorf("%s took %d pipelines, want %d", what, n, want)
				}
			}
			for warm := range 2 { // the first round makes the scripts known
				takes, parks := make([]driver.TakeRequest, 3), make([]driver.ParkRequest, 3)
				resumes := func(unpark bool) []driver.ResumeRequest {
					reqs := make([]driver.ResumeRequest, 3)
					for i, key := range keys {
						reqs[i] = driver.ResumeRequest{Key: key, Owner: "owner of " + key, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1", Grace: long}
						if unpark {
							reqs[i].Unpark, reqs[i].Back = true, "q/1"
						}
					}
					return reqs
				}
				check := func(what string, replies []driver.Reply, err error, want int) {
					t.Helper()
					wantOutcomes(t, what, replies, err, 3, driver.OutcomeOK)
					if warm == 1 {
						pipelines(what, want)
					}
					seen.take()
				}
				park := func(what string, fences []driver.Reply, reserve time.Duration) {
					t.Helper()
					for i, key := range keys {
						parks[i] = k.park(driver.Term{Key: key, Owner: "owner of " + key, Fence: fences[i].Fence})
						parks[i].Reserve = reserve
					}
					rs, err := k.store.Park(ctx, parks)
					check(what, rs, err, c.bind)
				}
				for i, key := range keys {
					takes[i] = k.taking(key)
				}
				seen.take()
				rs, err := k.store.Take(ctx, takes)
				check("take", rs, err, c.bind)
				rs, err = k.store.Resume(ctx, resumes(false))
				check("resume", rs, err, 1)
				park("park", rs, long)
				rs, err = k.store.Resume(ctx, resumes(true))
				check("take back", rs, err, c.unpark)
				park("park briefly", rs, time.Millisecond)
				time.Sleep(5 * time.Millisecond)
				rs, err = k.store.Resume(ctx, resumes(false))
				check("recover", rs, err, c.late)
				for _, key := range keys {
					if err := k.rdb.Del(ctx, k.name(key)).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}
