package worker

import (
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// No wait of this package may outlast its attempt: asynq would count an attempt whose time is up as a failure of the
// job, and archive the job after the last attempt. Each call to the locks' store has a bound of its own,
// joblock.Config.CallTimeout, which may be longer than the attempt. Such a call must not end with the attempt either,
// because it may resume a lock that no attempt settles, so it goes on in the background.

// errLate is why a task is snoozed if the locks' store has not answered in the time of the attempt.
var errLate = &verdict.Error{Text: "no answer within the time of the attempt", Err: joblock.ErrUnavailable}

// bounded returns the results of f, which runs in another goroutine, and true. If f has not returned after patience,
// bounded returns false, and late is called with the value of f when f returns.
func bounded[T any](a *attempt, patience time.Duration, f func() (T, error), late func(T)) (val T, err error, ok bool) {
	var (
		decided atomic.Bool // by the first of f and patience
		done    = make(chan struct{})
	)
	a.w.life.Go(func() {
		v, e := f()
		if decided.Swap(true) {
			late(v)
			return
		}
		val, err = v, e
		close(done)
	})
	if !sleep.AtMost(patience, done) {
		if !decided.Swap(true) {
			var none T
			return none, nil, false
		}
		<-done
	}
	return val, err, true
}

// settleWait bounds how long the locks' store may delay a handler's result. If a store that hangs delayed the result
// until the attempt's deadline, asynq would ignore the result.
const settleWait = time.Second

// behind calls settle in a goroutine, and waits until it returns: at most settleWait, and at most half of the time
// until the attempt's deadline. If a.ctx has ended, behind waits without a bound. Until settle has returned, the locks
// are held or reserved, so the next attempt is snoozed. Worker.Close waits for settle.
func (a *attempt) behind(settle func()) {
	if a.ctx.Err() != nil {
		settle() // asynq does not wait for the result
		return
	}
	settled := make(chan struct{})
	a.w.life.Go(func() {
		defer close(settled)
		settle()
	})
	sleep.AtMost(min(settleWait, a.left()/2), settled)
}
