package moving

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/joblock"
)

func open(t *testing.T) (*toolkit.Process, *redis.Client, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.RunT(t)
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: server.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	return p, rdb, server
}

// Both work without contention.
func TestWorkUnderALock(t *testing.T) {
	p, rdb, _ := open(t)
	boom := errors.New("boom")
	work := func(context.Context) error { return boom }
	for name, do := range map[string]func() error{
		"redislock, before": func() error { return RedislockBefore(t.Context(), rdb, "redislock", work) },
		"redislock, after":  func() error { return RedislockAfter(t.Context(), p.Locks, "redislock", work) },
		"redsync, before":   func() error { return RedsyncBefore(t.Context(), rdb, "redsync", work) },
		"redsync, after":    func() error { return RedsyncAfter(t.Context(), p.Locks, "redsync", work) },
		"SET NX, before":    func() error { return SetNXBefore(t.Context(), rdb, "setnx", work) },
		"SET NX, after":     func() error { return SetNXAfter(t.Context(), p.Locks, "setnx", work) },
	} {
		for range 2 { // the first one has released the lock
			if err := do(); !errors.Is(err, boom) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The lock made by hand frees the lock of another owner when the work takes longer than the TTL. The other one tells the
// work, and frees nothing.
func TestWorkThatTakesLongerThanTheTTL(t *testing.T) {
	p, rdb, server := open(t)
	server.SetTime(time.Now())
	err := SetNXBefore(t.Context(), rdb, "k", func(ctx context.Context) error {
		server.FastForward(11 * time.Minute) // the lock has lapsed
		return rdb.SetNX(ctx, "k", "another owner", time.Hour).Err()
	})
	if err != nil || server.Exists("k") {
		t.Errorf("before: %v, and the lock of the other owner is there: %v", err, server.Exists("k"))
	}
	err = SetNXAfter(t.Context(), p.Locks, "k", func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		if err := p.Locks.ForceRelease(ctx, "k", joblock.Reason("as if it had lapsed")); err != nil {
			return err
		}
		if _, err := p.Locks.TryAcquire(t.Context(), "k"); err != nil { // another caller
			return err
		}
		if err := lock.Renew(ctx); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("the renewal says %v", err)
		}
		return context.Cause(ctx)
	})
	if !errors.Is(err, joblock.ErrLost) {
		t.Errorf("after: the context ended with %v", err)
	}
	if err := SetNXAfter(t.Context(), p.Locks, "k", func(context.Context) error { return nil }); !errors.Is(err, ErrBusy) {
		t.Errorf("the lock of the other owner is free: %v", err)
	}
}

func TestUnique(t *testing.T) {
	p, _, server := open(t)
	pending := func() int {
		t.Helper()
		info, err := p.Inspector.GetQueueInfo("default")
		if err != nil {
			t.Fatal(err)
		}
		return info.Pending
	}
	for range 2 {
		if err := UniqueBefore(t.Context(), p.Client, asynq.NewTask("before", nil)); err != nil {
			t.Error(err)
		}
		if err := UniqueAfter(t.Context(), p.Jobs, asynq.NewTask("after", nil)); err != nil {
			t.Error(err)
		}
	}
	if n := pending(); n != 2 {
		t.Errorf("%d tasks, want one of each", n)
	}
	server.FastForward(time.Hour) // no worker had time
	if err := UniqueBefore(t.Context(), p.Client, asynq.NewTask("before", nil)); err != nil {
		t.Error(err)
	}
	if n := pending(); n != 3 {
		t.Errorf("%d tasks after an hour: asynq.Unique has not lapsed", n)
	}
}

func TestHandOver(t *testing.T) {
	p, rdb, _ := open(t)
	if err := HandOverBefore(t.Context(), rdb, p.Client, "before", "me"); err != nil {
		t.Error(err)
	}
	if err := HandOverBefore(t.Context(), rdb, p.Client, "before", "you"); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if err := ReleaseBefore(t.Context(), rdb, "before", "you"); err != nil || rdb.Exists(t.Context(), "before").Val() != 1 {
		t.Error("released by another caller", err)
	}
	if err := ReleaseBefore(t.Context(), rdb, "before", "me"); err != nil || rdb.Exists(t.Context(), "before").Val() != 0 {
		t.Error("not released", err)
	}
	if err := HandOverAfter(t.Context(), p.Locks, p.Jobs, "after"); err != nil {
		t.Error(err)
	}
	if err := HandOverAfter(t.Context(), p.Locks, p.Jobs, "after"); !errors.Is(err, joblock.ErrHeld) {
		t.Error(err)
	}
}
