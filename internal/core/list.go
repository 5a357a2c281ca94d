package core

import (
	"cmp"
	"context"
	"iter"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// listCount is how many keys the store looks at for one page. Redis takes less than a tenth of a millisecond for that
	// many keys, and meanwhile serves no other client: a larger page would delay these clients for longer, a smaller page
	// would cost more round trips.
	listCount = 64

	// listReaders bounds how many parts of a list are read at the same time, and so the pages in memory.
	listReaders = 16
)

// ListOptions is joblock.ListOptions: the fields are the same.
type ListOptions struct {
	Prefix   string
	Ended    bool
	Share    float64
	Progress func(done float64)
}

// List is joblock.Locker.List.
func (l *Locker) List(ctx context.Context, opts ListOptions) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		w := &walk{l: l, opts: opts, pages: make(chan walkPage, listReaders)}
		w.opts.Share = cmp.Or(opts.Share, 0.25)
		if err := w.check(); err != nil {
			yield(Status{}, err)
			return
		}
		var cancel context.CancelFunc
		w.ctx, cancel = context.WithCancel(ctx)
		defer w.reads.Wait()
		defer cancel()
		w.run(yield)
	}
}

const opList = "list"

// walk is one call of List. The goroutine of the loop starts one goroutine for each page. A part's next page is
// requested only when the locks of the previous page were yielded, so a slow loop does not fill the memory, and a loop
// that breaks has requested few pages for nothing.
type walk struct {
	l     *Locker
	opts  ListOptions
	ctx   context.Context // ends with the loop
	pages chan walkPage   // has room for each goroutine's page
	reads sync.WaitGroup
}

// walkPage is the answer to one call of driver.Store.List.
type walkPage struct {
	driver.ListPage
	err  error
	next time.Time // earliest time to read the part's next page
}

// walkStep is a page to request.
type walkStep struct {
	cursor    string
	notBefore time.Time
}

func (w *walk) check() error {
	if err := w.l.open(opList, ""); err != nil {
		return err
	}
	if !(w.opts.Share >= 0.001 && w.opts.Share <= 1) {
		return Invalid(opList, "", "ListOptions.Share is %v, must be from 0.001 to 1", w.opts.Share)
	}
	return CheckText(opList, "", "ListOptions.Prefix", w.opts.Prefix, 0, driver.MaxKeyBytes)
}

// run yields the locks of all pages, or the first error.
func (w *walk) run(yield func(Status, error) bool) {
	todo, reading, done := []walkStep{{}}, 0, 0.0
	for len(todo) > 0 || reading > 0 {
		for len(todo) > 0 && reading < listReaders {
			step := todo[0]
			todo = todo[1:]
			reading++
			w.reads.Go(func() { w.pages <- w.read(step) })
		}
		page := <-w.pages
		reading--
		if page.err != nil {
			yield(Status{}, page.err)
			return
		}
		done = min(1, done+page.Progress)
		w.report(done)
		for _, rec := range page.Records {
			st := StatusOf(rec)
			if (st.Locked() || w.opts.Ended && st.State == driver.StateFree) && !yield(st, nil) {
				return
			}
		}
		for _, cursor := range page.Next {
			todo = append(todo, walkStep{cursor, page.next})
		}
	}
	w.report(1)
}

func (w *walk) report(done float64) {
	if w.opts.Progress != nil {
		w.opts.Progress(done)
	}
}

// read waits until the page may be read, and requests it from the store.
func (w *walk) read(step walkStep) (page walkPage) {
	rest := time.NewTimer(time.Until(step.notBefore))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-w.ctx.Done(): // ask returns the error
	case <-w.l.closing: // open returns the error
	}
	if page.err = w.l.open(opList, ""); page.err != nil {
		return page
	}
	begin := time.Now()
	req := driver.ListRequest{Prefix: w.opts.Prefix, Cursor: step.cursor, Count: listCount}
	page.ListPage, page.err = ask(w.ctx, w.l, opList, "", w.l.store.List, req)
	end := time.Now()
	page.next = end.Add(time.Duration(float64(end.Sub(begin)) * (1/w.opts.Share - 1)))
	return page
}
