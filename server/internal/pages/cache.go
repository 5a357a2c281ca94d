package pages

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// patience is how long a page waits for a newer value of what it already has. A store that responds takes less.
	patience = 50 * time.Millisecond

	// patienceOld is how long a page waits if its value is from an earlier period of viewing.
	patienceOld = 2 * time.Second

	// late is how much older than intended a value may be before it counts as old.
	late = 2 * time.Second

	// patienceNew is how long a page waits for something of which it has no value.
	patienceNew = 5 * time.Second

	// loadTime bounds one read.
	loadTime = 20 * time.Second

	// retryAfter is how long after a failed read the next one may begin.
	retryAfter = time.Second

	// remembered is how long an unused value is kept.
	remembered = 10 * time.Minute

	// mostEntries bounds the memory of a cache.
	mostEntries = 2000
)

// errSlow is returned if there is no value to show yet.
var errSlow = errors.New("the store has not answered yet")

// A cache has the values read last, for all viewers. It reads each value at most once at a time, and keeps it while the
// store does not answer.
type cache struct {
	h *Handler

	mu sync.Mutex
	m  map[string]*entry
}

type entry struct {
	val    any
	at     time.Time     // when val was read; zero if it was never read
	took   time.Duration // how long the last read took
	err    error         // of the last read
	failed time.Time
	used   time.Time
	dirty  bool          // val lacks a change that was made since
	busy   chan struct{} // closed when the present read ends; nil if there is none
}

// A read is a value in the cache.
type read[T any] struct {
	val T
	at  time.Time // when val was read
	err error     // why val is older than it should be
}

// get returns what load reads, from a read at most about least ago. Slow values are read less often, so that reading
// takes no more of the store's time than Config.Share, and less while there are walks. If the store does not answer, the
// result has the last value and the error. If there is no value, get returns only an error.
func get[T any](ctx context.Context, c *cache, key string, least time.Duration, load func(context.Context) (T, error)) (read[T], error) {
	return getAs(ctx, c, key, terms{least: least, newer: patience, any: patienceNew}, load)
}

// terms say how getAs reads a value.
type terms struct {
	least time.Duration // between two reads
	newer time.Duration // how long to wait for a newer value
	any   time.Duration // how long to wait for any value at all
	small bool          // a few records: Config.Share does not apply, so that a change shows at once even if the store is far away
}

// getAs is get with other terms.
func getAs[T any](ctx context.Context, c *cache, key string, t terms, load func(context.Context) (T, error)) (read[T], error) {
	c.mu.Lock()
	now := time.Now()
	e := c.m[key]
	if e == nil {
		c.sweep(now)
		e = &entry{}
		c.m[key] = e
	}
	e.used = now
	age := t.least
	if share := c.h.cfg.Share / float64(1+c.h.walking.Load()); !t.small {
		age = max(age, time.Duration(float64(e.took)/share)-e.took)
	}
	fresh := !e.at.IsZero() && e.err == nil && now.Sub(e.at) < age && !e.dirty
	if !fresh && e.busy == nil && now.Sub(e.failed) >= retryAfter && c.h.enter() {
		e.busy, e.dirty = make(chan struct{}), false
		go c.load(e, boxed(load))
	}
	busy, has, old := e.busy, !e.at.IsZero(), now.Sub(e.at) > age+late
	c.mu.Unlock()

	if !fresh && busy != nil {
		wait := t.newer
		switch {
		case !has:
			wait = t.any
		case old:
			wait = max(t.newer, min(t.any, patienceOld))
		}
		timer := time.NewTimer(wait) // 0: no wait
		defer timer.Stop()
		select {
		case <-busy:
		case <-timer.C:
		case <-ctx.Done():
			return read[T]{}, context.Cause(ctx)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.at.IsZero() {
		if e.err == nil {
			return read[T]{}, errSlow
		}
		return read[T]{}, e.err
	}
	r := read[T]{val: e.val.(T), at: e.at, err: e.err}
	if r.err == nil && !fresh && e.busy != nil && time.Since(e.at) > age+late {
		r.err = errSlow // the present read takes unusually long
	}
	return r, nil
}

func boxed[T any](load func(context.Context) (T, error)) func(context.Context) (any, error) {
	return func(ctx context.Context) (any, error) { return load(ctx) }
}

func (c *cache) load(e *entry, load func(context.Context) (any, error)) {
	defer c.h.busy.Done()
	ctx, cancel := context.WithTimeout(c.h.ctx, loadTime)
	defer cancel()
	began := time.Now()
	val, err := load(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.err = err; err != nil {
		e.failed = time.Now()
	} else {
		e.val, e.at, e.took = val, time.Now(), time.Since(began)
	}
	close(e.busy)
	e.busy = nil
}

// forget makes the next get of each key read again. The old value stays in case that read fails.
func (c *cache) forget(keys ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if e := c.m[key]; e != nil {
			e.dirty = true
		}
	}
}

// sweep removes entries that have not been used lately, and any if there are too many. The caller has c.mu.
func (c *cache) sweep(now time.Time) {
	if len(c.m) < mostEntries/4 {
		return
	}
	for key, e := range c.m {
		if e.busy == nil && (len(c.m) >= mostEntries || now.Sub(e.used) > remembered) {
			delete(c.m, key)
		}
	}
}
