package redistest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// scriptsOfAsynq runs an asynq server for a minute, and returns the source of each script in idle, and how often the
// script was called and was answered without Lua.
func scriptsOfAsynq(t *testing.T) (sources map[string]string, called, answered map[string]int) {
	skipIfRealOnly(t) // Mini would skip the bubble only
	sources, called, answered = make(map[string]string), make(map[string]int), make(map[string]int)
	var mu sync.Mutex
	synctest.Test(t, func(t *testing.T) {
		m := Mini(t)
		rdb := MiniClient(t, m)
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		known := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(sources) == len(idle)
		}
		count := func(n map[string]int, script string) {
			mu.Lock()
			defer mu.Unlock()
			n[script]++
		}
		m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			switch {
			case cmd == "EVAL" && idle[redis.NewScript(args[0]).Hash()] != nil:
				mu.Lock()
				defer mu.Unlock()
				sources[redis.NewScript(args[0]).Hash()] = args[0]
			case cmd == "EVALSHA" && idle[args[0]] != nil:
				count(called, args[0])
				if known() && answerIdle(m.Server())(c, cmd, args...) {
					count(answered, args[0])
					return true
				}
			}
			return false
		})
		srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{LogLevel: asynq.FatalLevel})
		if err := srv.Start(asynq.NewServeMux()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		srv.Shutdown()
	})
	return sources, called, answered
}

// An asynq server at rest costs no Lua, and so the tests of servers at rest cost little. A new version of asynq may have
// other scripts.
func TestAsynqAtRestRunsNoScripts(t *testing.T) {
	sources, called, answered := scriptsOfAsynq(t)
	if len(sources) != len(idle) {
		t.Fatalf("asynq has only the scripts %q of those in idle", slices.Collect(maps.Keys(sources)))
	}
	for script, n := range answered {
		if n < 2 {
			t.Errorf("%s was answered %d times of %d", script, n, called[script])
		}
	}
	if len(answered) != len(idle) {
		t.Errorf("answered were %v of %v", answered, called)
	}
}

// The answers without Lua are those of the scripts, and are given only where the scripts change nothing.
func TestIdleScriptsAnswerAsLuaDoes(t *testing.T) {
	sources, _, _ := scriptsOfAsynq(t)
	ctx := t.Context()
	const pending, paused, active, lease, delayed = "asynq:{q}:pending", "asynq:{q}:paused", "asynq:{q}:active", "asynq:{q}:lease", "asynq:{q}:scheduled"
	calls := map[string]struct {
		keys []string
		args []any
	}{
		"a8153319360adc71cdc370107f8ab9786f204765": {[]string{pending, paused, active, lease}, []any{100, "asynq:{q}:t:"}},
		"522b1a6ae66fe79ea2f24a9af58798ab71879035": {[]string{delayed, pending}, []any{100, "asynq:{q}:t:", 5, "asynq:{q}:g:"}},
		"49c4326d80c1db9c476da2aa7f4438d03688f82b": {[]string{delayed}, []any{100, "asynq:{q}:t:", 100}},
		"16988a462595f6ee317be300951533b004f27f5c": {[]string{lease}, []any{100, "asynq:{q}:t:"}},
	}
	states := map[string]func(rdb *redis.Client){
		"nothing is there":  func(*redis.Client) {},
		"a task is pending": func(rdb *redis.Client) { rdb.LPush(ctx, pending, "a") },
		"a task is pending in a paused queue": func(rdb *redis.Client) {
			rdb.LPush(ctx, pending, "a")
			rdb.Set(ctx, paused, 1, 0)
		},
		"the queue is paused": func(rdb *redis.Client) { rdb.Set(ctx, paused, 1, 0) },
		"tasks are due later": func(rdb *redis.Client) {
			for _, key := range []string{delayed, lease} {
				rdb.ZAdd(ctx, key, redis.Z{Score: 101, Member: "a"}, redis.Z{Score: 1e9, Member: "b"})
			}
		},
		"a task is due now": func(rdb *redis.Client) {
			for _, key := range []string{delayed, lease} {
				rdb.ZAdd(ctx, key, redis.Z{Score: 100, Member: "a"}, redis.Z{Score: 101, Member: "b"})
			}
		},
	}
	for state, prepare := range states {
		for sha, call := range calls {
			var said, left [2]string
			for i := range said {
				m := MiniServer(t)
				rdb := MiniClient(t, m)
				rdb.HSet(ctx, "asynq:{q}:t:a", "msg", "of a", "state", "?")
				prepare(rdb)
				run := rdb.Eval(ctx, sources[sha], call.keys, call.args...)
				if i == 1 { // the script is known now
					rdb.FlushAll(ctx)
					rdb.HSet(ctx, "asynq:{q}:t:a", "msg", "of a", "state", "?")
					prepare(rdb)
					run = rdb.EvalSha(ctx, sha, call.keys, call.args...)
				}
				val, err := run.Result()
				said[i], left[i] = fmt.Sprintf("%v %v", val, err), m.Dump()
			}
			if said[0] != said[1] || left[0] != left[1] {
				t.Errorf("%s, %s: Lua says %s, and leaves\n%s\nwithout Lua it is %s, and\n%s", state, sha, said[0], left[0], said[1], left[1])
			}
		}
	}
}

// Other scripts, other commands and calls that make no sense are left to miniredis, in whatever database a client is.
func TestWhatIsNotIdleIsLeftToMiniredis(t *testing.T) {
	m := MiniServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), DB: 3})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := context.Background()
	const dequeue = "a8153319360adc71cdc370107f8ab9786f204765"
	for _, args := range [][]any{{"evalsha", dequeue}, {"evalsha", dequeue, "x"}, {"evalsha", dequeue, "4", "a"}, {"evalsha", "unknown", "1", "a"}} {
		if err := rdb.Do(ctx, args...).Err(); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	rdb.LPush(ctx, "pending", "a")
	err := rdb.EvalSha(ctx, dequeue, []string{"pending", "paused", "active", "lease"}, 1, "t:").Err()
	if !redis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Errorf("error %v, want NOSCRIPT: the list in this database is not empty", err)
	}
}
