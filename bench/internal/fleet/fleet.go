package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// Settings say what to measure. All fields are required.
type Settings struct {
	Program   string // of both servers
	Locks     int    // parked locks, each with a task that is due in a week
	Processes int    // with a Run each
	Rounds    int    // how many rounds are measured before anything happens
	Deleted   int    // how many tasks are deleted, of which the locks are watched
	Every     time.Duration
	Share     float64
	Keepers   int // worker.Config.Keepers
}

const (
	queue     = "default"
	batch     = 1000 // of EnqueueMany
	enqueuers = 4
	grace     = time.Minute // after the park, during which the keeper frees no lock of a missing task
	index     = "joblock:"  // the Redis key of the index of jobs
	look      = 200 * time.Millisecond

	// patience is how long a call that fills the servers may take: the machine may be busy.
	patience = 30 * time.Second
)

// fleet is a run of the measurement.
type fleet struct {
	Settings
	log    func(string)
	locks  *joblock.Locker
	stores [2]*rig.Server // the locks' Redis, and asynq's
	rdb    *redis.Client  // of the locks
	asynqs *asynq.Inspector
	parked time.Time // when the last lock was parked
	procs  []*process
	dead   map[*process]bool

	report Report
}

// Run makes the measurement, which takes some minutes for a million locks. Run tells log what it does.
func Run(ctx context.Context, set Settings, log func(string)) (_ *Report, err error) {
	f := &fleet{Settings: set, log: log, dead: make(map[*process]bool)}
	f.report.Settings = set
	for i := range f.stores {
		if f.stores[i], err = rig.Start(ctx, set.Program); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.stores[i].Stop()) }()
	}
	if f.report.Server, err = f.stores[0].Version(ctx); err != nil {
		return nil, err
	}
	f.rdb = redis.NewClient(&redis.Options{Addr: f.stores[0].Addr(), PoolSize: 50, ReadTimeout: patience})
	defer f.rdb.Close()
	f.asynqs = asynq.NewInspector(asynq.RedisClientOpt{Addr: f.stores[1].Addr()})
	defer f.asynqs.Close()
	f.locks, err = joblock.New(redisstore.New(f.rdb, nil), &joblock.Config{Logger: slog.New(slog.DiscardHandler), CallTimeout: patience})
	if err != nil {
		return nil, err
	}
	defer f.locks.Close(context.WithoutCancel(ctx))
	defer func() {
		for _, p := range f.procs {
			if !f.dead[p] {
				err = errors.Join(err, p.stop())
			}
		}
	}()
	for _, step := range []func(context.Context) error{f.populate, f.start, f.rounds, f.deletions, f.death} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return &f.report, nil
}

func key(i int) string { return fmt.Sprintf("report:%07d", i) }
func id(i int) string  { return fmt.Sprintf("t%07d", i) }

func (f *fleet) memory(ctx context.Context) (m [2]int64, err error) {
	for i, s := range f.stores {
		if m[i], err = s.Memory(ctx); err != nil {
			return m, err
		}
	}
	return m, nil
}

// populate parks the locks for tasks that are due in a week.
func (f *fleet) populate(ctx context.Context) error {
	f.log(fmt.Sprintf("enqueue %d tasks", f.Locks))
	before, err := f.memory(ctx)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: f.stores[1].Addr(), PoolSize: 100, ReadTimeout: patience})
	defer rdb.Close()
	client, err := handoff.NewClient(f.locks, asynq.NewClientFromRedisClient(rdb), f.asynqs, nil)
	if err != nil {
		return err
	}
	start, cpu := time.Now(), time.Duration(0)
	if cpu, err = rig.CPU(); err != nil {
		return err
	}
	var next atomic.Int64
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	enqueue := func() error {
		for {
			from := int(next.Add(batch)) - batch
			if from >= f.Locks {
				return nil
			}
			var items []handoff.Item
			for i := from; i < min(from+batch, f.Locks); i++ {
				items = append(items, handoff.Item{
					Task:   asynq.NewTask("report", []byte(`{"report":"of the month"}`), asynq.TaskID(id(i)), asynq.ProcessIn(7*24*time.Hour)),
					Unique: handoff.Unique{Key: key(i)},
				})
			}
			results, err := client.EnqueueMany(ctx, items)
			for _, r := range results {
				err = cmp.Or(err, r.Err) // a thousand equal errors would help nobody
			}
			if err != nil {
				return err
			}
		}
	}
	for range enqueuers {
		workers.Go(func() {
			if err := enqueue(); err != nil {
				stop(err)
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	f.report.Enqueued, f.parked = time.Since(start), time.Now()
	now, err := rig.CPU()
	f.report.EnqueueCPU = now - cpu
	if err != nil {
		return err
	}
	after, err := f.memory(context.WithoutCancel(ctx))
	for i := range after {
		f.report.Memory[i] = float64(after[i]-before[i]) / float64(f.Locks)
	}
	return err
}

func (f *fleet) start(ctx context.Context) error {
	f.log(fmt.Sprintf("start %d processes", f.Processes))
	for range f.Processes {
		p, err := startKeeper(orders{
			Locks: f.stores[0].Addr(), Asynq: f.stores[1].Addr(), Every: f.Every, Share: f.Share, Places: f.Keepers,
		})
		if err != nil {
			return err
		}
		f.procs = append(f.procs, p)
	}
	return ctx.Err()
}

// sight is what was counted at one time.
type sight struct {
	at     time.Time
	states []State // of the processes that live
	usage  [2]rig.Usage
}

func (f *fleet) see(ctx context.Context) (s sight, err error) {
	s.at = time.Now()
	for i, store := range f.stores {
		if s.usage[i], err = store.Usage(ctx); err != nil {
			return s, err
		}
	}
	for _, p := range f.procs {
		if f.dead[p] {
			s.states = append(s.states, State{})
			continue
		}
		state, err := p.state()
		if err != nil {
			return s, err
		}
		s.states = append(s.states, state)
	}
	return s, nil
}

func (s sight) checked() (n int64) {
	for _, state := range s.states {
		n += state.Stats.Checked
	}
	return n
}

// overdue returns for how long the lock has been due that has been due for the longest.
func (f *fleet) overdue(ctx context.Context) (time.Duration, error) {
	first, err := f.rdb.ZRangeWithScores(ctx, index, 0, 0).Result()
	if err != nil || len(first) == 0 {
		return 0, err
	}
	return max(0, time.Since(time.UnixMicro(int64(first[0].Score)))), nil
}

// watch looks at the locks that are due for the time d, and returns the longest that one of
// them was due.
func (f *fleet) watch(ctx context.Context, d time.Duration) (latest time.Duration, err error) {
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(look) {
		late, err := f.overdue(ctx)
		if err != nil {
			return latest, err
		}
		latest = max(latest, late)
	}
	return latest, ctx.Err()
}

// rounds measures rounds of checks while nothing else happens.
func (f *fleet) rounds(ctx context.Context) error {
	// The first round begins when all locks are due, and the second is spread over the period.
	f.log("the first rounds")
	for {
		s, err := f.see(ctx)
		if err != nil {
			return err
		}
		if s.checked() >= 2*int64(f.Locks) {
			break
		}
		if _, err := f.watch(ctx, time.Second); err != nil {
			return err
		}
	}
	for range f.Rounds {
		before, err := f.see(ctx)
		if err != nil {
			return err
		}
		var after sight
		var latest time.Duration
		for {
			late, err := f.watch(ctx, f.Every/10)
			if err != nil {
				return err
			}
			latest = max(latest, late)
			if after, err = f.see(ctx); err != nil {
				return err
			}
			// A round is each lock's check, and at least a period, because the checks of a period come together.
			if after.at.Sub(before.at) >= f.Every && after.checked()-before.checked() >= int64(f.Locks)*95/100 {
				break
			}
		}
		f.report.Rounds = append(f.report.Rounds, roundOf(before, after, latest))
		f.log(f.report.Rounds[len(f.report.Rounds)-1].String())
	}
	return nil
}

// watched are tasks that were deleted.
type watched struct {
	key     string
	deleted time.Time
}

// delete deletes n tasks, spread over the time d, and returns how long after its deletion
// each lock was freed. The parameter from is the number of the first task that may be deleted.
func (f *fleet) deleted(ctx context.Context, n, from int, d time.Duration, meanwhile func() error) (took []time.Duration, err error) {
	numbers := rand.Perm(f.Locks)[:0:0]
	for len(numbers) < n {
		numbers = append(numbers, from+len(numbers)*max(1, f.Locks/2/n))
	}
	rand.Shuffle(n, func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	var waiting []watched
	start := time.Now()
	for next := 0; next < n || len(waiting) > 0; time.Sleep(look / 2) {
		for ; next < n && time.Since(start) >= d*time.Duration(next)/time.Duration(n); next++ {
			if next == n/2 && meanwhile != nil {
				if err := meanwhile(); err != nil {
					return nil, err
				}
			}
			if err := f.asynqs.DeleteTask(queue, id(numbers[next])); err != nil {
				return nil, err
			}
			waiting = append(waiting, watched{key(numbers[next]), time.Now()})
		}
		keys := make([]string, len(waiting))
		for i, w := range waiting {
			keys[i] = w.key
		}
		locks, err := f.locks.Status(ctx, keys...)
		if err != nil {
			return nil, err
		}
		left := waiting[:0]
		for i, w := range waiting {
			if locks[i].Locked() {
				left = append(left, w)
			} else {
				took = append(took, time.Since(w.deleted))
			}
		}
		waiting = left
		if time.Since(start) > d+20*f.Every {
			return took, fmt.Errorf("%d of %d locks are not freed %s after the deletion of their tasks", len(waiting), n, 20*f.Every)
		}
	}
	slices.Sort(took)
	return took, nil
}

// deletions measures how late the locks of deleted tasks are freed.
func (f *fleet) deletions(ctx context.Context) (err error) {
	if _, err := f.watch(ctx, time.Until(f.parked.Add(grace))); err != nil {
		return err
	}
	f.log(fmt.Sprintf("delete %d tasks", f.Deleted))
	f.report.Freed, err = f.deleted(ctx, f.Deleted, 0, 2*f.Every, nil)
	return err
}

// death kills the process of the keeper that works, while tasks are deleted.
func (f *fleet) death(ctx context.Context) (err error) {
	f.log("kill the keeper that works")
	var killed, takenOver time.Time
	done := make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	f.report.FreedAtDeath, err = f.deleted(ctx, f.Deleted, f.Locks/2, 2*f.Every, func() error {
		s, err := f.see(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(s.states, func(s State) bool { return s.Stats.Working })
		if at < 0 {
			return errors.New("no keeper works")
		}
		f.procs[at].kill()
		f.dead[f.procs[at]] = true
		killed = time.Now()
		go func() {
			var err error
			for watching.Err() == nil && err == nil {
				var late time.Duration
				if late, err = f.watch(watching, look); err == nil {
					f.report.LateAtDeath = max(f.report.LateAtDeath, late)
				}
				if takenOver.IsZero() && err == nil {
					if s, err = f.see(watching); err == nil && slices.ContainsFunc(s.states, func(s State) bool { return s.Stats.Working }) {
						takenOver = time.Now()
					}
				}
			}
			if watching.Err() != nil {
				err = nil
			}
			done <- err
		}()
		return nil
	})
	stop()
	if killed.IsZero() {
		return err
	}
	err = cmp.Or(err, <-done)
	f.report.TakenOver = takenOver.Sub(killed)
	return err
}
