//go:build servers

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// schedTTL is the lease of jobs in the processes, longer than a machine stands still.
const schedTTL = 5 * time.Second

// note is what a process of the role "sched" writes down about its run of the job, in
// the list "notes".
type note struct {
	Node  string
	What  string // begun, stopped, refused, done
	Tick  string
	Fence int64
	Cause string
}

// fencedWrite is the resource that the job writes to: it refuses a fence that is older
// than the newest it has seen.
var fencedWrite = redis.NewScript(`
local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < seen then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1`)

// playSched is a process with a scheduler whose one job works until it has to
// finish. SIGTERM stops it.
func playSched() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	err := func() (err error) {
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: schedTTL})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, locks.Close(context.Background())) }()
		node := os.Getenv("JOBLOCK_E2E_NODE")
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "e2e", Node: node, Sync: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		if err := s.Func("job", "@every 2s", func(ctx context.Context) error { return work(ctx, rdb, node) }); err != nil {
			return err
		}
		fmt.Println("up")
		return s.Run(ctx)
	}()
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

// work writes to the resource until the key "finish" is there.
func work(ctx context.Context, rdb *redis.Client, node string) error {
	lock, _ := joblock.FromContext(ctx)
	say := func(what string, cause error) error { return writeNote(ctx, rdb, node, what, cause) }
	if err := say("begun", nil); err != nil {
		return err
	}
	write := func() (bool, error) {
		return fencedWrite.Run(context.Background(), rdb, []string{"resource"}, lock.Fence()).Bool()
	}
	for {
		if ctx.Err() != nil { // before it does anything more
			err := say("stopped", context.Cause(ctx))
			if ok, werr := write(); werr == nil && !ok {
				err = errors.Join(err, say("refused", nil))
			}
			return errors.Join(context.Cause(ctx), err)
		}
		ok, err := write()
		if err != nil {
			return err
		}
		if !ok { // paused between the look and the write, so the fence was what it met first
			select {
			case <-ctx.Done():
				continue
			case <-time.After(time.Minute):
				return errors.New("a write was refused, and the lock is not lost")
			}
		}
		if n, err := rdb.Exists(context.Background(), "finish").Result(); err == nil && n == 1 {
			return say("done", nil)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// writeNote writes a note about the tick that ctx carries.
func writeNote(ctx context.Context, rdb *redis.Client, node, what string, cause error) error {
	tick, _ := scheduler.TickFrom(ctx)
	lock, _ := joblock.FromContext(ctx)
	text, err := json.Marshal(note{node, what, tick.ID(), lock.Fence(), fmt.Sprint(cause)})
	if err != nil {
		return err
	}
	return rdb.RPush(context.Background(), "notes", text).Err()
}

// schedNode is a process with a scheduler.
type schedNode struct {
	cmd  *exec.Cmd
	out  io.Reader
	once sync.Once
}

func startSchedRole(t *testing.T, server *redistest.Server, role, name string) *schedNode {
	t.Helper()
	return startRole(t, server, role, name)
}

// startRole starts a process that says when it is up.
func startRole(t *testing.T, server *redistest.Server, role, name string) *schedNode {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "JOBLOCK_E2E_ROLE="+role, "JOBLOCK_E2E_REDIS="+server.Addr(), "JOBLOCK_E2E_NODE="+name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := &schedNode{cmd: cmd, out: out}
	t.Cleanup(func() { n.end(syscall.SIGKILL) })
	if _, err := fmt.Fscanln(out); err != nil && !strings.Contains(err.Error(), "unexpected newline") && !strings.Contains(err.Error(), "expected newline") {
		t.Fatal(err)
	}
	return n
}

// end sends the signal and waits for the end of the process.
func (n *schedNode) end(sig syscall.Signal) (err error) {
	n.once.Do(func() {
		_ = n.cmd.Process.Signal(sig)
		err = n.cmd.Wait()
	})
	return err
}

// schedCluster is three processes and what they have written down.
type schedCluster struct {
	*testing.T
	server *redistest.Server
	rdb    *redis.Client
	locks  *joblock.Locker
	admin  *admin.Admin
	nodes  map[string]*schedNode
}

func newSchedCluster(t *testing.T) *schedCluster {
	t.Helper()
	return newSchedClusterOf(t, "sched")
}

// notes reads what was written down, of that kind or, for "", of all kinds.
func (c *schedCluster) notes(what string) (out []note) {
	c.Helper()
	texts, err := c.rdb.LRange(context.Background(), "notes", 0, -1).Result()
	if err != nil {
		c.Fatal(err)
	}
	for _, text := range texts {
		var n note
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			c.Fatal(err)
		}
		if n.What == what || what == "" {
			out = append(out, n)
		}
	}
	return out
}

// await waits for the nth note of that kind.
func (c *schedCluster) await(what string, n int) note {
	c.Helper()
	await(c.T, fmt.Sprintf("note %d of kind %q", n, what), func() bool { return len(c.notes(what)) >= n })
	return c.notes(what)[n-1]
}

// awaitLine waits until a node waits for the job's lock.
func (c *schedCluster) awaitLine() {
	c.Helper()
	await(c.T, "a node in line", func() bool {
		for st, err := range c.locks.List(context.Background(), joblock.ListOptions{}) {
			if err != nil {
				c.Fatal(err)
			}
			if st.Waiters > 0 {
				return true
			}
		}
		return false
	})
}

// settled has the job finish, and returns its entry then.
func (c *schedCluster) settled() (e admin.Entry) {
	c.Helper()
	if err := c.rdb.Set(context.Background(), "finish", 1, 0).Err(); err != nil {
		c.Fatal(err)
	}
	await(c.T, "the ledger", func() bool {
		var err error
		if e, err = c.admin.Entry(context.Background(), "job"); err != nil {
			c.Fatal(err)
		}
		return e.Counts.Done > 0
	})
	return e
}
