//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

const (
	ended verb = "ended" // the context of the run has ended

	// newestOfAll is the number of the job that ends a test of jobs that replace each other.
	newestOfAll = 1_000_000
)

func init() {
	roles["until cancelled"] = func() int { return playWorker(runUntilCancelled) }
}

// runUntilCancelled is a process whose jobs run until their contexts end. One job in four ignores its context and works for a
// while.
func runUntilCancelled() error {
	r, book, err := newestRoleOf()
	if err != nil {
		return err
	}
	return errors.Join(serving{
		asynq: asynq.Config{Concurrency: 10, TaskCheckInterval: 20 * time.Millisecond},
		handler: func(ctx context.Context, task *asynq.Task, rdb *redis.Client) error {
			e := ledgerEntry{process: r.Process}
			if _, err := fmt.Sscan(string(task.Payload()), &e.key, &e.job); err != nil {
				return err
			}
			lock, ok := joblock.FromContext(ctx)
			if !ok {
				return errors.New("the task came without its lock")
			}
			e.fence = lock.Fence()
			write := func(what verb) error { e.verb = what; return book.write(e) }
			if err := write(started); err != nil {
				return err
			}
			if n, _ := asynq.GetRetryCount(ctx); n > 0 {
				if err := write(charged); err != nil {
					return err
				}
			}
			if err := rdb.RPush(context.WithoutCancel(ctx), "started:"+e.key, e.job).Err(); err != nil {
				return err
			}
			switch {
			case e.job == newestOfAll:
				return write(done)
			case e.job%4 == 3:
				time.Sleep(50 * time.Millisecond)
				return write(done)
			}
			<-ctx.Done()
			if err := write(ended); err != nil {
				return err
			}
			if cause := context.Cause(ctx); !errors.Is(cause, worker.ErrSuperseded) {
				return errors.Join(write(lost), cause)
			}
			return errors.Join(write(superseded), errors.New("does not matter"))
		},
	}.run(), book.close())
}

// Each of many jobs of a key ends the one before, which runs in one of three processes; and of as many jobs of another key that are
// enqueued without waiting, the newest runs. By a ledger outside of Redis no two jobs of a key ran at a time, also where the
// older one ignored its context, none ran after a newer one, and none was charged a retry. The test logs how long it takes from
// the beginning of the enqueue to the end of the older job's context. JOBLOCK_CANCEL_RUNS is the number of jobs, 100 by default.
func TestEndOfAContextAfterAnEnqueue(t *testing.T) {
	runs := 100
	if text := os.Getenv("JOBLOCK_CANCEL_RUNS"); text != "" {
		runs = testkit.Must(strconv.Atoi(text))
	}
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	rdb := server.Client(t)
	role := newestRole{Ledger: filepath.Join(t.TempDir(), "ledger"), Way: "cancel in progress"}
	book := testkit.Must(openLedger(role.Ledger))
	defer book.close()
	var procs []*workerProc
	for i := range 3 {
		role.Process = fmt.Sprintf("w%d", i)
		procs = append(procs, role.start(t, server.Addr(), "until cancelled"))
	}
	quiet := slog.New(slog.DiscardHandler)
	opt := asynq.RedisClientOpt{Addr: server.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	defer client.Close()
	defer inspector.Close()
	jobs, err := handoff.NewClient(newLocks(t, server.Addr(), &joblock.Config{Logger: quiet}), client, inspector, &handoff.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer jobs.Close(context.Background())
	ask := func(key string, n int) {
		t.Helper()
		role.Process, role.Key = "test", key
		if err := role.ask(jobs, book, n); err != nil {
			t.Fatal(err)
		}
	}
	for n := range runs + 1 {
		if n == runs {
			n = newestOfAll
		}
		ask("row", n)
		got, err := rdb.BLPop(t.Context(), time.Minute, "started:row").Result()
		if err != nil || got[1] != fmt.Sprint(n) {
			t.Fatalf("%q has started, %v; want %d", got, err, n)
		}
	}
	for n := range runs {
		ask("crowd", n)
	}
	ask("crowd", newestOfAll)
	await(t, "no task to be left", func() bool {
		info, err := inspector.GetQueueInfo("default")
		if err != nil || info.Failed > 0 || info.Archived > 0 {
			t.Fatalf("%+v, %v; want no failure", info, err)
		}
		return info.Size == 0
	})
	for _, p := range procs {
		if err := p.stop(); err != nil {
			t.Errorf("a worker process ended with %v", err)
		}
	}
	entries := readLedger(t, role.Ledger)
	verdict := judgeNewest(entries, newestOfAll, 0)
	t.Log(verdict.counts)
	for _, complaint := range verdict.complaints {
		t.Error(complaint)
	}
	asked, starts, took, deaf := map[int]time.Time{}, map[string]int{}, []time.Duration(nil), 0
	for _, e := range entries {
		switch {
		case e.verb == asking && e.key == "row":
			asked[e.job] = e.at
		case e.verb == started:
			if starts[e.key]++; e.key == "row" && e.job%4 == 3 {
				deaf++
			}
		}
	}
	for _, e := range entries {
		if e.verb == ended && e.key == "row" {
			next := e.job + 1
			if next == runs {
				next = newestOfAll
			}
			took = append(took, e.at.Sub(asked[next]))
		}
	}
	slices.Sort(took)
	t.Logf("%d jobs in a row, of which %d ignored their contexts: from the enqueue to the end of the context p50 %s, p99 %s, the longest %s; of %d more at once %d ran",
		runs, deaf, took[len(took)/2], took[len(took)*99/100], took[len(took)-1], runs, starts["crowd"])
	if starts["row"] != runs+1 {
		t.Errorf("%d jobs in a row have started, want each once", starts["row"])
	}
}
