package worker

import (
	"slices"
	"sync"
	"time"
)

// room has the tasks that WithoutOverlapping has snoozed because their keys were busy. When a lock ends, the Worker
// calls some of these tasks: it runs them again at once. Otherwise a key would be idle until asynq looks for tasks
// whose pause has ended: every five seconds by default.
//
// The Worker calls a task early, so that asynq has taken it from its queue by the time the tasks before it have run.
// But only few tasks are called at a time: a task that finds its key busy waits in place, and occupies one worker of
// the server.
type room struct {
	mu      sync.Mutex           // guards the fields below
	keys    map[busyKey]*waiters // without empty entries
	swept   int                  // the length of keys after the last sweep
	waiting int                  // how many tasks wait in place for all keys
	coming  coming               // the tasks that were called, for all keys
}

// busyKey is a key of one call of WithoutOverlapping.
type busyKey struct {
	o   *overlap
	key string
}

type waiters struct {
	snoozed []snoozedTask // the oldest first
	waiting int           // how many tasks wait in place
	running int           // how many tasks of this Worker have a lock on the key
	coming  coming
}

// snoozedTask is a task that was snoozed because its key was busy.
type snoozedTask struct {
	queue, id string
	until     time.Time // when asynq puts the task back anyway
}

// callLife is how long a task that was called counts as coming. Another server may have taken the task.
const callLife = 3 * time.Second

// coming has the times until which the tasks that were called count as coming, the earliest first.
type coming []time.Time

// count returns how many tasks are coming at the time now.
func (c *coming) count(now time.Time) int {
	for len(*c) > 0 && !now.Before((*c)[0]) {
		*c = (*c)[1:]
	}
	return len(*c)
}

// arrived takes one task out of c, and reports whether there was one. It does not matter which.
func (c *coming) arrived() bool {
	some := len(*c) > 0
	if some {
		*c = (*c)[1:]
	}
	return some
}

// enter counts a task that may wait in place for k from now on. called is true if this task may be one that the
// Worker called for k: see coming.
func (r *room) enter(k busyKey, queue, id string) (called bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.of(k)
	w.prune(time.Now())
	if i := slices.IndexFunc(w.snoozed, func(t snoozedTask) bool { return t.id == id && t.queue == queue }); i >= 0 {
		w.snoozed = slices.Delete(w.snoozed, i, i+1)
	}
	w.waiting++
	r.waiting++
	if called = w.coming.arrived(); called {
		r.coming.arrived()
	}
	return called
}

// began counts a task that has got a lock on k, until ended. ended returns how many other tasks of this Worker have a
// lock on k.
func (r *room) began(k busyKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(k).running++
}

func (r *room) ended(k busyKey) (running int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.of(k)
	w.running--
	r.tidy(k, w, time.Now())
	return w.running
}

// prune removes the tasks that asynq has put back anyway.
func (w *waiters) prune(now time.Time) {
	for len(w.snoozed) > 0 && !now.Before(w.snoozed[0].until) {
		w.snoozed = w.snoozed[1:]
	}
}

// leave ends what enter began. snoozed is nil if the task was not snoozed.
func (r *room) leave(k busyKey, snoozed *snoozedTask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.of(k)
	w.waiting--
	r.waiting--
	if snoozed != nil {
		w.snoozed = append(w.snoozed, *snoozed)
	}
	r.tidy(k, w, time.Now())
}

// again puts back a task that could not be run yet.
func (r *room) again(k busyKey, t snoozedTask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.of(k)
	w.snoozed = append(w.snoozed, t)
	if w.coming.arrived() {
		r.coming.arrived()
	}
}

// call returns the tasks to run now that a lock on k has ended. want, at least 1, is how many tasks should be coming or
// wait in place for k; most is the bound for all keys together.
func (r *room) call(k busyKey, want, most int) []snoozedTask {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, now := r.of(k), time.Now()
	defer r.tidy(k, w, now)
	w.prune(now)
	there := w.waiting + w.coming.count(now)
	n := min(want-there, most-r.waiting-r.coming.count(now))
	if there == 0 {
		n = max(n, 1) // no other lock of this Worker calls the next task
	}
	n = max(0, min(n, len(w.snoozed)))
	called := slices.Clone(w.snoozed[:n])
	w.snoozed = w.snoozed[n:]
	for range called {
		w.coming = append(w.coming, now.Add(callLife))
		r.coming = append(r.coming, now.Add(callLife))
	}
	return called
}

func (r *room) of(k busyKey) *waiters {
	w, ok := r.keys[k]
	if !ok {
		if r.keys == nil {
			r.keys = make(map[busyKey]*waiters)
		}
		w = new(waiters)
		r.keys[k] = w
	}
	return w
}

// tidy removes the entry of k if it is empty. Sometimes it removes all empty entries: an entry that no task of this
// Worker touches becomes empty when asynq puts its tasks back.
func (r *room) tidy(k busyKey, w *waiters, now time.Time) {
	idle := func(w *waiters) bool {
		return w.waiting == 0 && w.running == 0 && w.coming.count(now) == 0 && (len(w.snoozed) == 0 || !now.Before(w.snoozed[len(w.snoozed)-1].until))
	}
	if idle(w) {
		delete(r.keys, k)
	}
	if len(r.keys) > 2*r.swept+100 {
		for k, w := range r.keys {
			if idle(w) {
				delete(r.keys, k)
			}
		}
		r.swept = len(r.keys)
	}
}
