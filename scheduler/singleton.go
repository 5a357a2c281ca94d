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
// The other nodes stand in line. When the node that has the lock is stopped, the next one
// starts its own service at once; when it dies, at the end of its lease. A node that loses
// the lock shuts its service down and stands in line again. newRunner is called for every
// term, because asynq's services cannot be started twice.
//
// RunSingleton returns nil when ctx has ended and this node's service, if any, is shut
// down. If newRunner or Start fails, it returns that error and leaves the lock to the other
// nodes. A nil newRunner or Runner is joblock.ErrInvalid. Other errors are those of
// joblock.Locker.Singleton, to which opts are passed.
//
// A tick of the service that falls between two terms is lost, and one that comes while a
// term ends may be enqueued by both nodes. Where every tick counts use Task.
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
