package pages

import (
	"context"
	"sync"
	"time"
)

const (
	// wantedFor is how long a walker goes on after a page last used it.
	wantedFor = 10 * time.Second

	// betweenWalks is the shortest and longestPause the longest pause between two walks. In between, the pause is as long
	// as the walk was, because that also shows how busy this machine is.
	betweenWalks = time.Second
	longestPause = 10 * time.Second

	// fastShare is how much of the store's time a first walk may take, and fastWalk is for how long. A walk is a first
	// walk if there has been none for a while.
	fastWalk  = 3 * time.Second
	fastShare = 0.25

	// mostRows bounds the memory of a walk. Further rows are only counted.
	mostRows = 200_000

	// firstLook is how long pages wait for the end of a first walk, counted from its beginning.
	firstLook = 40 * time.Millisecond
)

// A walk is what a walker has found. It is immutable.
type walk[T any] struct {
	rows  []T
	more  int       // how many more rows were found and not kept
	began time.Time // when the walk began
	at    time.Time // when the walk ended, or when this part of it was copied
	done  float64   // the part of the walk that is done
	took  time.Duration
	err   error // why there is no newer walk

	mu     sync.Mutex
	made   map[string]any // what was computed from the rows; see of
	making sync.Map       // by name: *sync.Once
}

func (w *walk[T]) whole() bool { return w.done >= 1 }

// some reports whether the walk has anything to show.
func (w *walk[T]) some() bool { return w != nil && (w.done > 0 || len(w.rows) > 0) }

// of returns what was computed from a walk under a name. It calls compute the first time.
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

// A walker walks repeatedly while there are viewers, and not at all otherwise. All viewers share its walks.
type walker[T any] struct {
	h *Handler

	// run walks. It calls add for each row, and progress with the fraction of the walk that is done.
	run func(ctx context.Context, share float64, add func(T), progress func(float64)) error

	// found is called after each complete walk.
	found func(*walk[T])

	mu      sync.Mutex
	last    *walk[T] // nil before the first one; incomplete if a first walk was abandoned
	part    *walk[T] // what the present walk has found so far; nil if there is none
	err     error    // of the last walk
	wanted  time.Time
	running bool
	since   time.Time     // when the present period of viewing began
	first   bool          // the next walk is a first walk
	fast    time.Time     // when the latest first walk has begun
	news    chan struct{} // closed when last or err changes, and when a walk finds its first rows
	again   chan struct{} // asks for a walk at once
}

func newWalker[T any](h *Handler, run func(context.Context, float64, func(T), func(float64)) error, found func(*walk[T])) *walker[T] {
	return &walker[T]{h: h, run: run, found: found, news: make(chan struct{}), again: make(chan struct{}, 1)}
}

// look returns the last walk. If there is none yet, it waits until a walk has found something. If it returns an error,
// there is no walk. The err of a walk says why no newer one has succeeded; for a walk from an earlier period of viewing
// it is errSlow until there is a newer one.
func (w *walker[T]) look(ctx context.Context) (*walk[T], error) {
	w.mu.Lock()
	now := time.Now()
	w.wanted = now
	if !w.running && w.h.enter() {
		w.running, w.since, w.err = true, now, nil
		w.h.walking.Add(1)
		// Opening a page now and then must cost no more than a page that stays open.
		if rest := time.Duration(float64(fastWalk) * fastShare / w.h.cfg.Share); w.last == nil || now.Sub(w.fast) >= rest {
			w.first, w.fast = true, now
		}
		go w.loop()
	}
	wait := !w.has()
	w.mu.Unlock()
	if wait {
		w.await(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.last
	if p := w.part; p.some() && (last == nil || !last.whole() && len(p.rows) >= len(last.rows)) {
		return &walk[T]{rows: p.rows[:len(p.rows):len(p.rows)], more: p.more, began: p.began, at: time.Now(), done: p.done, err: w.err}, nil
	}
	switch {
	case last != nil:
		err := w.err
		if err == nil && w.old(last) {
			err = errSlow
		}
		if err == nil {
			return last, nil
		}
		return &walk[T]{rows: last.rows, more: last.more, began: last.began, at: last.at, done: last.done, took: last.took, err: err}, nil
	case w.err != nil:
		return nil, w.err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, errSlow
}

// has reports whether there is a complete walk of the present period of viewing. The caller has locked w.mu.
func (w *walker[T]) has() bool { return w.last != nil && w.last.whole() && !w.old(w.last) }

// old reports whether a walk is from an earlier period of viewing. The caller has locked w.mu.
func (w *walker[T]) old(has *walk[T]) bool { return w.since.Sub(has.at) > wantedFor }

// await waits for a complete new walk until firstLook has elapsed. If there is nothing at all to show, it waits up to
// patienceNew for a part of a walk.
func (w *walker[T]) await(ctx context.Context) {
	w.mu.Lock()
	moment, long := time.NewTimer(time.Until(w.since.Add(firstLook))), time.NewTimer(patienceNew)
	w.mu.Unlock()
	defer moment.Stop()
	defer long.Stop()
	for late := false; ; {
		w.mu.Lock()
		news, err := w.news, w.err
		all, some := w.has(), w.last != nil || w.part.some()
		w.mu.Unlock()
		if err != nil || all || some && late {
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

// refresh requests a walk at once. That walk takes the same share of the store's time as any other.
func (w *walker[T]) refresh() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

func (w *walker[T]) loop() {
	defer w.h.busy.Done()
	for {
		timer := time.NewTimer(w.once())
		select {
		case <-timer.C:
		case <-w.again:
		case <-w.h.ctx.Done():
		}
		timer.Stop()
		w.mu.Lock()
		if w.h.ctx.Err() != nil || time.Since(w.wanted) > wantedFor {
			w.running = false
			w.h.walking.Add(-1)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// once walks once, and returns how long to rest afterwards. A slow first walk is abandoned; what it has found stays until
// a regular walk has found more.
func (w *walker[T]) once() (rest time.Duration) {
	now := &walk[T]{began: time.Now()}
	w.mu.Lock()
	first := w.first
	w.first, w.part = false, now
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(w.h.ctx)
	defer cancel()
	share := w.h.cfg.Share / float64(w.h.walking.Load()) // Config.Share is for all walks together
	used, rests := share, 0
	if first {
		used = max(share, fastShare)
	}
	change := func(f func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		had := now.some()
		if f(); now.some() != had {
			w.tell()
		}
	}
	err := w.run(ctx, used, func(row T) {
		change(func() {
			if len(now.rows) < mostRows {
				now.rows = append(now.rows, row)
			} else {
				now.more++
			}
		})
	}, func(done float64) {
		change(func() { now.done = min(done, 0.999) }) // 1 only after the last row
		if done < 1 {
			rests++ // the walk rests after each part except the last one
		}
		if first && time.Since(now.began) > fastWalk {
			cancel()
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.tell()
	w.part, now.at = nil, time.Now()
	switch {
	case first && ctx.Err() != nil && w.h.ctx.Err() == nil:
		if w.last == nil {
			w.last = now
		}
		return betweenWalks
	case err == nil:
		now.done, now.took = 1, now.at.Sub(now.began)
		if w.last = now; w.found != nil {
			w.found(now)
		}
	}
	if w.err = err; err != nil {
		return retryAfter
	}
	part := now.took
	if rests > 0 {
		part = time.Duration(float64(now.took) / float64(rests) * used)
	}
	return min(max(betweenWalks, time.Duration(float64(part)*(1/share-1))), longestPause)
}

// tell wakes the goroutines that wait for news. The caller has locked w.mu.
func (w *walker[T]) tell() {
	close(w.news)
	w.news = make(chan struct{})
}
