package cli

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
)

// What a program has written into the journal is listed, followed, and is a part of the history of a key.
func TestEventsAndHistory(t *testing.T) {
	t.Parallel()
	p := newPlace(t, redistest.Start(t))
	p.do("events").wants(0, "the journal has no such events")
	p.do("events", "-o", "json").wants(0).fits("events.json")
	p.do("history", "exports:acct-7").wants(0, "nothing is on record; the journal is empty")
	happens := func(events ...event.Event) {
		t.Helper()
		j, err := journal.New(p.redis.Client(t), &journal.Config{Prefix: p.prefix, Source: "web:1"})
		testkit.WantNil(t, "New", err)
		for _, e := range events {
			j.Observe(e)
		}
		testkit.WantNil(t, "Close", j.Close(t.Context()))
	}
	happens(
		event.Event{Kind: event.Lost, Key: "exports:acct-7", Holder: "jobs1\x1b", Fence: 7, Held: time.Minute, Err: joblock.ErrLost},
		event.Event{Kind: event.Forced, Key: "other", Reason: "stuck"},
	)
	p.do("events").wants(0, "WHEN", "lost", `jobs1\x1b has lost the lock, after 1 min`, "other", "freed by force: stuck").lacks("SOURCE")
	p.do("events", "-o", "wide").wants(0, "SOURCE", "web:1")
	p.do("events", "exports:acct-7").wants(0, "lost").lacks("other")
	p.do("events", "--under", "exports:", "--since", "1h").wants(0, "lost").lacks("other")
	p.do("events", "--kind", "forced,lost", "--limit", "1").wants(0, "other").lacks("exports")
	p.do("events", "--kind", "burnt").wants(exitUsage, `the kind is "burnt"`)
	p.do("events", "--limit", "-1").wants(exitUsage, "--limit is -1")
	p.do("events", "").wants(exitUsage, "KEY is empty")
	p.do("events", "--since", "x").wants(exitUsage, "--since")
	p.do("events", "--since", "2099-01-01").wants(0, "no such events")
	var all []ops.Event
	p.do("events", "-o", "json").wants(0).items("events.json", &all)
	if len(all) != 2 || all[0].Key != "other" || all[1].Held.Duration() != time.Minute || all[1].Code != "LOCK_LOST" {
		t.Errorf("%+v", all)
	}
	wantLines(t, "event.json", p.do("events", "-o", "jsonl").wants(0).out)

	_, err := p.locks.TryAcquire(t.Context(), "exports:acct-7")
	testkit.WantNil(t, "TryAcquire", err)
	st, err := p.locks.Status(t.Context(), "exports:acct-7")
	testkit.WantNil(t, "Status", err)
	p.do("force-release", "exports:acct-7", "--fence", count(st[0].Fence), "--yes", "--reason", "host is gone").wants(0)
	h := p.do("history", "exports:acct-7").wants(0, "force release: done by "+operator(), "host is gone", "has lost the lock")
	if strings.Index(h.out, "force release") > strings.Index(h.out, "has lost") {
		t.Errorf("the newest does not come first:\n%s", h.out)
	}
	p.do("history", "exports:acct-7", "--limit", "1").wants(0, "force release", `there is more: "joblock history --limit 1000 -- exports:acct-7" lists older lines, too`).lacks("has lost")
	p.do("history", "exports:acct-7").wants(0).lacks("there is more")
	p.do("history", "exports:acct-7", "--limit", "0").wants(0) // the default
	p.do("history", "exports:acct-7", "--limit", "1001").wants(exitUsage, "1001")
	p.do("history", "unused").wants(0, "nothing is on record; the journal begins at")
	_, err = p.locks.TryAcquire(t.Context(), "exports:acct-9")
	testkit.WantNil(t, "TryAcquire", err)
	p.do("history", "exprots:acct-9").wants(0, "nothing is known of the key exprots:acct-9 at", "like it: exports:acct-9")
	p.do("history", "exprots:acct-9", "-o", "json").wants(0).lacks("like it")
	p.do("permits", "exprots:acct-9").wants(exitNo, "like it: exports:acct-9", "is not a limit or a sequence")
	p.do("permits", "exports:acct-9").wants(exitNo, "is not a limit or a sequence").lacks("like it")
	p.do("history", "exports:acct-7", "-o", "json").wants(0).fits("history.json")
	wantLines(t, "happening.json", p.do("history", "exports:acct-7", "-o", "jsonl").wants(0).out)

	// From --since on, --follow has what was and what comes.
	var group sync.WaitGroup
	group.Go(func() {
		p.do("events", "--follow", "--since", "1h", "--limit", "3", "-o", "name").wants(0, "exports:acct-7\nother\nlater\n")
	})
	happens(event.Event{Kind: event.Forced, Key: "later"})
	group.Wait()
}

// The follower says once that Redis is away, and goes on when it is back.
func TestFollowedEventsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	p := newPlace(t, srv)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	desk, err := ops.New(ops.Config{Locks: p.locks, Journal: ops.NewJournal(rdb, p.prefix, time.Second)})
	testkit.WantNil(t, "ops.New", err)
	write := func(key string) {
		j, err := journal.New(srv.Client(t), &journal.Config{Prefix: p.prefix})
		testkit.WantNil(t, "New", err)
		j.Observe(event.Event{Kind: event.Forced, Key: key})
		testkit.WantNil(t, "Close", j.Close(t.Context()))
	}
	write("a")
	var said, seen []string
	rows, err := followed(t.Context(), desk, ops.EventsQuery{Since: time.Now().Add(-time.Hour)}, func(format string, args ...any) {
		said = append(said, fmt.Sprintf(format, args...))
		if len(said) == 2 {
			write("b")
		}
	})
	testkit.WantNil(t, "followed", err)
	for e, err := range rows {
		testkit.WantNil(t, "an event", err)
		if seen = append(seen, e.Key); len(seen) == 2 {
			break
		}
		proxy.Times(2, redistest.Named("xrange"), redistest.DropReply())
	}
	if got := strings.Join(seen, " "); got != "a b" || len(said) != 2 || !strings.HasSuffix(said[0], "trying again") || said[1] != "Redis answers again" {
		t.Errorf("seen %q, said %q", seen, said)
	}
	proxy.Always(redistest.Named("xrange"), redistest.DropReply())
	rows, err = followed(t.Context(), desk, ops.EventsQuery{Since: time.Now().Add(-time.Hour)}, t.Logf)
	testkit.WantNil(t, "followed", err)
	for _, err := range rows {
		testkit.WantErr(t, err, joblock.ErrUnavailable) // the first look
	}
}
