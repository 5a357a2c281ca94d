package server

import "time"

// Meter counts what a Server does. Package server/metrics has a Meter for Prometheus. The methods must not block, and
// must be safe for concurrent use. A later version may add methods, so embed a NoMeter, which then has them too.
type Meter interface {
	// Request counts a request that was answered.
	Request(MeteredRequest)

	// Waiting is called when a request begins to wait for a lock, or a stream begins, and again when that ends.
	Waiting(MeteredWait)

	// Action counts an action of an operator.
	Action(MeteredAction)
}

// MeteredRequest is a request that was answered.
type MeteredRequest struct {
	Route  string        // a path of the package comment, or a name in another lock API; "" for an unknown path
	Method string        // as the client sent it
	Status int           // of the answer
	Code   string        // the code of the error, or ""
	Took   time.Duration // since the arrival of the request
}

// MeteredWait is the beginning or the end of a wait.
type MeteredWait struct {
	Stream bool // true for a stream, false for a request that waits for its lock
	Ended  bool // each wait is reported twice: when it begins, and when it has ended
}

// MeteredAction is an action of an operator.
type MeteredAction struct {
	Action  string // as in the audit, such as "force release"
	Outcome string // done, asked, failed, refused, unknown, or not recorded
}

// NoMeter is a Meter that counts nothing.
type NoMeter struct{}

// Request does nothing.
func (NoMeter) Request(MeteredRequest) {}

// Waiting does nothing.
func (NoMeter) Waiting(MeteredWait) {}

// Action does nothing.
func (NoMeter) Action(MeteredAction) {}
