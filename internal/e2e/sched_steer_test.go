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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// steered has the options of the job in the processes of these roles.
var steered = map[string][]scheduler.Option{
	"steered":  {scheduler.CatchUpAll(time.Hour, 1000), scheduler.OverlapQueue(1000)},
	"failing":  {scheduler.AtMostOnce(), scheduler.PauseAfter(3)},
	"deadline": {scheduler.CatchUpAll(time.Hour, 1000), scheduler.OverlapQueue(1000), scheduler.StartDeadline(steerDeadline), scheduler.KeepHistory(50, 50)},
}

const steerDeadline = 3 * time.Second

// playSteered is a process with one job. If the set "remove" has the node, the process removes the job. The record of a
// killed node lasts as long as a lease.
func playSteered(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	err := func() (err error) {
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: schedTTL, MaxTTL: schedTTL})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, locks.Close(context.Background())) }()
		node := os.Getenv("JOBLOCK_E2E_NODE")
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "e2e", Node: node, Sync: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		if err := s.Func("job", "@every 1s", func(ctx context.Context) error { return obey(ctx, rdb, node) }, steered[role]...); err != nil {
			return err
		}
		fmt.Println("up")
		go removeOnRequest(ctx, s, rdb, node)
		return s.Run(ctx)
	}()
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

func removeOnRequest(ctx context.Context, s *scheduler.Scheduler, rdb *redis.Client, node string) {
	for ctx.Err() == nil {
		if told, err := rdb.SIsMember(ctx, "remove", node).Result(); err != nil || !told {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		what := "removed"
		if err := s.Remove("job"); err != nil {
			what = err.Error()
		}
		text, err := json.Marshal(note{Node: node, What: what})
		if err != nil || rdb.RPush(ctx, "notes", text).Err() != nil {
			fmt.Println("the note is not written")
		}
		return
	}
}

// obey is a function that does what the key "mode" says: fail, die, work as long as the key says so, or else be done.
func obey(ctx context.Context, rdb *redis.Client, node string) error {
	if err := writeNote(ctx, rdb, node, "begun", nil); err != nil {
		return err
	}
	for working := false; ctx.Err() == nil; {
		mode, err := rdb.Get(ctx, "mode").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		switch mode {
		case "fail":
			return errors.New("as planned")
		case "die":
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			if err := self.Kill(); err != nil {
				return err
			}
			select {}
		case "work":
			if !working {
				if err := writeNote(ctx, rdb, node, "working", nil); err != nil {
					return err
				}
			}
			working = true
			time.Sleep(10 * time.Millisecond)
		default:
			return writeNote(ctx, rdb, node, "done", nil)
		}
	}
	return context.Cause(ctx)
}

// setMode makes the executions obey. The mode "" makes them be done.
func (c *schedCluster) setMode(mode string) {
	c.Helper()
	if err := c.rdb.Set(context.Background(), "mode", mode, 0).Err(); err != nil {
		c.Fatal(err)
	}
}

// entry returns the entry of the job.
func (c *schedCluster) entry() admin.Entry {
	c.Helper()
	e, err := c.admin.Entry(context.Background(), "job")
	if err != nil {
		c.Fatal(err)
	}
	return e
}

// kill kills a process (SIGKILL).
func (c *schedCluster) kill(node string) {
	c.Helper()
	if err := c.nodes[node].end(syscall.SIGKILL); err == nil {
		c.Errorf("%s ended well", node)
	}
	delete(c.nodes, node)
}

// doneAt returns how often the tick of each second was done.
func (c *schedCluster) doneAt() map[int64]int {
	c.Helper()
	done := make(map[int64]int)
	for _, n := range c.notes("done") {
		done[c.secondOf(n)]++
	}
	return done
}

// secondOf returns the time of the note's tick.
func (c *schedCluster) secondOf(n note) (at int64) {
	c.Helper()
	if _, err := fmt.Sscanf(n.Tick, "job@%d", &at); err != nil {
		c.Fatalf("%s: %v", n.Tick, err)
	}
	return at
}

// wantEachSecond checks that each tick from the first to the last that was done was done, unless skip says otherwise. A tick
// may be done again for each process that was killed.
func (c *schedCluster) wantEachSecond(kills int, skip func(at int64) bool) {
	c.Helper()
	done := c.doneAt()
	first, last, again := int64(0), int64(0), 0
	for at, n := range done {
		if again += n - 1; first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	for at := first; at <= last; at++ {
		if skip(at) != (done[at] == 0) {
			c.Errorf("the tick of second %d (of %d) was done %d times", at-first, last-first, done[at])
		}
	}
	if again > kills {
		c.Errorf("%d ticks were done again, after %d kills", again, kills)
	}
	c.Logf("%d ticks, %d of them done again, %d processes killed", len(done), again, kills)
}

// awaitMore waits until n more executions are done.
func (c *schedCluster) awaitMore(n int) {
	c.Helper()
	c.await("done", len(c.notes("done"))+n)
}

func never(int64) bool { return false }

// wantNote checks the note of a pause.
func wantNote(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("note %q, want %q", got, want)
	}
}
