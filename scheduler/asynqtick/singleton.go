package asynqtick

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

// Runner is a service that RunSingleton starts once and shuts down once. *asynq.Scheduler and
// *asynq.PeriodicTaskManager are Runners.
type Runner interface {
	Start() error
	Shutdown()
}

// RunSingleton runs a service, like an existing asynq scheduler, on one node of the cluster at a time: on the node that
// holds the lock on key.
//
//	err := asynqtick.RunSingleton(ctx, locks, "asynq-scheduler", func() (asynqtick.Runner, error) {
//		return newAsynqScheduler() // asynq.NewScheduler and Register
//	})
//
// The other nodes wait for the lock. If the holder is stopped, the next node starts its own service at once. If the
// holder dies, the next node starts its service when the lease ends. A node that loses the lock shuts its service down
// and waits again. RunSingleton calls newRunner after each grant of the lock, because asynq's services cannot be
// started twice.
//
// RunSingleton returns nil when ctx has ended and this node's service, if any, is shut down. If newRunner or Start
// returns an error, RunSingleton returns it and releases the lock for the other nodes. If newRunner or its Runner is
// nil, the error is joblock.ErrInvalid. Other errors are those of joblock.Locker.Singleton, which gets opts.
//
// A tick of the service that comes while no node holds the lock is lost, and for a tick at the moment at which a node
// loses the lock, two nodes may enqueue the task. If every tick counts, use a Scheduler of this package
// instead.
func RunSingleton(ctx context.Context, locks *joblock.Locker, key string, newRunner func() (Runner, error),
	opts ...joblock.AcquireOption) error {
	if newRunner == nil {
		return records.Invalid("run singleton", key, "the function is nil")
	}
	err := locks.Singleton(ctx, key, func(term context.Context) error {
		r, err := newRunner()
		if err != nil {
			return err
		}
		if r == nil {
			return records.Invalid("run singleton", key, "the Runner is nil")
		}
		if err := r.Start(); err != nil {
			return err
		}
		defer r.Shutdown()
		<-term.Done()
		return context.Cause(term)
	}, opts...)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return nil
	}
	return err
}
