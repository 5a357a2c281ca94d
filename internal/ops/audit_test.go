package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The record of actions comes back as it was written, the newest first, over many pages. No list of locks shows it.
func TestAuditInAStream(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	audit := NewAudit(rdb, keyspace.DefaultPrefix, time.Minute)
	before := Lock{Key: "k", State: joblock.StateOrphaned, Fence: 1 << 52, Since: Time{time.UnixMilli(5).UTC()}}
	const n = 2*auditPage + 50
	for i := range n {
		id, err := audit.Write(t.Context(), AuditEntry{
			Action: "force release", Key: fmt.Sprint("key-", i%10), Fence: int64(i + 1), By: "eva", Reason: "\x1b", Before: &before,
		})
		if err != nil || id == "" {
			t.Fatal(id, err)
		}
	}
	if err := rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: "joblock:%audit", Values: []any{"x", "y"}}).Err(); err != nil {
		t.Fatal(err) // of another program
	}
	next := int64(n)
	for e, err := range audit.Read(t.Context(), AuditQuery{}) {
		testkit.WantNil(t, "Read", err)
		if e.Fence != next || e.By != "eva" || e.Reason != "\x1b" || e.ID == "" || e.At.IsZero() || e.Before.Fence != before.Fence || e.Before.State != before.State || !e.Before.Since.Equal(before.Since.Time) {
			t.Fatalf("%+v, want the fence %d", e, next)
		}
		next--
	}
	if next != 0 {
		t.Errorf("%d entries are missing", next)
	}
	count := 0
	for e, err := range audit.Read(t.Context(), AuditQuery{Key: "key-3"}) {
		testkit.WantNil(t, "Read", err)
		if count++; e.Key != "key-3" {
			t.Errorf("%+v", e)
		}
	}
	if count != n/10 {
		t.Errorf("%d entries of a key, want %d", count, n/10)
	}
	for range audit.Read(t.Context(), AuditQuery{Since: time.Now().Add(time.Hour)}) {
		t.Error("an entry of the future")
	}
	store := testkit.Must(redisstore.New(rdb, nil))
	t.Cleanup(func() { _ = store.Close() })
	page, err := store.List(t.Context(), driver.ListRequest{Count: 1000})
	if err != nil || len(page.Records) != 0 {
		t.Errorf("the list of locks has %+v, %v", page.Records, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := audit.Write(ended, AuditEntry{}); err == nil {
		t.Error("a write under an ended context is no error")
	}
}

// A value of another type at a key of the record is not an outage of Redis.
func TestAuditThatIsNoStream(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	for _, key := range []string{"joblock:%audit", "joblock:%refusals"} {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		testkit.WantNil(t, "SET", rdb.Set(t.Context(), key, "garbage", 0).Err())
		for _, err := range NewAudit(rdb, keyspace.DefaultPrefix, time.Minute).Read(t.Context(), AuditQuery{}) {
			if !errors.Is(err, joblock.ErrInvalid) || errors.Is(err, joblock.ErrUnavailable) || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: %v, want joblock.ErrInvalid that names the key", key, err)
			}
		}
	}
}

// Actions that are refused before they begin have one entry each, in a stream of their own: they take the place of no action.
func TestRefusalsTakeThePlaceOfNoAction(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) })
	desk, err := New(Config{Locks: locks, Audit: NewAudit(rdb, keyspace.DefaultPrefix, time.Minute)})
	testkit.WantNil(t, "New", err)
	desk.who = actor{eva.By, eva.From}
	force := func(key string, fence int64, idle bool, want error) {
		t.Helper()
		_, err := desk.Act(t.Context(), ForceRelease{Key: key, Fence: fence, IfIdle: idle, Reason: eva.Reason})
		if want == nil {
			testkit.WantNil(t, "Force", err)
			return
		}
		testkit.WantErr(t, err, want)
	}
	lock, err := locks.TryAcquire(t.Context(), "held")
	testkit.WantNil(t, "TryAcquire", err)
	force("held", lock.Fence(), false, nil)
	lock, err = locks.TryAcquire(t.Context(), "held")
	testkit.WantNil(t, "TryAcquire", err)
	const n = refusalsLength/100 + 5
	for range n {
		force("free", 1, false, joblock.ErrNotFound)
	}
	force("held", lock.Fence()+1, false, joblock.ErrNotOwner)
	force("held", lock.Fence(), true, joblock.ErrBusy)
	force("held", lock.Fence(), false, nil)
	for stream, want := range map[string]int64{"joblock:%audit": 4, "joblock:%refusals": n + 2} {
		if got := rdb.XLen(t.Context(), stream).Val(); got != want {
			t.Errorf("%s has %d entries, want %d", stream, got, want)
		}
	}
	var got []string
	for e, err := range Actions(desk.Audit(t.Context(), AuditQuery{})) {
		testkit.WantNil(t, "Actions", err)
		if e.Key != "free" {
			got = append(got, e.Outcome+" "+e.Action)
		}
	}
	if want := "done force release, refused free if idle, refused force release, done force release"; strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
	for st, err := range locks.List(t.Context(), joblock.ListOptions{}) {
		testkit.WantNil(t, "List", err)
		if strings.Contains(st.Key, "refusals") {
			t.Errorf("%+v", st)
		}
	}
}
