package server

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
)

// journaled returns a change that lets a Server read a journal, what writes events of keys into it, and its client.
func journaled(t *testing.T) (change func(*Config), happens func(kind event.Kind, keys ...string), rdb *redis.Client) {
	t.Helper()
	rdb = redistest.MiniClient(t, redistest.Mini(t))
	return func(cfg *Config) { cfg.Redis = rdb }, func(kind event.Kind, keys ...string) {
		t.Helper()
		j, err := journal.New(rdb, &journal.Config{Source: "web"})
		testkit.WantNil(t, "New", err)
		for _, k := range keys {
			j.Observe(event.Event{Kind: kind, Key: k, Reason: "why"})
		}
		testkit.WantNil(t, "Close", j.Close(t.Context()))
	}, rdb
}

func keysOf(items []object) (keys []string) {
	for _, o := range items {
		keys = append(keys, o.text("key"))
	}
	return keys
}

func TestPagesOfEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		change, happens, _ := journaled(t)
		a := newReplica(t, memoryStore(), change)
		if o := a.get("/v1/events").ok(); len(o.items()) != 0 || o.text("next") != "" {
			t.Errorf("an empty journal: %v", o)
		}
		happens(event.Forced, "a:1", "a:2", "b:1")
		happens(event.Lost, "a:3")
		for query, want := range map[string]string{
			"": "a:3 b:1 a:2 a:1", "?prefix=a:": "a:3 a:2 a:1", "?key=a:2": "a:2", "?kind=lost": "a:3", "?kind=lost,forced&prefix=b": "b:1",
			"?since=2100-01-01T00:00:00Z": "", "?scope=x": "",
		} {
			if got := strings.Join(keysOf(a.get("/v1/events"+query).ok().items()), " "); got != want {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		first := a.get("/v1/events?limit=3").ok()
		second := a.get("/v1/events?limit=3&cursor=" + first.text("next")).ok()
		if got := keysOf(append(first.items(), second.items()...)); !slices.Equal(got, []string{"a:3", "b:1", "a:2", "a:1"}) || second.text("next") != "" {
			t.Errorf("by pages: %q", got)
		}
		for _, bad := range []string{"?kind=burnt", "?cursor=x", "?since=x", "?limit=0", "?key=%00", "?prefix=%00"} {
			a.get("/v1/events"+bad).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
		h := a.get("/v1/locks/" + url.PathEscape("a:2") + "/history").ok()
		if items := h.items(); len(items) != 1 || items[0].text("text") != "the key was freed by force: why" {
			t.Errorf("%v", h)
		}
		a.get("/v1/history?key=a:2&limit=0").refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get("/v1/history").refused(http.StatusBadRequest, "LOCK_INVALID")
		none := newReplica(t, memoryStore())
		none.get("/v1/events").refused(http.StatusNotFound, "JOURNAL_NOT_FOUND")
		none.get("/v1/events", with("Accept", "text/event-stream")).refused(http.StatusNotFound, "JOURNAL_NOT_FOUND")
		none.get("/v1/history?key=k").refused(http.StatusNotFound, "JOURNAL_NOT_FOUND")
	})
}

// A caller sees the events of its own keys only, and the actions of others only as an administrator.
func TestRightsToEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		change, happens, _ := journaled(t)
		who := Principal{ID: "ann", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"a:", "b:"}, AllQueues: true}
		a := newReplica(t, memoryStore(), change, func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
		})
		happens(event.Forced, "a:1", "c:1")
		happens(event.RenewalUnanswered, "")
		a.get("/v1/events").refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/events?prefix=c:").refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/events?key=c:1").refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/events?prefix=c:", with("Accept", "text/event-stream")).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/history?key=c:1").refused(http.StatusForbidden, "FORBIDDEN")
		if got := keysOf(a.get("/v1/events?prefix=a:").ok().items()); !slices.Equal(got, []string{"a:1"}) {
			t.Errorf("%q", got)
		}
		who.Prefixes = who.Prefixes[:1]
		if got := keysOf(a.get("/v1/events").ok().items()); !slices.Equal(got, []string{"a:1"}) {
			t.Errorf("%q", got)
		}
		a.post("/v1/force-release", object{"key": "a:1", "reason": "x"}, with("If-Match", `"7"`)).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		if items := a.get("/v1/history?key=a:1").ok().items(); len(items) != 1 {
			t.Errorf("without the scope admin: %v", items)
		}
		who.Scopes = ScopeAdmin
		if items := a.get("/v1/history?key=a:1").ok().items(); len(items) != 2 {
			t.Errorf("with the scope admin: %v", items)
		}
		who.Scopes = ScopeLock
		a.get("/v1/events").refused(http.StatusForbidden, "FORBIDDEN")
	})
}

// A follower reads a stream of events.
type follower struct {
	*testing.T
	leave  context.CancelFunc
	blocks chan string // closed at the end of the stream
	last   string      // the last ID
}

func (a *replica) follow(path string, change ...func(*http.Request)) *follower {
	a.Helper()
	ctx, cancel := context.WithCancel(a.Context())
	r, _ := a.request(ctx, http.MethodGet, path, nil, append(change, with("Accept", "text/event-stream"))...)
	res, err := a.client.Do(r)
	testkit.WantNil(a.T, "Do", err)
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		a.Fatalf("the answer is %s, %v", res.Status, res.Header)
	}
	f := &follower{T: a.T, leave: cancel, blocks: make(chan string, 100)}
	go func() {
		defer close(f.blocks)
		defer res.Body.Close()
		var block []string
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if lines.Text() != "" {
				block = append(block, lines.Text())
				continue
			}
			f.blocks <- strings.Join(block, "\n")
			block = nil
		}
	}()
	a.Cleanup(cancel)
	return f
}

// event returns the next event, as "kind key", and skips what only keeps the stream. It is "" at the end of the
// stream.
func (f *follower) event() string {
	for block := range f.blocks {
		o, kind := object{}, ""
		for line := range strings.SplitSeq(block, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			switch name {
			case "id":
				f.last = value
			case "event":
				kind = value
			case "data":
				testkit.WantNil(f.T, "Unmarshal", json.Unmarshal([]byte(value), &o))
			}
		}
		if kind != "" && kind != o.text("kind") {
			f.Errorf("the event is %s, with %v", kind, o)
		}
		if len(o) > 0 {
			return strings.TrimSpace(o.text("kind") + " " + o.text("key"))
		}
	}
	return ""
}

func (f *follower) want(events ...string) {
	f.Helper()
	for _, want := range events {
		if got := f.event(); got != want {
			f.Errorf("the event is %q, want %q", got, want)
		}
	}
}

func TestStreamOfEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		change, happens, rdb := journaled(t)
		a, b := newReplica(t, memoryStore(), change), newReplica(t, memoryStore(), change)
		happens(event.Forced, "a:0")
		f := a.follow("/v1/events?prefix=a:")
		began := time.Now()
		happens(event.Forced, "a:1", "b:1", "a:2")
		f.want("forced a:1", "forced a:2")
		if took := time.Since(began); took > time.Second {
			t.Errorf("notified after %s", took)
		}
		f.leave()
		happens(event.Lost, "a:3")
		// Elsewhere, it goes on without a gap.
		g := b.follow("/v1/events?prefix=a:", with("Last-Event-ID", f.last))
		g.want("lost a:3")
		b.follow("/v1/events?after=0").want("forced a:0", "forced a:1", "forced b:1")
		b.follow("/v1/events?key=a:3&since=1999-12-31T00:00:00Z").want("gap", "lost a:3")
		// A stream on which nothing happens says so, and tells its place.
		happens(event.Lost, "b:2")
		synctest.Wait()
		before := g.last
		time.Sleep(feedBeat + time.Second)
		select {
		case block := <-g.blocks:
			if !strings.HasPrefix(block, "id: ") || strings.Contains(block, before) {
				t.Errorf("the line that keeps the stream is %q", block)
			}
		default:
			t.Error("the stream is silent")
		}
		// Redis has forgotten what has happened meanwhile.
		testkit.WantNil(t, "Del", rdb.Del(t.Context(), "joblock:%events").Err())
		time.Sleep(time.Second)
		happens(event.Lost, "a:4")
		a.follow("/v1/events", with("Last-Event-ID", before)).want("gap", "lost a:4")
		a.get("/v1/events", with("Accept", "text/event-stream"), with("Last-Event-ID", "x")).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get("/v1/events?cursor=1-1", with("Accept", "text/event-stream")).refused(http.StatusBadRequest, "LOCK_INVALID")
	})
}

// A stream ends with the rights of its caller, and when the server closes. It counts as a wait.
func TestEndOfAStreamOfEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		change, _, _ := journaled(t)
		began := time.Now()
		var who atomic.Pointer[Principal]
		who.Store(&Principal{ID: "ann", Scopes: ScopeRead, Prefixes: []string{"a:"}, Expires: began.Add(time.Minute), AllQueues: true})
		a := newReplica(t, memoryStore(), change, func(cfg *Config) {
			cfg.MaxWaitingEach = 1
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return *who.Load(), nil })
		})
		f := a.follow("/v1/events")
		a.get("/v1/events", with("Accept", "text/event-stream")).refused(http.StatusTooManyRequests, "TOO_MANY_WAITS")
		f.want("")
		if took := time.Since(began); took != time.Minute {
			t.Errorf("the rights have lasted for %s", took)
		}
		who.Store(&Principal{ID: "ann", Scopes: ScopeRead, Prefixes: []string{"a:"}, AllQueues: true})
		f = a.follow("/v1/events")
		who.Store(&Principal{ID: "ann", Scopes: ScopeRead, Prefixes: []string{"b:"}, AllQueues: true})
		f.want("") // the caller may no longer see these keys
		f = a.follow("/v1/events")
		testkit.WantNil(t, "Close", a.s.Close(t.Context()))
		f.want("")
		a.get("/v1/events", with("Accept", "text/event-stream")).refused(http.StatusServiceUnavailable, "LOCK_CLOSED")
	})
}

// While the journal does not answer, a stream says so, and goes on afterwards.
func TestStreamWhileTheJournalIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mini := redistest.Mini(t)
		rdb := redistest.MiniClient(t, mini)
		a := newReplica(t, memoryStore(), func(cfg *Config) { cfg.Redis = rdb })
		write := func(k string) {
			j, err := journal.New(rdb, nil)
			testkit.WantNil(t, "New", err)
			j.Observe(event.Event{Kind: event.Forced, Key: k})
			testkit.WantNil(t, "Close", j.Close(t.Context()))
		}
		f := a.follow("/v1/events")
		write("a")
		f.want("forced a")
		mini.SetError("LOADING")
		a.get("/v1/events").refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		for block := range f.blocks {
			if block == ": the journal does not answer" {
				break
			}
		}
		mini.SetError("")
		write("b")
		f.want("forced b")
	})
}
