package keeper

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// A page has at most pageTasks tasks, and about pageBytes: asynq's Redis does nothing else while it puts a page
	// together.
	pageTasks = 1000
	pageBytes = 1 << 20

	// Estimates of the server's time for a task in a list, and for a task that is looked up alone. Only their ratio
	// matters. The bytes of the task come on top in both cases.
	listCost   = 3 * time.Microsecond
	lookupCost = 24 * time.Microsecond
	kibCost    = 2 * time.Microsecond

	// fewestLookups is for how many tasks a Keeper lists a queue at least. A few locks that were parked after the last
	// listing are looked up alone.
	fewestLookups = 100

	// guess is how many times as many tasks a Keeper expects that is behind and knows no earlier period.
	guess = 4

	// mostListed is the largest queue that is listed. A listed task takes some 40 bytes of memory.
	mostListed = 4_000_000

	// mostQueues is how many queues a Keeper remembers.
	mostQueues = 10_000
)

// queue is what a Keeper knows of the demand for the tasks of one asynq queue.
type queue struct {
	period  time.Time // when the present period of Config.Every began
	wanted  int       // tasks that were wanted in the present period
	before  int       // tasks that were wanted in the previous period
	alone   int       // of wanted: since there is no listing
	size    *size     // the last one, or nil
	listing *listing  // the last one, or nil if that one is too old
}

// size is the size of a queue at the time measured.
type size struct {
	infos    []*asynq.QueueInfo // by the index of the inspector; nil for a database without the queue
	tasks    int64              // in the lists that a Keeper reads
	bytes    int64              // of one task, on average
	measured time.Time
}

// The method pays reports whether listing the queue costs asynq's Redis less than so many lookups.
func (s *size) pays(lookups int) bool {
	each := time.Duration(s.bytes) * kibCost / 1024
	return s.tasks > 0 && s.tasks <= mostListed &&
		time.Duration(s.tasks)*(listCost+each) <= time.Duration(lookups)*(lookupCost+each)
}

// listing has the tasks that lists of a queue have shown. A task in a list is alive. A task that is not in a list may
// be alive, too: the task may have moved while the pages were read. So nothing is concluded from its absence.
type listing struct {
	seed  maphash.Seed     // another seed for each listing: two tasks with one hash do not have one hash for ever
	tasks map[uint64]int64 // when each task is due, in ms since began; by the hash of the ID
	began time.Time
	until time.Time // the listing is too old after this time
	again time.Time // when the locks of the listed tasks are due again
}

// fromLists fills the array found with the tasks that lists show to be alive, as far as lists cost less than lookups.
// The parameter at has the index in found for each job of the candidates. fromLists returns the indexes of the other
// tasks, which are to be looked up alone.
func (k *Keeper) fromLists(ctx context.Context, list []candidate, at map[string]int, found []finding) (rest []int) {
	wanted := make(map[string]int)
	marks := make(map[string]bool) // judgeMark needs more than a list shows
	for i := range list {
		c := &list[i]
		if name, _, ok := envelope.ParseJob(c.Job); !ok || c.mark() {
			marks[c.Job] = true
		} else {
			wanted[name]++
		}
	}
	for name, n := range wanted {
		k.want(ctx, name, n)
	}
	for job, i := range at {
		name, id, _ := envelope.ParseJob(job)
		q := k.demand[name]
		if q == nil || q.listing == nil || marks[job] || !q.listing.find(name, id, &found[i]) {
			rest = append(rest, i)
		}
	}
	return rest
}

// The method want notes that n tasks of a queue are wanted, and lists the queue if a list costs less than the lookups
// of one period.
func (k *Keeper) want(ctx context.Context, name string, n int) {
	now := time.Now()
	q := k.demand[name]
	if q == nil {
		if len(k.demand) >= mostQueues {
			clear(k.demand)
		}
		q = &queue{period: now}
		k.demand[name] = q
	}
	if since := now.Sub(q.period); since >= k.cfg.Every {
		q.before = q.wanted
		if since >= 2*k.cfg.Every {
			q.before = 0
		}
		q.period, q.wanted, q.alone = now, 0, 0
	}
	q.wanted += n
	if q.listing != nil && now.After(q.listing.until) {
		q.listing, q.alone = nil, 0
	}
	q.alone += n
	lookups := max(q.before, q.wanted)
	if k.behind {
		lookups = max(lookups, guess*q.wanted) // more tasks are about to be wanted
	}
	if q.listing != nil || q.alone < fewestLookups {
		return
	}
	// If a call fails, the lookups fail, too, and inspect reports their errors.
	var err error
	if q.size == nil || now.Sub(q.size.measured) >= k.cfg.Every/2 {
		if q.size, err = k.measure(ctx, name); err != nil {
			return
		}
	}
	if q.size.pays(lookups) {
		q.listing, _ = k.list(ctx, name, q.size)
		q.size = nil
	}
}

// The method measure asks all databases for the size of a queue.
func (k *Keeper) measure(ctx context.Context, name string) (*size, error) {
	s := &size{infos: make([]*asynq.QueueInfo, len(k.cfg.Inspectors)), measured: time.Now()}
	var bytes, all int64
	for i, in := range k.cfg.Inspectors {
		start := time.Now()
		info, err := in.GetQueueInfo(name)
		if errors.Is(err, asynq.ErrQueueNotFound) {
			continue
		}
		if err == nil {
			err = k.rest(ctx, time.Since(start))
		}
		if err != nil {
			return nil, err
		}
		s.infos[i] = info
		s.tasks += int64(info.Pending + info.Scheduled + info.Retry)
		all += int64(info.Size)
		bytes += info.MemoryUsage
	}
	s.bytes = bytes / max(1, all)
	return s, nil
}

// The method list reads the lists of a queue's tasks in all databases.
func (k *Keeper) list(ctx context.Context, name string, s *size) (*listing, error) {
	page := int(max(10, min(pageTasks, pageBytes/max(1, s.bytes))))
	l := &listing{seed: maphash.MakeSeed(), tasks: make(map[uint64]int64, s.tasks), began: time.Now()}
	for i, in := range k.cfg.Inspectors {
		info := s.infos[i]
		if info == nil {
			continue
		}
		for _, state := range []struct {
			size int
			list func(queue string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
		}{
			{info.Scheduled, in.ListScheduledTasks},
			{info.Retry, in.ListRetryTasks},
			{info.Pending, in.ListPendingTasks},
		} {
			for n := 0; n*page < state.size; n++ {
				start := time.Now()
				tasks, err := state.list(name, asynq.PageSize(page), asynq.Page(n+1))
				if err == nil {
					l.add(tasks)
					err = k.rest(ctx, time.Since(start))
				}
				if err != nil {
					return nil, err
				}
			}
		}
	}
	// A lock that is checked with an old listing is soon due again. So a listing serves for three quarters of the time.
	// But a listing that took long serves for as long again: otherwise a Keeper that Config.Share slows down would list
	// again before it has used the list.
	l.until = l.began.Add(max(k.again()*3/4, 2*time.Since(l.began)))
	l.again = l.began.Add(k.again())
	if l.again.Before(l.until) {
		l.again = l.until
	}
	return l, nil
}

func (l *listing) add(tasks []*asynq.TaskInfo) {
	for _, t := range tasks {
		l.tasks[maphash.String(l.seed, t.ID)] = t.NextProcessAt.Sub(l.began).Milliseconds()
	}
}

// The method find sets f if the listing has the task with this ID.
func (l *listing) find(queue, id string, f *finding) bool {
	due, ok := l.tasks[maphash.String(l.seed, id)]
	if ok {
		delay := time.Until(l.began.Add(time.Duration(due) * time.Millisecond))
		*f = finding{kind: alive, queue: queue, listed: true, delay: max(0, delay)}
	}
	return ok
}

// The method after returns for how long, from now on, the lock of c waits for its next check. All tasks that a listing
// has shown come up together. So the next listing serves all of them.
func (k *Keeper) after(began time.Time, c *candidate) time.Duration {
	if c.task.listed {
		return max(driver.MinPeriod, time.Until(k.demand[c.task.queue].listing.again))
	}
	return k.wait(began)
}
