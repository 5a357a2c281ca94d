package rig

import (
	"context"
	"net"
	"sync/atomic"
)

// Wire counts what one client sends to its server, on all of its connections. It
// counts at the socket and not with INFO commandstats because the server's
// counters do not tell a client's commands from those that its scripts run, and
// because in this way each of several processes knows its own share.
//
// The zero value is ready. The counts include handshakes, so take them after the
// client has warmed up.
type Wire struct {
	commands atomic.Int64
	turns    atomic.Int64
	received atomic.Int64
}

// Count is the state of a Wire at an instant.
type Count struct {
	Commands int64 `json:"commands"` // commands sent, those inside scripts not included
	Turns    int64 `json:"turns"`    // times a connection spoke after it had listened: round trips
}

// Sub returns what was sent between before and c.
func (c Count) Sub(before Count) Count {
	return Count{c.Commands - before.Commands, c.Turns - before.Turns}
}

// Count returns what was sent so far.
func (w *Wire) Count() Count { return Count{w.commands.Load(), w.turns.Load()} }

// Received returns how many bytes the server has sent so far.
func (w *Wire) Received() int64 { return w.received.Load() }

// Dial connects over TCP and counts what is sent. It fits go-redis's
// Options.Dialer.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &tap{Conn: conn, wire: w}, nil
}

// tap is a connection that a Wire listens to. As usual with net.Conn, one
// goroutine reads while another may write.
type tap struct {
	net.Conn
	wire     *Wire
	scan     scanner     // confined to the writer
	speaking atomic.Bool // nothing was read since the last write
}

func (t *tap) Write(p []byte) (int, error) {
	if !t.speaking.Swap(true) {
		t.wire.turns.Add(1)
	}
	// Before they are sent: the answers may come, and be counted, before Write returns.
	t.wire.commands.Add(t.scan.feed(p))
	return t.Conn.Write(p)
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.speaking.Store(false)
		t.wire.received.Add(int64(n))
	}
	return n, err
}

// scanner finds the commands in the bytes that a client sends: arrays of bulk
// strings, which is all that Redis clients send.
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
