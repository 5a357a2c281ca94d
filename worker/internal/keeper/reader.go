package keeper

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
)

const (
	// pagesAtATime is how many pages a Keeper asks for at a time: while one page is decoded, asynq's Redis puts together
	// another.
	pagesAtATime = 4

	// margin is the fraction of a round after which the lock of a task is checked that has not been read again.
	margin = 20
)

// The method pace returns the time from the beginning of a round to the next. A task may be deleted just after its page
// was read. The task's lock is checked when the page has been read again: one round, its margin and a nap later. That is
// Config.Every, less a twentieth for the check itself.
func (k *Keeper) pace() time.Duration {
	return k.cfg.Every - k.nap() - k.cfg.Every/margin - k.cfg.Every/20
}

// reader reads the lists of a queue's tasks in all databases once, a few pages at a time.
//
// The first round is read as fast as Config.Share allows. The pages of each later round are spread over the round. So
// the checks of the locks are spread, too. A reader reads each list from its end: a task that moves up, because asynq
// took or deleted tasks before it, moves into the pages that are still to be read.
type reader struct {
	listing *listing
	pages   []func() ([]*asynq.TaskInfo, error)
	read    int           // pages
	pace    time.Duration // for all pages; 0 for the first round

	// passed is when, in the last round, the tasks were read that this round has just read. Tasks keep their order. So a
	// task that was read earlier, and that this round has not shown, is not where it was.
	passed time.Time
}

func (k *Keeper) newReader(name string, s *size) *reader {
	page := int(max(10, min(pageTasks, pageBytes/max(1, s.bytes))))
	r := &reader{listing: newListing(s.tasks)}
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
			for n := (state.size + page - 1) / page; n > 0; n-- {
				r.pages = append(r.pages, func() ([]*asynq.TaskInfo, error) {
					return state.list(name, asynq.PageSize(page), asynq.Page(n))
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

// The method turn returns when the reader is to read its next pages.
func (r *reader) turn() time.Time {
	return r.listing.began.Add(r.pace * time.Duration(r.read) / time.Duration(len(r.pages)))
}

// The method due returns the queue whose lists are to be read next, and when. Without such a queue, or while pages are
// under way, due returns nil.
func (k *Keeper) due() (q *queue, at time.Time) {
	if k.fetching {
		return nil, time.Time{}
	}
	for _, each := range k.lists {
		next := each.next
		if each.reader != nil {
			next = latest(k.callFrom, each.reader.turn())
		}
		if q == nil || next.Before(at) {
			q, at = each, next
		}
	}
	return q, at
}

// batchOfPages are pages that a reader has asked for.
type batchOfPages struct {
	q     *queue
	r     *reader
	asked time.Time
	took  time.Duration
	lists [][]*asynq.TaskInfo
	err   error
}

// The method readOn asks for some pages of a queue's lists, or begins the next round. The Keeper goes on with its checks
// until the pages arrive. If a round does not pay any more, the queue is not listed until many of its tasks are wanted
// again.
func (k *Keeper) readOn(ctx context.Context, q *queue) {
	if q.reader == nil {
		// In case of an error or if a round does not pay, the last round serves to its end.
		if k.begin(ctx, q, time.Now()); q.reader == nil {
			delete(k.lists, q.name)
		}
		return
	}
	r := q.reader
	pages := r.pages[r.read:]
	pages = pages[:min(pagesAtATime, len(pages))]
	k.fetching = true
	out := k.fetched
	go func() {
		got := batchOfPages{q: q, r: r, asked: time.Now(), lists: make([][]*asynq.TaskInfo, len(pages))}
		errs := make([]error, len(pages))
		if each(ctx, len(pages), func(i int) { got.lists[i], errs[i] = pages[i]() }) != nil {
			return // the work is over
		}
		got.took, got.err = time.Since(got.asked), errors.Join(errs...)
		out <- got
	}()
}

// The method arrived adds pages to the listing of their round.
func (k *Keeper) arrived(got batchOfPages) {
	k.fetching = false
	q, r := got.q, got.r
	if got.err != nil {
		// A page may be too much where a lookup is not.
		k.cfg.Logger.Warn("worker: the keeper could not read the lists of a queue; for a while the keeper looks each task up", "queue", q.name, "err", got.err)
		now := time.Now()
		q.reader, q.next, q.from = nil, now, now.Add(k.cfg.Every)
		delete(k.lists, q.name)
		return
	}
	k.called(got.took)
	before := make(map[int64]int) // when the last round has seen these tasks, and how many of them
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
		k.complete(q)
	}
}

// The method complete makes what the reader has read the last round of q.
func (k *Keeper) complete(q *queue) {
	r, now, since := q.reader, time.Now(), q.done
	if q.last == nil {
		since = r.listing.began
	}
	q.round, q.done = max(k.pace(), now.Sub(since)), now
	q.next = latest(now, r.listing.began.Add(r.pace))
	if q.round+q.round/margin > k.cfg.Every {
		k.late = latest(k.late, now.Add(q.round))
	}
	q.last, q.reader = r.listing, nil
}
