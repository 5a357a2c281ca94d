package redistest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestSharedGivesEachTestAnEmptyDatabase(t *testing.T) {
	t.Setenv(SharedEnv, "") // the tests of other packages take and give back databases, too
	ctx := t.Context()
	one, two := Shared(t), Shared(t)
	if err := one.Client(t).Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := two.Client(t).Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("another test's key: %v, want redis.Nil", err)
	}
	var ended *Database
	t.Run("a test that has ended", func(t *testing.T) {
		ended = Shared(t)
		if err := ended.Client(t).Set(ctx, "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	})
	if n := redis.NewClient(ended.Options()).DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys outlived their test", n)
	}
	if again := Shared(t); again.Number() != ended.Number() {
		t.Errorf("database %d, want the one that was given back, %d", again.Number(), ended.Number())
	}
}

// The fast tests share one server. Starting another one without the tag fails with the tag in the message.
func TestOwnServersNeedTheTag(t *testing.T) {
	f := &fakeTB{TB: t}
	defer func() {
		if ownServers {
			return
		}
		if r := recover(); r != any(f) || !strings.Contains(f.fatal, "-tags servers") {
			t.Errorf("Start: %v, Fatal(%q); want Fatal with the tag", r, f.fatal)
		}
	}()
	binary(f)
}

func TestMissingServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(ServerEnv, "")
	if _, err := program(); !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "`make test`") {
		t.Errorf("error %v, want exec.ErrNotFound and how to get one", err)
	}
	t.Setenv(ServerEnv, "no-such-server")
	if _, err := program(); !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), ServerEnv) {
		t.Errorf("error %v, want exec.ErrNotFound and the variable", err)
	}
	t.Setenv(SharedEnv, "")
	for ci, skip := range map[string]bool{"": true, "true": false} {
		t.Setenv("CI", ci)
		f := &fakeTB{TB: t}
		func() {
			defer func() {
				if r := recover(); r != any(f) {
					t.Fatalf("Shared gave %v", r)
				}
			}()
			Shared(f)
		}()
		if f.skipped != skip {
			t.Errorf("CI=%q: skipped %v, want %v", ci, f.skipped, skip)
		}
	}
}
