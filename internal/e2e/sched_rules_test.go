//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/spec"
)

// playRules is a process with a scheduler whose job gets its spec from the key "spec", as soon
// as that is there.
func playRules() int {
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
		fmt.Println("up")
		var text string
		for text == "" && ctx.Err() == nil {
			if text, err = rdb.Get(ctx, "spec").Result(); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := s.Func("job", text, func(ctx context.Context) error { return writeNote(ctx, rdb, node, "done", nil) },
			scheduler.CatchUpAll(time.Hour, 1000), scheduler.OverlapQueue(1000)); err != nil {
			return err
		}
		return s.Run(ctx)
	}()
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

// A spec of three rules that often agree, with an end and seconds left out, on three processes:
// each tick is done once, and none after the end.
func TestSeveralRulesOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "rules")
	const layout = "2006-01-02T15:04:05"
	from := time.Now().UTC().Truncate(time.Second).Add(5 * time.Second)
	at := func(seconds int) string { return from.Add(time.Duration(seconds) * time.Second).Format(layout) }
	text := fmt.Sprintf("* * * * * *; @every 1s; */2 * * * * *; from %s; until %s; except %s..%s", at(0), at(12), at(5), at(7))
	if err := c.rdb.Set(t.Context(), "spec", text, 0).Err(); err != nil {
		t.Fatal(err)
	}
	s, err := spec.Parse(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for tick := range s.Ticks(from.Add(-time.Second), from.Add(time.Minute)) {
		want = append(want, fmt.Sprintf("job@%d", tick.Unix()))
	}
	if len(want) != 10 {
		t.Fatalf("%s has the ticks %v, want 10", s, want)
	}
	last := want[len(want)-1]
	await(t, "the last tick", func() bool {
		return slices.ContainsFunc(c.notes("done"), func(n note) bool { return n.Tick == last })
	})
	var got []string
	for _, n := range c.notes("done") {
		got = append(got, n.Tick)
	}
	slices.Sort(got)
	// Ticks count from the time at which the first process saw the job.
	if first := slices.Index(want, got[0]); first < 0 || !slices.Equal(got, want[first:]) {
		t.Errorf("done were %v, want %v", got, want)
	} else if first > 0 {
		t.Logf("the job was there after %d ticks", first)
	}
	e, err := c.admin.Entry(t.Context(), "job")
	if err != nil || !e.Next.IsZero() || e.Spec != s.String() {
		t.Errorf("after the end: %+v, %v; want no next tick", e, err)
	}
}
