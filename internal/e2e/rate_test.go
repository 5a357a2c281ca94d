//go:build servers

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	xrate "golang.org/x/time/rate"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

func init() {
	roles["rate"] = func() int { return playWorker(func() error { return runRated(ourRate) }) }
	roles["poll"] = func() int { return playWorker(func() error { return runRated(pollRate) }) }
	roles["x/rate"] = func() int { return playWorker(func() error { return runRated(xRate) }) }
}

// The limit of each key in the tests of rates, and how many processes there are.
const (
	rateN     = 2
	ratePer   = time.Second
	rateProcs = 4
)

// The entries of a ledger about rates. The fence of the first two is the time of the start by the store's clock, in µs.
const (
	admitted  verb = "admit"
	takenBack verb = "back"
	charged   verb = "charged" // the run that has started was charged a retry
)

// admissions is a store that writes in the ledger which starts it has admitted, and which of them were taken back.
type admissions struct {
	driver.Store
	process string
	book    *ledger
}

func (s admissions) Admit(ctx context.Context, reqs []driver.AdmitRequest) ([]driver.AdmitReply, error) {
	replies, err := s.Store.Admit(ctx, reqs)
	for i, r := range replies {
		e := ledgerEntry{process: s.process, key: reqs[i].Key}
		if back := reqs[i].Back; back != 0 {
			e.verb, e.fence = takenBack, back
			err = errors.Join(err, s.book.write(e))
		}
		if r.Start != 0 {
			e.verb, e.fence = admitted, r.Start
			err = errors.Join(err, s.book.write(e))
		}
	}
	return replies, err
}

// runRated is a process that limits the rates of tasks in one of several ways, and writes in the ledger when their handlers
// start.
func runRated(way func(s *serving, r lineRole, book *ledger)) error {
	r, book, err := lineRoleOf()
	if err != nil {
		return err
	}
	s := serving{
		asynq: asynq.Config{Concurrency: 20, TaskCheckInterval: 20 * time.Millisecond},
		handler: func(ctx context.Context, task *asynq.Task, _ *redis.Client) error {
			e := ledgerEntry{verb: started, process: r.Process}
			if _, err := fmt.Sscan(string(task.Payload()), &e.key, &e.job); err != nil {
				return err
			}
			err := book.write(e)
			if n, _ := asynq.GetRetryCount(ctx); n > 0 {
				e.verb = charged
				err = errors.Join(err, book.write(e))
			}
			return err
		},
	}
	way(&s, r, book)
	return errors.Join(s.run(), book.close())
}

func ourRate(s *serving, r lineRole, book *ledger) {
	s.store = func(store driver.Store, _ *redis.Client) driver.Store { return admissions{store, r.Process, book} }
	s.use = func(w *worker.Worker, _ *redis.Client) asynq.MiddlewareFunc {
		return w.RateLimit(func(_ context.Context, task *asynq.Task) []rate.Limit {
			return []rate.Limit{{Key: keyOf(task), N: rateN, Per: ratePer}}
		})
	}
}

// keyOf returns the key of a task whose payload is its key and its number.
func keyOf(task *asynq.Task) string {
	key, _, _ := strings.Cut(string(task.Payload()), " ")
	return key
}

var errOverRate = errors.New("over the limit")

// pollRate counts starts in Redis. A task over its limit fails, uncharged, and is retried a second later.
func pollRate(s *serving, _ lineRole, _ *ledger) {
	s.asynq.IsFailure = func(err error) bool { return !errors.Is(err, errOverRate) }
	s.retry = time.Second
	s.use = func(_ *worker.Worker, rdb *redis.Client) asynq.MiddlewareFunc {
		return func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				window := fmt.Sprintf("window:%s:%d", keyOf(task), time.Now().UnixNano()/int64(ratePer))
				n, err := rdb.Incr(ctx, window).Result()
				if err == nil {
					rdb.Expire(ctx, window, 2*ratePer)
				}
				if err != nil || n > rateN {
					return cmp.Or(err, errOverRate)
				}
				return next.ProcessTask(ctx, task)
			})
		}
	}
}

// xRate is the example in asynq's documentation: a limiter of golang.org/x/time/rate in each process, which gets its part of
// the rate. A task over its limit fails, uncharged, and is retried within ten seconds.
func xRate(s *serving, _ lineRole, _ *ledger) {
	var limiters sync.Map
	s.asynq.IsFailure = func(err error) bool { return !errors.Is(err, errOverRate) }
	s.asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return jitter.N(10) * time.Second }
	s.use = func(*worker.Worker, *redis.Client) asynq.MiddlewareFunc {
		return func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				own, _ := limiters.LoadOrStore(keyOf(task), xrate.NewLimiter(xrate.Every(ratePer*rateProcs/rateN), 1))
				if !own.(*xrate.Limiter).Allow() {
					return errOverRate
				}
				return next.ProcessTask(ctx, task)
			})
		}
	}
}

// admittedAt returns when the starts of each key were admitted, by the store's clock, in µs.
func admittedAt(entries []ledgerEntry) map[string][]int64 {
	times := make(map[string][]int64)
	for _, e := range entries {
		switch e.verb {
		case admitted:
			times[e.key] = append(times[e.key], e.fence)
		case takenBack:
			times[e.key] = slices.DeleteFunc(times[e.key], func(at int64) bool { return at == e.fence })
		}
	}
	return times
}

// startedAt returns when the handlers of each key have started, in µs.
func startedAt(entries []ledgerEntry) map[string][]int64 {
	times := make(map[string][]int64)
	for _, e := range entries {
		if e.verb == started {
			times[e.key] = append(times[e.key], e.at.UnixMicro())
		}
	}
	return times
}

// delays returns by how long the n-th start of each key was later than the n-th admission, in ascending order.
func delays(admitted, started map[string][]int64) (all []time.Duration) {
	for key, times := range started {
		slices.Sort(times)
		slices.Sort(admitted[key])
		for i := range min(len(times), len(admitted[key])) {
			all = append(all, time.Duration(times[i]-admitted[key][i])*time.Microsecond)
		}
	}
	slices.Sort(all)
	return all
}

// mostIn returns the largest number of times, in µs, of one key within any per.
func mostIn(times map[string][]int64, per time.Duration) (most int) {
	for _, at := range times {
		slices.Sort(at)
		first := 0
		for i := range at {
			for at[i]-at[first] >= per.Microseconds() {
				first++
			}
			most = max(most, i-first+1)
		}
	}
	return most
}

// shareUsed returns how many starts a second there were after the first skip: the processes do not begin at once.
func shareUsed(times map[string][]int64, skip time.Duration) float64 {
	all := slices.Sorted(func(yield func(int64) bool) {
		for _, at := range times {
			for _, t := range at {
				if !yield(t) {
					return
				}
			}
		}
	})
	if len(all) == 0 {
		return 0
	}
	n, _ := slices.BinarySearch(all, all[0]+skip.Microseconds())
	if n == len(all) {
		return 0
	}
	return float64(len(all)-n) / time.Duration((all[len(all)-1]-all[n])*1000).Seconds()
}

// Four processes run tasks of many keys with a rate each; one of them is killed. By a ledger outside of Redis, no window of the
// period has more admitted starts than the rate allows, none is charged, and none runs twice.
//
// JOBLOCK_E2E_RATE, such as 60s, lengthens the test: more than 10,000 tasks of 100 keys, and no kill. Then the same tasks go through
// a middleware that counts and lets tasks fail and retry, and through that of asynq's documentation, for comparison.
func TestRateAcrossProcesses(t *testing.T) {
	keys, jobs, lasts, ways := 20, 20, 8*time.Second, []string{"rate"}
	long := os.Getenv("JOBLOCK_E2E_RATE")
	if long != "" {
		lasts = testkit.Must(time.ParseDuration(long))
		keys, jobs, ways = 100, int(rateN*lasts/ratePer)+20, append(ways, "poll", "x/rate")
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) { rateRun(t, way, keys, jobs, lasts, long == "") })
	}
}

func rateRun(t *testing.T, way string, keys, jobs int, lasts time.Duration, kill bool) {
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	rdb, role := server.Client(t), lineRole{Ledger: filepath.Join(t.TempDir(), "ledger")}
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: server.Addr()})
	defer client.Close()
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for n := range jobs {
				if _, err := client.Enqueue(asynq.NewTask("job", fmt.Appendf(nil, "key-%d %d", k, n)), asynq.MaxRetry(3)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	commands := func() int {
		text, err := rdb.Info(t.Context(), "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(text, "total_commands_processed:")
		return testkit.Must(strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0])))
	}
	before := commands()
	var procs []*workerProc
	for i := range rateProcs {
		role.Process = fmt.Sprintf("w%d", i)
		procs = append(procs, role.startAs(t, server.Addr(), way))
	}
	time.Sleep(lasts / 2)
	if kill {
		procs[0].kill()
	}
	time.Sleep(lasts / 2)
	used := commands() - before
	entries := readLedger(t, role.Ledger)
	starts, admissions, runs := startedAt(entries), admittedAt(entries), map[string]int{}
	for _, e := range entries {
		switch e.verb {
		case started:
			runs[fmt.Sprint(e.key, " ", e.job)]++
		case charged:
			if way == "rate" {
				t.Errorf("%+v", e)
			}
		}
	}
	all := 0
	for task, n := range runs {
		all += n
		if n > 1 && way == "rate" {
			t.Errorf("task %s has run %d times", task, n)
		}
	}
	share := shareUsed(starts, time.Second) / float64(keys*rateN) * ratePer.Seconds()
	t.Logf("%d tasks, %d starts of %d keys in %s: %.3f of the rate, %.1f commands per start, at most %d handlers of a key began within %s",
		keys*jobs, all, keys, lasts, share, float64(used)/float64(max(1, all)), mostIn(starts, ratePer), ratePer)
	if way != "rate" {
		return
	}
	most := mostIn(admissions, ratePer)
	if !kill {
		late := delays(admissions, starts)
		t.Logf("at most %d starts of a key were admitted within %s; from the admission to the start of the handler p50 %s, p99 %s, the longest %s",
			most, ratePer, late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	}
	if most > rateN {
		t.Errorf("%d starts of a key were admitted within %s, want at most %d", most, ratePer, rateN)
	}
	if all == 0 {
		t.Error("nothing has started")
	}
}
