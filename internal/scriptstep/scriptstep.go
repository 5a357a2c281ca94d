// Package scriptstep runs additional steps that are not about locks in the script of a release, so that the server executes
// them and the release atomically, with one command. That requires that the keys of the steps are on the server of the
// lock, and that the server is no cluster.
package scriptstep

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// Steps are additional steps of a release. Both texts are Lua.
type Steps struct {
	// Before runs before the release. After "return 'not yet'" the release changes nothing. Before uses the locals first and
	// second, and must raise no error: redis.pcall instead of redis.call.
	Before string

	// After is the body of a function that runs when the release has given the key to a waiting job. The Lua variable
	// job has the name of that job, as in driver.Reply.Next. The function returns true if it has started the job. If it fails, the caller of
	// the release starts the job.
	After string
}

// Store is a driver.Store that supports steps. In this module only the store of package redisstore does.
type Store interface {
	// SameServer reports whether the store keeps its records on the one server, and in the one database, that client talks
	// to.
	SameServer(client redis.UniversalClient) bool

	// ReleaseWithSteps is driver.Store.Release of one key, with steps. Call SameServer first. The key must not be that of a
	// slot other than the first. The error is ErrNotYet if Before says so, or could not run. If After has started the job
	// that got the key, driver.Reply.Next is "".
	ReleaseWithSteps(ctx context.Context, req driver.ReleaseRequest, steps *Steps, first, second string) (driver.Reply, error)
}

// ErrNotYet means that the release has changed nothing.
var ErrNotYet = errors.New("scriptstep: the release has to wait")
