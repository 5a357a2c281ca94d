//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// chainSteps is how many steps a chain of TestChainsSurviveKilledWorkers has. The handler of the step chainAdder adds the
// step behind itself.
const (
	chainSteps = 6
	chainAdder = 2
)

// chainTask returns the task of a job that is a step of a chain, but not the first.
func chainTask(key string, job int) *asynq.Task {
	return asynq.NewTask("job", fmt.Append(nil, key, " ", job), asynq.MaxRetry(100), asynq.Timeout(10*time.Minute))
}

// chainItem returns a chain of the jobs of key from first on.
func chainItem(key string, first int, under handoff.How) handoff.Item {
	how := handoff.Chain{Under: under}
	for job := first + 1; job < first+chainSteps; job++ {
		if job != first+chainAdder+1 {
			how.Then = append(how.Then, chainTask(key, job))
		}
	}
	return handoff.Item{Task: lineTask(key, first), How: how}
}

// Chains under unique keys, and two chains in the line of each of some sequences, go through four worker processes, of
// which one after the other is killed and replaced. One step in ten fails once and is retried, and one in each chain is
// added by the handler of the step before. By a ledger outside of Redis, the steps of each key ran in their order, one at a
// time, under growing fences. No step was lost, and only a step whose worker was killed ran again after it was done, but
// never after a step behind. With JOBLOCK_CHAINS set to a time, workers are killed for so long.
func TestChainsSurviveKilledWorkers(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	kill, keys := 6*time.Second, 16
	if text := os.Getenv("JOBLOCK_CHAINS"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < kill {
			t.Fatalf("JOBLOCK_CHAINS is %q, want a time of at least %s: %v", text, kill, err)
		}
		keys, kill = int(d/kill)*keys, d
	}
	r := newLineRig(t, true)
	pool := r.pool(t, lineRole{Work: 250 * time.Millisecond, Short: true}, 4)
	var items []handoff.Item
	counts := map[string]int{}
	for i := range keys {
		one, two := fmt.Sprintf("chain-%04d", i), fmt.Sprintf("chains-%04d", i)
		counts[one], counts[two] = chainSteps, 2*chainSteps
		items = append(items, chainItem(one, 0, handoff.Unique{Key: one}),
			chainItem(two, 0, handoff.Sequence{Key: two}), chainItem(two, chainSteps, handoff.Sequence{Key: two}))
	}
	go func() {
		for part := range slices.Chunk(items, 48) {
			r.enqueue(t, part)
			time.Sleep(3 * time.Second)
		}
	}()
	begin := time.Now()
	for time.Since(begin) < kill {
		time.Sleep(300*time.Millisecond + jitter.N(600*time.Millisecond))
		pool.kill(t, jitter.Perm(4)[0])
	}
	r.untilAllAreDone(t, 5*time.Minute)
	t.Logf("%d chains of %d steps, all done after %s", len(items), chainSteps, time.Since(begin).Round(100*time.Millisecond))
	pool.stop(t)
	v := judge(readLedger(t, r.path), counts)
	t.Log(v)
	if len(v.complaints) > 0 {
		t.Errorf("broken are the rules %q", v.rules())
	}
	if v.kills != pool.kills || v.failed == 0 {
		t.Errorf("the ledger has %d kills and %d failures; there were %d kills, and one step in ten was to fail", v.kills, v.failed, pool.kills)
	}
	await(t, "no lock to be left", func() bool { return len(left(t, r.locks)) == 0 })
}

// deathHook kills this process when it enqueues a step of a chain: "before" or "after" the command.
type deathHook string

func (h deathHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h deathHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h deathHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		pending, step := false, false
		for _, arg := range cmd.Args() {
			text, _ := arg.(string)
			pending = pending || text == "asynq:{default}:pending"
			step = step || strings.HasPrefix(text, "asynq:{default}:t:chain:")
		}
		if !pending || !step {
			return next(ctx, cmd)
		}
		if h == "after" {
			if err := next(ctx, cmd); err != nil {
				return err // the script was not in the server yet
			}
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// A worker that dies when its step is done, and it hands the key over to the next step: just before the enqueue, and just
// after it. No step runs again, the key is never free, and the chain goes on.
func TestChainWhoseWorkerDiesAtTheHandOver(t *testing.T) {
	for _, at := range []string{"before", "after"} {
		t.Run(at, func(t *testing.T) {
			r := newLineRig(t, true)
			role := lineRole{Ledger: r.path, Process: "w1", Work: 5 * time.Millisecond, Short: true, DiesAt: at}
			first := role.start(t, r.server.Addr())
			how := handoff.Chain{Under: handoff.Unique{Key: "step"}, Then: []*asynq.Task{chainTask("step", 1), chainTask("step", 2)}}
			r.enqueue(t, []handoff.Item{{Task: lineTask("step", 0), How: how}})
			_ = first.end(syscall.Signal(0)) // waits for its death
			if err := r.ledger.write(ledgerEntry{verb: killing, process: "w1"}); err != nil {
				t.Fatal(err)
			}
			cutLeases(t, r.rdb, []*workerProc{first}, func(string) {}) // before asynq of the second process looks for the tasks of the dead
			role.Process, role.DiesAt = "w2", ""
			second := role.start(t, r.server.Addr())
			if _, err := r.locks.TryAcquire(t.Context(), "step"); !errors.Is(err, joblock.ErrHeld) {
				t.Errorf("a stranger's acquire gave %v", err)
			}
			r.untilAllAreDone(t, time.Minute)
			if err := second.stop(); err != nil {
				t.Error(err)
			}
			v := judge(readLedger(t, r.path), map[string]int{"step": 3})
			t.Log(v)
			// A step in ten fails once: none of these three.
			if len(v.complaints) > 0 || v.runs != 3 || v.again != 0 {
				t.Error("want three runs, each of another step")
			}
			await(t, "no lock to be left", func() bool { return len(left(t, r.locks)) == 0 })
		})
	}
}
