//go:build servers

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

const (
	superseded verb = "superseded" // the run has ended because of a newer job
	asking     verb = "ask"        // the process is about to enqueue the job
	asked      verb = "asked"      // the job is enqueued

	newestPlan = "JOBLOCK_E2E_NEWEST"

	// newestCooldown is that of the way "cooldown".
	newestCooldown = time.Second
)

func init() {
	roles["newest"] = func() int { return playWorker(runNewestWorker) }
	roles["ask"] = func() int { return playWorker(runAsker) }
}

// newestWays are the ways to enqueue jobs of a key of which the newest must run.
var newestWays = map[string]func(key string) handoff.How{
	"cancel in progress": func(key string) handoff.How {
		return handoff.Unique{Key: key, OnConflict: handoff.CancelInProgress}
	},
	"keep last": func(key string) handoff.How { return handoff.Unique{Key: key, OnConflict: handoff.KeepLast} },
	"cooldown": func(key string) handoff.How {
		return handoff.Unique{Key: key, OnConflict: handoff.KeepLast, Cooldown: newestCooldown}
	},
	"replace": func(key string) handoff.How { return handoff.Unique{Key: key, OnConflict: handoff.Replace} },
	"debounce": func(key string) handoff.How {
		return handoff.Debounce{Key: key, Wait: time.Second, MaxWait: 3 * time.Second}
	},
}

// newestRole is what a process of the roles "newest" and "ask" works with.
type newestRole struct {
	Ledger, Process string
	Way             string // of newestWays
	Key             string // of an asker
	First           int    // the number of its first job
}

func (r newestRole) start(t *testing.T, addr, role string) *workerProc {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	p := startWorkerAs(t, addr, role, newestPlan+"="+string(text))
	p.name = r.Process
	return p
}

func newestRoleOf() (r newestRole, book *ledger, err error) {
	if err = json.Unmarshal([]byte(os.Getenv(newestPlan)), &r); err == nil {
		book, err = openLedger(r.Ledger)
	}
	return r, book, err
}

// runNewestWorker is a process that runs the jobs of askers. One job in four ignores the end of its context for a
// while. A run that was charged a retry has an entry of its own.
func runNewestWorker() error {
	r, book, err := newestRoleOf()
	if err != nil {
		return err
	}
	return errors.Join(serving{
		locks:  joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace},
		worker: worker.Config{Reserve: time.Minute, Snooze: time.Second, Keeper: worker.KeeperConfig{Interval: tortureEvery}},
		asynq:  asynq.Config{Concurrency: 10, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond},
		handler: func(ctx context.Context, task *asynq.Task, rdb *redis.Client) error {
			e := ledgerEntry{process: r.Process}
			if _, err := fmt.Sscan(string(task.Payload()), &e.key, &e.job); err != nil {
				return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
			}
			lock, ok := joblock.FromContext(ctx)
			if !ok {
				return errors.New("the task came without its lock")
			}
			e.fence = lock.Fence()
			id, _ := asynq.GetTaskID(ctx)
			leave, err := atWork(context.WithoutCancel(ctx), rdb, id)
			if err != nil {
				return err
			}
			defer leave()
			write := func(what verb) error { e.verb = what; return book.write(e) }
			if err := write(started); err != nil {
				return err
			}
			if n, _ := asynq.GetRetryCount(ctx); n > 0 {
				if err := write(charged); err != nil {
					return err
				}
			}
			work := time.After(jitter.N(800 * time.Millisecond))
			if e.job%4 == 0 {
				<-work
			} else {
				select {
				case <-work:
				case <-ctx.Done():
					time.Sleep(jitter.N(20 * time.Millisecond)) // cleans up
				}
			}
			switch cause := context.Cause(ctx); {
			case errors.Is(cause, worker.ErrSuperseded):
				return errors.Join(write(superseded), errors.New("does not matter"))
			case cause != nil:
				return errors.Join(write(lost), cause)
			}
			return write(done)
		},
	}.run(), book.close())
}

// runAsker is a process that enqueues one job of its key after the other.
func runAsker() error {
	r, book, err := newestRoleOf()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	quiet := slog.New(slog.DiscardHandler)
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace, Logger: quiet})
	if err != nil {
		return err
	}
	jobs, err := handoff.NewClient(locks, asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb),
		&handoff.Config{Reserve: time.Minute, Logger: quiet})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for n := r.First; ctx.Err() == nil; n++ {
		if err := r.ask(jobs, book, n); err != nil {
			return err
		}
		time.Sleep(jitter.N(r.pause()))
	}
	bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(jobs.Close(bounded), locks.Close(bounded), book.close())
}

// pause returns the longest pause between two enqueues of a key.
func (r newestRole) pause() time.Duration {
	if r.Way == "replace" || r.Way == "debounce" { // jobs that have started are left alone: the enqueues are to meet those that wait
		return 40 * time.Millisecond
	}
	return 300 * time.Millisecond
}

// ask enqueues job n of the key. An enqueue that died may keep the key for some seconds, until the keeper frees it.
func (r newestRole) ask(jobs *handoff.Client, book *ledger, n int) error {
	e := ledgerEntry{verb: asking, process: r.Process, key: r.Key, job: n}
	if err := book.write(e); err != nil {
		return err
	}
	task := asynq.NewTask("job", fmt.Append(nil, r.Key, " ", n), asynq.MaxRetry(100))
	for {
		_, err := jobs.Enqueue(context.Background(), newestWays[r.Way](r.Key), task)
		if !joblock.Retryable(err) {
			e.verb = asked
			return errors.Join(err, book.write(e))
		}
		time.Sleep(50 * time.Millisecond)
	}
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

func TestCancelInProgressSurvivesKilledProcesses(t *testing.T) {
	newestSurvives(t, "cancel in progress")
}

func TestKeepLastSurvivesKilledProcesses(t *testing.T) { newestSurvives(t, "keep last") }

func TestCooldownSurvivesKilledProcesses(t *testing.T) { newestSurvives(t, "cooldown") }

func TestReplaceSurvivesKilledProcesses(t *testing.T) { newestSurvives(t, "replace") }

func TestDebounceSurvivesKilledProcesses(t *testing.T) { newestSurvives(t, "debounce") }

// Processes that enqueue jobs, each for a key of its own, and processes that run them, are killed one after the other, for
// JOBLOCK_KILLS: see make kills. By a ledger outside of Redis no two jobs of a key ran at a time, none ran after a newer one had
// started, none before the key had cooled down, only jobs of killed processes were charged, and the newest of each key was done.
func newestSurvives(t *testing.T, way string) {
	testkit.Seed(t, testkit.EnvSeed(t))
	long := killsFor(t)
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	rdb := server.Client(t)
	locks := newLocks(t, server.Addr(), &joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace, Logger: slog.New(slog.DiscardHandler)})
	opt := asynq.RedisClientOpt{Addr: server.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	t.Cleanup(func() { client.Close(); inspector.Close() })
	role := newestRole{Ledger: filepath.Join(t.TempDir(), "ledger"), Way: way}
	book, err := openLedger(role.Ledger)
	if err != nil {
		t.Fatal(err)
	}
	defer book.close()

	const workers, keys = 3, 4
	procs, next, names := make([]*workerProc, workers+keys), make([]int, keys), 0
	start := func(i int) {
		names++
		role.Process = fmt.Sprintf("p%d", names)
		if i < workers {
			procs[i] = role.start(t, server.Addr(), "newest")
			return
		}
		role.Key, role.First = fmt.Sprint("k", i-workers), next[i-workers]
		procs[i] = role.start(t, server.Addr(), "ask")
	}
	for i := range procs {
		start(i)
	}
	cut := func(living []*workerProc) {
		cutLeases(t, rdb, living, func(id string) {
			e := ledgerEntry{verb: given, process: "-"}
			info, err := inspector.GetTaskInfo("default", id)
			switch {
			case errors.Is(err, asynq.ErrTaskNotFound):
				return
			case err == nil:
				_, err = fmt.Sscan(string(info.Payload), &e.key, &e.job)
			}
			if err = errors.Join(err, book.write(e)); err != nil {
				t.Fatal(err)
			}
		})
	}
	kills := 0
	for begin := time.Now(); time.Since(begin) < long; kills++ {
		time.Sleep(200*time.Millisecond + jitter.N(400*time.Millisecond))
		i := jitter.Perm(len(procs))[0]
		if err := book.write(ledgerEntry{verb: killing, process: procs[i].name}); err != nil {
			t.Fatal(err)
		}
		procs[i].kill()
		cut(slices.Concat(procs[:i], procs[i+1:]))
		if i >= workers {
			for _, e := range readLedger(t, role.Ledger) {
				if e.verb == asking && e.key == fmt.Sprint("k", i-workers) {
					next[i-workers] = max(next[i-workers], e.job+1)
				}
			}
		}
		start(i)
	}
	for _, p := range procs[workers:] {
		if err := p.stop(); err != nil {
			t.Errorf("a process that enqueues ended with %v", err)
		}
	}
	jobs, err := handoff.NewClient(locks, client, inspector, &handoff.Config{Reserve: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer jobs.Close(context.Background())
	var last sync.WaitGroup
	for i := range keys {
		last.Go(func() {
			if err := (newestRole{Process: "test", Way: way, Key: fmt.Sprint("k", i)}).ask(jobs, book, newestOfAll); err != nil {
				t.Error(err)
			}
		})
	}
	last.Wait()
	quiet := time.Now()
	await(t, "no task to be left", func() bool {
		cut(procs[:workers])
		info, err := inspector.GetQueueInfo("default")
		if err != nil || info.Archived > 0 {
			t.Fatalf("%+v, %v", info, err)
		}
		return info.Size == 0
	})
	for _, p := range procs[:workers] {
		if err := p.stop(); err != nil {
			t.Errorf("a worker process ended with %v", err)
		}
	}
	cooldown := time.Duration(0)
	if way == "cooldown" {
		cooldown = newestCooldown
	}
	verdict := judgeNewest(readLedger(t, role.Ledger), newestOfAll, cooldown)
	t.Logf("%d kills; all over %s after the last enqueue; %s", kills, time.Since(quiet).Round(100*time.Millisecond), verdict.counts)
	for _, complaint := range verdict.complaints {
		t.Error(complaint)
	}
	if t.Failed() {
		text, _ := os.ReadFile(role.Ledger)
		t.Logf("the ledger:\n%s", text)
	}
	await(t, "no lock to be left", func() bool { return len(left(t, locks)) == 0 })
}

// newestVerdict is what a ledger of the jobs of askers shows.
type newestVerdict struct {
	counts     string
	complaints []string
}

func judgeNewest(entries []ledgerEntry, newestJob int, cooldown time.Duration) (v newestVerdict) {
	complain := func(format string, args ...any) { v.complaints = append(v.complaints, fmt.Sprintf(format, args...)) }
	type book struct {
		open   []ledgerEntry
		newest int // that has started
		fence  int64
		done   bool // the newest of all
		given  map[int]bool
		last   ledgerEntry // the last run that was done
	}
	books, killed, count := map[string]*book{}, map[string]bool{}, map[verb]int{}
	for _, e := range entries {
		count[e.verb]++
		if e.verb == killing {
			killed[e.process] = true
			continue
		}
		b := books[e.key]
		if b == nil {
			b = &book{newest: -1, given: map[int]bool{}}
			books[e.key] = b
		}
		at := slices.IndexFunc(b.open, func(run ledgerEntry) bool {
			return run.process == e.process && run.job == e.job && run.fence == e.fence
		})
		switch e.verb {
		case given:
			b.given[e.job] = true
		case started:
			if e.job < b.newest { // not even if asynq delivers a job of a killed worker again
				complain("%+v after the start of job %d", e, b.newest)
			}
			if e.fence <= b.fence {
				complain("%+v after fence %d", e, b.fence)
			}
			if b.last.verb != "" && !killed[b.last.process] && e.at.Before(b.last.at.Add(cooldown)) {
				complain("%+v, %s after the end of %+v", e, e.at.Sub(b.last.at), b.last)
			}
			b.newest, b.fence, b.open = max(b.newest, e.job), max(b.fence, e.fence), append(b.open, e)
		case charged:
			if !b.given[e.job] {
				complain("%+v was charged a retry, and no worker of the job was killed", e)
			}
		case done, superseded, lost:
			if at < 0 {
				complain("an end without a start: %+v", e)
				continue
			}
			if at != len(b.open)-1 && e.verb != lost {
				complain("%+v while %+v", e, b.open[len(b.open)-1])
			}
			b.open = slices.Delete(b.open, at, at+1)
			if e.verb == done {
				b.last = e
			}
			b.done = b.done || e.verb == done && e.job == newestJob
		}
	}
	for key, b := range books {
		if !b.done {
			complain("%s: the newest job was not done", key)
		}
		for _, run := range b.open {
			if !killed[run.process] {
				complain("a run has no end: %+v", run)
			}
		}
	}
	var text []string
	for _, what := range []verb{asked, started, done, superseded, lost, charged, given} {
		text = append(text, fmt.Sprintf("%d %s", count[what], what))
	}
	v.counts = strings.Join(text, ", ")
	return v
}
