package storetest

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// lineConcurrentCases test jobs in the queue with many goroutines.
var lineConcurrentCases = []testCase{
	{"all jobs get the key in order, one at a time, though some leave", func(k *kit) {
		const workers, turns = 8, 20
		w := &waiters{kit: k}
		k.hold("key", "me")
		var wg, joined sync.WaitGroup
		joined.Add(workers)
		for i := range workers {
			wg.Go(func() {
				first := sync.OnceFunc(joined.Done)
				defer first()
				for turn := range turns {
					if err := w.job(fmt.Sprintf("q/%d-%d", i, turn), turn%5 == 4, first); err != nil {
						k.Errorf("worker %d: %v", i, err)
						return
					}
				}
			})
		}
		joined.Wait() // so all workers have a place before the first grant
		k.free("key")
		wg.Wait()
		if k.Failed() {
			return
		}
		if n, want := len(w.served), workers*turns*4/5; n != want {
			k.Fatalf("%d jobs have run, want %d", n, want)
		}
		w.wantInTurn()
		if r := k.wantState("key", driver.StateFree); r.Waiters != 0 {
			k.Errorf("%d waiters left", r.Waiters)
		}
	}},
}

// job takes the key for a job, asks until the job's turn comes, and runs the job. If leaves is true, the job
// is taken out of line instead. joined is called after the first answer.
func (w *waiters) job(job string, leaves bool, joined func()) error {
	store, ctx := w.kit.Store, w.kit.ctx
	take := driver.TakeRequest{
		Key: "key", Owner: "owner of " + job, Nonce: "of " + job, Job: job, Reserve: long, Retain: long, Grace: long, Patience: long,
	}
	own := service{who: job, asked: w.clock.Add(1)}
	var since time.Time
	for turn := 0; !w.kit.Failed(); turn++ { // else the job of a worker that has failed may keep the key
		replies, err := store.Take(ctx, []driver.TakeRequest{take})
		if err != nil {
			return err
		}
		if turn == 0 {
			own.joined = w.clock.Add(1)
			joined()
			since = replies[0].Since
		}
		r := replies[0]
		if leaves {
			free := driver.ReleaseRequest{
				Term: driver.Term{Key: "key", Grant: take.Nonce}, Nonce: "end of " + job, Kind: driver.ReleaseForcedIdle, Job: job, Retain: long,
			}
			return outcomeOf(driver.OutcomeOK)(store.Release(ctx, []driver.ReleaseRequest{free}))
		}
		if r.Outcome == driver.OutcomeOK {
			return w.run(take, own)
		}
		if r.Outcome != driver.OutcomeHeld || r.Since.IsZero() || !r.Since.Equal(since) {
			return fmt.Errorf("take %d: %+v, want the place that the job has had since %s", turn, r, since)
		}
		runtime.Gosched()
	}
	return nil
}

// run runs the job that has the key since take.
func (w *waiters) run(take driver.TakeRequest, own service) error {
	store, ctx, job := w.kit.Store, w.kit.ctx, take.Job
	resumed, err := store.Resume(ctx, []driver.ResumeRequest{{
		Key: "key", Owner: take.Owner, Nonce: "run of " + job, TTL: long, Retain: long, Job: job, Reserve: long, Grace: long,
	}})
	if err := outcomeOf(driver.OutcomeOK)(resumed, err); err != nil {
		return err
	}
	own.fence = resumed[0].Fence
	if n := w.inside.Add(1); n != 1 {
		return fmt.Errorf("%d jobs run at a time", n)
	}
	w.mu.Lock()
	w.served = append(w.served, own)
	w.mu.Unlock()
	for range 50 {
		runtime.Gosched() // lets others ask in the meantime
	}
	w.inside.Add(-1)
	return outcomeOf(driver.OutcomeOK)(store.Release(ctx, []driver.ReleaseRequest{{
		Term: driver.Term{Key: "key", Owner: take.Owner, Fence: own.fence}, Nonce: "end of " + job, Retain: long, Job: job, Done: true, Starts: true,
	}}))
}

// outcomeOf returns a function that checks the answer to a call with one item.
func outcomeOf(want driver.Outcome) func(replies []driver.Reply, err error) error {
	return func(replies []driver.Reply, err error) error {
		if err == nil && (len(replies) != 1 || replies[0].Outcome != want) {
			err = fmt.Errorf("%+v, want one reply %s", replies, want)
		}
		return err
	}
}
