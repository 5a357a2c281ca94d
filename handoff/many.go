package handoff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// MaxItems is how many items one EnqueueMany can have. Send more with slices.Chunk.
const MaxItems = driver.MaxBatch

// manySenders is how many tasks of one EnqueueMany are sent at a time. asynq sends each task in a round trip of its
// own. More senders are hardly faster, and leave fewer connections of asynq's pool to others.
const manySenders = 16

// ErrNotSent says that a task was certainly not sent to asynq: ctx ended first, or EnqueueMany ended early. The package
// comment says who then has the task's unique key or locks.
var ErrNotSent = errors.New("not sent")

// errOtherUnknown is why EnqueueMany ends early although its context has not ended. To wrap the other task's error
// would make JobOf and joblock.ErrUnavailable describe the other task instead of the item that was not sent.
var errOtherUnknown = errors.New("it is unknown whether another task of the call was enqueued")

// Item is a task for EnqueueMany, with one of Unique, Sequence and Locks.
type Item struct {
	Task *asynq.Task
	Opts []asynq.Option // override those of Task, as in asynq

	// Unique enqueues Task as EnqueueUnique does.
	Unique Unique

	// Sequence enqueues Task as EnqueueInSequence does. Items of one sequence get their places in the order of the
	// items.
	Sequence Sequence

	// Locks are handed over to the job of Task as EnqueueAll does.
	Locks joblock.Locks
}

// Result is what EnqueueMany did with one Item: what EnqueueUnique, EnqueueInSequence, Enqueue or EnqueueAll
// would have returned. With an Err there is no Task.
type Result struct {
	Enqueued
	Err error
}

// EnqueueMany enqueues up to MaxItems tasks; the package comment has the rules. EnqueueMany takes all keys, and places
// in the lines of keys, in one round trip to the locks' store, and parks all locks in another. The order of tasks in a
// queue is not that of the items. But the jobs of one sequence run in the order of the items.
//
// The results are in the order of the items. Each result is that of a single call for the item, and one item's failure
// does not affect other items. Items with the same key or the same asynq.TaskID are handled one after another: of two
// items with one unique key the first gets the key, and Unique.OnConflict of the second decides about the second.
//
// If EnqueueMany ends early, the errors of the tasks that are not sent match ErrNotSent, and the cause of ctx if ctx
// has ended. EnqueueMany returns at most three seconds after the end of ctx, or nine if it replaces a job.
//
// EnqueueMany itself returns an error only if it has done nothing. There are then no results. Reasons are more than
// MaxItems items or a bad Client (ErrInvalid), a ctx that had ended before the call, and a locks' store that did not
// answer when this process needed its first seal key.
func (c *Client) EnqueueMany(ctx context.Context, items []Item) ([]Result, error) {
	const op = "enqueue many"
	if err := c.check(op); err != nil {
		return nil, err
	}
	if len(items) > MaxItems {
		return nil, invalid(op, "", "%d items, at most %d are allowed", len(items), MaxItems)
	}
	err := context.Cause(ctx)
	if err == nil {
		err = c.ready(ctx, op)
	}
	if err != nil {
		return nil, fmt.Errorf("handoff: %s: %w", op, err)
	}
	results := make([]Result, len(items))
	m := many{c: c, lines: c.readItems(ctx, items, results)}
	ctx, span := c.traced(ctx, m.all()...)
	m.run(ctx)
	for _, r := range results {
		err = cmp.Or(err, r.Err)
	}
	span.End("", err)
	return results, nil
}

// many is one call of EnqueueMany. A line is a list of items that must be handled one after another.
type many struct {
	c     *Client
	lines [][]*manyItem
	next  atomic.Int64 // index of the first line that nobody has begun
}

// The method all returns what is to be enqueued.
func (m *many) all() (all []*handover) {
	for _, line := range m.lines {
		for _, it := range line {
			all = append(all, it.handover)
		}
	}
	return all
}

// manyItem is an item that can be enqueued.
type manyItem struct {
	*handover
	at     int // index of the item
	result *Result
	err    error // of Client.prepare
}

// readItems puts items with a key or a job in common into one line, in the order of the items. If an item has something
// in common with two lines, they become one line. readItems sets the results of bad items.
func (c *Client) readItems(ctx context.Context, items []Item, results []Result) (lines [][]*manyItem) {
	lineOf := make(map[string]int, 2*len(items)) // by key or job; a text that is both does no harm
	for i, item := range items {
		h, err := c.itemHandover(item)
		if err == nil && h.locks == nil && h.sequence == nil {
			err = h.checkCarried(ctx)
		}
		if err != nil {
			results[i].Err = err
			continue
		}
		line := len(lines)
		lines = append(lines, []*manyItem{{handover: h, at: i, result: &results[i]}})
		for _, name := range h.names() {
			if other, ok := lineOf[name]; ok && other != line {
				for _, it := range lines[other] {
					for _, name := range it.names() {
						lineOf[name] = line
					}
				}
				lines[line], lines[other] = append(lines[other], lines[line]...), nil
			}
			lineOf[name] = line
		}
		slices.SortFunc(lines[line], func(a, b *manyItem) int { return cmp.Compare(a.at, b.at) })
	}
	lines = slices.DeleteFunc(lines, func(line []*manyItem) bool { return line == nil })
	// Client.prepare takes the keys of the first items in this order, which is the order of jobs in a sequence.
	slices.SortFunc(lines, func(a, b []*manyItem) int { return cmp.Compare(a[0].at, b[0].at) })
	return lines
}

func (c *Client) itemHandover(item Item) (*handover, error) {
	unique, sequence, locks := item.Unique != Unique{}, item.Sequence != Sequence{}, item.Locks != nil
	switch {
	case item.Unique.Limit != 0:
		return nil, invalid("enqueue", item.Unique.Key, "Unique.Limit is %d, must be 0 with EnqueueMany: use EnqueueUnique", item.Unique.Limit)
	case unique && !sequence && !locks:
		return c.uniqueHandover(item.Unique, item.Task, item.Opts)
	case sequence && !unique && !locks:
		return c.sequenceHandover(item.Sequence, item.Task, item.Opts)
	case locks && !unique && !sequence:
		return c.lockHandover(item.Locks, item.Task, item.Opts)
	}
	return nil, invalid("enqueue", item.Unique.Key, "the item must have one of Unique, Sequence and Locks; it has Unique: %t, Sequence: %t, Locks: %t",
		unique, sequence, locks)
}

// The method notSent returns the error for a task that was not sent because of cause.
func (s *taskSpec) notSent(cause error) error { return s.wrap(fmt.Errorf("%w: %w", ErrNotSent, cause)) }

// The method names returns the job of h, and the keys that h takes or hands over. The method leaves out the key of a
// sequence: the places of several jobs in one line are taken together.
func (h *handover) names() []string {
	switch {
	case h.locks == nil && h.sequence != nil:
		return []string{h.job}
	case h.locks == nil:
		return []string{h.job, h.unique.slot()}
	}
	names := []string{h.job}
	for _, lock := range h.locks {
		names = append(names, lock.Key())
	}
	return names
}

// run makes the tokens for the first item of each line, and then handles the lines.
func (m *many) run(ctx context.Context) {
	firsts := make([]*handover, len(m.lines))
	for i, line := range m.lines {
		firsts[i] = line[0].handover
	}
	for i, err := range m.c.prepare(ctx, firsts...) {
		m.lines[i][0].err = err
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var senders, others sync.WaitGroup
	m.each(running, &senders, func(line []*manyItem) { m.send(ctx, running, stop, line) })
	if sleep.While(running, senders.Wait) != nil {
		// Other goroutines than the senders do this: a sender may still wait for asynq, or look a task up.
		dctx, cancel := settling(ctx)
		defer cancel()
		m.each(context.WithoutCancel(ctx), &others, func(line []*manyItem) { notSent(dctx, context.Cause(running), line) })
		others.Wait()
	}
	senders.Wait()
}

// The method each calls f for every line that nobody has begun, until ctx ends.
func (m *many) each(ctx context.Context, wg *sync.WaitGroup, f func(line []*manyItem)) {
	for range min(manySenders, len(m.lines)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := m.next.Add(1) - 1
				if i >= int64(len(m.lines)) {
					return
				}
				f(m.lines[i])
			}
		})
	}
}

// send handles the items of a line, until the context running ends. The parameter ctx is that of EnqueueMany.
func (m *many) send(ctx, running context.Context, stop context.CancelCauseFunc, line []*manyItem) {
	for i, it := range line {
		if i > 0 && running.Err() == nil {
			it.err = m.c.prepare(ctx, it.handover)[0]
		}
		if running.Err() != nil {
			dctx, cancel := settling(ctx)
			defer cancel()
			notSent(dctx, context.Cause(running), line[i:])
			return
		}
		it.result.Enqueued, it.result.Err = it.finish(ctx, it.err)
		if it.err == nil && errors.Is(it.result.Err, joblock.ErrUnavailable) {
			stop(errOtherUnknown)
		}
	}
}

// The function notSent takes back the locks of items that are not sent because of cause. The end of ctx ends its tries.
func notSent(ctx context.Context, cause error, items []*manyItem) {
	for _, it := range items {
		err := it.err
		if joblock.CodeOf(err) == "" { // nil, or about ctx
			err = it.notSent(cause)
		}
		if len(it.tokens) > 0 {
			err = it.takeBack(ctx, err)
		}
		it.result.Err = err
	}
}
