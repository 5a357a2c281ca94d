//go:build servers

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

// lineRole is what a process of the role "line" works with. The environment variable linePlan has the role as JSON.
type lineRole struct {
	Ledger  string // path
	Process string // name in the ledger
	Work    time.Duration
	Short   bool // leases and checks of the keeper take seconds; see torture
	Bare    bool // a task without a lock is run all the same

	// Rate is how many jobs of a key start in a second, or 0 for any number. The process writes in the ledger what the store
	// admits.
	Rate int

	// Watched makes the process write in the ledger which controls it applies, as soon as they change. All its jobs have the rate
	// named watchedRate.
	Watched bool

	// DiesAt makes the process kill itself when it enqueues the next step of a chain: "before" or "after" the command.
	DiesAt string
}

const (
	linePlan = "JOBLOCK_E2E_LINE"

	// lineConcurrency is that of the server in a process of the role "line".
	lineConcurrency = 10
)

// start starts a process of the role "line".
func (r lineRole) start(t *testing.T, addr string) *workerProc {
	t.Helper()
	return r.startAs(t, addr, "line")
}

func (r lineRole) startAs(t *testing.T, addr, role string) *workerProc {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return startWorkerAs(t, addr, role, linePlan+"="+string(text))
}

func lineRoleOf() (r lineRole, book *ledger, err error) {
	if err = json.Unmarshal([]byte(os.Getenv(linePlan)), &r); err == nil {
		book, err = openLedger(r.Ledger)
	}
	return r, book, err
}

// runLineWorker is a process of the role "line": it runs jobs of sequences, and writes in the ledger what it does.
func runLineWorker() (err error) {
	r, book, err := lineRoleOf()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.close()) }()
	s := serving{
		asynq: asynq.Config{Concurrency: lineConcurrency, TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond},
		handler: func(ctx context.Context, task *asynq.Task, rdb *redis.Client) error {
			return r.runJob(ctx, task, rdb, book)
		},
	}
	if r.DiesAt != "" {
		s.hook = deathHook(r.DiesAt)
	}
	if r.Watched {
		s.watch = func(ctx context.Context, locks *joblock.Locker) { watchControls(ctx, locks, r.Process, book) }
	}
	if r.Rate > 0 || r.Watched {
		s.store = func(store driver.Store, _ *redis.Client) driver.Store { return admissions{store, r.Process, book} }
		s.use = func(w *worker.Worker, _ *redis.Client) asynq.MiddlewareFunc {
			return w.RateLimit(func(_ context.Context, task *asynq.Task) []rate.Limit {
				if r.Watched {
					return []rate.Limit{{Key: watchedRate, N: watchedN, Per: time.Second, Name: watchedRate}}
				}
				return []rate.Limit{{Key: keyOf(task), N: r.Rate, Per: time.Second}}
			})
		}
	}
	if r.Short {
		s.locks = joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace}
		s.worker = worker.Config{Reserve: time.Minute, Snooze: time.Second, Keeper: worker.KeeperConfig{Interval: tortureEvery}}
	}
	return s.run()
}

// runJob is one run of a job: it works for a while, and one job in ten fails at its first attempt.
func (r *lineRole) runJob(ctx context.Context, task *asynq.Task, rdb *redis.Client, book *ledger) error {
	e := ledgerEntry{process: r.Process}
	if _, err := fmt.Sscan(string(task.Payload()), &e.key, &e.job); err != nil {
		return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
	}
	lock, ok := joblock.FromContext(ctx)
	switch {
	case ok:
		e.fence = lock.Fence()
	case r.Bare:
		e.fence = time.Now().UnixNano() // grows, so that nothing but the order can be wrong
	default:
		return errors.New("the task came without its lock")
	}
	id, _ := asynq.GetTaskID(ctx)
	leave, err := atWork(context.WithoutCancel(ctx), rdb, id)
	if err != nil {
		return err
	}
	defer leave()
	tell := func(what verb, err error) error {
		e.verb = what
		return errors.Join(err, book.write(e))
	}
	if err := tell(started, nil); err != nil {
		return err
	}
	if n, _ := asynq.GetRetryCount(ctx); n > 1 || n == 1 && !failsAtFirst(e.key, e.job) {
		if err := tell(charged, nil); err != nil {
			return err
		}
	}
	select {
	case <-time.After(jitter.N(2 * r.Work)):
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return tell(lost, context.Cause(ctx))
	}
	if n, _ := asynq.GetRetryCount(ctx); n == 0 && failsAtFirst(e.key, e.job) {
		return tell(failed, errors.New("one job in ten fails once"))
	}
	if strings.HasPrefix(e.key, "chain") && e.job%chainSteps == chainAdder {
		if err := worker.Then(ctx, chainTask(e.key, e.job+1)); err != nil {
			return tell(failed, err)
		}
	}
	return tell(done, nil)
}

// failsAtFirst chooses one job in ten.
func failsAtFirst(key string, job int) bool {
	sum := fnv.New32a()
	fmt.Fprint(sum, key, "/", job)
	return sum.Sum32()%10 == 0
}

// lineTask returns the task of a job of a sequence.
func lineTask(key string, job int) *asynq.Task {
	return asynq.NewTask("job", fmt.Append(nil, key, " ", job),
		asynq.TaskID(fmt.Sprintf("%s-%d", key, job)), asynq.MaxRetry(100), asynq.Timeout(10*time.Minute))
}

// givenUp returns the entry for the ledger when asynq is about to take the worker of a task of lineTask, or of a later step of
// its chain, for dead.
func givenUp(id string) ledgerEntry {
	step := 1
	if link, ok := chain.ParseID(id); ok {
		id, step = link.ID, link.Step
	}
	e := ledgerEntry{verb: given, process: "-"}
	at := strings.LastIndex(id, "-")
	e.key = id[:at]
	e.job, _ = strconv.Atoi(id[at+1:])
	e.job += step - 1
	return e
}

// lineItems returns the jobs of so many sequences, as a round-robin over the sequences, and how many jobs each has.
func lineItems(jobs, sequences int) (items []handoff.Item, counts map[string]int) {
	counts = map[string]int{}
	for i := range jobs {
		key := fmt.Sprintf("seq-%04d", i%sequences)
		items = append(items, handoff.Item{Task: lineTask(key, counts[key]), How: handoff.Sequence{Key: key}})
		counts[key]++
	}
	return items, counts
}
