package redisstore

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Each test here goes red if one condition of native.go is left out.

// split is a hook of the application's client. It sends the first command of a pipeline, calls between once, and sends the
// rest: a server may run the commands of other processes in between.
type split struct{ between func() }

func (*split) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*split) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *split) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b, several := cmd.(*bundle)
		between := h.between
		if !several || between == nil {
			return next(ctx, cmd)
		}
		h.between = nil
		first := next(ctx, &bundle{b.cmds[0], b.cmds[:1]})
		between()
		if err := next(ctx, &bundle{b.cmds[1], b.cmds[1:]}); first == nil {
			return err
		}
		return first
	}
}

// wholeMillis is a hook that sets the clock of a miniredis to the next whole millisecond before each command of a client.
// miniredis keeps how long a key has left, and computes PEXPIRETIME from that and from a clock that it reads once more:
// two answers about the same key could differ by a millisecond.
type wholeMillis struct {
	m  *miniredis.Miniredis
	mu sync.Mutex
	at time.Time
}

func (c *wholeMillis) set() {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.at.Add(time.Millisecond)
	if now := time.Now().Truncate(time.Millisecond); now.After(next) {
		next = now
	}
	c.at = next
	c.m.SetTime(next)
}

func (*wholeMillis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *wholeMillis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { c.set(); return next(ctx, cmds) }
}

func (c *wholeMillis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { c.set(); return next(ctx, cmd) }
}

// newNativeKit returns a kit whose calls go without Lua if they can, the hook of its client, and another process, whose
// calls go by script.
func newNativeKit(t *testing.T) (k *kit, h *split, other *kit) {
	redistest.Ran(t, redistest.MiniBackend())
	m := redistest.MiniServer(t)
	redistest.SetIFEQ(t, m)
	clock := &wholeMillis{m: m}
	client := func() *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		rdb.AddHook(clock)
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	hooked, h := client(), new(split)
	hooked.AddHook(h)
	k, other = newKit(t, hooked), newKitWith(t, client(), &Config{ScriptsOnly: true})
	k.fast, other.fast = true, true
	k.native.able.Store(true)
	return k, h, other
}

// wantCalls fails the test if other numbers of calls of k went without Lua, or were refused.
func wantCalls(t testing.TB, k *kit, made, refused int64) {
	t.Helper()
	if m, r := nativeCalls(k.store); m != made || r != refused {
		t.Errorf("%d calls went without Lua and %d were refused, want %d and %d", m, r, made, refused)
	}
}

func (k *kit) try(key, owner string) (driver.Reply, driver.AcquireRequest) {
	k.t.Helper()
	req := driver.AcquireRequest{Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Holder: "a host"}
	r, err := k.Acquire(k.t.Context(), req)
	wantOutcome(k.t, "acquire", r, err, driver.OutcomeOK)
	return r, req
}

// end releases a term with the Hint in r.
func (k *kit) end(key, owner string, r driver.Reply) {
	k.t.Helper()
	rs, err := k.Release(k.t.Context(), []driver.ReleaseRequest{{
		Term: driver.Term{Key: key, Owner: owner, Fence: r.Fence}, Nonce: k.nonce(), Retain: long, Hint: r.Hint,
	}})
	wantOutcomes(k.t, "release", rs, err, 1, driver.OutcomeOK)
}

func (k *kit) look(key string) driver.Record {
	k.t.Helper()
	recs, err := k.Inspect(k.t.Context(), driver.InspectRequest{Keys: []string{key}})
	if err != nil {
		k.t.Fatal(err)
	}
	return recs[0]
}

// Between the SET of an Acquire and the look at what the SET has written, other processes make calls.
func TestNativeAcquireWhileOthersCall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		between func(k, other *kit)
		want    driver.Outcome
		made    int64
	}{
		"nothing": {func(*kit, *kit) {}, driver.OutcomeOK, 1},
		"forced away": {func(_, other *kit) {
			force(other)
		}, driver.OutcomeOK, 0},
		"forced away and taken by script": {func(_, other *kit) {
			force(other)
			other.try("key", "u")
		}, driver.OutcomeHeld, 0},
		"forced away and taken without Lua": {func(k, other *kit) {
			other.rdb.Del(t.Context(), k.name("key"))
			other.native.off = false
			other.native.able.Store(true)
			other.try("key", "u")
			wantCalls(k.t, other, 1, 0)
		}, driver.OutcomeHeld, 0},
		"expiry removed": {func(k, other *kit) {
			if !other.rdb.Persist(t.Context(), k.name("key")).Val() {
				k.t.Error("the record had no expiry")
			}
		}, driver.OutcomeForeign, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k, h, other := newNativeKit(t)
			h.between = func() { tt.between(k, other) }
			r, err := k.Acquire(t.Context(), driver.AcquireRequest{Key: "key", Owner: "me", Nonce: k.nonce(), TTL: long, Retain: long, Holder: "a host"})
			wantOutcome(t, "acquire", r, err, tt.want)
			wantCalls(t, k, tt.made, 1-tt.made)
			if h.between != nil {
				t.Fatal("the Acquire went by script")
			}
			if rec := other.look("key"); tt.want == driver.OutcomeOK && (rec.Owner != "me" || rec.Fence != r.Fence) {
				t.Errorf("got fence %d, and the record is %+v", r.Fence, rec)
			}
		})
	}
}

func force(k *kit) {
	k.t.Helper()
	rs, err := k.Release(k.t.Context(), []driver.ReleaseRequest{{Term: driver.Term{Key: "key"}, Nonce: k.nonce(), Retain: long, Kind: driver.ReleaseForced}})
	wantOutcomes(k.t, "forced release", rs, err, 1, driver.OutcomeOK)
}

// A call that is made again finds its own record, which may have been renewed since.
func TestNativeAcquireAgain(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	r, req := k.try("key", "me")
	rs, err := k.Renew(t.Context(), []driver.RenewRequest{{Term: driver.Term{Key: "key", Owner: "me", Fence: r.Fence}, TTL: 2 * long, Retain: 2 * long}})
	wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
	again, err := k.Acquire(t.Context(), req)
	wantOutcome(t, "acquire again", again, err, driver.OutcomeOK)
	if again.Fence != r.Fence {
		t.Errorf("fence %d, was %d", again.Fence, r.Fence)
	}
	wantCalls(t, k, 1, 1)
}

// A Release ends what it names, whatever its Hint is of.
func TestNativeReleaseOfAnotherTerm(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(req *driver.ReleaseRequest, old driver.Reply)
		want   driver.Outcome
		ended  driver.Ended
		made   int64
	}{
		"own":           {func(*driver.ReleaseRequest, driver.Reply) {}, driver.OutcomeOK, driver.EndedReleased, 1},
		"done":          {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Done = true }, driver.OutcomeOK, driver.EndedDone, 1},
		"older term":    {func(req *driver.ReleaseRequest, old driver.Reply) { req.Fence = old.Fence }, driver.OutcomeNotOwner, 0, 0},
		"older hint":    {func(req *driver.ReleaseRequest, old driver.Reply) { req.Hint = old.Hint }, driver.OutcomeOK, driver.EndedReleased, 0},
		"no hint":       {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Hint = "" }, driver.OutcomeOK, driver.EndedReleased, 0},
		"bad hint":      {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Hint = "x" }, driver.OutcomeOK, driver.EndedReleased, 0},
		"another owner": {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Owner = "u" }, driver.OutcomeNotOwner, 0, 0},
		"a job":         {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Job = "q/1" }, driver.OutcomeWrongJob, 0, 0},
		"short nonce":   {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Nonce = "short" }, driver.OutcomeOK, driver.EndedReleased, 0},
		"if idle":       {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Kind = driver.ReleaseIdle }, driver.OutcomeBusy, 0, 0},
		"forced":        {func(req *driver.ReleaseRequest, _ driver.Reply) { req.Kind = driver.ReleaseForced }, driver.OutcomeOK, driver.EndedForced, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k, _, other := newNativeKit(t)
			old, _ := k.try("key", "me")
			k.end("key", "me", old)
			r, _ := k.try("key", "me")
			made, _ := nativeCalls(k.store)
			req := driver.ReleaseRequest{Term: driver.Term{Key: "key", Owner: "me", Fence: r.Fence}, Nonce: k.nonce(), Retain: long, Hint: r.Hint}
			tt.change(&req, old)
			rs, err := k.Release(t.Context(), []driver.ReleaseRequest{req})
			wantOutcomes(t, "release", rs, err, 1, tt.want)
			if now, _ := nativeCalls(k.store); now-made != tt.made {
				t.Errorf("%d releases went without Lua, want %d", now-made, tt.made)
			}
			rec := other.look("key")
			if held := tt.want != driver.OutcomeOK; held != (rec.State == driver.StateHeld) || rec.Ended != tt.ended || rec.Fence != r.Fence {
				t.Errorf("the record is %+v", rec)
			}
		})
	}
}

// The Release of a slot goes by script: the slot passes to the next job in line.
func TestNativeReleaseOfASlot(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	k.acquire("key")
	slot := k.taking(driver.SlotKey("key", 2))
	r, err := k.Take(t.Context(), slot)
	wantOutcome(t, "take", r, err, driver.OutcomeOK)
	r, err = k.Resume(t.Context(), driver.ResumeRequest{
		Key: slot.Key, Owner: slot.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Holder: "a host", Job: slot.Job, Reserve: long, Fence: r.Fence,
	})
	if wantOutcome(t, "resume", r, err, driver.OutcomeOK); r.Hint == "" {
		t.Fatal("the Resume has no Hint")
	}
	wait := k.taking("key")
	wait.Owner, wait.Job, wait.Patience = "waits", "q/2", long
	held, err := k.Take(t.Context(), wait)
	wantOutcome(t, "take", held, err, driver.OutcomeHeld)
	rs, err := k.Release(t.Context(), []driver.ReleaseRequest{{
		Term: driver.Term{Key: slot.Key, Owner: slot.Owner, Fence: r.Fence}, Nonce: k.nonce(), Retain: long, Job: slot.Job, Hint: r.Hint, Grace: long,
	}})
	if wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK); rs[0].Next != "q/2" {
		t.Errorf("the slot goes to %q, want q/2", rs[0].Next)
	}
}

// A key that went by script goes without Lua again: its next Acquire by script has a Hint.
func TestNativeAfterScripts(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	r, err := k.Acquire(t.Context(), driver.AcquireRequest{Key: "key", Owner: "me", Nonce: "short", TTL: long, Retain: long, Holder: "a host"})
	wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
	k.end("key", "me", r)
	wantCalls(t, k, 0, 0)
	for n := range int64(3) {
		r, _ = k.try("key", "me")
		k.end("key", "me", r)
		wantCalls(t, k, 1+2*n, 0)
	}
}

// An application that has one lock goes without Lua as soon as the Store has asked.
func TestNativeCallsOfOneLock(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	h := nativeMini(t)
	locks := newLockerOn(t, h.Store.(*store), &joblock.Config{})
	const pairs = 50
	for range pairs {
		lock, err := locks.TryAcquire(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		h.Advance(2 * time.Millisecond) // a term that ends in its first millisecond may need the script
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.Advance(2 * time.Millisecond)
	}
	// On a busy machine a Release may take longer than lateMargin. It then needs the script, and so does the next Acquire.
	const all = 2*pairs - nativeAfter - 1
	if made, refused := nativeCalls(h.Store); made > all || made < all-pairs/2 || refused > 0 {
		t.Errorf("of %d calls %d went without Lua, and %d were refused", 2*pairs, made, refused)
	}
}

// What a Store believes of a key and of a server has an end.
func TestNativeBeliefs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := new(native)
		n.able.Store(true)
		n.wait("key")
		if n.ready(t.Context(), nil, "key") {
			t.Error("a contended key goes without Lua")
		}
		if !n.ready(t.Context(), nil, "other") {
			t.Error("a key that is not contended goes by script")
		}
		if time.Sleep(contendedFor + 1); !n.ready(t.Context(), nil, "key") {
			t.Error("a key that was contended goes by script forever")
		}
		n.off = true
		if n.wait("key"); n.ready(t.Context(), nil, "key") || n.mark("key").Load() > time.Now().UnixNano() {
			t.Error("switched off, and yet in use")
		}

		for _, pause := range []time.Duration{0, time.Minute - 1, time.Minute} {
			n.remember("key", endedRecord{text: "text"}, time.Minute)
			time.Sleep(pause)
			if e, ok := n.forget("key"); ok != (pause < time.Minute) || (e.text == "text") != ok {
				t.Errorf("after %s: %+v, %t", pause, e, ok)
			}
			if _, ok := n.forget("key"); ok {
				t.Error("a record is remembered after it was used")
			}
		}
		for i := range 2*endedMost + 1 {
			n.remember(strconv.Itoa(i), endedRecord{}, time.Minute)
		}
		if len(n.ended) > endedMost {
			t.Errorf("%d records are remembered", len(n.ended))
		}
	})
}

// oneAnswer is a sender whose server gives the same answer to every command.
type oneAnswer struct {
	sender
	err   error
	asked int
}

func (a *oneAnswer) Process(_ context.Context, cmd redis.Cmder) error {
	a.asked++
	cmd.SetErr(a.err)
	return a.err
}

// A Store asks the server what it can do after its first calls, and once a minute if the server cannot.
func TestNativeAsks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		able bool
	}{
		{redis.Nil, true},
		{serverError("WRONGTYPE Operation against a key holding the wrong kind of value"), true},
		{nil, false}, // a server that sets the key has not understood
		{serverError("ERR syntax error"), false},
		{io.EOF, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &oneAnswer{err: tt.err}
			s := &store{calls: unmerged(nil, a)}
			n := &s.native
			for range nativeAfter {
				if n.ready(t.Context(), s, "key") || a.asked > 0 {
					t.Fatal("a Store asks before it has made some calls")
				}
			}
			for range 3 {
				if n.ready(t.Context(), s, "key") != tt.able || a.asked != 1 {
					t.Fatalf("%v: able is %t, asked %d times", tt.err, n.able.Load(), a.asked)
				}
			}
			if tt.able {
				return
			}
			time.Sleep(nativeAgain)
			if a.err = redis.Nil; !n.ready(t.Context(), s, "key") || a.asked != 2 {
				t.Errorf("%v: a minute later the Store has asked %d times", tt.err, a.asked)
			}
		})
	}
}

// An error that the server has answered sends the call by script. One of the connection leaves the outcome unknown.
func TestNativeFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err                   error
		script, able, waiting bool
	}{
		{serverError("WRONGTYPE Operation against a key holding the wrong kind of value"), true, true, true},
		{serverError("ERR syntax error"), true, false, false},
		{serverError("NOPERM this user has no permissions"), true, false, false},
		{serverError("LOADING Redis is loading the dataset in memory"), true, true, false},
		{io.EOF, false, true, false},
		{errors.New("i/o timeout"), false, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &oneAnswer{err: redis.Nil}
			s := &store{calls: unmerged(nil, a)}
			n := &s.native
			n.able.Store(true)
			n.skipped.Store(nativeAfter)
			if got := n.failed("key", tt.err); got != tt.script || n.able.Load() != tt.able || (n.mark("key").Load() > 0) != tt.waiting {
				t.Errorf("%v: by script %t, able %t, contended %t", tt.err, got, n.able.Load(), n.mark("key").Load() > 0)
			}
			if tt.able {
				return
			}
			if time.Sleep(nativeAgain - 1); n.ready(t.Context(), s, "key") || a.asked > 0 {
				t.Errorf("%v: the Store asks again at once", tt.err)
			}
		})
	}
}

// partOfAnAnswer is a sender whose connection breaks before the answer to the SET.
type partOfAnAnswer struct{ sender }

func (partOfAnAnswer) Process(_ context.Context, cmd redis.Cmder) error {
	b := cmd.(*bundle)
	for _, cmd := range b.cmds {
		if cmd.SetVal(int64(1 << 40)); cmd == b.Cmd {
			cmd.SetErr(io.ErrUnexpectedEOF)
		}
	}
	return io.ErrUnexpectedEOF
}

// A call whose answer is lost has an unknown outcome, whatever was answered before. It is an error, so that the caller makes
// the call again.
func TestNativeCallsWithPartOfAnAnswer(t *testing.T) {
	t.Parallel()
	s := &store{calls: unmerged(nil, partOfAnAnswer{})}
	s.native.able.Store(true)
	nonce := fastName("1")
	if r, done, err := s.acquireNative(t.Context(), &driver.AcquireRequest{Key: "key", Owner: "me", Nonce: nonce, TTL: long, Retain: long}); !done || err == nil {
		t.Errorf("acquire: %+v, done %t, %v", r, done, err)
	}
	now := time.Now().UnixMicro()
	rec := record{kind: ownedKind, fence: now, owner: "me", first: now, nonce: nonce, last: noLast, changed: now, prior: '-', memo: '-', at: now, ttl: 1000, reserve: 1000}
	req := driver.ReleaseRequest{Term: driver.Term{Key: "key", Owner: "me", Fence: now}, Nonce: nonce, Retain: long, Hint: hint(&rec, now, 2000)}
	if r, done, err := s.releaseNative(t.Context(), &req); !done || err == nil {
		t.Errorf("release: %+v, done %t, %v", r, done, err)
	}
}

// The next Acquire without Lua keeps how the term before has ended, and by which call.
func TestNativeAcquireAfterNativeRelease(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	r, _ := k.try("key", "me")
	req := driver.ReleaseRequest{Term: driver.Term{Key: "key", Owner: "me", Fence: r.Fence}, Nonce: k.nonce(), Retain: long, Done: true, Hint: r.Hint}
	for _, held := range []bool{false, true} {
		rs, err := k.Release(t.Context(), []driver.ReleaseRequest{req})
		if wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK); held {
			break
		}
		if r, _ = k.try("key", "me"); r.Ended != driver.EndedDone {
			t.Errorf("the term before ended as %s, want done", r.Ended)
		}
	}
	if rec := k.look("key"); rec.State != driver.StateHeld || rec.Fence != r.Fence {
		t.Errorf("the release was made again, and the record is %+v", rec)
	}
}

// An Acquire that wants the memo, or may have to wait, goes by script at once: a try without Lua could not answer it.
func TestNativeAcquireThatNeedsTheScript(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*driver.AcquireRequest){
		"memo":        func(req *driver.AcquireRequest) { req.Memo = true },
		"inbox":       func(req *driver.AcquireRequest) { req.Inbox, req.Patience = "inbox", long },
		"short nonce": func(req *driver.AcquireRequest) { req.Nonce = "short" },
	} {
		t.Run(name, func(t *testing.T) {
			k, _, _ := newNativeKit(t)
			req := driver.AcquireRequest{Key: "key", Owner: "me", Nonce: k.nonce(), TTL: long, Retain: long, Holder: "a host"}
			change(&req)
			r, err := k.Acquire(t.Context(), req)
			wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
			if req.Memo && r.Now.IsZero() {
				t.Error("an Acquire that wants the memo got no time")
			}
			wantCalls(t, k, 0, 0)
		})
	}
}

// A reply that does not have the rest of the record gives no Hint.
func TestNativeHintOfAReplyWithoutTheRest(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	acquired, resumed := 1+fenceBytes+nonceBytes, fenceBytes+nonceBytes+1
	for _, n := range []int{0, 1, acquired - 1, acquired + 1} {
		r := driver.Reply{Fence: 1, Hint: strings.Repeat("1", n)}
		if got := k.acquireHint(&driver.AcquireRequest{Owner: "me", Nonce: k.nonce()}, &r); got != "" {
			t.Errorf("acquire, %d bytes: Hint %q", n, got)
		}
	}
	for _, rest := range []string{"", "1", strings.Repeat("1", resumed-1), strings.Repeat("1", resumed+1), strings.Repeat("x", resumed)} {
		r := driver.Reply{Fence: 1, Hint: rest}
		if got := k.resumeHint(&driver.ResumeRequest{Owner: "me", Nonce: k.nonce()}, &r); got != "" {
			t.Errorf("resume, %q: Hint %q", rest, got)
		}
	}
}

// An ended record that the server still has after its time by this process's clock, as when the server's clock was set
// back, counts all the same: the next fence is larger, and the Acquire returns how the term before has ended.
func TestNativeAcquireOfARecordThatIsKeptLonger(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	r, _ := k.try("key", "me")
	k.end("key", "me", r)
	e := k.native.ended["key"]
	if e.text == "" {
		t.Fatal("the Store does not know the ended record")
	}
	e.until = time.Time{}
	k.native.ended["key"] = e
	if next, _ := k.try("key", "me"); next.Fence <= r.Fence || next.Ended != driver.EndedReleased {
		t.Errorf("fence %d follows %d, and the term before ended as %q", next.Fence, r.Fence, next.Ended)
	}
}

// A process that runs jobs only takes no lock with Acquire. It finds out all the same that it can release without Lua.
func TestNativeReleaseInAProcessThatOnlyResumes(t *testing.T) {
	t.Parallel()
	k, _, _ := newNativeKit(t)
	k.native.able.Store(false)
	for i := range nativeAfter + 3 {
		key := strconv.Itoa(i)
		taking := k.taking(key)
		taking.Nonce = k.nonce()
		taken, err := k.Take(t.Context(), taking)
		wantOutcome(t, "take", taken, err, driver.OutcomeOK)
		r, err := k.Resume(t.Context(), driver.ResumeRequest{
			Key: key, Owner: taking.Owner, Nonce: k.nonce(), Job: taking.Job, TTL: long, Retain: long, Reserve: long, Holder: "a host",
		})
		wantOutcome(t, "resume", r, err, driver.OutcomeOK)
		k.end(key, taking.Owner, r)
	}
	wantCalls(t, k, 2, 0)
}

// Calls that must wait for replicas, that go to several nodes or that are to go by script have no native form, whatever the
// server can do.
func TestNativeIsOff(t *testing.T) {
	t.Parallel()
	one := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	for name, tt := range map[string]struct {
		rdb  redis.UniversalClient
		cfg  *Config
		want bool
	}{
		"by default":     {one, nil, true},
		"Replicas":       {one, &Config{Replicas: 1}, false},
		"ScriptsOnly":    {one, &Config{ScriptsOnly: true}, false},
		"a Cluster":      {cluster, nil, false},
		"another client": {struct{ redis.UniversalClient }{one}, nil, false},
	} {
		made, err := New(tt.rdb, tt.cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := made.(*store)
		s.native.able.Store(true)
		if got := s.native.ready(t.Context(), s, "key"); got != tt.want {
			t.Errorf("%s: a call may go without Lua: %t, want %t", name, got, tt.want)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range []error{one.Close(), cluster.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}
