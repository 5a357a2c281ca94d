//go:build servers

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// waitConfig keeps tests of waiting in real time short.
var waitConfig = joblock.Config{TTL: time.Second, Poll: 300 * time.Millisecond}

// neverDue is for locks and places that no machine is slow enough to lose: leases, renewals and polls are hours apart.
var neverDue = joblock.Config{TTL: 10 * time.Hour, Poll: time.Hour, CallTimeout: 30 * time.Second}

// queuePlan is what a process of the role "queue" is to do, given as JSON.
type queuePlan struct {
	Addr, Key string
	Waiters   int           // take their places one after the other
	Rounds    int           // each gets the lock this often
	Hold      time.Duration // keeps it so long; below zero until the process is killed
	Limit     int           // how many may be inside; 0 for a lock
	Together  int64         // no one leaves before so many were inside at once; 0 for whenever
	Config    joblock.Config
}

// entry is one stay inside the lock, as pushed to the list "entries" by the one that
// is inside.
type entry struct {
	Fence  int64
	Joined int64 // µs, when the place in the queue was taken, by the server's clock; 0 if there was no need
	Inside int64 // how many were inside, by a counter in Redis
}

// joins is a Store that remembers when its calls took their places.
type joins struct {
	driver.Store
	mu      sync.Mutex
	byOwner map[string]int64
}

func (j *joins) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	r, err := j.Store.Acquire(ctx, req)
	if err == nil && r.Outcome == driver.OutcomeHeld && req.Inbox != "" {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.byOwner[req.Owner] = cmp.Or(j.byOwner[req.Owner], r.Now.UnixMicro())
	}
	return r, err
}

func (j *joins) take(owner string) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer delete(j.byOwner, owner)
	return j.byOwner[owner]
}

// playQueue is a process with waiters. It says "got <fence>" for every lock, and
// "done" at the end.
func playQueue() int {
	if err := queue(); err != nil {
		fmt.Println("failed", err)
		return 1
	}
	fmt.Println("done")
	return 0
}

func queue() error {
	var plan queuePlan
	if err := json.Unmarshal([]byte(os.Getenv("JOBLOCK_E2E_PLAN")), &plan); err != nil {
		return err
	}
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: plan.Addr})
	defer rdb.Close()
	store := &joins{Store: testkit.Must(redisstore.New(rdb, nil)), byOwner: make(map[string]int64)}
	locks, err := joblock.New(store, &plan.Config)
	if err != nil {
		return err
	}
	errs := make(chan error, plan.Waiters)
	for range plan.Waiters {
		go func() { errs <- plan.run(ctx, rdb, locks, store) }()
		time.Sleep(20 * time.Millisecond) // no more than a hint of an order; Joined tells it
	}
	for range plan.Waiters {
		if err := <-errs; err != nil {
			return err
		}
	}
	return locks.Close(ctx)
}

func (p *queuePlan) run(ctx context.Context, rdb *redis.Client, locks *joblock.Locker, store *joins) error {
	acquire := locks.Acquire
	if p.Limit > 0 {
		acquire = limit.New(locks, p.Limit).Acquire
	}
	for range p.Rounds {
		lock, err := acquire(ctx, p.Key)
		if err != nil {
			return err
		}
		fmt.Println("got", lock.Fence())
		if err := enter(ctx, rdb, lock.Fence(), store.take((*core.Lock)(lock).Owner()), p.Hold, p.Together); err != nil {
			return err
		}
		if err := lock.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// enter is a stay inside the lock. The stay lasts for the given time, and until so many were inside at once.
func enter(ctx context.Context, rdb *redis.Client, fence, joined int64, stay time.Duration, together int64) error {
	inside, err := rdb.Incr(ctx, "inside").Result()
	if err != nil {
		return err
	}
	text, err := json.Marshal(entry{fence, joined, inside})
	if err != nil {
		return err
	}
	if err := rdb.RPush(ctx, "entries", text).Err(); err != nil {
		return err
	}
	if stay < 0 {
		select {}
	}
	if inside == together {
		if err := rdb.Set(ctx, "together", 1, 0).Err(); err != nil {
			return err
		}
	}
	for end := time.Now().Add(30 * time.Second); together > 0 && rdb.Exists(ctx, "together").Val() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("there were never %d inside at once", together)
		}
	}
	time.Sleep(stay)
	return rdb.Decr(ctx, "inside").Err()
}

// entries reads all stays inside the lock, in their order, and checks that there was
// one at a time and that fences grew.
func entries(t *testing.T, rdb *redis.Client) []entry {
	t.Helper()
	all := stays(t, rdb)
	for i, e := range all {
		if e.Inside != 1 {
			t.Errorf("entry %d: %d inside", i, e.Inside)
		}
		if i > 0 && e.Fence <= all[i-1].Fence {
			t.Errorf("entry %d: fence %d after %d", i, e.Fence, all[i-1].Fence)
		}
	}
	return all
}

// stays reads all stays inside, in their order.
func stays(t *testing.T, rdb *redis.Client) []entry {
	t.Helper()
	texts, err := rdb.LRange(context.Background(), "entries", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	var out []entry
	for _, text := range texts {
		var e entry
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// proc is a process of the role "queue".
type proc struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	once sync.Once // for those that wait for its end
}

func startQueue(t *testing.T, plan queuePlan) *proc {
	t.Helper()
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "JOBLOCK_E2E_ROLE=queue", "JOBLOCK_E2E_PLAN="+string(text))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &proc{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

// kill ends the process as a crash does; nothing if it has ended.
func (p *proc) kill() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

// got waits until the process has the lock.
func (p *proc) got(t *testing.T) (fence int64) {
	t.Helper()
	if _, err := fmt.Fscanf(p.out, "got %d\n", &fence); err != nil {
		t.Fatal(err)
	}
	return fence
}

// finish waits for the end of the process. The bound is a guard against hanging: what one process leaves behind that
// fails, others may wait for.
func (p *proc) finish(t *testing.T) {
	t.Helper()
	guard := time.AfterFunc(90*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer guard.Stop()
	text, err := io.ReadAll(p.out)
	if err != nil {
		t.Error(err)
	}
	p.once.Do(func() {
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("process: %v, said %q", err, text)
		}
	})
}
