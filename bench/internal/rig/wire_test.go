package rig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestScannerFindsCommandsHoweverTheyAreCut(t *testing.T) {
	command := func(args ...string) string {
		var b strings.Builder
		fmt.Fprintf(&b, "*%d\r\n", len(args))
		for _, a := range args {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
		}
		return b.String()
	}
	stream := command("PING") +
		command("SET", "k", "*1\r\n$4\r\nPING\r\n") + // a value that looks like a command
		command("SET", "empty", "") +
		command("GET", strings.Repeat("k", 1234))
	for size := 1; size <= len(stream); size++ {
		var s scanner
		var got int64
		for rest := stream; rest != ""; {
			n := min(size, len(rest))
			got += s.feed([]byte(rest[:n]))
			rest = rest[n:]
		}
		if got != 4 {
			t.Fatalf("in pieces of %d: %d commands, want 4", size, got)
		}
	}
}

func TestWireLeavesOutWhatScriptsRun(t *testing.T) {
	srv := startServer(t)
	var wire Wire
	// One pool for calls and pipelines: a second one would have a handshake of its own.
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Dialer: wire.Dial, PipelinePoolSize: -1})
	defer rdb.Close()
	ctx := t.Context()
	if err := rdb.Ping(ctx).Err(); err != nil { // the handshake
		t.Fatal(err)
	}

	before := wire.Count()
	if err := rdb.Eval(ctx, `redis.call("SET", KEYS[1], 1) return redis.call("INCR", KEYS[1])`, []string{"n"}).Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := wire.Count().Sub(before), (Count{Commands: 1, Turns: 1}); got != want {
		t.Errorf("a script: %+v, want %+v", got, want)
	}

	before = wire.Count()
	if _, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 10 {
			p.Incr(ctx, "n")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := wire.Count().Sub(before), (Count{Commands: 10, Turns: 1}); got != want {
		t.Errorf("a pipeline: %+v, want %+v", got, want)
	}
}

func TestWireCountsWhatTheServerSends(t *testing.T) {
	srv := startServer(t)
	var wire Wire
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Dialer: wire.Dial})
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "k", strings.Repeat("x", 1000), 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := wire.Received()
	if err := rdb.Get(t.Context(), "k").Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := wire.Received()-before, int64(len("$1000\r\n")+1000+len("\r\n")); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
