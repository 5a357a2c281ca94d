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

	// guess is how many times as many tasks a Keeper expects that is behind, or that has just begun to work and knows no
	// earlier period.
	guess = 4

	// mostListed is the largest queue that is listed. A listed task takes some 40 bytes of memory, and twice as many while
	// the next listing is read.
	mostListed = 4_000_000

	// mostQueues is how many queues a Keeper remembers.
	mostQueues = 10_000
)

// queue is what a Keeper knows of the demand for the tasks of one asynq queue.
type queue struct {
	name   string
	period time.Time // when the present period of Config.Every began
	wanted int       // tasks that were wanted in the present period
	before int       // tasks that were wanted in the previous period
	alone  int       // of wanted: since there is no listing
	size   *size     // the last one, or nil

	last   *listing      // of the last complete round, or nil if that one is too old
	reader *reader       // of the present round, or nil
	done   time.Time     // when last was complete
	round  time.Duration // a task is read again after this time, as a rule
	next   time.Time     // without a reader: when the next round begins
	from   time.Time     // no round begins earlier: a list had no answer
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

// listing has the tasks that one round of reading has shown. A task in a list was alive when its page was read. A task
// that is not in a list may be alive, too: the task may have moved while the pages were read. So nothing is concluded
// from its absence.
type listing struct {
	seed  maphash.Seed        // another seed for each listing: two tasks with one hash do not have one hash for ever
	tasks map[uint64]sighting // by the hash of the ID
	began time.Time
}

// sighting is a task in a list. The times are in ms since listing.began.
type sighting struct {
	seen int64 // when the page was asked for
	due  int64 // twice the time when the task is due, and 1 more for finding.waits
}

func newListing(tasks int64) *listing {
	return &listing{seed: maphash.MakeSeed(), tasks: make(map[uint64]sighting, tasks), began: time.Now()}
}

func (l *listing) add(t *asynq.TaskInfo, seen time.Time) {
	s := sighting{seen: seen.Sub(l.began).Milliseconds(), due: t.NextProcessAt.Sub(l.began).Milliseconds() << 1}
	if nextjob.Waits(envelope.MayWait(t.Headers), t) {
		s.due |= 1
	}
	l.tasks[maphash.String(l.seed, t.ID)] = s
}

// The method at returns the sighting of the task with this ID. A nil listing has no task.
func (l *listing) at(id string) (s sighting, ok bool) {
	if l == nil {
		return s, false
	}
	s, ok = l.tasks[maphash.String(l.seed, id)]
	return s, ok
}

// The method time returns the time of a sighting's field.
func (l *listing) time(ms int64) time.Time { return l.began.Add(time.Duration(ms) * time.Millisecond) }

// The method find returns when the task with this ID was seen, and sets f if the listing has the task.
func (l *listing) find(id string, f *finding) (seen time.Time, ok bool) {
	s, ok := l.at(id)
	if !ok {
		return time.Time{}, false
	}
	*f = finding{kind: alive, listed: true, delay: max(0, time.Until(l.time(s.due>>1))), waits: s.due&1 == 1}
	return l.time(s.seen), true
}

// fromLists fills the array found with the tasks that lists show to be alive, as far as lists cost less than lookups.
// The parameter at has the index in found for each job of the candidates. fromLists returns the indexes of the other
// tasks, which are to be looked up alone.
//
// While the lists of a queue are read for the first time, no task of that queue is looked up. A task that the lists have
// not shown so far gets a finding of the kind later, unless the reservation of the task's lock is about to end. A
// reservation that has ended already waits for the lists: these find many such tasks sooner than lookups do.
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
		if q == nil || marks[job] || !k.shown(q, now, id, &found[i]) ||
			found[i].kind == later && patience[job] > 0 && found[i].again.Sub(now) > patience[job] {
			found[i] = finding{}
			rest = append(rest, i)
		}
	}
	return rest
}

// The method shown sets f if the lists of q have something to say about the task with this ID. A listed task is to be
// checked when its page has been read again. So the lock of a task that is gone then is looked up soon after the page,
// and not after all pages of the queue.
func (k *Keeper) shown(q *queue, now time.Time, id string, f *finding) bool {
	r := q.reader
	if r != nil {
		if seen, ok := r.listing.find(id, f); ok {
			f.again = k.readAgain(q, now, seen)
			return true
		}
		if q.last == nil {
			*f = finding{kind: later, again: now.Add(max(k.nap(), k.callFrom.Sub(now), r.left(now)))}
			return true
		}
	}
	if q.stale(now) {
		return false
	}
	seen, ok := q.last.find(id, f)
	if !ok || r != nil && seen.Before(r.passed) {
		return false // a new task, or the task should have been seen again
	}
	f.again = k.readAgain(q, now, seen)
	return true
}

// The method stale reports whether no reader follows the last round. A task that has ended since would never be missed.
func (q *queue) stale(now time.Time) bool {
	return q.reader == nil && now.Sub(q.next) > q.round/margin
}

// The method readAgain returns when the page of a task that was seen at the given time has been read again.
func (k *Keeper) readAgain(q *queue, now, seen time.Time) time.Time {
	round := max(q.round, k.pace())
	if q.last == nil && q.reader != nil {
		round = max(round, now.Sub(q.reader.listing.began)+q.reader.left(now)) // the first round
	}
	again := seen.Add(round + round/margin)
	if !again.After(now) {
		again = now.Add(round / margin) // the reader is late
	}
	return again
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
	if q.last != nil && q.stale(now) {
		q.last, q.alone = nil, 0
	}
	q.alone += n
	if q.last == nil && q.reader == nil {
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
	if k.behind || now.Sub(k.began) < k.cfg.Every {
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
		if q.last != nil {
			q.reader.pace = k.pace()
		}
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

// The method after returns for how long, from now on, the lock of c waits for its next check, if the check began at the
// time began.
func (k *Keeper) after(began, now time.Time, c *candidate) time.Duration {
	if !c.task.again.IsZero() {
		return max(driver.MinPeriod, c.task.again.Sub(now))
	}
	return k.wait(began, now)
}
