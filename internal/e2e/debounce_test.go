//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// The books of the jobs that replace each other, in Redis, for each key:
//
//	seq:<key>    the last payload, a number, with which an enqueue has begun
//	acked:<key>  the last one whose enqueue has returned without an error
//	runs:<key>   the payloads of the jobs that ran, in the order of their starts
//
// and of all keys what useResource writes.
const (
	debounceKeys = 3
	debounceWait = time.Second
	debounceMost = 3 * time.Second
)

func debounceKey(n int) string { return joblock.Key("index", strconv.Itoa(n)) }

func init() {
	roles["debounced"] = func() int {
		return playWorker(serving{
			locks:  joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace},
			worker: worker.Config{Reserve: time.Minute, Snooze: time.Second, Keeper: worker.KeeperConfig{Interval: tortureEvery}},
			asynq:  asynq.Config{Concurrency: 8, TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond},
			handler: func(ctx context.Context, task *asynq.Task, rdb *redis.Client) error {
				lock, ok := joblock.FromContext(ctx)
				if !ok {
					return errors.New("the task came without its lock")
				}
				if err := rdb.RPush(context.WithoutCancel(ctx), "runs:"+lock.Key(), string(task.Payload())).Err(); err != nil {
					return err
				}
				return useResource(ctx, rdb)
			},
		}.run)
	}
	roles["debouncer"] = func() int { return playWorker(debounceOn) }
}

// debounceOn enqueues for its key, one number after another, until the process is killed.
func debounceOn() error {
	ctx, key, how := context.Background(), os.Getenv("JOBLOCK_E2E_KEY"), replacing[os.Getenv("JOBLOCK_E2E_HOW")]
	opt := asynq.RedisClientOpt{Addr: os.Getenv("JOBLOCK_E2E_REDIS")}
	rdb := redis.NewClient(&redis.Options{Addr: opt.Addr})
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace})
	if err != nil {
		return err
	}
	jobs, err := handoff.NewClient(locks, asynq.NewClient(opt), asynq.NewInspector(opt), nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		n, err := rdb.Incr(ctx, "seq:"+key).Result()
		if err != nil {
			return err
		}
		task := asynq.NewTask("job", strconv.AppendInt(nil, n, 10), asynq.MaxRetry(100))
		if _, err := jobs.Enqueue(ctx, how(key), task); err == nil {
			if err := rdb.Set(ctx, "acked:"+key, n, 0).Err(); err != nil {
				return err
			}
		}
		time.Sleep(dice.N(40 * time.Millisecond))
	}
}

// replacing are the ways to enqueue of these tests, by the name in JOBLOCK_E2E_HOW.
var replacing = map[string]func(key string) handoff.How{
	"debounce": func(key string) handoff.How {
		return handoff.Debounce{Key: key, Wait: debounceWait, MaxWait: debounceMost}
	},
	"replace": func(key string) handoff.How { return handoff.Unique{Key: key, OnConflict: handoff.Replace} },
}

// killsFor returns for how long processes are killed. Without JOBLOCK_KILLS, killsFor skips the test: what it looks for needs
// minutes.
func killsFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("JOBLOCK_KILLS")
	if text == "" {
		t.Skip("runs with JOBLOCK_KILLS: see make kills")
	}
	return testkit.Must(time.ParseDuration(text))
}

func TestDebounceSurvivesKilledProcesses(t *testing.T) { replacingSurvives(t, "debounce") }

func TestReplaceSurvivesKilledProcesses(t *testing.T) { replacingSurvives(t, "replace") }

// Processes that enqueue all the time are killed at any step, and workers, for JOBLOCK_KILLS: see make kills. The newest
// payload that was acknowledged runs, or a newer one; no older one runs after a newer one; and no two jobs of a key run at a
// time.
func replacingSurvives(t *testing.T, how string) {
	testkit.Seed(t, testkit.EnvSeed(t))
	span := killsFor(t)
	server := redistest.Start(t)
	ctx, rdb := context.Background(), server.Client(t)
	workers := []*workerProc{startWorkerAs(t, server.Addr(), "debounced"), startWorkerAs(t, server.Addr(), "debounced")}
	enqueuer := func(k int) *workerProc {
		return startWorkerAs(t, server.Addr(), "debouncer", "JOBLOCK_E2E_KEY="+debounceKey(k), "JOBLOCK_E2E_HOW="+how)
	}
	var callers []*workerProc
	for k := range debounceKeys {
		callers = append(callers, enqueuer(k))
	}
	kills := 0
	for begin := time.Now(); time.Since(begin) < span; kills++ {
		time.Sleep(100*time.Millisecond + dice.N(400*time.Millisecond))
		k := int(dice.N(debounceKeys))
		callers[k].kill()
		callers[k] = enqueuer(k)
		if kills%40 == 39 {
			w := kills / 40 % len(workers)
			workers[w].kill()
			workers[w] = startWorkerAs(t, server.Addr(), "debounced")
		}
	}
	for _, p := range callers {
		p.kill()
	}
	enqueued, ran := 0, 0
	for k := range debounceKeys {
		key := debounceKey(k)
		acked, err := rdb.Get(ctx, "acked:"+key).Int()
		if err != nil {
			t.Fatal(err)
		}
		last := func() int {
			n, _ := rdb.LIndex(ctx, "runs:"+key, -1).Int()
			return n
		}
		await(t, fmt.Sprintf("a run of %d or later for %s", acked, key), func() bool { return last() >= acked })
	}
	await(t, "the queue to be empty", func() bool {
		q, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default")
		return err == nil && q.Size == 0
	})
	for k := range debounceKeys {
		key := debounceKey(k)
		runs, err := rdb.LRange(ctx, "runs:"+key, 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		before := 0
		for _, text := range runs {
			n, _ := strconv.Atoi(text)
			if n < before {
				t.Errorf("%s: %d ran after %d", key, n, before)
			}
			before = n
		}
		seq, _ := rdb.Get(ctx, "seq:"+key).Int()
		enqueued, ran = enqueued+seq, ran+len(runs)
	}
	if twice, _ := rdb.LRange(ctx, "twice", 0, -1).Result(); len(twice) > 0 {
		t.Errorf("two jobs of a key ran at a time: %q", twice)
	}
	t.Logf("%d enqueues, %d runs, %d processes killed", enqueued, ran, kills)
}
