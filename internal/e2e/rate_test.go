//go:build servers

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

func init() {
	roles["rate"] = func() int { return playWorker(runRateWorker) }
	roles["poll"] = func() int { return playWorker(runPollWorker) }
}

// The limit of each key in the tests of rates. The payload of a task is its key.
const (
	rateN   = 2
	ratePer = time.Second
)

// noteStart notes in Redis, by the server's clock, that the handler of a task has started.
var noteStart = redis.NewScript(`
	local t = redis.call('TIME')
	redis.call('RPUSH', 'starts', KEYS[1] .. ' ' .. t[1] * 1000000 + t[2])
	redis.call('HINCRBY', 'runs', ARGV[1], 1)
	if ARGV[2] ~= '0' then redis.call('RPUSH', 'charged', ARGV[1]) end
`)

func startRated(ctx context.Context, task *asynq.Task, rdb *redis.Client) error {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	return noteStart.Run(ctx, rdb, []string{string(task.Payload())}, id, retried).Err()
}

// admissions is a store that notes in Redis which starts it has admitted, and which of them were taken back.
type admissions struct {
	driver.Store
	rdb *redis.Client
}

func (s admissions) Admit(ctx context.Context, reqs []driver.AdmitRequest) ([]driver.AdmitReply, error) {
	replies, err := s.Store.Admit(ctx, reqs)
	for i, r := range replies {
		if req := reqs[i]; req.Back != 0 {
			s.rdb.HDel(ctx, "admitted", fmt.Sprint(req.Key, " ", req.Back))
		}
		if r.Start != 0 {
			s.rdb.HSet(ctx, "admitted", fmt.Sprint(reqs[i].Key, " ", r.Start), r.Start)
		}
	}
	return replies, err
}

func ratedServer() asynq.Config {
	return asynq.Config{Concurrency: 20, TaskCheckInterval: 20 * time.Millisecond}
}

func runRateWorker() error {
	s := serving{asynq: ratedServer(), handler: startRated}
	if os.Getenv("JOBLOCK_E2E_NOTE") != "" {
		s.store = func(store driver.Store, rdb *redis.Client) driver.Store { return admissions{store, rdb} }
	}
	s.use = func(w *worker.Worker, _ *redis.Client) asynq.MiddlewareFunc {
		return w.RateLimit(func(_ context.Context, task *asynq.Task) []rate.Limit {
			return []rate.Limit{{Key: string(task.Payload()), N: rateN, Per: ratePer}}
		})
	}
	return s.run()
}

// runPollWorker is what asynq's documentation shows: a task over its limit fails, and is retried later.
func runPollWorker() error {
	over := errors.New("over the limit")
	s := serving{asynq: ratedServer(), handler: startRated}
	s.asynq.IsFailure = func(err error) bool { return !errors.Is(err, over) }
	s.retry = time.Second
	s.use = func(_ *worker.Worker, rdb *redis.Client) asynq.MiddlewareFunc {
		return func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				window := fmt.Sprintf("window:%s:%d", task.Payload(), time.Now().UnixNano()/int64(ratePer))
				n, err := rdb.Incr(ctx, window).Result()
				if err == nil {
					rdb.Expire(ctx, window, 2*ratePer)
				}
				if err != nil || n > rateN {
					return cmp.Or(err, over)
				}
				return next.ProcessTask(ctx, task)
			})
		}
	}
	return s.run()
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

// byKey reads lines of a key and a time in µs.
func byKey(t *testing.T, lines []string) map[string][]int64 {
	t.Helper()
	times := make(map[string][]int64)
	for _, line := range lines {
		key, text, _ := strings.Cut(line, " ")
		at, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		times[key] = append(times[key], int64(at))
	}
	return times
}

// Four processes run tasks of many keys with a rate each; one of them is killed. No window of the period has more
// starts than the rate allows, none is charged, and none runs twice.
//
// JOBLOCK_E2E_RATE, such as 60s, lengthens the test: 10,000 tasks of 100 keys. Then a middleware that lets tasks fail and
// retry runs too, for comparison.
func TestRateAcrossProcesses(t *testing.T) {
	keys, jobs, lasts := 20, 20, 8*time.Second
	long := os.Getenv("JOBLOCK_E2E_RATE")
	if long != "" {
		var err error
		if lasts, err = time.ParseDuration(long); err != nil {
			t.Fatal(err)
		}
		keys, jobs = 100, int(rateN*lasts/ratePer)+20
	}
	run := func(role string, note, kill bool) {
		server := redistest.Start(t)
		rdb, ctx := server.Client(t), t.Context()
		client := asynq.NewClient(asynq.RedisClientOpt{Addr: server.Addr()})
		defer client.Close()
		var wg sync.WaitGroup
		for k := range keys {
			wg.Go(func() {
				for range jobs {
					if _, err := client.Enqueue(asynq.NewTask("job", []byte(fmt.Sprint("key-", k))), asynq.MaxRetry(3)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		commands := func() int {
			text, err := rdb.Info(ctx, "stats").Result()
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(text, "total_commands_processed:")
			n, _ := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
			return n
		}
		var env []string
		if note {
			env = append(env, "JOBLOCK_E2E_NOTE=1")
		}
		before := commands()
		var procs []*workerProc
		for range 4 {
			procs = append(procs, startWorkerAs(t, server.Addr(), role, env...))
		}
		time.Sleep(lasts / 2)
		if kill {
			procs[0].kill()
		}
		time.Sleep(lasts / 2)
		used := commands() - before
		lines, err := rdb.LRange(ctx, "starts", 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		started := byKey(t, lines)
		share := shareUsed(started, time.Second) / float64(keys*rateN) * ratePer.Seconds()
		t.Logf("%s: %d starts of %d keys in %s: %.2f of the rate, %.1f commands per start, at most %d handlers of a key began within %s",
			role, len(lines), keys, lasts, share, float64(used)/float64(max(1, len(lines))), mostIn(started, ratePer), ratePer)
		if note {
			admitted, err := rdb.HKeys(ctx, "admitted").Result()
			if err != nil {
				t.Fatal(err)
			}
			if most := mostIn(byKey(t, admitted), ratePer); most > rateN {
				t.Errorf("%d starts of a key were admitted within %s, want at most %d", most, ratePer, rateN)
			}
		}
		if role == "rate" {
			if n := rdb.LLen(ctx, "charged").Val(); n > 0 {
				t.Errorf("%d tasks are charged a retry", n)
			}
			if len(lines) == 0 {
				t.Error("nothing has started")
			}
			for id, n := range rdb.HGetAll(ctx, "runs").Val() {
				if n != "1" {
					t.Errorf("task %s has run %s times", id, n)
				}
			}
		}
	}
	run("rate", true, true)
	if long != "" {
		run("rate", false, false)
		run("poll", false, false)
	}
}
