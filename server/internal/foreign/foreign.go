// Package foreign is what a lock server provides to the handlers of other lock APIs in package compat: callers with their
// rights and bounds, streams, the log and the record of actions.
package foreign

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
)

// Server is a lock server, as the handlers see it.
type Server interface {
	// Mount returns the handler of routes. refuse writes an error as the API has it.
	Mount(routes []Route, refuse func(Call, *problem.Problem)) http.Handler

	Locks() *joblock.Locker
	Desk() *ops.Desk
	Logger() *slog.Logger
	Closing() <-chan struct{} // closed when Close begins

	// UntilClosing returns a child of ctx that also ends when Close begins. The caller cancels it.
	UntilClosing(ctx context.Context) (context.Context, context.CancelCauseFunc)
}

// Route is a method and a path, and what serves it.
type Route struct {
	Method, Path string
	Scopes       []string // a caller needs one of these rights
	Do           func(Call) (*Answer, error)
}

// Answer is what a Route returns; nil if it has written its answer itself.
type Answer struct {
	Status int
	Body   any // in JSON
}

// Call is one request of an admitted caller.
type Call interface {
	Request() *http.Request
	Body() ([]byte, error)
	Read(into any) error // reads the body, a JSON object, into a struct; unknown fields are refused

	Caller() string          // names the principal
	Expires() time.Time      // when the rights of the principal end; zero means never
	May(scope string) bool   // whether the principal has a right
	UseKey(key string) error // refuses a key that the principal may not use, and records the key for the log

	MayHold(key string) error          // refuses another lock to a principal that has too many
	Holds(key string, until time.Time) // records that the principal has a lock
	Gave(key string)                   // records that it no longer has the lock

	Problem(err error) *problem.Problem
	Note(code string, detail error) // for the log

	Lasting() context.Context // does not end with the request
	Ended() bool              // whether the client has disconnected

	// WillBeRead releases the lock of token and returns an error if the client has disconnected.
	WillBeRead(token joblock.Token) error

	// Force frees the key of a holding for the principal, who acts as an operator. The action is recorded.
	Force(key string, fence int64, reason string) error

	// Watch calls end once when the principal may no longer lock the key, also after the end of the request.
	Watch(key string, end func(*problem.Problem)) Watch

	// Enter counts the request as one that waits or holds, until leave is called.
	Enter() (leave func(), err error)

	// Stream takes a lock and holds it as long as the client reads. The error is nil once the answer has begun.
	Stream(s Stream, take Taker) error

	WriteJSON(status int, contentType string, v any)
	WriteEmpty(status int)
	WriteProblem(p *problem.Problem) // as the routes under /v1 do
}

// Watch looks the rights of a principal up repeatedly.
type Watch interface {
	Confirm() // looks now, before a principal that has waited gets its lock
	Stop()
}

// Stream is an answer that holds a lock. Its client has no token with which to resume the lock.
type Stream struct {
	Key   string
	TTL   time.Duration
	Shape func(kind, text string) any // returns what to send for a line of POST /v1/hold; text is its error
}

// Taker takes the lock of a stream, and calls waits with each new place in line.
type Taker func(ctx context.Context, waits func(ahead int)) (*joblock.Lock, error)
