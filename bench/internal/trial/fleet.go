package trial

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/bench/internal/capacity"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/worker"
)

// Fleet is the servers and processes of one load.
type Fleet struct {
	Locks []*rig.Server // one, or the masters of a cluster
	Asynq *rig.Server

	load        Load
	webs, works []*process
	keepers     []*worker.Worker
	ran, ticked atomic.Int64
	done        [kinds]atomic.Int64 // calls, by kind
	calls       sync.WaitGroup
	failed      sync.Once
	stop        context.CancelCauseFunc
	tables      []*table

	empty, bare, loaded moment // before the first process, with processes only, and with the keys of the load
}

// Load is a load and what only measurements of costs need.
type Load struct {
	capacity.Load
	Asks float64 // questions of a keeper, a second, beside those of the keepers

	Settle, Observe time.Duration
	After           func(context.Context, *Fleet) error // called after the load was observed, while it still runs
}

// The kinds of calls that a fleet makes by itself.
const (
	enqueues = iota
	pairs
	handovers
	asks
	kinds
)

// all returns all processes.
func (f *Fleet) all() []*process { return slices.Concat(f.webs, f.works) }

// Seen is what a fleet was seen to use. Rates are per second.
type Seen struct {
	capacity.Need
	Ran, Ticked, Checked           float64 // jobs, ticks, and checks of parked locks
	Enqueued, Paired, Passed, Asks float64 // calls
	Behind                         bool    // a keeper has more due locks than it has asked for

	locks, asynq        part
	own                 float64 // processor time of all processes, in cores
	seconds             float64 // of the observation
	looked              float64 // bytes a second that the observation itself takes
	empty, bare, loaded moment
	now                 moment // the end of the observation
	load                Load
}

// part is per second.
type part struct{ commands, turns, server, in, out float64 }

// Run runs a load on two new servers and observes it for so long. The load has to be complete: see Load.WithDefaults.
func Run(ctx context.Context, program string, l Load) (seen Seen, err error) {
	f := &Fleet{load: l}
	ctx, f.stop = context.WithCancelCause(ctx)
	defer f.stop(nil)
	stop, err := f.startLocks(ctx, program)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if f.Asynq, err = rig.Start(ctx, program); err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, f.Asynq.Stop()) }()
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.open(ctx); err != nil {
		return seen, err
	}
	if err := f.fill(ctx); err != nil {
		return seen, err
	}
	f.begin(ctx)
	if err := f.stall(ctx); err != nil {
		return seen, err
	}
	pause(ctx, l.Settle)
	before, err := f.look(ctx)
	if err != nil {
		return seen, err
	}
	pause(ctx, l.Observe)
	after, err := f.look(ctx)
	if err != nil {
		return seen, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return seen, cause
	}
	if l.After != nil {
		err = l.After(ctx, f)
	}
	return f.seen(before, after), err
}

// startLocks starts the servers of the locks.
func (f *Fleet) startLocks(ctx context.Context, program string) (stop func() error, err error) {
	if f.load.Masters > 1 {
		c, err := rig.StartCluster(ctx, program, f.load.Masters)
		if err != nil {
			return nil, err
		}
		f.Locks = c.Nodes()
		return c.Stop, nil
	}
	s, err := rig.Start(ctx, program)
	f.Locks = []*rig.Server{s}
	if err != nil {
		return nil, err
	}
	return s.Stop, nil
}

// open starts the processes, and has each call its servers once, so that scripts are loaded and connections made.
func (f *Fleet) open(ctx context.Context) (err error) {
	if f.empty, err = f.look(ctx); err != nil {
		return err
	}
	for range f.load.Web {
		p, err := f.newWeb(f.load)
		if err != nil {
			return err
		}
		f.webs = append(f.webs, p)
	}
	for range f.load.Workers {
		p, err := f.newWorker(ctx, f.load)
		if err != nil {
			return err
		}
		f.works = append(f.works, p)
	}
	for i, p := range f.all() {
		lock, err := p.locks.TryAcquire(ctx, fmt.Sprint("warm-up:", i))
		if err == nil {
			err = lock.Release(ctx)
		}
		if err == nil && p.jobs != nil {
			// The queue is known to asynq from now on. Nobody runs a task that is due tomorrow.
			_, err = p.jobs.EnqueueUnique(ctx, handoff.Unique{Key: fmt.Sprint("warm-up:", i)}, asynq.NewTask(taskType, nil), asynq.ProcessIn(12*time.Hour))
		}
		if err != nil {
			return err
		}
	}
	f.bare, err = f.look(ctx)
	return err
}

// fill makes the state of the load: parked locks, held locks, and waiters.
func (f *Fleet) fill(ctx context.Context) error {
	l := f.load
	task := asynq.NewTask(taskType, make([]byte, l.Payload))
	for from := 0; from < l.Parked; from += handoff.MaxItems {
		items := make([]handoff.Item, min(handoff.MaxItems, l.Parked-from))
		for i := range items {
			items[i] = handoff.Item{Task: task, Unique: handoff.Unique{Key: fmt.Sprint("parked:", from+i)}, Opts: []asynq.Option{asynq.ProcessIn(12 * time.Hour)}}
		}
		results, err := f.webs[0].jobs.EnqueueMany(ctx, items)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			return err
		}
	}
	if l.Held > 0 {
		if err := f.sit(ctx); err != nil {
			return err
		}
	}
	var err error
	f.loaded, err = f.look(ctx)
	return err
}

// stalled is how long a server answers nobody.
const stalled = 500 * time.Millisecond

// stall stops the servers for a moment, those of the locks and then asynq's: what is called meanwhile opens the
// connections that a fleet has after its first bad moment. Without that their number is a matter of luck.
func (f *Fleet) stall(ctx context.Context) error {
	for _, servers := range [][]*rig.Server{f.Locks, {f.Asynq}} {
		pause(ctx, stalled) // calls are under way
		for _, s := range servers {
			if err := s.Client().ClientPause(ctx, stalled).Err(); err != nil {
				return err
			}
		}
		pause(ctx, stalled)
	}
	return nil
}

func (f *Fleet) close() error {
	f.stop(nil)
	f.calls.Wait()
	errs := make([]error, len(f.all()))
	var ends sync.WaitGroup
	for i, p := range f.all() {
		ends.Go(func() { errs[i] = p.close() })
	}
	ends.Wait()
	return errors.Join(errs...)
}

// fail ends the run with the first error of a call.
func (f *Fleet) fail(err error) {
	f.failed.Do(func() { f.stop(err) })
}

// moment is what was counted until an instant.
type moment struct {
	at           time.Time
	own          time.Duration
	locks, asynq rig.State
	toLocks      rig.Count
	toAsynq      rig.Count
	ran, ticked  int64
	checked      int64
	behind       bool
	done         [kinds]int64
	goroutines   int
}

func (f *Fleet) look(ctx context.Context) (m moment, err error) {
	m.at = time.Now()
	if m.own, err = rig.CPU(); err != nil {
		return m, err
	}
	for _, s := range f.Locks {
		st, err := s.State(ctx)
		if err != nil {
			return m, err
		}
		m.locks.CPU += st.CPU
		m.locks.In += st.In
		m.locks.Out += st.Out
		m.locks.Memory += st.Memory
		m.locks.Clients += st.Clients
	}
	if m.asynq, err = f.Asynq.State(ctx); err != nil {
		return m, err
	}
	for _, p := range f.all() {
		a, b := p.toLocks.Count(), p.toAsynq.Count()
		m.toLocks.Commands += a.Commands
		m.toLocks.Turns += a.Turns
		m.toAsynq.Commands += b.Commands
		m.toAsynq.Turns += b.Turns
	}
	for _, w := range f.keepers {
		st := w.KeeperStats()
		m.checked += st.Kept + st.Held
		m.behind = m.behind || st.Behind
	}
	m.ran, m.ticked = f.ran.Load(), f.ticked.Load()
	for i := range f.done {
		m.done[i] = f.done[i].Load()
	}
	m.goroutines = runtime.NumGoroutine()
	return m, nil
}

// seen returns what was used between two moments.
func (f *Fleet) seen(before, after moment) Seen {
	s := after.at.Sub(before.at).Seconds()
	per := func(n int64) float64 { return float64(n) / s }
	partOf := func(a, b rig.State, sent rig.Count) part {
		return part{
			commands: per(sent.Commands), turns: per(sent.Turns),
			server: (b.CPU - a.CPU).Seconds() / s,
			in:     per(b.In - a.In), out: per(b.Out - a.Out),
		}
	}
	calls := func(kind int) float64 { return per(after.done[kind] - before.done[kind]) }
	out := Seen{
		seconds: s,
		Ran:     per(after.ran - before.ran), Ticked: per(after.ticked - before.ticked), Checked: per(after.checked - before.checked),
		Enqueued: calls(enqueues), Paired: calls(pairs), Passed: calls(handovers), Asks: calls(asks),
		Behind: after.behind,
		locks:  partOf(before.locks, after.locks, after.toLocks.Sub(before.toLocks)),
		asynq:  partOf(before.asynq, after.asynq, after.toAsynq.Sub(before.toAsynq)),
		own:    (after.own - before.own).Seconds() / s,
		empty:  f.empty, bare: f.bare, loaded: f.loaded, now: after, load: f.load,
	}
	nodeOf := func(p part, st rig.State, of int) capacity.Node {
		n := float64(of)
		return capacity.Node{
			Commands: p.commands / n, CPU: p.server / n, Memory: float64(st.Memory) / n, Connections: float64(st.Clients) / n,
			In: p.in / n, Out: p.out / n,
		}
	}
	out.Locks, out.Asynq = nodeOf(out.locks, after.locks, len(f.Locks)), nodeOf(out.asynq, after.asynq, 1)
	return out
}

// patience is how long one call may take before it counts as hung.
const patience = 30 * time.Second

// paced makes calls at random times, on average so many a second, until ctx ends. A call that fails ends the run.
func (f *Fleet) paced(ctx context.Context, perSecond float64, kind int, call func(ctx context.Context, n int) error) {
	if perSecond <= 0 {
		return
	}
	f.calls.Go(func() {
		var wg sync.WaitGroup
		defer wg.Wait()
		random := rand.New(rand.NewPCG(1, uint64(kind)))
		due := time.Now()
		for n := 0; ; n++ {
			due = due.Add(time.Duration(random.ExpFloat64() / perSecond * float64(time.Second)))
			if pause(ctx, time.Until(due)); ctx.Err() != nil {
				return
			}
			wg.Go(func() {
				// Not with ctx: a call that is cut short leaves a lock to clean up.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
				defer cancel()
				if err := call(ctx, n); err != nil {
					f.fail(err)
					return
				}
				f.done[kind].Add(1)
			})
		}
	})
}

// begin starts the calls of the load.
func (f *Fleet) begin(ctx context.Context) {
	l := f.load
	task := asynq.NewTask(taskType, make([]byte, l.Payload))
	f.paced(ctx, l.Jobs, enqueues, func(ctx context.Context, n int) error {
		_, err := f.webs[n%len(f.webs)].jobs.EnqueueUnique(ctx, handoff.Unique{Key: fmt.Sprint("job:", n)}, task)
		return err
	})
	all := f.all()
	f.paced(ctx, l.Pairs, pairs, func(ctx context.Context, n int) error {
		lock, err := all[n%len(all)].locks.TryAcquire(ctx, fmt.Sprint("pair:", n))
		if err != nil {
			return err
		}
		return lock.Release(ctx)
	})
	f.paced(ctx, l.Asks, asks, func(ctx context.Context, n int) error {
		_, err := jobs.Due(ctx, all[n%len(all)].locks, jobs.DueRequest{Limit: 500, Claim: patience})
		return err
	})
	f.paced(ctx, l.Handovers, handovers, func(ctx context.Context, n int) error {
		return f.tables[scattered(n, min(l.Waiting, len(f.tables)))].pass(ctx)
	})
}

// scattered returns a number below most that looks random for each n.
func scattered(n, most int) int { return int(uint64(n+1) * 0x9e3779b97f4a7c15 >> 33 % uint64(most)) }

// table is a lock that is held, and the seats of those who hold it or wait for it in turn.
type table struct {
	key   string
	rise  chan struct{} // tells the holder to release
	first chan error    // gets the result of the first Acquire
}

// pass has the holder release the lock and wait again.
func (t *table) pass(ctx context.Context) error {
	select {
	case t.rise <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", t.key, context.Cause(ctx))
	}
}

// sit takes the held locks, and then has the others wait for them.
func (f *Fleet) sit(ctx context.Context) error {
	l, all := f.load, f.all()
	start := time.Now()
	for i := range l.Held {
		// The renewals are to come at even distances.
		pause(ctx, time.Until(start.Add(time.Duration(i)*l.TTL/3/time.Duration(l.Held))))
		t := &table{key: fmt.Sprint("held:", i), rise: make(chan struct{}), first: make(chan error, 1)}
		f.tables = append(f.tables, t)
		f.calls.Go(func() { f.seat(ctx, t, all[i%len(all)]) })
	}
	for _, t := range f.tables {
		select {
		case err := <-t.first:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for i := range l.Waiting {
		// By another process than the one that holds.
		f.calls.Go(func() { f.seat(ctx, f.tables[i%l.Held], all[(i+1)%len(all)]) })
	}
	pause(ctx, time.Second) // until all have their places
	return context.Cause(ctx)
}

// seat waits for the lock of a table, holds it until somebody says rise, and waits again.
func (f *Fleet) seat(ctx context.Context, t *table, p *process) {
	for ctx.Err() == nil {
		lock, err := p.locks.Acquire(ctx, t.key)
		select {
		case t.first <- err:
		default:
		}
		if err != nil {
			if ctx.Err() == nil {
				f.fail(err)
			}
			return
		}
		select {
		case <-t.rise:
		case <-ctx.Done():
			return // the Locker's Close releases nothing; the server is about to go
		}
		if err := lock.Release(context.WithoutCancel(ctx)); err != nil {
			f.fail(err)
			return
		}
	}
}
