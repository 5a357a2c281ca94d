package scheduler

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/joblock"
)

// Runner is a service that is started once and shut down once. *asynq.Scheduler and
// *asynq.PeriodicTaskManager are Runners.
type Runner interface {
	Start() error
	Shutdown()
}

// RunSingleton runs a service on one node of the cluster at a time: the one that holds the
// lock on key. It makes an existing asynq scheduler highly available:
//
//	err := scheduler.RunSingleton(ctx, locks, "asynq-scheduler", func() (scheduler.Runner, error) {
//		return newAsynqScheduler() // asynq.NewScheduler and Register, as before
//	})
//
// The other nodes wait for the lock. When the node that holds it is stopped, the next one
// starts its own service at once; when it dies, at the end of its lease. A node that loses
// the lock shuts its service down and waits again. newRunner is called every time a node
// gets the lock, because asynq's services cannot be started twice.
//
// RunSingleton returns nil when ctx has ended and this node's service, if any, is shut
// down. If newRunner or Start fails, it returns that error and leaves the lock to the other
// nodes. A nil newRunner or Runner is joblock.ErrInvalid. Other errors are those of
// joblock.Locker.Singleton, to which opts are passed.
//
// A tick of the service that comes while no node holds the lock is lost. One that comes as
// the lock is lost may be enqueued by two nodes. Where every tick counts use Task.
func RunSingleton(ctx context.Context, locks *joblock.Locker, key string, newRunner func() (Runner, error), opts ...joblock.AcquireOption) error {
	if newRunner == nil {
		return invalid("run singleton", key, "the function is nil")
	}
	err := locks.Singleton(ctx, key, func(term context.Context) error {
		r, err := newRunner()
		if err != nil {
			return err
		}
		if r == nil {
			return invalid("run singleton", key, "the Runner is nil")
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
