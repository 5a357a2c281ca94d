package demo

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// deathTime bounds how long the rest of a dead process takes to end.
const deathTime = 200 * time.Millisecond

// line is the network of a process, which can be cut.
type line struct {
	mu    sync.Mutex
	conns []net.Conn
	isCut bool
}

var errCut = errors.New("the process is dead")

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		_ = conn.Close()
		return nil, errCut
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}

// mortal makes a process that can die: after a call of die, nothing that it does reaches Redis. The caller must call
// die in any case.
func (c *company) mortal(label string) (p process, die func(), err error) {
	wire := new(line)
	p, err = newProcess(label, &redis.Options{Addr: c.addr, Dialer: wire.dial, MaxRetries: -1})
	return p, func() {
		wire.cut()
		ctx, cancel := context.WithTimeout(context.Background(), deathTime)
		defer cancel()
		_ = p.close(ctx) // it cannot reach Redis, which is the point
	}, err
}
