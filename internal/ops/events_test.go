package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// chronicle is a journal in a miniredis, and a Desk that reads it, in virtual time.
type chronicle struct {
	*testing.T
	rdb  *redis.Client
	desk *Desk
	n    int
}

func chronicled(t *testing.T, f func(t *testing.T, c *chronicle)) {
	synctest.Test(t, func(t *testing.T) {
		redistest.Ran(t, redistest.MiniBackend())
		rdb := redistest.MiniClient(t, redistest.Mini(t))
		locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
		testkit.WantNil(t, "New", err)
		defer func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) }()
		desk, err := New(Config{
			Locks: locks, Journal: NewJournal(rdb, keyspace.DefaultPrefix, time.Minute), Audit: NewAudit(rdb, keyspace.DefaultPrefix, time.Minute),
		})
		testkit.WantNil(t, "ops.New", err)
		desk.who = actor{eva.By, eva.From}
		f(t, &chronicle{T: t, rdb: rdb, desk: desk})
	})
}

// write adds an entry to the journal, and returns its ID.
func (c *chronicle) write(e eventlog.Entry) string {
	c.Helper()
	if c.n++; e.Nonce == "" {
		e.Nonce = fmt.Sprint("n", c.n)
	}
	text, err := e.Encode()
	testkit.WantNil(c.T, "Encode", err)
	id, err := c.rdb.XAdd(c.Context(), &redis.XAddArgs{Stream: "joblock:%events", Values: []any{eventlog.Field, text}}).Result()
	testkit.WantNil(c.T, "XAdd", err)
	return id
}

func (c *chronicle) keys(q EventsQuery) []string {
	c.Helper()
	var keys []string
	for e, err := range c.desk.Events(c.Context(), q) {
		testkit.WantNil(c.T, "Events", err)
		keys = append(keys, e.Key)
	}
	return keys
}

func (c *chronicle) want(q EventsQuery, keys ...string) {
	c.Helper()
	if got := c.keys(q); !slices.Equal(got, keys) {
		c.Errorf("%+v: %q, want %q", q, got, keys)
	}
}

func TestEventsAreFound(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		c.want(EventsQuery{})
		c.write(eventlog.Entry{Kind: "lost", Key: "export:1"})
		time.Sleep(time.Minute)
		middle := time.Now()
		id := c.write(eventlog.Entry{Kind: "forced", Key: "export:2", Nonce: "twice"})
		c.write(eventlog.Entry{Kind: "forced", Key: "export:2", Nonce: "twice"})
		c.write(eventlog.Entry{Kind: "lost", Key: keyspace.Permit("export:1", 3)})
		c.write(eventlog.Entry{Kind: "lost", Key: driver.SlotKey("export:1", 2)})
		c.write(eventlog.Entry{Kind: "cron failed", Key: "%cron:shop:report", Scope: "shop", Name: "report"})
		testkit.WantNil(c.T, "XAdd", c.rdb.XAdd(c.Context(), &redis.XAddArgs{Stream: "joblock:%events", Values: []any{"x", "y"}}).Err())
		all := []string{"%cron:shop:report", "export:1%+2", "export:1%#3", "export:2", "export:1"}
		c.want(EventsQuery{}, all...)
		c.want(EventsQuery{Key: "export:1"}, "export:1%+2", "export:1%#3", "export:1")
		c.want(EventsQuery{Key: "export:1%#3"}, "export:1%#3")
		c.want(EventsQuery{Prefix: "export:"}, all[1:]...)
		c.want(EventsQuery{Kinds: []string{"forced", "cron failed"}}, "%cron:shop:report", "export:2")
		c.want(EventsQuery{Scope: "shop", Name: "report"}, "%cron:shop:report")
		c.want(EventsQuery{Scope: "shop", Name: "other"})
		c.want(EventsQuery{Since: middle}, all[:4]...)
		c.want(EventsQuery{Since: middle.Add(time.Hour)})
		c.want(EventsQuery{Before: id}, "export:1")
		for bad, q := range map[string]EventsQuery{
			`"burnt", must be one of: acquired`: {Kinds: []string{"burnt"}}, `"1-x" is not the ID`: {Before: "1-x"}, "control character": {Key: "\x00"},
			"prefix has 600 bytes": {Prefix: strings.Repeat("x", 600)},
		} {
			for _, err := range c.desk.Events(c.Context(), q) {
				testkit.WantErr(t, err, joblock.ErrInvalid)
				if !strings.Contains(err.Error(), bad) {
					t.Errorf("%v, want %q", err, bad)
				}
			}
		}
	})
}

func TestEventsOverManyPages(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		const n = 2*eventPage + 50
		var want []string
		for i := range n {
			c.write(eventlog.Entry{Kind: "lost", Key: fmt.Sprint(i)})
			want = append(want, fmt.Sprint(n-1-i))
		}
		c.want(EventsQuery{}, want...)
		feed, err := c.desk.Follow(EventsQuery{}, FromStart)
		testkit.WantNil(t, "Follow", err)
		var got []string
		for range 3 {
			events, err := feed.Next(t.Context(), 0)
			testkit.WantNil(t, "Next", err)
			for _, e := range events {
				got = append(got, e.Key)
			}
		}
		if slices.Reverse(want); !slices.Equal(got, want) {
			t.Errorf("the feed has %d events", len(got))
		}
	})
}

// An event is at the time at which it happened, not at that of the write.
func TestTimeOfAnEvent(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		c.write(eventlog.Entry{Kind: "lost", Ago: 1500})
		for e, err := range c.desk.Events(c.Context(), EventsQuery{}) {
			testkit.WantNil(t, "Events", err)
			if !e.At.Equal(time.Now().Add(-1500 * time.Millisecond)) {
				t.Errorf("at %s", e.At)
			}
		}
		c.want(EventsQuery{Since: time.Now().Add(-time.Second)})
		c.want(EventsQuery{Since: time.Now().Add(-2 * time.Second)}, "")
	})
}

// next returns what a Feed has, as "kind key".
func next(t *testing.T, f Feed, atMost time.Duration) []string {
	t.Helper()
	events, err := f.Next(t.Context(), atMost)
	testkit.WantNil(t, "Next", err)
	var lines []string
	for _, e := range events {
		lines = append(lines, strings.TrimSpace(e.Kind+" "+e.Key))
	}
	return lines
}

func wantNext(t *testing.T, f Feed, want ...string) {
	t.Helper()
	if got := next(t, f, time.Minute); !slices.Equal(got, want) {
		t.Errorf("the feed has %q, want %q", got, want)
	}
}

func (c *chronicle) follow(q EventsQuery, after string) Feed {
	c.Helper()
	f, err := c.desk.Follow(q, after)
	testkit.WantNil(c.T, "Follow", err)
	return f
}

func TestFollowEvents(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		empty := c.follow(EventsQuery{}, FromNow)
		if got := next(t, empty, 0); got != nil || empty.Position() != FromStart {
			t.Errorf("an empty journal has %q, at %s", got, empty.Position())
		}
		first := c.write(eventlog.Entry{Kind: "lost", Key: "a"})
		wantNext(t, empty, "lost a")
		now := c.follow(EventsQuery{}, FromNow)
		if got := next(t, now, time.Minute); got != nil || now.Position() != first {
			t.Errorf("from now on: %q at %s", got, now.Position())
		}
		// Within half a second a new event is there.
		began := time.Now()
		time.AfterFunc(time.Second, func() { c.write(eventlog.Entry{Kind: "lost", Key: "b"}) })
		wantNext(t, now, "lost b")
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("notified after %s", took)
		}
		b := now.Position()
		c.write(eventlog.Entry{Kind: "forced", Key: "c"})
		last := c.write(eventlog.Entry{Kind: "lost", Key: "d", Nonce: "d"})
		c.write(eventlog.Entry{Kind: "lost", Key: "d", Nonce: "d"})
		wantNext(t, c.follow(EventsQuery{}, b), "forced c", "lost d")
		wantNext(t, c.follow(EventsQuery{}, FromStart), "lost a", "lost b", "forced c", "lost d")
		some := c.follow(EventsQuery{Kinds: []string{"forced"}}, b)
		wantNext(t, some, "forced c")
		if eventlog.Before(some.Position(), last) {
			t.Errorf("the place is %s, want one after what is not shown, %s", some.Position(), last)
		}
	})
}

// A feed says if Redis has forgotten what comes next.
func TestFollowSaysGap(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		const stream = "joblock:%events"
		first := c.write(eventlog.Entry{Kind: "lost", Key: "a"})
		second := c.write(eventlog.Entry{Kind: "lost", Key: "b"})
		c.write(eventlog.Entry{Kind: "lost", Key: "c"})
		wantNext(t, c.follow(EventsQuery{}, first), "lost b", "lost c")
		testkit.WantNil(t, "XTrim", c.rdb.XTrimMaxLen(c.Context(), stream, 1).Err())
		wantNext(t, c.follow(EventsQuery{}, first), "gap", "lost c")
		wantNext(t, c.follow(EventsQuery{}, second), "gap", "lost c") // nothing is missing, but that cannot be seen
		wantNext(t, c.follow(EventsQuery{}, FromStart), "lost c")
		behind := c.follow(EventsQuery{}, FromNow)
		wantNext(t, behind)
		for i := range 2 * eventPage {
			c.write(eventlog.Entry{Kind: "lost", Key: fmt.Sprint(i)})
		}
		testkit.WantNil(t, "XTrim", c.rdb.XTrimMaxLen(c.Context(), stream, eventPage).Err())
		if got := next(t, behind, 0); len(got) != eventPage+1 || got[0] != "gap" || got[1] != fmt.Sprint("lost ", eventPage) {
			t.Errorf("%d events, the first are %q", len(got), got[:2])
		}
		// The journal is gone, and another one has begun.
		at := behind.Position()
		testkit.WantNil(t, "Del", c.rdb.Del(c.Context(), stream).Err())
		testkit.WantNil(t, "XAdd", c.rdb.XAdd(c.Context(), &redis.XAddArgs{Stream: stream, ID: "5-1", Values: []any{"x", "y"}}).Err())
		again := c.follow(EventsQuery{}, at)
		wantNext(t, again, "gap")
		if again.Position() != "5-1" {
			t.Errorf("the place is %s", again.Position())
		}
	})
}

// A feed without an answer goes on at the same place when Redis answers again.
func TestFollowWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) })
	desk, err := New(Config{Locks: locks, Journal: NewJournal(rdb, keyspace.DefaultPrefix, time.Second)})
	testkit.WantNil(t, "ops.New", err)
	c := &chronicle{T: t, rdb: db.Client(t), desk: desk}
	c.write(eventlog.Entry{Kind: "lost", Key: "a"})
	f := c.follow(EventsQuery{}, FromStart)
	wantNext(t, f, "lost a")
	proxy.Once(redistest.Named("xrange"), redistest.DropReply())
	_, err = f.Next(t.Context(), time.Minute)
	testkit.WantErr(t, err, joblock.ErrUnavailable)
	c.write(eventlog.Entry{Kind: "lost", Key: "b"})
	wantNext(t, f, "lost b")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Next(ctx, time.Minute)
	testkit.WantErr(t, err, context.Canceled)
	testkit.WantNil(t, "Set", c.rdb.Set(t.Context(), "joblock:%events", "other", 0).Err())
	_, err = f.Next(t.Context(), 0)
	testkit.WantErr(t, err, joblock.ErrInvalid)
}

func TestFollowRefuses(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		for _, after := range []string{"x", "1-", "-"} {
			_, err := c.desk.Follow(EventsQuery{}, after)
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
		_, err := c.desk.Follow(EventsQuery{Kinds: []string{"x"}}, FromNow)
		testkit.WantErr(t, err, joblock.ErrInvalid)
		none, err := New(Config{Locks: c.desk.cfg.Locks})
		testkit.WantNil(t, "New", err)
		_, err = none.Follow(EventsQuery{}, FromNow)
		testkit.WantErr(t, err, joblock.ErrInvalid)
		for range none.Events(t.Context(), EventsQuery{}) {
			t.Error("an event without a journal")
		}
	})
}

// The history of a key has its events and what operators have done, the newest first.
func TestHistoryOfAKey(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		oldest := time.Now()
		c.write(eventlog.Entry{Kind: "forced", Key: "other"})
		time.Sleep(time.Minute)
		c.write(eventlog.Entry{Kind: "acquired", Key: key, Holder: "web-1", Waited: 3000})
		time.Sleep(time.Minute)
		_, err := c.desk.As("eva", "here").Act(t.Context(), ForceRelease{Key: key, Fence: 5, Reason: "stuck"})
		testkit.WantErr(t, err, joblock.ErrNotFound)
		time.Sleep(time.Minute)
		c.write(eventlog.Entry{Kind: "lost", Key: key, Holder: "web-1", Held: 60_000, Error: "bad\x1b"})
		h, err := c.desk.History(t.Context(), HistoryQuery{Key: key, Actions: true})
		testkit.WantNil(t, "History", err)
		var text []string
		for _, item := range h.Items {
			text = append(text, item.Text)
		}
		want := []string{
			`web-1 has lost the lock, after 1 min (bad\x1b)`,
			`force release: refused by eva from here: stuck`,
			"web-1 got the lock after a wait of 3 s",
		}
		if h.More || len(text) != 3 || text[0] != want[0] || !strings.HasPrefix(text[1], want[1]) || text[2] != want[2] || !h.From.Equal(oldest) {
			t.Errorf("%+v\n%q\nwant %q", h, text, want)
		}
		if h.Items[0].Event == nil || h.Items[1].Action == nil || h.Items[1].Action.By != "eva" {
			t.Errorf("%+v", h.Items)
		}
		for most, kinds := range map[int]string{1: "lost", 2: "lost force release"} {
			h, err := c.desk.History(t.Context(), HistoryQuery{Key: key, Most: most, Actions: true})
			testkit.WantNil(t, "History", err)
			var got []string
			for _, item := range h.Items {
				got = append(got, item.Kind)
			}
			if strings.Join(got, " ") != kinds || !h.More {
				t.Errorf("%d items: %q, more %v", most, got, h.More)
			}
		}
		h, err = c.desk.History(t.Context(), HistoryQuery{Key: key, Since: time.Now().Add(-time.Second)})
		if err != nil || len(h.Items) != 1 {
			t.Errorf("of the last second: %+v, %v", h, err)
		}
		h, err = c.desk.History(t.Context(), HistoryQuery{Key: "unused"})
		if err != nil || h.Items == nil || len(h.Items) != 0 {
			t.Errorf("of a key without a past: %+v, %v", h, err)
		}
		for _, q := range []HistoryQuery{{}, {Key: key, Most: -1}, {Key: key, Most: 1001}} {
			_, err := c.desk.History(t.Context(), q)
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
	})
}

// Each kind of event has a sentence of its own, which names who and shows no control characters.
func TestSentencesOfEvents(t *testing.T) {
	seen := map[string]string{}
	for _, kind := range EventKinds() {
		e := Event{
			Kind: kind, Holder: "web\x1b", Job: "q/1", Reason: "why", Error: "bad", Waited: millisOf(1000), Held: millisOf(2000), Late: millisOf(3000),
			Remaining: millisOf(4000), Locks: 5, Count: 6, Dropped: 7, Source: "src\x1b", Node: "node\x1b", Took: millisOf(8000), Tick: Time{time.UnixMilli(0)},
		}
		text := e.sentence()
		if other, twice := seen[text]; twice || text == "" || text == kind || strings.Contains(text, "\x1b") || strings.HasSuffix(text, ".") {
			t.Errorf("%s: %q, as %s", kind, text, other)
		}
		seen[text] = kind
		if strings.HasPrefix(text, kind+":") || strings.HasPrefix(text, kind+" (") {
			t.Errorf("%s has no sentence: %q", kind, text)
		}
	}
	if got := (&Event{Kind: "acquired", Prior: "lapsed"}).sentence(); !strings.Contains(got, "the lock of the previous holder had lapsed") {
		t.Error(got)
	}
	if got := (&Event{Kind: "contended", Holder: "web-1", Source: "web-2"}).sentence(); got != "web-2 found the key busy: web-1 has it" {
		t.Error(got)
	}
	if got := (&Event{Kind: "lost", Holder: "web-1", Error: "lock lost: the lease ran out: " + core.ErrNotRenewed.Error()}).sentence(); !strings.HasSuffix(got, "the lease ran out: the holder had ended its renewal itself)") {
		t.Error(got)
	}
	if got := (&Event{Kind: "what\x1b"}).sentence(); got != `what\x1b` {
		t.Error(got)
	}
}
