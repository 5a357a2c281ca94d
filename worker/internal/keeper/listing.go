package keeper

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

const (
	// A page has at most pageTasks tasks, and about pageBytes: asynq's Redis does nothing else while it puts a page
	// together.
	pageTasks = 1000
	pageBytes = 1 << 20

	// The server's time for a task in a list, and for a task that is looked up alone, as measured on Redis 7.0. The
	// bytes of the task come on top in both cases.
	listCost   = 3 * time.Microsecond
	lookupCost = 24 * time.Microsecond
	kibCost    = 2 * time.Microsecond

	// fewestLookups is how many lookups of a period a list must save.
	fewestLookups = 100

	// mostListed is the largest queue that is listed. A listed task takes some 40 bytes of memory.
	mostListed = 4_000_000

	// mostQueues is how many queues a Keeper remembers.
	mostQueues = 10_000
)

// queue is what a Keeper knows of the demand for the tasks of one asynq queue.
type queue struct {
	period   time.Time // when the present period of Config.Every began
	wanted   int       // tasks that were wanted in the present period
	before   int       // tasks that were wanted in the previous period
	measured time.Time // when the size of the queue was last asked for
	listing  *listing  // the last one, or nil
}

// listing has the tasks that lists of a queue have shown. A task in a list is alive. A task that is not in a list may
// be alive, too: the task may have moved while the pages were read. So nothing is concluded from its absence.
type listing struct {
	seed  maphash.Seed // another seed for each listing: two tasks with one hash do not have one hash for ever
	tasks map[uint64]listed
	began time.Time
	until time.Time // the listing is too old after this time
}

// listed is a task in a list. Both fields are in ms since listing.began.
type listed struct{ seen, due int64 }

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
		if q == nil || q.listing == nil || marks[job] || !q.listing.find(id, &found[i]) {
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
		q.period, q.wanted = now, 0
	}
	q.wanted += n
	if q.listing != nil && now.After(q.listing.until) {
		q.listing = nil
	}
	lookups := max(q.before, q.wanted)
	if q.listing != nil || lookups < fewestLookups || now.Sub(q.measured) < k.cfg.Every/wakeups {
		return
	}
	q.measured = now
	l, err := k.list(ctx, name, lookups)
	if err != nil {
		return // the lookups fail, too, and inspect reports their errors
	}
	q.listing = l
}

// The method list reads the lists of a queue's tasks in all databases, and returns nil if the lookups would cost less.
func (k *Keeper) list(ctx context.Context, name string, lookups int) (*listing, error) {
	infos := make([]*asynq.QueueInfo, len(k.cfg.Inspectors))
	var size, bytes int64
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
		infos[i] = info
		size += int64(info.Pending + info.Scheduled + info.Retry)
		bytes += info.MemoryUsage / max(1, int64(info.Size)) * int64(info.Pending+info.Scheduled+info.Retry)
	}
	per := bytes / max(1, size) // of one task
	each := time.Duration(per) * kibCost / 1024
	if size == 0 || size > mostListed || time.Duration(size)*(listCost+each) > time.Duration(lookups)*(lookupCost+each) {
		return nil, nil
	}
	page := int(max(10, min(pageTasks, pageBytes/max(1, per))))
	l := &listing{seed: maphash.MakeSeed(), tasks: make(map[uint64]listed, size), began: time.Now()}
	for i, in := range k.cfg.Inspectors {
		if infos[i] == nil {
			continue
		}
		for _, state := range []struct {
			size int
			list func(queue string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
		}{
			{infos[i].Scheduled, in.ListScheduledTasks},
			{infos[i].Retry, in.ListRetryTasks},
			{infos[i].Pending, in.ListPendingTasks},
		} {
			for n := 0; n*page < state.size; n++ {
				start := time.Now()
				tasks, err := state.list(name, asynq.PageSize(page), asynq.Page(n+1))
				if err == nil {
					l.add(start, tasks)
					err = k.rest(ctx, time.Since(start))
				}
				if err != nil {
					return nil, err
				}
			}
		}
	}
	// A listing that took long serves for as long again. Otherwise a Keeper that Config.Share slows down would list
	// again before it has used the list.
	l.until = time.Now().Add(max(k.cfg.Every/2-time.Since(l.began), time.Since(l.began)))
	return l, nil
}

func (l *listing) add(seen time.Time, tasks []*asynq.TaskInfo) {
	at := seen.Sub(l.began).Milliseconds()
	for _, t := range tasks {
		l.tasks[maphash.String(l.seed, t.ID)] = listed{seen: at, due: t.NextProcessAt.Sub(l.began).Milliseconds()}
	}
}

// The method find sets f if the listing has the task with this ID.
func (l *listing) find(id string, f *finding) bool {
	t, ok := l.tasks[maphash.String(l.seed, id)]
	if ok {
		ms := func(n int64) time.Time { return l.began.Add(time.Duration(n) * time.Millisecond) }
		*f = finding{kind: alive, listed: true, seen: ms(t.seen), delay: max(0, time.Until(ms(t.due)))}
	}
	return ok
}

// The method align returns when the lock of c is due again. All tasks of a queue that is listed come up for their next
// check together, so that the next listing serves all of them.
func (k *Keeper) align(r round, c *candidate) time.Duration {
	again := r.after(r.began)
	name, _, _ := envelope.ParseJob(c.Job)
	q := k.demand[name]
	if q == nil || q.listing == nil {
		return again
	}
	next := r.after(q.listing.began)
	if c.task.listed {
		return max(next, time.Until(q.listing.until)) // before that time, the listing would show the same once more
	}
	if next >= k.nap() {
		again = min(again, next)
	}
	return again
}
