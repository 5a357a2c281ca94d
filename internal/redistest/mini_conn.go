package redistest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// miniConn is a client's connection to a miniredis. Write runs the commands and keeps the answers for Read. On a
// connection from [miniredis.Miniredis.Dial] each command wakes four goroutines, which takes longer than most commands.
//
// When a client waits for the server to write, miniConn becomes a connection from Dial.
type miniConn struct {
	m   *miniredis.Miniredis
	srv *server.Server // of m

	mu       sync.Mutex
	peer     *server.Peer
	in       []byte       // what was written of a command that is not complete
	out      bytes.Buffer // answers that were not read
	state    []byte       // the commands that set up a connection
	settings int          // in state
	multi    bool         // in a transaction
	lua      bool         // scripts must run in Lua: native ones are for database 0
	closed   bool
	deadline [2]time.Time // for reads and writes
	dialed   net.Conn     // nil as long as nothing waits
}

// dialMini connects to m. After a restart of m, the connection is one from Dial.
func dialMini(m *miniredis.Miniredis, srv *server.Server) (net.Conn, error) {
	if m.Ctx.Err() != nil {
		return m.Dial()
	}
	c := &miniConn{m: m, srv: srv}
	c.peer = server.NewPeer(bufio.NewWriterSize(&c.out, 256))
	return c, nil
}

// waits reports whether the server writes to a client other than as the answer to a command, or later.
func waits(cmd string) bool {
	return strings.HasSuffix(cmd, "SUBSCRIBE") || strings.HasPrefix(cmd, "XREAD") || cmd[0] == 'B'
}

func (c *miniConn) Write(p []byte) (int, error) {
	dialed, rest, err := c.run(p)
	if err == nil && dialed != nil {
		_, err = dialed.Write(rest)
	}
	if err != nil {
		return 0, err
	}
	runtime.Gosched() // other goroutines may come in between, as with a network
	return len(p), nil
}

// run runs the commands that p completes. If it returns a connection from Dial, the caller has to write rest to that
// connection.
func (c *miniConn) run(p []byte) (dialed net.Conn, rest []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.m.Ctx.Err() != nil {
		return nil, nil, io.ErrClosedPipe
	}
	if c.dialed != nil {
		return c.dialed, p, nil
	}
	rest = p
	if len(c.in) > 0 {
		rest = append(c.in, p...)
	}
	for {
		args, n, err := cutCommand(rest)
		if err != nil {
			return nil, nil, err
		}
		if n == 0 {
			c.in = append(c.in[:0], rest...)
			return nil, nil, nil
		}
		name := strings.ToUpper(args[0])
		if waits(name) {
			dialed, err = c.dial()
			return dialed, rest, err
		}
		switch name {
		case "HELLO", "AUTH", "SELECT", "CLIENT":
			c.state, c.settings = append(c.state, rest[:n]...), c.settings+1
			c.lua = c.lua || name != "HELLO" && name != "CLIENT"
		case "MULTI", "EXEC", "DISCARD":
			c.multi = name == "MULTI"
		case "EVALSHA":
			if !c.lua && !c.multi && len(args) > 1 && native[args[1]] != nil {
				args[0] = nativeCommand
			}
		}
		rest = rest[n:]
		c.srv.Dispatch(c.peer, args)
		c.peer.Flush()
	}
}

// dial opens a connection to the server, and repeats on it the commands that had set up the connection before it.
func (c *miniConn) dial() (net.Conn, error) {
	conn, err := c.m.Dial()
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(c.state); err != nil {
		return nil, err
	}
	for answers := bufio.NewReader(conn); c.settings > 0; c.settings-- {
		if _, err := readReply(answers); err != nil {
			return nil, err
		}
	}
	_ = conn.SetReadDeadline(c.deadline[0])
	_ = conn.SetWriteDeadline(c.deadline[1])
	c.dialed = conn
	return conn, nil
}

// Read returns what the commands answered. If there is nothing, the client waits for the server to write.
func (c *miniConn) Read(p []byte) (int, error) {
	dialed, n, err := c.take(p)
	if dialed != nil {
		return dialed.Read(p)
	}
	return n, err
}

func (c *miniConn) take(p []byte) (dialed net.Conn, n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, 0, io.ErrClosedPipe
	case c.out.Len() > 0:
		n, err = c.out.Read(p)
		return nil, n, err
	case c.dialed != nil:
		return c.dialed, 0, nil
	}
	dialed, err = c.dial()
	return dialed, 0, err
}

func (c *miniConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.dialed != nil {
		return c.dialed.Close()
	}
	return nil
}

func (c *miniConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *miniConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline[0] = t
	if c.dialed != nil {
		return c.dialed.SetReadDeadline(t)
	}
	return nil
}

func (c *miniConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline[1] = t
	if c.dialed != nil {
		return c.dialed.SetWriteDeadline(t)
	}
	return nil
}

func (*miniConn) LocalAddr() net.Addr  { return miniAddr{} }
func (*miniConn) RemoteAddr() net.Addr { return miniAddr{} }

type miniAddr struct{}

func (miniAddr) Network() string { return "memory" }
func (miniAddr) String() string  { return "memory" }

// cutCommand reads the command that data begins with, of n bytes; n is 0 if the command is not complete.
func cutCommand(data []byte) (args []string, n int, err error) {
	count, at, err := cutLength(data, 0, '*')
	if at == 0 || err != nil {
		return nil, 0, err
	}
	ends := make([][2]int, 0, 16)
	for range count {
		size, begin, err := cutLength(data, at, '$')
		if begin == 0 || err != nil || begin+size+2 > len(data) {
			return nil, 0, err
		}
		ends = append(ends, [2]int{begin, begin + size})
		at = begin + size + 2
	}
	text := string(data[:at])
	args = make([]string, count)
	for i, e := range ends {
		args[i] = text[e[0]:e[1]]
	}
	return args, at, nil
}

// cutLength reads the line at data[at:], which is kind and a length; next is 0 if the line is not complete.
func cutLength(data []byte, at int, kind byte) (length, next int, err error) {
	end := bytes.IndexByte(data[at:], '\n')
	if end < 0 {
		return 0, 0, nil
	}
	line := data[at : at+end+1]
	if len(line) < 4 || line[0] != kind {
		return 0, 0, errProtocol
	}
	length, err = strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || length < 0 || kind == '*' && length == 0 {
		return 0, 0, errProtocol
	}
	return length, at + end + 1, nil
}
