package redistest

import (
	"net"
	"sync"
	"testing"
)

// Proxy stands between clients and one server, and breaks connections on request. A Proxy understands RESP, so a fault
// strikes whole commands, inside pipelines too. With DropReply the command has certainly run: the proxy has read the
// reply. A Proxy does not support CLIENT REPLY and MONITOR.
//
// The methods may be called from any goroutine.
type Proxy struct {
	t      testing.TB
	target string
	addr   string
	wg     sync.WaitGroup // the goroutines that serve

	mu       sync.Mutex // guards the rest
	listener net.Listener
	links    map[*link]struct{}
	faults   []*Fault
	hole     bool // black hole: every connection, whatever the command
	closed   bool
}

// NewProxy starts a proxy on 127.0.0.1 in front of target. The proxy is closed at the end of the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, links: make(map[*link]struct{})}
	for try := 1; p.listener == nil; try++ {
		p.addr = loopback(freePort(t))
		if err := p.listen(); err != nil && try == startTries {
			t.Fatalf("start proxy: %v", err)
		}
	}
	t.Cleanup(p.close)
	return p
}

// Addr returns the proxy's address, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.addr }

// Once arms a fault that strikes the first matching command.
func (p *Proxy) Once(match Match, action Action) *Fault { return p.Times(1, match, action) }

// Times arms a fault that strikes the first n matching commands. If several faults match, the fault that was armed
// first strikes. In addition, every matching fault with [Pass] counts the command.
func (p *Proxy) Times(n int, match Match, action Action) *Fault {
	f := newFault(n, match, action)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// Always arms a fault that strikes every matching command until [Proxy.Heal].
func (p *Proxy) Always(match Match, action Action) *Fault { return p.Times(-1, match, action) }

// BlackHole swallows everything in both directions, on present and future connections, until [Proxy.Heal]. The proxy
// accepts new connections. All connections stay open.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = true
	for l := range p.links {
		l.swallowBoth()
	}
}

// Cut closes all present connections. The proxy accepts new connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Refuse closes all connections and refuses new ones until [Proxy.Heal], like a server that is down.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
}

// Heal disarms all faults and accepts connections again. Heal closes connections that have lost bytes: their streams
// are out of step for good.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.mu.Lock()
	for _, f := range p.faults {
		f.Disarm()
	}
	p.faults, p.hole = nil, false
	for l := range p.links {
		if l.lossy() {
			l.close()
		}
	}
	down := p.listener == nil && !p.closed
	p.mu.Unlock()
	if !down {
		return
	}
	if err := p.listen(); err != nil {
		p.t.Errorf("heal proxy: %v", err)
	}
}

// listen opens the listener at p.addr and serves the connections.
func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil { // closed, or healed by another call meanwhile
		return l.Close()
	}
	p.listener = l
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(l, c) })
		}
	})
	return nil
}

// serve runs one connection until either side ends it.
func (p *Proxy) serve(from net.Listener, client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	if p.listener != from { // Refuse was called after the accept
		l.close()
	}
	if p.hole {
		l.swallowBoth()
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	l.run()

	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// judge counts a command, and returns the action for the command, and the fault whose action it is.
func (p *Proxy) judge(c Command) (out Action, by *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out = Pass()
	free := true
	for _, f := range p.faults {
		counter := f.action.kind == pass
		if f.strike(c, counter || free) && !counter {
			out, by, free = f.action, f, false
		}
	}
	return out, by
}

// close ends the proxy and waits for its goroutines.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	p.wg.Wait()
}
