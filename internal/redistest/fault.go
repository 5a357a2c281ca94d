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

// Named matches commands by name, in any case.
func Named(names ...string) Match {
	return func(c Command) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, c.Name()) })
	}
}

// Mentioning matches commands that have an argument in which s occurs, such as the
// key that a script works on. The command's name is not looked at.
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

// Action is what a fault does to a command that it matches.
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

// DropReply lets the command run, throws its reply away and closes the connection.
// The client cannot tell it from DropRequest.
func DropReply() Action { return Action{kind: dropReply} }

// DropRequest closes the connection before the command reaches the server. Replies
// of commands before it in a pipeline may be lost as well.
func DropRequest() Action { return Action{kind: dropRequest} }

// SwallowReply lets the command run, and from its reply on the client hears nothing
// more on this connection, which stays open and on which commands still run.
func SwallowReply() Action { return Action{kind: swallowReply} }

// Swallow makes the connection a black hole from this command on: it stays open and
// nothing passes in either direction.
func Swallow() Action { return Action{kind: swallow} }

// DelayRequest holds the command, and all behind it on the connection, for d.
func DelayRequest(d time.Duration) Action { return Action{kind: delayRequest, delay: d} }

// DelayReply lets the command run at once and holds its reply, and all behind it on
// the connection, for d.
func DelayReply(d time.Duration) Action { return Action{kind: delayReply, delay: d} }

// Fail answers the command with an error reply, "READONLY You can't write against a
// read only replica." for example, and keeps it from the server.
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
}

func newFault(times int, match Match, action Action) *Fault {
	return &Fault{match: match, action: action, left: times, hit: make(chan struct{})}
}

// Hits returns how many commands the fault has struck.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Seen returns how many commands have matched since the fault was armed, those that
// went by unharmed because it was used up included.
func (f *Fault) Seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// Struck returns a channel that is closed when the fault strikes for the first time,
// before what it does is done.
func (f *Fault) Struck() <-chan struct{} { return f.hit }

// Disarm ends the fault; connections that it has broken stay broken.
func (f *Fault) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = 0
}

// strike counts the command and reports whether the fault applies. armed is false
// when another fault has claimed the command already.
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
