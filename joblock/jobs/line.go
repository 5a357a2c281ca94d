package jobs

import (
	"context"
	"iter"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// linePage is how many places Line reads at a time.
const linePage = 200

// Place is a place in the line of a key. It belongs to a job or, if Job is "", to a call that waits.
type Place = driver.Place

// Line walks over the places in the line of key, in the order in which the store serves them. Places that have ended
// are left out. The walk takes a call for every 200 places. The walk may miss a place that is taken or given up
// meanwhile. An error ends the walk: see the package comment.
func Line(ctx context.Context, locks *joblock.Locker, key string) iter.Seq2[Place, error] {
	const op = "line"
	in := (*core.Locker)(locks)
	return func(yield func(Place, error) bool) {
		req := driver.LineRequest{Key: key, Limit: linePage}
		for {
			var page driver.LinePage
			err := in.Check(op, key)
			if err == nil {
				err = in.Call(ctx, op, key, func(ctx context.Context, store driver.Store) (err error) {
					page, err = store.Line(ctx, req)
					return err
				})
			}
			if err != nil {
				yield(Place{}, err)
				return
			}
			for _, p := range page.Places {
				if !yield(p, nil) {
					return
				}
			}
			if req.Cursor = page.Next; req.Cursor == "" {
				return
			}
		}
	}
}

// Granted is a job that has got the key for which it has waited in line.
type Granted struct {
	Key string
	Job string // "queue/taskID"
}

// Listen calls granted for each job that has got its key after waiting in line, unless the call that freed the key
// starts the job itself. The key is parked for the job, which has to be started. Listen only saves time: a call of
// granted may be missing, late, repeated or forged. So read the lock before you act. Due finds the jobs that Listen
// misses.
//
// granted must not block, and stop waits for a running call of granted. The end of ctx does not end the subscription.
// After an error there is no subscription.
func Listen(ctx context.Context, locks *joblock.Locker, granted func(Granted)) (stop func(), err error) {
	const op = "listen"
	in := (*core.Locker)(locks)
	if err := in.Check(op); err != nil {
		return nil, err
	}
	err = in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		stop, err = store.Subscribe(ctx, driver.JobsInbox, func(p driver.Push) {
			if in.CheckJob(op, p.Key, p.Job) == nil {
				granted(Granted{p.Key, p.Job})
			}
		})
		return err
	})
	return stop, err
}
