//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
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
	"github.com/joblock/toolkit/scheduler/spec"
)

// deadAfter is how long a process of the role "spec" counts as up after it was killed.
const deadAfter = 4 * time.Second

// playSpec is a process with one job, whose spec is in the environment. Each execution is noted in the list "ticks".
func playSpec() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	err := func() (err error) {
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: 2 * time.Second, MaxTTL: deadAfter})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, locks.Close(context.Background())) }()
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "e2e", Node: os.Getenv("JOBLOCK_E2E_NODE"), Sync: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		err = s.Func("job", os.Getenv("JOBLOCK_E2E_SPEC"), func(ctx context.Context) error {
			tick, _ := scheduler.TickFrom(ctx)
			if err := rdb.RPush(ctx, "ticks", fmt.Sprint(tick.At.Unix(), tick.Broken)).Err(); err != nil {
				return err
			}
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // a time in which to die
			return ctx.Err()
		}, scheduler.CatchUpAll(time.Hour, 1000), scheduler.OverlapQueue(1000))
		if err != nil {
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

// A deploy of another spec on three processes that are killed (SIGKILL) all the time: each tick of the spec in force is
// executed, and once unless its process was killed. JOBLOCK_ROLLING is how long, 8 s by default. Then a process of the old
// release starts late, and is killed: without a restart, the new spec is in force again.
func TestRollingChangeOfASpec(t *testing.T) {
	takes := 8 * time.Second
	if text := os.Getenv("JOBLOCK_ROLLING"); text != "" {
		var err error
		if takes, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	server := redistest.Start(t)
	rdb, ctx := server.Client(t), t.Context()
	ops, err := admin.New(newLocks(t, server.Addr(), nil), "e2e", "")
	if err != nil {
		t.Fatal(err)
	}
	specs := [2]string{"@every 1s", "*/3 * * * * *"}
	boot := func(i, release int) *schedNode {
		t.Setenv("JOBLOCK_E2E_SPEC", specs[release])
		return startRole(t, server, "spec", fmt.Sprint("node", i))
	}
	var nodes [3]*schedNode
	var releases [3]int
	for i := range nodes {
		nodes[i] = boot(i, 0)
	}

	type period struct {
		spec string
		from time.Time
	}
	var periods []period
	look := func() (e admin.Entry) { // the ledger has the latest three specs
		e, err := ops.Entry(ctx, "job")
		if errors.Is(err, joblock.ErrNotFound) {
			return e
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(periods); n == 0 || !periods[n-1].from.Equal(e.Since) {
			var missed []period
			for i, f := range e.Former {
				from := e.Since.Add(-time.Hour)
				if i+1 < len(e.Former) {
					from = e.Former[i+1].Until
				}
				if n > 0 && from.After(periods[n-1].from) {
					missed = append([]period{{f.Spec, from}}, missed...)
				}
			}
			periods = append(append(periods, missed...), period{e.Spec, e.Since})
		}
		return e
	}
	kills := 0
	for begun := time.Now(); time.Since(begun) < takes; {
		look()
		time.Sleep(50 * time.Millisecond)
		if up := int(6*time.Since(begun)/takes) - 2; up >= 0 && up < 3 && releases[up] == 0 {
			if err := nodes[up].end(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			releases[up] = 1
			nodes[up] = boot(up, 1)
		}
		if i := rand.IntN(60); i < 3 {
			kills++
			_ = nodes[i].end(syscall.SIGKILL)
			nodes[i] = boot(i, releases[i])
		}
	}
	for i := range nodes {
		if releases[i] == 0 { // the machine was slow
			if err := nodes[i].end(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			nodes[i] = boot(i, 1)
		}
	}
	late := boot(3, 0)
	await(t, "the old spec", func() bool { e := look(); return e.SpecBy == "node3" && e.Spec == specs[0] })
	_ = late.end(syscall.SIGKILL)
	await(t, "the new spec", func() bool { e := look(); return e.SpecBy != "node3" && e.Spec == "CRON_TZ=UTC "+specs[1] })
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	end := now.Truncate(time.Second)
	await(t, "the last tick", func() bool {
		e := look()
		return e.Latest.Tick.At.After(end) && e.Latest.State == scheduler.Done
	})

	want := make(map[int64]bool)
	for i, p := range periods {
		s, err := spec.Parse(p.spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		until := end
		if i+1 < len(periods) {
			until = periods[i+1].from
		}
		for tick := range s.Ticks(p.from, until) {
			want[tick.Unix()] = true
		}
	}
	texts, err := rdb.LRange(ctx, "ticks", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	executed, noted := make(map[int64]bool), make(map[string]bool)
	for _, text := range texts {
		var at, broken int64
		if _, err := fmt.Sscan(text, &at, &broken); err != nil {
			t.Fatal(err)
		}
		if noted[text] {
			t.Errorf("tick %d was executed twice, and was not broken off in between", at)
		}
		executed[at], noted[text] = true, true
		if !want[at] && at <= end.Unix() {
			t.Errorf("tick %d was executed, although its spec was not in force", at)
		}
	}
	for at := range want {
		if !executed[at] {
			t.Errorf("tick %d was not executed", at)
		}
	}
	if last := periods[len(periods)-1].spec; last != "CRON_TZ=UTC "+specs[1] || len(periods) < 2 {
		t.Errorf("in the end %s is in force, after %d changes", last, len(periods)-1)
	}
	t.Logf("%d ticks, %d executions, %d kills, %d changes of the spec", len(want), len(texts), kills, len(periods)-1)
}
