package keeper

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

// lists reads the task lists of queues where that costs less than looking up each task. Only the goroutine of Run uses
// its fields.
type lists struct {
	*pacer
	databases *databases
	demand    map[string]*queue // by name
	read      map[string]*queue // of demand: those whose lists are read
	fetching  bool              // pages of lists are under way
	fetched   chan batchOfPages // gets the pages
}

// fromLists sets the entries of found whose tasks the lists show to be alive, for the queues whose lists cost less than
// lookups. at has, by job, the index in found. fromLists returns the indexes of the other tasks, which must be looked
// up one by one.
//
// While the lists of a queue are read for the first time, no task of that queue is looked up. A task that the lists
// have not shown so far gets a finding of the kind later, unless the reservation of the task's lock is about to end. A
// lock whose reservation has already ended waits for the lists, which find many such tasks sooner than lookups do.
func (l *lists) fromLists(ctx context.Context, list []candidate, at map[string]int, found []finding) (rest []int) {
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
		l.want(ctx, now, name, n)
	}
	for job, i := range at {
		name, id, _ := envelope.ParseJob(job)
		q := l.demand[name]
		if q == nil || marks[job] || !l.shown(q, now, id, &found[i]) ||
			found[i].kind == later && patience[job] > 0 && found[i].again.Sub(now) > patience[job] {
			found[i] = finding{}
			rest = append(rest, i)
		}
	}
	return rest
}

// shown sets f and returns true if the lists of q show what to do about the task with this ID, without a lookup. A
// listed task is checked again when its page has been read again: if the task is then gone, its lock is looked up soon
// after that page was read, and not only after all pages of the queue.
func (l *lists) shown(q *queue, now time.Time, id string, f *finding) bool {
	r := q.reader
	if r != nil {
		if seen, ok := r.listing.find(id, f); ok {
			f.again = l.readAgain(q, now, seen)
			return true
		}
		if q.last == nil {
			*f = finding{kind: later, again: now.Add(max(l.nap(), l.callFrom.Sub(now), r.left(now)))}
			return true
		}
	}
	if q.stale(now) {
		return false
	}
	seen, ok := q.last.find(id, f)
	if !ok || r != nil && seen.Before(r.passed) {
		return false // a new task, or one that should have been seen again
	}
	f.again = l.readAgain(q, now, seen)
	return true
}

// readAgain returns when the page of a task that was seen at the time seen will have been read again.
func (l *lists) readAgain(q *queue, now, seen time.Time) time.Time {
	round := max(q.round, l.pace())
	if q.last == nil && q.reader != nil {
		round = max(round, now.Sub(q.reader.listing.began)+q.reader.left(now)) // the first round
	}
	again := seen.Add(round + round/margin)
	if !again.After(now) {
		again = now.Add(round / margin) // the reader is late
	}
	return again
}

// want notes that n tasks of a queue are wanted. It begins to list the queue if a list costs less than the
// lookups of one period.
func (l *lists) want(ctx context.Context, now time.Time, name string, n int) {
	q := l.demand[name]
	if q == nil {
		if len(l.demand) >= mostQueues {
			clear(l.demand)
			clear(l.read)
		}
		q = &queue{name: name, period: now}
		l.demand[name] = q
	}
	q.roll(now, l.cfg.Interval)
	q.wanted += n
	if q.last != nil && q.stale(now) {
		q.last, q.alone = nil, 0
	}
	q.alone += n
	if q.last == nil && q.reader == nil {
		delete(l.read, name)
		if q.alone >= fewestLookups && !now.Before(q.from) {
			l.begin(ctx, q, now)
		}
	}
}

// begin begins to list a queue, if that costs less than lookups.
func (l *lists) begin(ctx context.Context, q *queue, now time.Time) {
	lookups := max(q.before, q.wanted)
	if l.behind || now.Sub(l.began) < l.cfg.Interval {
		lookups = max(lookups, guess*q.wanted) // more tasks are about to be wanted
	}
	// If a call fails, the lookups fail, too, and inspect reports their errors.
	if q.size == nil || now.Sub(q.size.measured) >= l.cfg.Interval/2 {
		var err error
		if q.size, err = l.measure(ctx, q.name); err != nil {
			return
		}
	}
	if q.size.pays(lookups) {
		q.reader = newReader(l.cfg.Inspectors, q.name, q.size)
		if q.last != nil {
			q.reader.pace = l.pace()
		}
		q.size = nil
		l.read[q.name] = q
	}
}

// measure asks all databases for the size of a queue.
func (l *lists) measure(ctx context.Context, name string) (*size, error) {
	s := &size{infos: make([]*asynq.QueueInfo, len(l.cfg.Inspectors)), measured: time.Now()}
	var bytes, all int64
	for i, in := range l.cfg.Inspectors {
		if err := l.rested(ctx); err != nil {
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
		l.called(time.Since(start))
		l.databases.knows(name)
		s.infos[i] = info
		s.tasks += int64(info.Pending + info.Scheduled + info.Retry)
		all += int64(info.Size)
		bytes += info.MemoryUsage
	}
	s.bytes = bytes / max(1, all)
	return s, nil
}

// due returns the queue whose lists are to be read next, and when. It returns nil if there is none, or while pages are
// under way.
func (l *lists) due() (q *queue, at time.Time) {
	if l.fetching {
		return nil, time.Time{}
	}
	for _, each := range l.read {
		next := each.next
		if each.reader != nil {
			next = latest(l.callFrom, each.reader.turn())
		}
		if q == nil || next.Before(at) {
			q, at = each, next
		}
	}
	return q, at
}

// readOn requests some pages of a queue's lists, or begins the next round. The Keeper goes on with its checks until the
// pages arrive. If a round no longer pays, the queue is not listed until many of its tasks are wanted again.
func (l *lists) readOn(ctx context.Context, q *queue) {
	if q.reader == nil {
		// On error, or if a round does not pay, the last round is used to its end.
		if l.begin(ctx, q, time.Now()); q.reader == nil {
			delete(l.read, q.name)
		}
		return
	}
	r := q.reader
	pages := r.pages[r.read:]
	pages = pages[:min(pagesAtATime, len(pages))]
	l.fetching = true
	out := l.fetched
	go func() {
		got := batchOfPages{q: q, r: r, asked: time.Now(), lists: make([][]*asynq.TaskInfo, len(pages))}
		errs := make([]error, len(pages))
		if each(ctx, len(pages), func(i int) { got.lists[i], errs[i] = pages[i]() }) != nil {
			return // the Keeper has stopped working
		}
		got.took, got.err = time.Since(got.asked), errors.Join(errs...)
		out <- got
	}()
}

// arrived adds pages to the listing of their round.
func (l *lists) arrived(got batchOfPages) {
	l.fetching = false
	q, r := got.q, got.r
	if got.err != nil {
		// A page may be too large where a lookup is not.
		l.cfg.Logger.Warn("worker: the keeper could not read the lists of a queue; for now it looks up each task", "queue", q.name, "err", got.err)
		now := time.Now()
		q.reader, q.next, q.from = nil, now, now.Add(l.cfg.Interval)
		delete(l.read, q.name)
		return
	}
	l.called(got.took)
	before := make(map[int64]int) // when the last round saw these tasks, and how many of them
	for _, tasks := range got.lists {
		for _, t := range tasks {
			r.listing.add(t, got.asked)
			if s, ok := q.last.at(t.ID); ok {
				before[s.seen]++
			}
		}
	}
	most := 0
	for seen, n := range before {
		if n > most {
			most, r.passed = n, latest(r.passed, q.last.time(seen))
		}
	}
	if r.read += len(got.lists); r.read == len(r.pages) {
		l.complete(q)
	}
}

// complete ends the reader's round, which becomes the last round of q.
func (l *lists) complete(q *queue) {
	r, now, since := q.reader, time.Now(), q.done
	if q.last == nil {
		since = r.listing.began
	}
	q.round, q.done = max(l.pace(), now.Sub(since)), now
	q.next = latest(now, r.listing.began.Add(r.pace))
	if q.round+q.round/margin > l.cfg.Interval {
		l.late = latest(l.late, now.Add(q.round))
	}
	q.last, q.reader = r.listing, nil
}
