package ops

import (
	"cmp"
	"context"
	"iter"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// indexPage is how many entries of the index of jobs a walk reads per call.
	indexPage = 250

	defaultShare = 0.25 // as in joblock.ListOptions
)

// bound is an entry of the index of jobs, with the record of the entry's key. The record may be bound to another job.
type bound struct {
	driver.Entry
	record driver.Record // with Record.Place, if the job waits
}

// index is the index of jobs in a store.
type index struct{ in *core.Locker }

func (d *Desk) index() index { return index{d.in} }

// pages iterates over the index of jobs page by page, and reads the records of the entries for which wants returns true.
// After a page that took the time t, it pauses for t*(1/share-1). If the loop's body calls the servers, its time counts
// too.
func (x index) pages(ctx context.Context, share float64, progress func(float64), wants func(driver.Entry) bool) iter.Seq2[[]bound, error] {
	const op = "list jobs"
	return func(yield func([]bound, error) bool) {
		share = cmp.Or(share, defaultShare)
		if err := x.in.Check(op); err != nil {
			yield(nil, err)
			return
		}
		if !(share >= 0.001 && share <= 1) {
			yield(nil, core.Invalid(op, "", "the share is %v, must be from 0.001 to 1", share))
			return
		}
		parts := x.in.Parts()
		for part := range parts {
			done := 0.0
			for req := (driver.EntriesRequest{Part: part, Count: indexPage}); ; {
				began := time.Now()
				page, found, err := x.page(ctx, op, req, wants)
				if err == nil {
					done = min(1, done+page.Progress)
					if page.Next == "" {
						done = 1
					}
					if progress != nil {
						progress((float64(part) + done) / float64(parts))
					}
				}
				if !yield(found, err) || err != nil {
					return
				}
				if req.Cursor = page.Next; req.Cursor == "" {
					break
				}
				rest := time.Duration(float64(time.Since(began)) * (1/share - 1))
				if err := sleep.For(ctx, rest); err != nil {
					yield(nil, err)
					return
				}
			}
		}
	}
}

// page reads a page of the index, and the records of the entries for which wants returns true.
func (x index) page(ctx context.Context, op string, req driver.EntriesRequest, wants func(driver.Entry) bool) (page driver.EntriesPage, found []bound, err error) {
	err = x.in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		page, err = store.Entries(ctx, req)
		return err
	})
	if err != nil {
		return page, nil, err
	}
	var read driver.InspectRequest
	for _, l := range page.Entries {
		if wants(l) {
			found = append(found, bound{Entry: l})
			read.Keys, read.Places = append(read.Keys, l.Key), append(read.Places, core.PlaceOf(l.Job))
		}
	}
	for from := 0; from < len(found); from += driver.MaxBatch {
		to := min(len(found), from+driver.MaxBatch)
		recs, err := x.in.Inspect(ctx, op, "", driver.InspectRequest{Keys: read.Keys[from:to], Places: read.Places[from:to]})
		if err != nil {
			return page, nil, err
		}
		for i, rec := range recs {
			found[from+i].record = rec
		}
	}
	return page, found, nil
}

// locks iterates over the locks that are bound to a job, and match the queue and the prefix of q.
func (x index) locks(ctx context.Context, q LocksQuery) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		for found, err := range x.pages(ctx, q.Share, q.Progress, q.wantsEntry) {
			if err != nil {
				yield(Lock{}, err)
				return
			}
			for _, b := range found {
				if l := lockOf(b.record); q.binds(b, l) && !yield(l, nil) {
					return
				}
			}
		}
	}
}

func (q *LocksQuery) wantsEntry(l driver.Entry) bool {
	return strings.HasPrefix(l.Key, q.Prefix) && isIn(l.Job, q.Queue)
}

// binds reports whether l, as it was read, is still bound to the job of the index entry b.
func (q *LocksQuery) binds(b bound, l Lock) bool {
	return l.Job == b.Job && (l.Locked() || q.free() && l.State == joblock.StateFree)
}

// isIn reports whether job is in the asynq queue. The queue "" matches every job.
func isIn(job, queue string) bool {
	in, _, _ := envelope.ParseJob(job)
	return queue == "" || in == queue
}

// locksPage is LocksPage for the locks that are bound to a job.
func (x index) locksPage(ctx context.Context, q LocksQuery, from string, most int) (page Page, err error) {
	walk := indexWalk{op: "list", share: q.Share, until: time.Now().Add(pageTime), wants: q.wantsEntry}
	page.Items, page.Next, err = pageOf(ctx, x, walk, from, most, func(some []bound) (locks []Lock) {
		for _, b := range some {
			if l := lockOf(b.record); q.binds(b, l) && q.wants(l) {
				locks = append(locks, l)
			}
		}
		return locks
	})
	return page, err
}

// place decodes from, the place in the index at which a page begins.
func (x index) place(op, from string) (jobStep, error) {
	at, ok := parseJobStep(from)
	if !ok || at.Part >= x.in.Parts() {
		return at, core.Invalid(op, "", "cursor does not come from an earlier page")
	}
	return at, nil
}

// lines reads the index of jobs, and groups its entries by the keys of their lines. It reads no records.
func (x index) lines(ctx context.Context, q SequencesQuery) (jobLines, error) {
	lines := make(jobLines)
	note := func(l driver.Entry) bool {
		lines.note(l, q.Prefix)
		return false
	}
	progress := func(done float64) {
		if q.Progress != nil {
			q.Progress(done / 2)
		}
	}
	for _, err := range x.pages(ctx, q.Share, progress, note) {
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}
