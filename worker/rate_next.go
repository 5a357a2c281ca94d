package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/rates"
	"github.com/joblock/toolkit/joblock"
)

// rateStarts runs the tasks that RateLimit has snoozed. For each such task, its process calls the limit once, just
// before the time at which the task may start: it asks the store for the first task in line, which may be another one,
// and runs that task. So there is a call for each start, whichever process dies, and a task that was deleted delays no
// other.
type rateStarts struct {
	lead atomic.Int64 // how long before its time a task is run: as long as asynq takes to deliver it

	mu     sync.Mutex // guards the fields below
	keys   map[string]*rateCalls
	warned map[string]time.Time // when the last warning of each kind was logged
}

// rateCalls has the calls of a limit that this process has yet to make.
type rateCalls struct {
	limit rates.Limit
	due   []time.Time // ascending
	timer *time.Timer // for the first of due; nil while a call is under way
}

// callMost bounds how many tasks one call claims: they are run one after another.
const callMost = 100

// came adjusts r.lead after a called task has come too early or too late: a task that is early occupies a worker while
// it waits in place, and a task that is late wastes a part of the rate.
func (r *rateStarts) came(got rates.Answer) {
	if !got.Claim {
		return // it was not called
	}
	for {
		lead := r.lead.Load()
		next := lead - int64(got.Wait)/8
		if got.Wait == 0 {
			next = lead + lead/8 + int64(4*time.Millisecond)
		}
		if r.lead.CompareAndSwap(lead, min(max(0, next), int64(inPlace-together))) {
			return
		}
	}
}

// together is the time span whose openings one call claims together.
const together = 25 * time.Millisecond

// until returns how long to wait before running a task that may start at the time at.
func (r *rateStarts) until(at time.Time) time.Duration {
	return time.Until(at) - time.Duration(r.lead.Load())
}

// expect makes this Worker call the limit of got at the time at. If the job has a claim, the Worker runs the job itself.
func (r *rateStarts) expect(w *tools, job string, got rates.Answer, at time.Time) {
	if got.Claim {
		time.AfterFunc(r.until(at), func() {
			if w.life.Enter() {
				defer w.life.Leave()
				w.runForRate(got.Limit, job)
			}
		})
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.keys[got.Limit.Key]
	if c == nil {
		if r.keys == nil {
			r.keys = make(map[string]*rateCalls)
		}
		c = new(rateCalls)
		r.keys[got.Limit.Key] = c
		c.timer = time.AfterFunc(r.until(at), func() { r.fire(w, got.Limit.Key) })
	}
	c.limit = got.Limit
	c.add(at, 1)
	if c.timer != nil {
		c.timer.Reset(r.until(c.due[0]))
	}
}

// add adds n calls at the time at.
func (c *rateCalls) add(at time.Time, n int) {
	i, _ := slices.BinarySearchFunc(c.due, at, time.Time.Compare)
	c.due = slices.Insert(c.due, i, slices.Repeat([]time.Time{at}, n)...)
}

// fire calls the limit of key.
func (r *rateStarts) fire(w *tools, key string) {
	if !w.life.Enter() {
		return
	}
	defer w.life.Leave()
	r.mu.Lock()
	c := r.keys[key]
	if c == nil {
		r.mu.Unlock()
		return
	}
	c.timer = nil
	early := time.Duration(r.lead.Load()) + together
	soon := time.Now().Add(early)
	n := 0
	for n < len(c.due) && !c.due[n].After(soon) {
		n++
	}
	c.due = c.due[n:]
	limit := c.limit
	r.mu.Unlock()

	called, err := rates.Call(context.Background(), (*core.Locker)(w.locks), opRate, limit, callMost, early)
	now := time.Now()
	r.mu.Lock()
	switch left := n - len(called.Called); {
	case err != nil:
		c.add(now.Add(time.Second), max(1, n))
	case called.Waiting == 0:
		c.due = nil
	case len(called.Called) == callMost:
		c.add(now, max(1, left))
	case left > 0: // the starts before were late
		c.add(now.Add(called.Wait), left)
	}
	if len(c.due) == 0 || errors.Is(err, joblock.ErrClosed) {
		delete(r.keys, key)
	} else {
		c.timer = time.AfterFunc(r.until(c.due[0]), func() { r.fire(w, key) })
	}
	r.mu.Unlock()
	for _, job := range called.Called {
		w.life.Go(func() { w.runForRate(limit, job) })
	}
}

// owe makes the Worker call the limit at once, in place of a call that found no task.
func (r *rateStarts) owe(w *tools, limit rates.Limit) {
	r.expect(w, "", rates.Answer{Limit: limit}, time.Now())
}

// passOn makes the Worker call the limit of key at once, if it has tasks that wait for it.
func (r *rateStarts) passOn(w *tools, key string) {
	r.mu.Lock()
	c := r.keys[key]
	var limit rates.Limit
	if c != nil {
		limit = c.limit
	}
	r.mu.Unlock()
	if c != nil {
		r.owe(w, limit)
	}
}

// rateTries are the pauses between attempts to run a task: asynq may not have written the snooze yet.
var rateTries = [...]time.Duration{time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, time.Second}

// runForRate runs the task of job, for which there is an opening at limit. If there is no such task, the next in line is
// called.
func (w *tools) runForRate(limit rates.Limit, job string) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return // a call of package rate, which comes by itself
	}
	for try := 0; ; try++ {
		switch w.runSnoozedForRate(queue, id) {
		case ranTask:
			return
		case noTask:
			_ = rates.Leave(context.Background(), (*core.Locker)(w.locks), opRate, job, limit.Key) // else the place lasts five seconds
			if limit.N > 0 {                                                                       // not after a push-back
				w.rates.owe(w, limit)
			}
			return
		}
		if try == len(rateTries) || w.life.Context().Err() != nil {
			return // asynq runs the task
		}
		time.Sleep(rateTries[try])
	}
}

type ran uint8

const (
	unclear ran = iota // the task is active, or asynq has not answered
	ranTask
	noTask
)

func (w *tools) runSnoozedForRate(queue, id string) ran {
	result := noTask
	for _, in := range w.next.Inspectors {
		if in.RunRetry(queue, id) == nil {
			return ranTask
		}
		switch got := runOther(in, queue, id); got {
		case ranTask:
			return ranTask
		case unclear:
			result = unclear
		}
	}
	return result
}

// runOther runs a task that does not wait for a retry, if it should run now.
func runOther(in *asynqprivate.Inspector, queue, id string) ran {
	info, err := in.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return noTask
	case err != nil, info.State == asynq.TaskStateActive:
		return unclear
	case info.State == asynq.TaskStatePending, info.State == asynq.TaskStateAggregating:
		return ranTask
	case info.State == asynq.TaskStateScheduled: // moved to a later time by Reschedule, from which it lines up again
		return noTask
	case info.State == asynq.TaskStateCompleted, info.State == asynq.TaskStateArchived && !jobline.InArchive(info):
		return noTask
	}
	if in.RunTask(queue, id) != nil {
		return unclear
	}
	return ranTask
}

// warn logs what slows starts down, or makes them too many, once a minute for each cause.
func (r *rateStarts) warn(w *Worker, got rates.Answer, limits []rates.Limit) {
	log := w.cfg.Logger
	for _, d := range got.Differs {
		if r.firstIn(time.Minute, "differs "+d.Key) {
			log.Warn("worker: another process uses a different rate for this key, or did until a moment ago; each process applies its own rate",
				"key", d.Key, "other_starts", d.Starts, "other_period", d.Period)
		}
	}
	if got.Slow && r.firstIn(time.Minute, "slow") {
		log.Warn("worker: the locks' store answers so slowly that starts may be closer together than their rate allows", "key", limits[0].Key)
	}
	every := time.Duration(w.checkInterval.Load())
	for _, l := range limits {
		if !got.OK && every > max(l.Per/20, shortLook) && r.firstIn(time.Hour, "interval") {
			log.Warn("worker: asynq checks its queues too rarely to use the whole rate: set asynq.Config.TaskCheckInterval to 100 ms or less",
				"key", l.Key, "period", l.Per, "task_check_interval", every)
		}
	}
}

// shortLook is a TaskCheckInterval that wastes no time, because tasks are run that much before their time.
const shortLook = 100 * time.Millisecond

// firstIn reports whether cause was not logged in the last d, and notes that the caller logs it now.
func (r *rateStarts) firstIn(d time.Duration, cause string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if at, ok := r.warned[cause]; ok && now.Sub(at) < d {
		return false
	}
	if r.warned == nil || len(r.warned) > 1000 {
		r.warned = make(map[string]time.Time)
	}
	r.warned[cause] = now
	return true
}
