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
	"github.com/joblock/toolkit/joblock/redisstore"
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
	locks, err := joblock.New(redisstore.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	mgr, err := asynqtick.NewPeriodicTaskManager(locks, &scheduler.Config{Scope: "shop"},
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

// The diff in docs/cron.md turns the first example into the second, and changes as many lines as the page says.
func TestTheDiffOfTheMove(t *testing.T) {
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
	_, rest, ok := strings.Cut(page, "```diff\n")
	if !ok {
		t.Fatal("docs/cron.md has no diff")
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
	if want := body("Example_asynqsManager"); !slices.Equal(before, want) {
		t.Errorf("before:\n%s\nwant:\n%s", strings.Join(before, "\n"), strings.Join(want, "\n"))
	}
	if want := body("ExamplePeriodicTaskManager"); !slices.Equal(after, want) {
		t.Errorf("after:\n%s\nwant:\n%s", strings.Join(after, "\n"), strings.Join(want, "\n"))
	}
	if added != 5 || removed != 1 || !strings.Contains(page, "One line changes and four are new") {
		t.Errorf("%d lines added, %d removed; does the page say so?", added, removed)
	}
}
