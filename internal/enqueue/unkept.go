package enqueue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// A keeper frees the lock of a job that ended without releasing the lock. But if the workers keep their locks in
// another Redis, database or prefix, their keepers do not see the locks of this process. Where such workers run the
// jobs nevertheless, because they have the same joblock.Config.Secrets or no middleware, the keys would stay reserved
// for an hour. So while no keeper works where a Client keeps its locks, the Client looks after the locks of the jobs
// that it has enqueued itself: it knows the asynq database that has these jobs. This is worth its 200 lines: without it
// a rolled-back worker, or one with another prefix, blocks each key for an hour.
const (
	// unkeptEvery is how often a Client that has enqueued jobs checks whether a keeper works. If none does, the Client
	// looks up its own jobs.
	unkeptEvery = 30 * time.Second

	// keptFor is how long a Client remembers a job although a keeper works: the keeper may stop before the job ends,
	// because the workers are rolled back to a release without locks.
	keptFor = 5 * time.Minute

	// maxUnkept bounds the jobs that a Client remembers, at some 200 bytes each. Beyond it the oldest tenth is left to its
	// reservations.
	maxUnkept = 10_000

	// maxKeepers is the largest worker.KeeperConfig.MaxKeepers.
	maxKeepers = 256

	// maxLookups bounds how many jobs one call of look looks up in asynq.
	maxLookups = 250

	// logUnkeptEvery is how often the log says that no keeper works.
	logUnkeptEvery = 10 * time.Minute
)

// unkept has the jobs whose locks no keeper may look after. Client.mu guards all fields.
type unkept struct {
	jobs    []unkeptJob
	looking bool      // lookAfter runs
	logged  time.Time // when the log last said that no keeper works
}

// unkeptJob is a job that this Client has enqueued.
type unkeptJob struct {
	queue, id, job string
	fences         map[string]int64 // by key: the fence of the hand-over; 0 if it is not known
	since          time.Time        // when it was enqueued
	until          time.Time        // when the reservations have ended
}

// remember notes the job of d, which asynq has.
func (c *Client) remember(d *dispatch) {
	keys, ok := d.kind.unkept()
	if !ok {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.unkept
	if c.life.Context().Err() != nil {
		return
	}
	if len(u.jobs) >= maxUnkept {
		u.jobs = slices.Delete(u.jobs, 0, maxUnkept/10)
	}
	j := unkeptJob{queue: d.queue, id: d.id, job: d.job, fences: make(map[string]int64), since: now, until: now.Add(d.reserve())}
	for _, key := range keys {
		j.fences[key] = 0
	}
	for _, token := range d.tokens {
		j.fences[token.Key()] = fenceOf(token)
	}
	u.jobs = append(u.jobs, j)
	if !u.looking {
		u.looking = c.life.TryGo(c.lookAfter)
	}
}

// lookAfter looks after the remembered jobs until none is left, or the Client is closed.
func (c *Client) lookAfter() {
	for sleep.For(c.life.Context(), unkeptEvery) == nil {
		ctx, cancel := context.WithTimeout(c.life.Context(), unkeptEvery)
		more := c.look(ctx)
		cancel()
		if !more {
			return
		}
	}
}

// look does one check. It returns false if there is nothing left to look after.
func (c *Client) look(ctx context.Context) bool {
	works, err := c.keeperWorks(ctx)
	if err != nil {
		return true
	}
	c.mu.Lock()
	u := &c.unkept
	if works {
		defer c.mu.Unlock()
		recent := time.Now().Add(-keptFor)
		u.jobs = slices.DeleteFunc(u.jobs, func(j unkeptJob) bool { return j.since.Before(recent) })
		u.looking = len(u.jobs) > 0
		return u.looking
	}
	all := u.jobs
	u.jobs = nil
	c.mu.Unlock()

	c.logUnkept(ctx, len(all))
	left := c.freeLeftovers(ctx, all)

	c.mu.Lock()
	defer c.mu.Unlock()
	u.jobs = append(left, u.jobs...)
	u.looking = len(u.jobs) > 0
	return u.looking
}

// keeperWorks reports whether a keeper works in the store of this Client's locks.
func (c *Client) keeperWorks(ctx context.Context) (bool, error) {
	// As a rule there is one keeper, and it has the first permit, so the other permits are not read.
	for _, numbers := range [][2]int{{1, 1}, {2, maxKeepers}} {
		var keys []string
		for n := numbers[0]; n <= numbers[1]; n++ {
			keys = append(keys, keyspace.Permit(keyspace.Keepers, n))
		}
		sts, err := c.locks.Status(ctx, keys...)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(sts, func(st joblock.Status) bool { return st.State == joblock.StateHeld }) {
			return true, nil
		}
	}
	return false, nil
}

func (c *Client) logUnkept(ctx context.Context, n int) {
	now := time.Now()
	c.mu.Lock()
	tell := now.Sub(c.unkept.logged) >= logUnkeptEvery
	if tell {
		c.unkept.logged = now
	}
	c.mu.Unlock()
	if tell {
		c.logger.WarnContext(ctx, "handoff: jobs have locks, but no keeper works in the store of these locks. Either no process runs "+
			"worker.Worker.RunKeeper, or the workers keep their locks in another Redis, database or prefix. Until a keeper works, this process "+
			"frees the locks of its own jobs when they have ended, and extends no reservation: a lock can end before its job",
			"locks_here", c.ring.Where(), "jobs", n)
	}
}

// freeLeftovers frees the keys of the jobs in all that have ended, and returns the jobs to check again.
func (c *Client) freeLeftovers(ctx context.Context, all []unkeptJob) (left []unkeptJob) {
	now := time.Now()
	all = slices.DeleteFunc(all, func(j unkeptJob) bool { return now.After(j.until) })
	var keys []string
	for _, j := range all {
		keys = slices.AppendSeq(keys, maps.Keys(j.fences))
	}
	sts, err := c.locks.Status(ctx, keys...)
	if err != nil {
		return all
	}
	var later []unkeptJob // looked up already: the other jobs come first the next time
	lookups := 0
	for _, j := range all {
		own := sts[:len(j.fences)]
		sts = sts[len(j.fences):]
		own = slices.DeleteFunc(slices.Clone(own), func(st joblock.Status) bool { return !st.Locked() || st.Job != j.job })
		idle := slices.DeleteFunc(slices.Clone(own), func(st joblock.Status) bool {
			// In the first minute the lock may be on its way from a job that is being replaced to the new one.
			return st.State == joblock.StateHeld || st.Now.Sub(st.Changed) < envelope.EnqueueGrace
		})
		switch {
		case len(own) == 0: // the job has released its locks, as it should
		case len(idle) == 0 || lookups == maxLookups:
			left = append(left, j)
		default:
			lookups++
			if over, err := c.isOver(ctx, j); err != nil || !over || !c.freeAll(ctx, j, idle) {
				later = append(later, j)
			}
		}
	}
	return append(left, later...)
}

// isOver reports whether the job, which existed, will not run again.
func (c *Client) isOver(ctx context.Context, j unkeptJob) (bool, error) {
	task, err := c.taskInfo(ctx, j.queue, j.id)
	switch {
	case isGone(err):
		return true, nil
	case err != nil:
		return false, err
	}
	archived := task.State == asynq.TaskStateArchived && !jobline.InArchive(task)
	return archived || task.State == asynq.TaskStateCompleted, nil
}

// freeAll frees the locks of a job that has ended, as they were read before the job was looked up. It returns false if
// the store has not answered for one.
func (c *Client) freeAll(ctx context.Context, j unkeptJob, idle []joblock.Status) bool {
	releases := make([]core.JobRelease, len(idle))
	for i, st := range idle {
		releases[i] = core.JobRelease{Key: st.Key, Job: j.job, Fence: st.Fence, Reason: reasonLeftBehind}
	}
	done := true
	for i, err := range c.starter.Free(ctx, releases...) {
		switch {
		case err == nil && idle[i].Fence == j.fences[idle[i].Key]:
			c.logger.ErrorContext(ctx, "handoff: a job has ended without taking its lock, which is free now. The job was deleted "+
				"before it ran, or it ran without its lock: on a worker that has no worker.Middleware, or that keeps its locks in "+
				"another Redis, database or prefix with the same joblock.Config.Secrets", "key", idle[i].Key, "job", j.job, "locks_here", c.ring.Where())
		case err == nil:
			c.logger.WarnContext(ctx, "handoff: freed a lock that an ended job had left behind",
				"key", idle[i].Key, "job", j.job)
		case joblock.Retryable(err):
			done = false
		}
	}
	return done
}
