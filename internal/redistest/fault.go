package redistest

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Command is one command on its way to the server, alone or from a pipeline.
type Command struct {
	Args []string // its name first, as the client wrote it
}

// Name returns the command's name in upper case.
func (c Command) Name() string {
	if len(c.Args) == 0 {
		return ""
	}
	return strings.ToUpper(c.Args[0])
}

// Match decides whether a fault is meant for a command. It must not call the Proxy.
type Match func(Command) bool

// Any matches every command.
func Any(Command) bool { return true }

// Named matches commands by name, in upper or lower case.
func Named(names ...string) Match {
	return func(c Command) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, c.Name()) })
	}
}

// Mentioning matches commands that have an argument in which s occurs, such as the key of a script. Mentioning does not
// look at the command's name.
func Mentioning(s string) Match {
	return func(c Command) bool {
		return len(c.Args) > 1 &&
			slices.ContainsFunc(c.Args[1:], func(a string) bool { return strings.Contains(a, s) })
	}
}

// All matches commands that every one of ms matches.
func All(ms ...Match) Match {
	return func(c Command) bool {
		return !slices.ContainsFunc(ms, func(m Match) bool { return !m(c) })
	}
}

// Action is what a fault does to a matching command.
type Action struct {
	kind  actionKind
	delay time.Duration
	text  string
}

type actionKind uint8

const (
	pass actionKind = iota
	dropReply
	dropRequest
	swallowReply
	swallow
	delayRequest
	delayReply
	fail
)

// Pass does nothing: the fault only counts.
func Pass() Action { return Action{kind: pass} }

// DropReply lets the command run, throws the reply away and closes the connection. The client cannot distinguish
// DropReply from DropRequest.
func DropReply() Action { return Action{kind: dropReply} }

// DropRequest closes the connection before the command reaches the server. Replies to earlier commands of a pipeline
// may be lost as well.
func DropRequest() Action { return Action{kind: dropRequest} }

// SwallowReply lets the command run. From the command's reply on, the client gets nothing more on this connection. The
// connection stays open, and later commands still run.
func SwallowReply() Action { return Action{kind: swallowReply} }

// Swallow makes the connection a black hole from this command on: the connection stays open, and nothing passes in
// either direction.
func Swallow() Action { return Action{kind: swallow} }

// DelayRequest holds the command, and everything behind the command on the connection, for d.
func DelayRequest(d time.Duration) Action { return Action{kind: delayRequest, delay: d} }

// DelayReply lets the command run at once, and holds the reply, and everything behind the reply on the connection, for
// d.
func DelayReply(d time.Duration) Action { return Action{kind: delayReply, delay: d} }

// Fail answers the command with an error reply, for example "READONLY You can't write against a read only replica.",
// and does not send the command to the server.
func Fail(text string) Action { return Action{kind: fail, text: text} }

// Fault is an armed fault. Its methods may be called from any goroutine.
type Fault struct {
	match  Match
	action Action

	mu   sync.Mutex // guards the rest
	left int        // how often it may still strike; below zero: no bound
	seen int
	hits int
	hit  chan struct{} // closed at the first hit
	ran  chan struct{} // closed when the server has answered a command that was hit
	once sync.Once     // closes ran
}

func newFault(times int, match Match, action Action) *Fault {
	return &Fault{match: match, action: action, left: times, hit: make(chan struct{}), ran: make(chan struct{})}
}

// Hits returns how many commands the fault has struck.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Seen returns how many commands have matched since the fault was armed, whether or not the fault has struck them.
func (f *Fault) Seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// Struck returns a channel that is closed when the fault strikes for the first time, before the action begins.
func (f *Fault) Struck() <-chan struct{} { return f.hit }

// Ran returns a channel that is closed when the server has answered a command that the fault has struck, before the action
// on the reply ends: the command has certainly run. After actions that keep the command from the server it stays open.
func (f *Fault) Ran() <-chan struct{} { return f.ran }

func (f *Fault) answered() {
	if f != nil {
		f.once.Do(func() { close(f.ran) })
	}
}

// Disarm ends the fault. Connections that the fault has broken stay broken.
func (f *Fault) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = 0
}

// strike counts the command and reports whether the fault applies. armed is false if another fault applies to the
// command already.
func (f *Fault) strike(c Command, armed bool) bool {
	if !f.match(c) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	if f.left == 0 || !armed {
		return false
	}
	if f.left > 0 {
		f.left--
	}
	if f.hits++; f.hits == 1 {
		close(f.hit)
	}
	return true
}
