//go:build servers

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// load is what keeps the lockers busy until its context ends.
type load struct {
	t       *testing.T
	ctx     context.Context
	lockers []*joblock.Locker
	wg      sync.WaitGroup

	feeding context.Context // of those who enqueue jobs: ends first
	feeders sync.WaitGroup

	queues int          // how many keys are waited for
	next   atomic.Int64 // numbers keys that are used once

	held, lost, waits, gaveUp, permits, flights, computed, parks, abandoned, unanswered atomic.Int64
	enqueued, refused, done, retried                                                    atomic.Int64
}

// run starts n goroutines that do f over and over, each on one of the lockers.
func (l *load) run(n int, f func(locks *joblock.Locker, i int) error) {
	for i := range n {
		l.wg.Go(func() {
			for l.ctx.Err() == nil {
				l.check(f(l.lockers[i%len(l.lockers)], i))
			}
		})
	}
}

// feed starts n goroutines that do f over and over until no more jobs are wanted.
func (l *load) feed(n int, f func() error) {
	for range n {
		l.feeders.Go(func() {
			for l.feeding.Err() == nil {
				l.check(f())
			}
		})
	}
}

// check fails the test for an error that a healthy Redis gives no reason for. A machine
// that is busy with other things may be too slow to answer or to renew in time.
func (l *load) check(err error) {
	switch {
	case err == nil, l.ctx.Err() != nil && errors.Is(err, l.ctx.Err()):
	case errors.Is(err, joblock.ErrUnavailable):
		l.unanswered.Add(1)
	case errors.Is(err, joblock.ErrLost):
		l.lost.Add(1)
	default:
		l.t.Error(err)
	}
}

func (l *load) once(kind string) string { return joblock.Key(kind, fmt.Sprint(l.next.Add(1))) }

// hold keeps a lock for the whole time.
func (l *load) hold(locks *joblock.Locker, i int) error {
	lock, err := locks.TryAcquire(l.ctx, joblock.Key("held", fmt.Sprint(i)))
	if errors.Is(err, joblock.ErrHeld) { // its lease was lost and is not yet over
		_, err = wait(l.ctx, poll)
	}
	if lock == nil {
		return err
	}
	l.held.Add(1)
	select {
	case <-lock.Done():
	case <-l.ctx.Done():
	}
	return lock.Release(context.WithoutCancel(l.ctx))
}

// queue waits for a key, for a while that often ends before the wait does, in one of the
// two ways there are.
func (l *load) queue(locks *joblock.Locker, i int) error {
	ctx, patience := l.ctx, jitter.N(3*time.Second)
	opts := []joblock.AcquireOption{joblock.Retain(queueRetain)}
	if i%2 == 0 {
		opts = append(opts, joblock.MaxWait(patience))
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	lock, err := locks.Acquire(ctx, joblock.Key("queue", fmt.Sprint(int(jitter.N(time.Duration(l.queues))))), opts...)
	if errors.Is(err, joblock.ErrTimeout) || errors.Is(err, joblock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
		l.gaveUp.Add(1)
		return nil
	}
	return l.use(lock, err, &l.waits)
}

func (l *load) limit(locks *joblock.Locker, i int) error {
	lock, err := limit.New(locks, 3).Acquire(l.ctx, joblock.Key("limit", fmt.Sprint(i%3)), joblock.MaxWait(time.Second))
	if errors.Is(err, joblock.ErrTimeout) {
		l.gaveUp.Add(1)
		return nil
	}
	return l.use(lock, err, &l.permits)
}

// flight asks for a result that others ask for as well, and that is soon a different one.
func (l *load) flight(locks *joblock.Locker, _ int) error {
	key := joblock.Key("flight", fmt.Sprint(l.next.Add(1)/50))
	_, err := singleflight.Do(l.ctx, locks, key, 100*time.Millisecond, func(context.Context) (int, error) {
		l.computed.Add(1)
		return 7, nil
	})
	l.flights.Add(1)
	return err
}

// park hands a lock over to another process, which resumes it or, at times, never comes.
func (l *load) park(locks *joblock.Locker, i int) error {
	lock, err := locks.TryAcquire(l.ctx, l.once("park"))
	if err != nil {
		return err
	}
	abandon, hold := jitter.N(10) == 0, 30*time.Second
	if abandon {
		hold = time.Second
	}
	ctx := context.WithoutCancel(l.ctx) // what is parked is resumed, in the end as well
	token, err := lock.Park(ctx, joblock.Reserve(hold))
	if err != nil || abandon {
		l.abandoned.Add(1)
		return err
	}
	lock, err = l.lockers[(i+1)%len(l.lockers)].Resume(ctx, token)
	return l.use(lock, err, &l.parks)
}

// use holds a lock for a moment.
func (l *load) use(lock *joblock.Lock, err error, count *atomic.Int64) error {
	if err != nil {
		return err
	}
	count.Add(1)
	_, _ = wait(l.ctx, jitter.N(2*time.Millisecond))
	return lock.Release(context.WithoutCancel(l.ctx))
}

func wait(ctx context.Context, d time.Duration) (slept bool, err error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(d):
		return true, nil
	}
}

func (l *load) String() string {
	return fmt.Sprintf("%d locks held all the time and %d lost, %d waits served and %d given up, %d permits, "+
		"%d flights of which %d computed, %d parked and resumed and %d abandoned; "+
		"%d jobs enqueued and %d refused, %d done after %d retries; %d calls unanswered",
		l.held.Load(), l.lost.Load(), l.waits.Load(), l.gaveUp.Load(), l.permits.Load(), l.flights.Load(), l.computed.Load(),
		l.parks.Load(), l.abandoned.Load(), l.enqueued.Load(), l.refused.Load(), l.done.Load(), l.retried.Load(), l.unanswered.Load())
}
