package server

import "time"

// Meter counts what a Server does. Package server/metrics has one for Prometheus. The methods must not block, and must be
// safe for concurrent use.
type Meter interface {
	// Request counts a request that was answered. The route is a path of the package comment, or a name of another lock API;
	// it is "" for a path that there is none. The method is as the client has sent it. The code is that of the error, or "".
	Request(route, method string, status int, code string, took time.Duration)

	// Waiting counts a request that begins to wait for a lock, or a stream: by is 1. At the end by is -1.
	Waiting(stream bool, by int)

	// Action counts an action of an operator: its outcome is done, refused, unknown, or not recorded.
	Action(action, outcome string)
}

// noMeter is the Meter of a Server without one.
type noMeter struct{}

func (noMeter) Request(string, string, int, string, time.Duration) {}
func (noMeter) Waiting(bool, int)                                  {}
func (noMeter) Action(string, string)                              {}
