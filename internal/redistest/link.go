package redistest

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// link is one proxied connection. A link has a goroutine for each direction, and a queue of the replies that the server
// owes.
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
	subs   bool       // the client has subscribed: in RESP2 some arrays are no replies
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, gone: make(chan struct{})}
}

// run serves the link until client or server ends it, and leaves both connections closed.
func (l *link) run() {
	var wg sync.WaitGroup
	wg.Go(l.upstream)
	wg.Go(l.downstream)
	wg.Wait()
}

// close ends both directions. close may be called more than once.
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

// forward handles one command. forward returns false if the link must end.
func (l *link) forward(raw []byte, c Command) bool {
	l.mu.Lock()
	hole := l.toHole
	l.mu.Unlock()
	if hole {
		return true // a command in a black hole is not counted
	}
	act, by := l.proxy.judge(c)
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
	if !l.owe(c, act, by) {
		return false
	}
	if act.kind == fail {
		return true
	}
	_, err := l.server.Write(raw)
	return err == nil
}

// answer is an answer that the client waits for, with the action for that answer.
type answer struct {
	act  Action
	by   *Fault // whose action it is, or nil
	push string // the first element of the push, if the answer comes as a push
}

// subscribing are the commands that are answered by a push for each channel.
var subscribing = []string{"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"}

// leaving are the commands that are answered by a number of pushes that is not known beforehand.
var leaving = []string{"UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"}

// pushed are the first elements of the messages that a server sends to subscribers. RESP2 sends these messages as
// arrays, like replies.
var pushed = slices.Concat([]string{"MESSAGE", "PMESSAGE", "SMESSAGE"}, subscribing, leaving)

// owe puts the coming answer to c into the queue. Call owe before c is sent: otherwise the answer could come before its
// entry in the queue. If the answer is made by the proxy and the queue is empty, owe writes the answer at once.
func (l *link) owe(c Command, act Action, by *Fault) bool {
	name := c.Name()
	l.mu.Lock()
	first := len(l.owed) == 0
	switch {
	case act.kind == fail && first: // no other goroutine adds to an empty queue meanwhile
	case act.kind == fail:
		l.owed = append(l.owed, answer{act: act})
	case slices.Contains(subscribing, name):
		l.subs = true
		l.owed = append(l.owed, answer{act: act, by: by, push: name})
	case slices.Contains(leaving, name):
		l.subs = true
	default:
		l.owed = append(l.owed, answer{act: act, by: by})
	}
	l.mu.Unlock()
	if act.kind == fail && first {
		return l.write(errorReply(act))
	}
	return true
}

func errorReply(act Action) []byte { return []byte("-" + act.text + "\r\n") }

// write sends raw to the client, unless that direction is a black hole. write does not hold the lock while it sends: a
// client that does not read must not block the proxy's methods.
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

// deliver handles one answer of the server. deliver returns false if the link must end. An answer leaves the queue
// after it was written: upstream must not find an empty queue while the client has not got an earlier answer.
func (l *link) deliver(got reply) bool {
	due, asked := l.due(got)
	if !asked {
		return l.write(got.raw)
	}
	due.by.answered()
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

// due returns the queue's entry for the reply got, or false if no command waits for got.
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

// settle removes the first entry of the queue, and returns the next entry.
func (l *link) settle() (next answer, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed = l.owed[1:]
	if len(l.owed) == 0 {
		return answer{}, false
	}
	return l.owed[0], true
}

// wait sleeps for d. It returns false if the link ends before d has passed.
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
