package rig

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func startServer(t *testing.T) *Server {
	t.Helper()
	srv, err := Start(t.Context(), DefaultProgram)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func TestStoppedServerLeavesNothing(t *testing.T) {
	srv, err := Start(t.Context(), DefaultProgram)
	if err != nil {
		t.Fatal(err)
	}
	if version, err := srv.Version(t.Context()); err != nil || !strings.HasPrefix(version, "Redis ") {
		t.Errorf("version %q, error %v", version, err)
	}
	if u, err := srv.Usage(t.Context()); err != nil || u.CPU <= 0 {
		t.Errorf("CPU %s, error %v", u.CPU, err)
	}
	if err := srv.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(srv.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
	if conn, err := net.Dial("tcp", srv.Addr()); err == nil {
		conn.Close()
		t.Error("it still answers")
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if srv, err := Start(ctx, DefaultProgram); !errors.Is(err, context.Canceled) {
		t.Errorf("server %v, error %v, want context.Canceled", srv, err)
	}
}

func TestVersionsOfUnknownModulesAreSaidToBe(t *testing.T) {
	got := Versions("example.org/none")
	if len(got) != 1 || got["example.org/none"] != unknown {
		t.Errorf("got %v", got)
	}
}

func TestMissingServerIsAnError(t *testing.T) {
	for _, program := range []string{"no-such-server", "/nowhere/redis-server"} {
		if srv, err := Start(t.Context(), program); err == nil || !strings.Contains(err.Error(), program) {
			t.Errorf("server %v, error %v", srv, err)
		}
	}
}

func TestUsageCountsCallsOfEachCommand(t *testing.T) {
	srv := startServer(t)
	ctx := t.Context()
	before, err := srv.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := srv.rdb.Eval(ctx, `return redis.call("INCR", KEYS[1])`, []string{"n"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.rdb.Get(ctx, "n").Err(); err != nil {
		t.Fatal(err)
	}
	after, err := srv.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		commands []string
		want     int64
	}{{[]string{"eval"}, 3}, {[]string{"eval", "get"}, 4}, {[]string{"incr"}, 3}, {[]string{"evalsha"}, 0}} {
		if got := after.Of(tc.commands...).Sub(before.Of(tc.commands...)); got.Number != tc.want {
			t.Errorf("%q: %d calls, want %d", tc.commands, got.Number, tc.want)
		}
	}
	if got := after.Of("eval").Time; got <= 0 {
		t.Errorf("three scripts took %s", got)
	}
}

func TestKeyTellsSizeAndExpiry(t *testing.T) {
	srv := startServer(t)
	ctx := t.Context()
	if err := srv.rdb.Set(ctx, "k", strings.Repeat("x", 5000), time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if k, err := srv.Key(ctx, "k"); err != nil || k.Bytes < 5000 || k.Remember <= 0 || k.Remember > time.Hour {
		t.Errorf("%+v, %v", k, err)
	}
	if err := srv.rdb.PExpire(ctx, "k", time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	for over := time.Now().Add(3 * time.Millisecond); time.Now().Before(over); {
	}
	for _, name := range []string{"none", "k"} {
		if k, err := srv.Key(ctx, name); err != nil || k != (Key{}) {
			t.Errorf("%s, which is not there: %+v, %v", name, k, err)
		}
	}
}
