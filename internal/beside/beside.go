// Package beside is how steps that are not about locks get into the script of a release, so that the server makes these
// steps and the release in one step, with one command. That is possible if the steps' keys are on the server of the lock,
// and the server is no cluster.
package beside

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// Steps are steps beside a release. Both texts are Lua.
type Steps struct {
	// Before runs before the release. After "return 'not yet'" the release changes nothing. Before uses the locals first and
	// second, and must raise no error: redis.pcall instead of redis.call.
	Before string

	// After is the body of a function, which runs when the release has given the key to a job that waits. The local job is
	// that job, as in driver.Reply.Next. The function returns true if it has started the job. An error is no harm: the caller
	// of the release starts the job.
	After string
}

// Store is a driver.Store that takes steps. Of the stores of this module that is the one of package redisstore.
type Store interface {
	// SameServer reports whether the store keeps its records on the one server, and in the one database, that client talks
	// to.
	SameServer(client redis.UniversalClient) bool

	// ReleaseBeside is driver.Store.Release of one key, with steps. Call SameServer first. The key is not that of another
	// slot than the first. The error is ErrNotYet if the step Before says so, or could not run. If the step After has
	// started the job that got the key, driver.Reply.Next is "".
	ReleaseBeside(ctx context.Context, req driver.ReleaseRequest, steps *Steps, first, second string) (driver.Reply, error)
}

// ErrNotYet means that the release has changed nothing.
var ErrNotYet = errors.New("beside: the release has to wait")
