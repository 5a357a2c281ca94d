package keeper

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
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

	// mostListed is the largest queue that is listed. A listed task takes some 40 bytes of memory, and twice as many while
	// the next listing is read.
	mostListed = 4_000_000

	// mostQueues is how many queues a Keeper remembers.
	mostQueues = 10_000

	// pagesAtATime is how many pages a Keeper asks for at a time: while one page is decoded, asynq's Redis puts together
	// another.
	pagesAtATime = 4

	// checkCost is an estimate of the time that the check of a listed lock takes.
	checkCost = 15 * time.Microsecond
)

// queue is what a Keeper knows of the demand for the tasks of one asynq queue.
type queue struct {
	name    string
	period  time.Time // when the present period of Config.Every began
	wanted  int       // tasks that were wanted in the present period
	before  int       // tasks that were wanted in the previous period
	alone   int       // of wanted: since there is no listing
	size    *size     // the last one, or nil
	listing *listing  // the last one, or nil if that one is too old
	reader  *reader   // of the next listing, or nil
	from    time.Time // no reader begins earlier: a list had no answer
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
	next  time.Time // when to begin the next listing
	again time.Time // when the locks of the listed tasks are due again, and the next listing is complete
}

// fromLists fills the array found with the tasks that lists show to be alive, as far as lists cost less than lookups.
// The parameter at has the index in found for each job of the candidates. fromLists returns the indexes of the other
// tasks, which are to be looked up alone.
//
// While the lists of a queue are read, no task of that queue is looked up. A task that the lists have not shown so far
// gets a finding of the kind later, unless the reservation of the task's lock is about to end. A reservation that has
// ended already waits for the lists: these find many such tasks sooner than lookups do.
func (k *Keeper) fromLists(ctx context.Context, list []candidate, at map[string]int, found []finding) (rest []int) {
	wanted := make(map[string]int)
	marks := make(map[string]bool)             // judgeMark needs more than a list shows
	patience := make(map[string]time.Duration) // by job: for how long the check may be postponed
	for i := range list {
		c := &list[i]
		if left := c.lock.Reserved; left > 0 {
			patience[c.Job] = cmp.Or(min(patience[c.Job], left/2), left/2)
		}
		if name, _, ok := envelope.ParseJob(c.Job); !ok || c.mark() {
			marks[c.Job] = true
		} else {
			wanted[name]++
		}
	}
	now := time.Now()
	for name, n := range wanted {
		k.want(ctx, now, name, n)
	}
	for job, i := range at {
		name, id, _ := envelope.ParseJob(job)
		q := k.demand[name]
		if q == nil || marks[job] || !q.find(now, max(k.nap(), k.callFrom.Sub(now)), id, &found[i]) ||
			found[i].kind == later && patience[job] > 0 && found[i].again.Sub(now) > patience[job] {
			found[i] = finding{}
			rest = append(rest, i)
		}
	}
	return rest
}

// The method find sets f if the listing, or the reader of the next one, has something to say about the task with this
// ID. A lock is checked again after nap or later.
func (q *queue) find(now time.Time, nap time.Duration, id string, f *finding) bool {
	if q.listing != nil && q.listing.find(id, q.listing.again, f) {
		return true
	}
	if q.reader == nil || q.listing != nil {
		return false
	}
	ready := now.Add(max(nap, q.reader.left(now)))
	if !q.reader.listing.find(id, ready, f) {
		*f = finding{kind: later, again: ready}
	}
	return true
}

// The method want notes that n tasks of a queue are wanted. It begins to list the queue if a list costs less than the
// lookups of one period.
func (k *Keeper) want(ctx context.Context, now time.Time, name string, n int) {
	q := k.demand[name]
	if q == nil {
		if len(k.demand) >= mostQueues {
			clear(k.demand)
			clear(k.lists)
		}
		q = &queue{name: name, period: now}
		k.demand[name] = q
	}
	q.roll(now, k.cfg.Every)
	q.wanted += n
	if q.listing != nil && !now.Before(q.listing.again) {
		q.listing, q.alone = nil, 0
	}
	q.alone += n
	if q.listing == nil && q.reader == nil {
		delete(k.lists, name)
		if q.alone >= fewestLookups && !now.Before(q.from) {
			k.begin(ctx, q, now)
		}
	}
}

// The method roll begins a new period if the present one is over.
func (q *queue) roll(now time.Time, every time.Duration) {
	if since := now.Sub(q.period); since >= every {
		q.before = q.wanted
		if since >= 2*every {
			q.before = 0
		}
		q.period, q.wanted, q.alone = now, 0, 0
	}
}

// The method begin begins to list a queue, if that pays.
func (k *Keeper) begin(ctx context.Context, q *queue, now time.Time) {
	lookups := max(q.before, q.wanted)
	if k.behind {
		lookups = max(lookups, guess*q.wanted) // more tasks are about to be wanted
	}
	// If a call fails, the lookups fail, too, and inspect reports their errors.
	if q.size == nil || now.Sub(q.size.measured) >= k.cfg.Every/2 {
		var err error
		if q.size, err = k.measure(ctx, q.name); err != nil {
			return
		}
	}
	if q.size.pays(lookups) {
		q.reader = k.newReader(q.name, q.size)
		q.size = nil
		k.lists[q.name] = q
	}
}

// The method measure asks all databases for the size of a queue.
func (k *Keeper) measure(ctx context.Context, name string) (*size, error) {
	s := &size{infos: make([]*asynq.QueueInfo, len(k.cfg.Inspectors)), measured: time.Now()}
	var bytes, all int64
	for i, in := range k.cfg.Inspectors {
		if err := k.rested(ctx); err != nil {
			return nil, err
		}
		start := time.Now()
		info, err := in.GetQueueInfo(name)
		if errors.Is(err, asynq.ErrQueueNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		k.called(time.Since(start))
		k.knows(name)
		s.infos[i] = info
		s.tasks += int64(info.Pending + info.Scheduled + info.Retry)
		all += int64(info.Size)
		bytes += info.MemoryUsage
	}
	s.bytes = bytes / max(1, all)
	return s, nil
}

// reader reads the lists of a queue's tasks in all databases, a few pages at a time.
type reader struct {
	listing *listing
	pages   []func() ([]*asynq.TaskInfo, error)
	read    int // pages
}

func (k *Keeper) newReader(name string, s *size) *reader {
	page := int(max(10, min(pageTasks, pageBytes/max(1, s.bytes))))
	r := &reader{listing: &listing{seed: maphash.MakeSeed(), tasks: make(map[uint64]int64, s.tasks), began: time.Now()}}
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
				r.pages = append(r.pages, func() ([]*asynq.TaskInfo, error) {
					return state.list(name, asynq.PageSize(page), asynq.Page(n+1))
				})
			}
		}
	}
	return r
}

// The method left estimates how long the reader will take for the other pages.
func (r *reader) left(now time.Time) time.Duration {
	const unknown = time.Second
	if r.read == 0 {
		return unknown
	}
	return now.Sub(r.listing.began) * time.Duration(len(r.pages)-r.read) / time.Duration(r.read)
}

// The method due returns the queue whose list is to be read next, and when. Without such a queue, due returns nil.
func (k *Keeper) due() (q *queue, at time.Time) {
	for _, each := range k.lists {
		next := k.callFrom
		if each.reader == nil {
			next = each.listing.next
		}
		if q == nil || next.Before(at) {
			q, at = each, next
		}
	}
	return q, at
}

// The method readOn reads some pages of a queue's lists, or begins the next listing of the queue. If that does not pay
// any more, the queue is not listed until many of its tasks are wanted again. After an error, too.
func (k *Keeper) readOn(ctx context.Context, q *queue) {
	r, now := q.reader, time.Now()
	if r == nil {
		// In case of an error or if a listing does not pay, the old listing serves to its end.
		if k.begin(ctx, q, now); q.reader == nil {
			delete(k.lists, q.name)
		}
		return
	}
	if k.rested(ctx) != nil {
		return
	}
	pages := r.pages[r.read:]
	pages = pages[:min(pagesAtATime, len(pages))]
	lists := make([][]*asynq.TaskInfo, len(pages))
	errs := make([]error, len(pages))
	start := time.Now()
	if each(ctx, len(pages), func(i int) { lists[i], errs[i] = pages[i]() }) != nil {
		return
	}
	if err := errors.Join(errs...); err != nil {
		// A page may be too much where a lookup is not.
		k.cfg.Logger.Warn("worker: the keeper could not read the lists of a queue; for a while the keeper looks each task up", "queue", q.name, "err", err)
		q.reader, q.from = nil, now.Add(k.cfg.Every)
		delete(k.lists, q.name)
		return
	}
	k.called(time.Since(start))
	for _, tasks := range lists {
		r.listing.add(tasks)
	}
	if r.read += len(pages); r.read == len(r.pages) {
		k.complete(q)
	}
}

// The method complete makes what the reader has read the listing of q.
//
// A task may end just after the reader has read the task's page. The lock of such a task is freed after the next
// listing, and that is to be one Config.Every after the page at most. So the next listing is complete when Config.Every
// has passed since this listing began, less the time that the checks take.
func (k *Keeper) complete(q *queue) {
	l, now := q.reader.listing, time.Now()
	took := now.Sub(l.began)
	period := k.again() - took - time.Duration(max(q.before, q.wanted))*checkCost
	l.again = now.Add(max(period, took, driver.MinPeriod))
	l.next = l.again.Add(-took - took/10)
	if l.again.Sub(l.began) > k.cfg.Every {
		k.late = latest(k.late, l.again)
	}
	q.listing, q.reader = l, nil
}

func (l *listing) add(tasks []*asynq.TaskInfo) {
	for _, t := range tasks {
		due := t.NextProcessAt.Sub(l.began).Milliseconds() << 1
		if nextjob.Waits(envelope.MayWait(t.Headers), t) {
			due |= 1
		}
		l.tasks[maphash.String(l.seed, t.ID)] = due
	}
}

// The method find sets f if the listing has the task with this ID. The task's lock is due again at the time again.
func (l *listing) find(id string, again time.Time, f *finding) bool {
	due, ok := l.tasks[maphash.String(l.seed, id)]
	if ok {
		delay := time.Until(l.began.Add(time.Duration(due>>1) * time.Millisecond))
		*f = finding{kind: alive, listed: true, again: again, delay: max(0, delay), waits: due&1 == 1}
	}
	return ok
}

// The method after returns for how long, from now on, the lock of c waits for its next check, if the check began at the
// time began. All tasks that a listing has shown come up together. So the next listing serves all of them.
func (k *Keeper) after(began, now time.Time, c *candidate) time.Duration {
	if !c.task.again.IsZero() {
		return max(driver.MinPeriod, c.task.again.Sub(now))
	}
	return k.wait(began, now)
}
