package redistest

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// link is one proxied connection: a goroutine for each direction, and between them
// the queue of replies that the server owes.
type link struct {
	proxy  *Proxy
	client net.Conn
	server net.Conn
	gone   chan struct{} // closed by close
	once   sync.Once

	mu     sync.Mutex // guards the rest
	owed   []answer   // the answers to come, in order
	toHole bool       // what the client sends is thrown away
	inHole bool       // what the server sends is thrown away
	subs   bool       // has subscribed: in RESP2 some arrays are no replies
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, gone: make(chan struct{})}
}

// run serves the link until one side ends it, and leaves both connections closed.
func (l *link) run() {
	var wg sync.WaitGroup
	wg.Go(l.upstream)
	wg.Go(l.downstream)
	wg.Wait()
}

// close ends both directions; it may be called more than once.
func (l *link) close() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

func (l *link) swallowBoth() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toHole, l.inHole = true, true
}

// lossy reports whether bytes of the link were thrown away.
func (l *link) lossy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.toHole || l.inHole
}

// upstream carries commands to the server.
func (l *link) upstream() {
	defer l.close()
	r := bufio.NewReader(l.client)
	for {
		raw, args, err := readCommand(r)
		if err != nil {
			return
		}
		if !l.forward(raw, Command{Args: args}) {
			return
		}
	}
}

// forward deals with one command, and returns false when the link has to end.
func (l *link) forward(raw []byte, c Command) bool {
	l.mu.Lock()
	hole := l.toHole
	l.mu.Unlock()
	if hole {
		return true // not counted either: it goes nowhere
	}
	act := l.proxy.judge(c)
	switch act.kind {
	case dropRequest:
		return false
	case swallow:
		l.swallowBoth()
		return true
	case delayRequest:
		if !l.wait(act.delay) {
			return false
		}
	}
	if !l.owe(c, act) {
		return false
	}
	if act.kind == fail {
		return true
	}
	_, err := l.server.Write(raw)
	return err == nil
}

// answer is an answer that the client waits for, and what is to become of it.
type answer struct {
	act  Action
	push string // when it comes as a push: the push's first element
}

// subscribing are the commands that are answered by a push for each channel.
var subscribing = []string{"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"}

// leaving are those for which the number of pushes is not known beforehand.
var leaving = []string{"UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"}

// pushed are the first elements of what a server sends to subscribers. RESP2 sends
// them as arrays, like replies.
var pushed = slices.Concat([]string{"MESSAGE", "PMESSAGE", "SMESSAGE"}, subscribing, leaving)

// owe puts the answer to come into the queue, before the command is sent: afterwards
// the answer could overtake it. An answer of the proxy's own is written at once if
// nothing stands before it.
func (l *link) owe(c Command, act Action) bool {
	name := c.Name()
	l.mu.Lock()
	first := len(l.owed) == 0
	switch {
	case act.kind == fail && first: // nobody else adds to an empty queue meanwhile
	case act.kind == fail:
		l.owed = append(l.owed, answer{act: act})
	case slices.Contains(subscribing, name):
		l.subs = true
		l.owed = append(l.owed, answer{act: act, push: name})
	case slices.Contains(leaving, name):
		l.subs = true
	default:
		l.owed = append(l.owed, answer{act: act})
	}
	l.mu.Unlock()
	if act.kind == fail && first {
		return l.write(errorReply(act))
	}
	return true
}

func errorReply(act Action) []byte { return []byte("-" + act.text + "\r\n") }

// write sends to the client unless that direction is a black hole. The lock is not
// held while writing: a client that does not read must not block the proxy's methods.
func (l *link) write(raw []byte) bool {
	l.mu.Lock()
	hole := l.inHole
	l.mu.Unlock()
	if hole {
		return true
	}
	_, err := l.client.Write(raw)
	return err == nil
}

// downstream carries replies and pushes to the client.
func (l *link) downstream() {
	defer l.close()
	r := bufio.NewReader(l.server)
	for {
		got, err := readReply(r)
		if err != nil {
			return
		}
		if !l.deliver(got) {
			return
		}
	}
}

// deliver deals with one answer of the server, and returns false when the link has to
// end. Answers leave the queue after they were written, so that upstream never takes
// the queue for empty while something stands before its own.
func (l *link) deliver(got reply) bool {
	due, asked := l.due(got)
	if !asked {
		return l.write(got.raw)
	}
	switch due.act.kind {
	case dropReply:
		return false
	case delayReply:
		if !l.wait(due.act.delay) {
			return false
		}
	case swallowReply:
		l.mu.Lock()
		l.inHole = true
		l.mu.Unlock()
	}
	if !l.write(got.raw) {
		return false
	}
	for {
		next, more := l.settle()
		if !more || next.act.kind != fail {
			return true
		}
		if !l.write(errorReply(next.act)) {
			return false
		}
	}
}

// due returns the owed answer that got is, and false if it was not asked for.
func (l *link) due(got reply) (answer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owed) == 0 {
		return answer{}, false
	}
	isPush := got.kind == '>' ||
		l.subs && got.kind == '*' && slices.Contains(pushed, strings.ToUpper(got.first))
	if isPush && !strings.EqualFold(got.first, l.owed[0].push) {
		return answer{}, false
	}
	return l.owed[0], true
}

// settle removes the answer that was dealt with, and returns the next.
func (l *link) settle() (next answer, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed = l.owed[1:]
	if len(l.owed) == 0 {
		return answer{}, false
	}
	return l.owed[0], true
}

// wait sleeps for d, or returns false when the link ends before.
func (l *link) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.gone:
		return false
	}
}
