package pages

import (
	"context"
	"sync"
	"time"
)

const (
	// wantedFor is how long walks go on after the last look.
	wantedFor = 10 * time.Second

	// betweenWalks is the pause between two walks.
	betweenWalks = time.Second

	// fastWalk is how long the first walk may take much of the store's time, and fastShare is how much.
	fastWalk  = 3 * time.Second
	fastShare = 0.25

	// mostRows bounds the memory of a walk. What comes later is counted, and not shown.
	mostRows = 200_000

	// tellEvery is how often a first walk shows what it has found so far.
	tellEvery = 300 * time.Millisecond

	// firstLook is how long a page waits for a first walk.
	firstLook = 60 * time.Millisecond
)

// A walk is what a walker has found. Nobody changes a walk.
type walk[T any] struct {
	rows  []T
	more  int       // how many rows were found besides, and not kept
	began time.Time // of the walk
	at    time.Time // of its end, or of this part of it
	done  float64   // the part of the walk that is done
	took  time.Duration
	err   error // why there is no newer walk

	mu     sync.Mutex
	made   map[string]any // what was computed of the rows: see the function of
	making sync.Map       // by name: *sync.Once
}

func (w *walk[T]) whole() bool { return w.done >= 1 }

// The function of returns what was computed of a walk under a name, or computes it.
func of[T, V any](w *walk[T], name string, compute func() V) V {
	once, _ := w.making.LoadOrStore(name, new(sync.Once))
	once.(*sync.Once).Do(func() {
		v := compute()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.made == nil {
			w.made = make(map[string]any)
		}
		w.made[name] = v
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made[name].(V)
}

// A walker walks again and again while somebody looks, and not at all otherwise. All viewers share its walks.
type walker[T any] struct {
	h *Handler

	// run walks. It calls add for each row and told with the part of the walk that is done.
	run func(ctx context.Context, share float64, add func(T), told func(float64)) error

	// found is called after each whole walk.
	found func(*walk[T])

	mu      sync.Mutex
	last    *walk[T] // nil before the first one
	err     error    // of the last walk
	wanted  time.Time
	running bool
	news    chan struct{} // closed when last or err changes
	again   chan struct{} // asks for a walk at once
}

func newWalker[T any](h *Handler, run func(context.Context, float64, func(T), func(float64)) error, found func(*walk[T])) *walker[T] {
	return &walker[T]{h: h, run: run, found: found, news: make(chan struct{}), again: make(chan struct{}, 1)}
}

// look returns the last walk. If there is none yet, look waits for a first part of one. With an error there is no walk.
// The field err of a walk says why no newer one has succeeded.
func (w *walker[T]) look(ctx context.Context) (*walk[T], error) {
	w.mu.Lock()
	w.wanted = time.Now()
	if !w.running && w.h.enter() {
		w.running = true
		go w.loop()
	}
	has := w.last
	w.mu.Unlock()
	if has == nil || !has.whole() {
		w.await(ctx, has)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.last != nil:
		show := &walk[T]{rows: w.last.rows, more: w.last.more, began: w.last.began, at: w.last.at, done: w.last.done, took: w.last.took, err: w.err}
		if w.err == nil {
			return w.last, nil
		}
		return show, nil
	case w.err != nil:
		return nil, w.err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, errSlow
}

// await waits for a whole walk for a moment and, if there is none at all, for any part of one for longer.
func (w *walker[T]) await(ctx context.Context, has *walk[T]) {
	moment, long := time.NewTimer(firstLook), time.NewTimer(patienceNew)
	defer moment.Stop()
	defer long.Stop()
	for late := false; ; {
		w.mu.Lock()
		news, last, err := w.news, w.last, w.err
		w.mu.Unlock()
		if err != nil || last != nil && (last.whole() || late) {
			return
		}
		select {
		case <-news:
		case <-moment.C:
			late = true
		case <-long.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// refresh asks for a walk at once. The share stays.
func (w *walker[T]) refresh() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

func (w *walker[T]) loop() {
	defer w.h.busy.Done()
	for {
		pause := betweenWalks
		if w.once() != nil {
			pause = retryAfter
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-w.again:
		case <-w.h.ctx.Done():
		}
		timer.Stop()
		w.mu.Lock()
		if w.h.ctx.Err() != nil || time.Since(w.wanted) > wantedFor {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// once walks once. A first walk that takes long is given up, and its part stays until a slow walk has found more.
func (w *walker[T]) once() error {
	w.mu.Lock()
	first := w.last == nil
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(w.h.ctx)
	defer cancel()
	share := w.h.cfg.Share
	if first {
		share = max(share, fastShare)
	}
	now := &walk[T]{began: time.Now()}
	told := now.began.Add(firstLook - tellEvery) // the first part soon: a page waits for it
	err := w.run(ctx, share, func(row T) {
		if len(now.rows) < mostRows {
			now.rows = append(now.rows, row)
		} else {
			now.more++
		}
	}, func(done float64) {
		now.done = min(done, 0.999) // whole only after the last row
		if first && time.Since(now.began) > fastWalk {
			cancel()
		}
		if time.Since(told) > tellEvery {
			told = time.Now()
			w.tell(now, nil)
		}
	})
	if first && ctx.Err() != nil && w.h.ctx.Err() == nil {
		w.tell(now, nil)
		return nil
	}
	if err == nil {
		now.done = 1
		now.took = time.Since(now.began)
	}
	w.tell(now, err)
	return err
}

// tell shows a copy of what a walk has found, unless the last walk has found more.
func (w *walker[T]) tell(now *walk[T], err error) {
	copied := &walk[T]{rows: now.rows[:len(now.rows):len(now.rows)], more: now.more, began: now.began, at: time.Now(), done: now.done, took: now.took}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && (copied.whole() || w.last == nil || !w.last.whole() && len(copied.rows) >= len(w.last.rows)) {
		w.last = copied
		if copied.whole() && w.found != nil {
			w.found(copied)
		}
	}
	if err != nil || copied.whole() {
		w.err = err
	}
	close(w.news)
	w.news = make(chan struct{})
}
