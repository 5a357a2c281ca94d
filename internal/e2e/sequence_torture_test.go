//go:build servers

package e2e

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// lineTorture is how TestSequencesSurviveKilledWorkers is run. In short, leases take seconds, and asynq's leases on the
// tasks of the dead are cut short, which otherwise takes asynq a minute or two. With JOBLOCK_SEQUENCES set to a time,
// workers are killed for so long, everything has its defaults, and there are 20,000 jobs for each minute of that time.
type lineTorture struct {
	jobs, sequences int
	kill, pause     time.Duration // as in torture
	work            time.Duration // of one run, on average
	short           bool
	guard           time.Duration // how long the jobs that are left after the last kill may take
}

func lineTortureOf(t *testing.T) lineTorture {
	t.Helper()
	text := os.Getenv("JOBLOCK_SEQUENCES")
	if text == "" {
		return lineTorture{
			jobs: 800, sequences: 16, kill: 8 * time.Second, pause: time.Second, work: 60 * time.Millisecond, short: true, guard: 5 * time.Minute,
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 10*time.Second {
		t.Fatalf("JOBLOCK_SEQUENCES is %q, want a time of at least 10s: %v", text, err)
	}
	return lineTorture{
		jobs: int(20_000 * d.Minutes()), sequences: 1000, kill: d, pause: 4 * time.Second, work: 90 * time.Millisecond, guard: 30 * time.Minute,
	}
}

// The jobs of many sequences go through four worker processes of ten workers each, of which one after the other is
// killed and replaced. One job in ten fails once and is retried. By a ledger outside of Redis, the jobs of each sequence
// ran in the order of their enqueues, one at a time, under growing fences. No job was lost, and only a job whose worker
// was killed ran again after it was done, but never after a job behind.
func TestSequencesSurviveKilledWorkers(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	plan := lineTortureOf(t)
	r := newLineRig(t, plan.short)
	pool := r.pool(t, lineRole{Work: plan.work, Short: plan.short}, 4)
	pool.uncut = !plan.short
	items, counts := lineItems(plan.jobs, plan.sequences)
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for part := range slices.Chunk(items, 1000) {
			r.enqueue(t, part)
		}
	})
	begin := time.Now()
	for time.Since(begin) < plan.kill {
		time.Sleep(plan.pause/2 + jitter.N(plan.pause))
		pool.kill(t, jitter.Perm(4)[0])
	}
	feeding.Wait()
	last := time.Now()
	r.untilAllAreDone(t, plan.guard)
	t.Logf("%d jobs in %d sequences, kills for %s; all done %s after the last",
		plan.jobs, plan.sequences, last.Sub(begin).Round(time.Second), time.Since(last).Round(100*time.Millisecond))
	pool.stop(t)
	v := judge(readLedger(t, r.path), counts)
	t.Log(v)
	if len(v.complaints) > 0 {
		t.Errorf("broken are the rules %q", v.rules())
	}
	if v.kills != pool.kills || v.failed == 0 {
		t.Errorf("the ledger has %d kills and %d failures; there were %d kills, and one job in ten was to fail", v.kills, v.failed, pool.kills)
	}
	if v.again > pool.kills*lineConcurrency {
		t.Errorf("%d jobs were done again after %d kills of %d workers each", v.again, pool.kills, lineConcurrency)
	}
	// The lock of the keepers may have been handed to one that had died in the queue.
	await(t, "no lock to be left", func() bool { return len(left(t, r.locks)) == 0 })
	for key := range counts {
		for at, err := range jobs.Line(t.Context(), r.locks, key) {
			t.Errorf("in the line of %s is left %+v, %v", key, at, err)
		}
	}
}

// The same jobs without a sequence: of those that fail once, the next one does not wait for the retry. The judge must
// find out.
func TestDisorderIsFound(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	r := newLineRig(t, true)
	items, counts := lineItems(200, 8)
	for _, item := range items {
		if _, err := r.client.Enqueue(item.Task); err != nil {
			t.Fatal(err)
		}
	}
	p := lineRole{Ledger: r.path, Process: "w1", Work: 5 * time.Millisecond, Short: true, Bare: true}.start(t, r.server.Addr())
	r.untilAllAreDone(t, time.Minute)
	if err := p.stop(); err != nil {
		t.Errorf("the worker process ended with %v", err)
	}
	v := judge(readLedger(t, r.path), counts)
	t.Log(v)
	if !slices.Contains(v.rules(), ruleOrder) {
		t.Error("the order of jobs that are in no sequence counts as kept")
	}
}

// lineRig is the web side of jobs of sequences, and a ledger.
type lineRig struct {
	server    *redistest.Server
	rdb       *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
	locks     *joblock.Locker
	web       *handoff.Client
	path      string
	ledger    *ledger
}

func newLineRig(t *testing.T, short bool, args ...string) *lineRig {
	t.Helper()
	server := redistest.Start(t, args...)
	redistest.Ran(t, server.Backend())
	opt := asynq.RedisClientOpt{Addr: server.Addr()}
	r := &lineRig{
		server: server, rdb: server.Client(t), client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt),
		path: filepath.Join(t.TempDir(), "ledger"),
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	cfg := joblock.Config{Logger: quiet}
	reserve := time.Duration(0)
	if short {
		cfg.TTL, cfg.JobGrace, reserve = tortureTTL, tortureGrace, time.Minute
	}
	r.locks = newLocks(t, server.Addr(), &cfg)
	var err error
	if r.web, err = handoff.NewClient(r.locks, r.client, r.inspector, &handoff.Config{Reserve: reserve, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	if r.ledger, err = openLedger(r.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.web.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for _, closed := range []func() error{r.client.Close, r.inspector.Close, r.ledger.close} {
			if err := closed(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *lineRig) enqueue(t *testing.T, items []handoff.Item) {
	t.Helper()
	results, err := r.web.EnqueueMany(t.Context(), items)
	if err != nil {
		t.Errorf("enqueue %d items: %v", len(items), err)
	}
	for i, res := range results {
		if res.Err != nil {
			t.Errorf("item %d: %v", i, res.Err)
		}
	}
}

// untilAllAreDone waits until asynq has no task left.
func (r *lineRig) untilAllAreDone(t *testing.T, guard time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(guard); ; time.Sleep(50 * time.Millisecond) {
		info, err := r.inspector.GetQueueInfo("default")
		if err != nil {
			t.Fatal(err)
		}
		if info.Size == 0 {
			return
		}
		if info.Archived > 0 {
			t.Fatalf("%d jobs were archived", info.Archived)
		}
		if time.Now().After(deadline) {
			retry, err := r.inspector.ListRetryTasks("default")
			for _, task := range retry {
				t.Logf("%s, which runs at %s: %s", task.ID, task.NextProcessAt, task.LastErr)
			}
			t.Fatalf("%+v, %v, and locks %v are left", info, err, left(t, r.locks))
		}
	}
}
