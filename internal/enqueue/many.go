package enqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// maxItems is how many items one EnqueueMany can have.
const maxItems = driver.MaxBatch

// manySenders is how many tasks of one EnqueueMany are sent at a time. asynq sends each task in a round trip of its
// own. More senders are hardly faster, and leave fewer connections of asynq's pool to other calls.
const manySenders = 16

// errOtherUnknown is why EnqueueMany ends early although its context has not ended. It does not wrap the other task's
// error: JobOf and joblock.ErrUnavailable would describe the other task instead of the item that was not sent.
var errOtherUnknown = errors.New("it is unknown whether another task of the call was enqueued")

// EnqueueMany is handoff.Client.EnqueueMany.
func (c *Client) EnqueueMany(ctx context.Context, items []Request) ([]Result, error) {
	const op = "enqueue many"
	if err := c.check(op); err != nil {
		return nil, err
	}
	if len(items) > maxItems {
		return nil, Invalid(op, "", "%d items, at most %d are allowed", len(items), maxItems)
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
	next  atomic.Int64 // index of the first line that no goroutine has begun
}

// all returns what is to be enqueued.
func (m *many) all() (all []*dispatch) {
	for _, line := range m.lines {
		for _, it := range line {
			all = append(all, it.dispatch)
		}
	}
	return all
}

// manyItem is an item that can be enqueued.
type manyItem struct {
	*dispatch
	at     int // index of the item
	result *Result
	err    error // of Client.prepare
}

// readItems puts items with a key or a job in common into one line, in the order of the items. An item that has
// something in common with two lines merges them. readItems sets the results of bad items.
func (c *Client) readItems(ctx context.Context, items []Request, results []Result) (lines [][]*manyItem) {
	lineOf := make(map[string]int, 2*len(items)) // by key or job; a text that is both does no harm
	for i, item := range items {
		d, err := c.plan(ctx, item)
		if err != nil {
			results[i].Err = err
			continue
		}
		line := len(lines)
		lines = append(lines, []*manyItem{{dispatch: d, at: i, result: &results[i]}})
		for _, name := range d.names() {
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

// names returns the job of d, and the keys that no other item may take or hand over at the same time.
func (d *dispatch) names() []string {
	_, alone := d.kind.keys()
	return append([]string{d.job}, alone...)
}

// run makes the tokens for the first item of each line, and then handles the lines.
func (m *many) run(ctx context.Context) {
	firsts := make([]*dispatch, len(m.lines))
	for i, line := range m.lines {
		firsts[i] = line[0].dispatch
	}
	for i, err := range m.c.prepare(ctx, firsts...) {
		m.lines[i][0].err = err
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var senders, others sync.WaitGroup
	m.each(running, &senders, func(line []*manyItem) { m.send(ctx, running, stop, line) })
	if sleep.While(running, senders.Wait) != nil {
		// Not in the senders' goroutines: a sender may still wait for asynq, or look a task up.
		dctx, cancel := settling(ctx)
		defer cancel()
		m.each(context.WithoutCancel(ctx), &others, func(line []*manyItem) { notSent(dctx, context.Cause(running), line) })
		others.Wait()
	}
	senders.Wait()
}

// each calls f for every line that no goroutine has begun, until ctx ends.
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

// send handles the items of a line, until running ends. ctx is the context of EnqueueMany.
func (m *many) send(ctx, running context.Context, stop context.CancelCauseFunc, line []*manyItem) {
	for i, it := range line {
		if i > 0 && running.Err() == nil {
			it.err = m.c.prepare(ctx, it.dispatch)[0]
		}
		if running.Err() != nil {
			dctx, cancel := settling(ctx)
			defer cancel()
			notSent(dctx, context.Cause(running), line[i:])
			return
		}
		*it.result, _ = it.submit(ctx, it.err)
		if it.err == nil && errors.Is(it.result.Err, joblock.ErrUnavailable) {
			stop(errOtherUnknown)
		}
	}
}

// notSent takes back the locks of items that are not sent because of cause. It stops trying when ctx ends.
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
