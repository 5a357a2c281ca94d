package asynqtick_test

import (
	"log"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

var provider asynq.PeriodicTaskConfigProvider

// The usual use of asynq's manager, before the move.
func Example_asynqsManager() {
	mgr, err := asynq.NewPeriodicTaskManager(
		asynq.PeriodicTaskManagerOpts{
			RedisConnOpt:               asynq.RedisClientOpt{Addr: "localhost:6379"},
			PeriodicTaskConfigProvider: provider,
			SyncInterval:               10 * time.Second,
		})
	if err != nil {
		log.Fatal(err)
	}
	if err := mgr.Run(); err != nil {
		log.Fatal(err)
	}
}

// The same after the move. The provider stays as it is.
func ExamplePeriodicTaskManager() {
	mgr, err := asynqtick.NewPeriodicTaskManager(p.Locks, &scheduler.Config{Scope: "shop"},
		asynq.PeriodicTaskManagerOpts{
			RedisConnOpt:               asynq.RedisClientOpt{Addr: "localhost:6379"},
			PeriodicTaskConfigProvider: provider,
			SyncInterval:               10 * time.Second,
		})
	if err != nil {
		log.Fatal(err)
	}
	if err := mgr.Run(); err != nil {
		log.Fatal(err)
	}
}

// What a toolkit.Process has.
var p struct {
	Locks *joblock.Locker
	Redis redis.UniversalClient
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// The usual use of asynq's scheduler, before the move.
func Example_asynqsScheduler() {
	s := asynq.NewScheduler(asynq.RedisClientOpt{Addr: "localhost:6379"}, &asynq.SchedulerOpts{Location: time.Local})
	_, err := s.Register("0 3 * * *", asynq.NewTask("report", nil), asynq.MaxRetry(5))
	check(err)
	check(s.Run())
}

// The same after the move.
func ExampleScheduler() {
	s := asynqtick.NewScheduler(p.Locks, &scheduler.Config{Scope: "shop"}, p.Redis, &asynq.SchedulerOpts{Location: time.Local})
	_, err := s.Register("0 3 * * *", asynq.NewTask("report", nil), asynq.MaxRetry(5))
	check(err)
	check(s.Run())
}

// The diffs in docs/cron.md turn each first example into the second, and change as many lines as the page says.
func TestTheDiffsOfTheMove(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	body := func(name string) []string {
		_, rest, ok := strings.Cut(read("move_test.go"), "func "+name+"() {\n")
		if !ok {
			t.Fatalf("no %s", name)
		}
		text, _, _ := strings.Cut(rest, "\n}\n")
		return strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
	}
	page := read("../../docs/cron.md")
	rest := page
	for _, move := range []struct {
		before, after string
		added         int
		says          string
	}{
		{"Example_asynqsScheduler", "ExampleScheduler", 1, "you change one line, and"},
		{"Example_asynqsManager", "ExamplePeriodicTaskManager", 1, "Again you change one line"},
	} {
		var ok bool
		if _, rest, ok = strings.Cut(rest, "```diff\n"); !ok {
			t.Fatalf("docs/cron.md has no diff to %s", move.after)
		}
		diff, _, _ := strings.Cut(rest, "\n```")
		var before, after []string
		added, removed := 0, 0
		for _, line := range strings.Split(diff, "\n") {
			switch line[0] {
			case '+':
				added++
				after = append(after, line[1:])
			case '-':
				removed++
				before = append(before, line[1:])
			default:
				before, after = append(before, line[1:]), append(after, line[1:])
			}
		}
		if want := body(move.before); !slices.Equal(before, want) {
			t.Errorf("before:\n%s\nwant:\n%s", strings.Join(before, "\n"), strings.Join(want, "\n"))
		}
		if want := body(move.after); !slices.Equal(after, want) {
			t.Errorf("after:\n%s\nwant:\n%s", strings.Join(after, "\n"), strings.Join(want, "\n"))
		}
		if added != move.added || removed != 1 || !strings.Contains(page, move.says) {
			t.Errorf("%s: %d lines added, %d removed; does the page say so?", move.after, added, removed)
		}
	}
}
