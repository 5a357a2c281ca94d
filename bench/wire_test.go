//go:build servers

package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// wire counts what clients send to their server, at the socket. The server's own counts also have the commands that
// scripts run. The zero value is ready.
type wire struct {
	commands atomic.Int64 // sent, those inside scripts not included
	turns    atomic.Int64 // times that a connection sent after it had received: round trips
}

// Dial connects and counts. It fits the Dialer in go-redis's Options.
func (w *wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &tap{Conn: conn, wire: w}, nil
}

// tap is a connection whose commands count.
type tap struct {
	net.Conn
	wire    *wire
	scan    scanner     // confined to the writer
	sending atomic.Bool // nothing was received since the last write
}

func (t *tap) Write(p []byte) (int, error) {
	if !t.sending.Swap(true) {
		t.wire.turns.Add(1)
	}
	t.wire.commands.Add(t.scan.feed(p)) // before the answers come
	return t.Conn.Write(p)
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.sending.Store(false)
	}
	return n, err
}

// scanner finds the commands in what a client sends: arrays of bulk strings.
type scanner struct {
	skip int  // bytes to come of a bulk string and its line end
	kind byte // '*' or '$' once a header line has begun, otherwise 0
	size int  // the header's number as far as it was read
}

// feed reads on and returns how many commands have begun.
func (s *scanner) feed(p []byte) (commands int64) {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			s.skip -= n
			p = p[n:]
			continue
		}
		c := p[0]
		p = p[1:]
		switch {
		case c == '\r':
		case c == '\n':
			if s.kind == '*' {
				commands++
			} else {
				s.skip = s.size + len("\r\n")
			}
			s.kind, s.size = 0, 0
		case s.kind == 0:
			s.kind = c
		default:
			s.size = s.size*10 + int(c-'0')
		}
	}
	return commands
}

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
