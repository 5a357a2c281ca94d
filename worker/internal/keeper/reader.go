package keeper

import (
	"time"

	"github.com/hibiken/asynq"
)

// pagesAtATime is how many pages a Keeper requests at a time: while one page is decoded, asynq's Redis assembles
// another.
const pagesAtATime = 4

// reader reads the lists of a queue's tasks in all databases once, a few pages at a time.
//
// The first round is read as fast as Config.MaxLoad allows. The pages of each later round are spread over the round,
// and with them the checks of the locks. A reader reads each list from its end: a task that moves up, because asynq
// took or deleted tasks before it, moves into the pages that are still to be read.
type reader struct {
	listing *listing
	pages   []func() ([]*asynq.TaskInfo, error)
	read    int           // how many pages
	pace    time.Duration // for all pages; 0 for the first round

	// passed is when the last round read the tasks that this round has just read. Tasks keep their order, so a task
	// that the last round read earlier, and that this round has not shown, is gone or has moved.
	passed time.Time
}

func newReader(inspectors []*asynq.Inspector, name string, s *size) *reader {
	page := int(max(10, min(pageTasks, pageBytes/max(1, s.bytes))))
	r := &reader{listing: newListing(s.tasks)}
	for i, in := range inspectors {
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

// left estimates how long the reader will take for the remaining pages.
func (r *reader) left(now time.Time) time.Duration {
	const unknown = time.Second
	if r.read == 0 {
		return unknown
	}
	return now.Sub(r.listing.began) * time.Duration(len(r.pages)-r.read) / time.Duration(r.read)
}

// turn returns when the reader is to read its next pages.
func (r *reader) turn() time.Time {
	return r.listing.began.Add(r.pace * time.Duration(r.read) / time.Duration(len(r.pages)))
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

// stale reports whether no reader has followed the last round in time: the end of a task since then would never be
// noticed.
func (q *queue) stale(now time.Time) bool {
	return q.reader == nil && now.Sub(q.next) > q.round/margin
}

// roll begins a new period if the present one has ended.
func (q *queue) roll(now time.Time, every time.Duration) {
	if since := now.Sub(q.period); since >= every {
		q.before = q.wanted
		if since >= 2*every {
			q.before = 0
		}
		q.period, q.wanted, q.alone = now, 0, 0
	}
}
