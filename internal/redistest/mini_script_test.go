package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// luaClient is a client of m whose scripts all run in Lua.
func luaClient(t *testing.T, m *miniredis.Miniredis, protocol int) *redis.Client {
	t.Helper()
	return client(t, protocol, m.Dial)
}

// nativeClient is as [MiniClient].
func nativeClient(t *testing.T, m *miniredis.Miniredis, protocol int) *redis.Client {
	t.Helper()
	return client(t, protocol, func() (net.Conn, error) { return dialMini(m, m.Server()) })
}

func client(t *testing.T, protocol int, dial func() (net.Conn, error)) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Protocol: protocol, MaxRetries: -1, PoolSize: 200,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return dial() },
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// scriptSources has asynq call each script in native, and returns their sources.
func scriptSources(t *testing.T) map[string]string {
	t.Helper()
	skipIfRealOnly(t) // Mini would skip the bubble only
	var mu sync.Mutex
	sources := make(map[string]string)
	synctest.Test(t, func(t *testing.T) {
		m := Mini(t)
		m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
			if cmd == "EVAL" && native[redis.NewScript(args[0]).Hash()] != nil {
				mu.Lock()
				defer mu.Unlock()
				sources[redis.NewScript(args[0]).Hash()] = args[0]
			}
			return false
		})
		rdb := luaClient(t, m, 3)
		client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
		srv := startAsynq(t, rdb)
		for id, opt := range map[string]asynq.Option{"good": asynq.ProcessIn(0), "bad": asynq.ProcessIn(0), "later": asynq.ProcessIn(time.Hour)} {
			if _, err := client.Enqueue(asynq.NewTask(id, nil), opt, asynq.TaskID(id)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := inspector.GetTaskInfo("default", "later"); err != nil {
			t.Fatal(err)
		}
		if _, err := inspector.ListScheduledTasks("default"); err != nil {
			t.Fatal(err)
		}
		if err := inspector.RunTask("default", "later"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		srv.Shutdown()
	})
	for sha := range native {
		if sources[sha] == "" {
			t.Errorf("asynq has no script %s", sha)
		}
	}
	return sources
}

// startAsynq starts a server on which tasks of the type "bad" fail.
func startAsynq(t *testing.T, rdb *redis.Client) *asynq.Server {
	t.Helper()
	srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		LogLevel: asynq.FatalLevel,
		GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task {
			return asynq.NewTask("good", nil)
		}),
	})
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		if task.Type() == "bad" {
			return errors.New("bad")
		}
		return nil
	})
	if err := srv.Start(handler); err != nil {
		t.Fatal(err)
	}
	return srv
}

// An asynq server at rest costs no Lua, also after an outage, and so the tests of servers at rest cost little. A new
// version of asynq may have other scripts.
func TestAsynqAtRestRunsNoLua(t *testing.T) {
	skipIfRealOnly(t)
	synctest.Test(t, func(t *testing.T) {
		m := Mini(t)
		var mu sync.Mutex
		tried, inLua := make(map[string]int), make(map[string]int)
		rdb := MiniClient(t, m)
		srv := startAsynq(t, rdb)
		time.Sleep(10 * time.Second)
		m.SetError("LOADING away for the test")
		if err := rdb.EvalSha(t.Context(), "a8153319360adc71cdc370107f8ab9786f204765", []string{"a", "b", "c", "d"}, 1, "t").Err(); !redis.HasErrorPrefix(err, "LOADING") {
			t.Errorf("during an outage a script is answered %v", err)
		}
		time.Sleep(10 * time.Second)
		m.SetError("")
		m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
			mu.Lock()
			defer mu.Unlock()
			switch cmd {
			case nativeCommand:
				tried[args[0]]++
			case "EVALSHA", "EVAL":
				inLua[args[0]]++
			}
			return false
		})
		time.Sleep(5 * time.Minute)
		m.Server().SetPreHook(nil)
		srv.Shutdown()
		mu.Lock()
		defer mu.Unlock()
		if len(tried) != 6 || len(inLua) > 0 {
			t.Errorf("at rest asynq calls %v, and in Lua run %v", tried, inLua)
		}
	})
}

// Without Lua a script has the same answer and leaves the same behind, to clients of both protocols. So has what is left
// to Lua.
func TestNativeScriptsDoAsLuaDoes(t *testing.T) {
	const (
		dequeue, forward, expired, stale = "a8153319360adc71cdc370107f8ab9786f204765", "522b1a6ae66fe79ea2f24a9af58798ab71879035", "49c4326d80c1db9c476da2aa7f4438d03688f82b", "16988a462595f6ee317be300951533b004f27f5c"
		reclaim, enqueue, schedule       = "7c08714194a1ed81153180b36590c51f1ccd7d42", "98d28b42650870a743450ffda9791e9e19c6991b", "8ce6b38a99b73194585c251eb3c2a89559f37a87"
		retry, done                      = "65fa409c88198a681c53e0892d8276eca0145694", "1241eaa1c73409baaf1fea0c08d203a4911bda15"
		write, info                      = "3c8548ad44d0dfcfde50f07ea9271d77f656042c", "1463a65d3fd6698099862e1314658984affe6ed7"
		run, list                        = "2fb646810e3433bbe85fba1a6b407eb3eced7b63", "8ce4326dbba042f10ec098fa779168e0a9e8c6c8"
		p                                = "asynq:{q}:"
		task                             = p + "t:a"
		maxInt                           = "9223372036854775807"
	)
	sources := scriptSources(t)
	ctx := context.Background()
	hash := func(fields ...any) func(*redis.Client) {
		return func(rdb *redis.Client) { rdb.HSet(ctx, task, fields...) }
	}
	score := func(state string) func(*redis.Client) {
		return func(rdb *redis.Client) {
			rdb.HSet(ctx, task, "msg", "m\r\n", "state", state, "result", "r")
			rdb.ZAdd(ctx, p+state, redis.Z{Score: 1764244800, Member: "a"})
		}
	}
	active := func(rdb *redis.Client) {
		rdb.HSet(ctx, task, "msg", "m", "state", "active")
		rdb.LPush(ctx, p+"active", "b", "a", "c")
		rdb.ZAdd(ctx, p+"lease", redis.Z{Score: 100, Member: "a"}, redis.Z{Score: 101, Member: "b"})
	}
	and := func(all ...func(*redis.Client)) func(*redis.Client) {
		return func(rdb *redis.Client) {
			for _, f := range all {
				f(rdb)
			}
		}
	}
	set := func(val any, keys ...string) func(*redis.Client) {
		return func(rdb *redis.Client) {
			for _, key := range keys {
				rdb.Del(ctx, p+key)
				rdb.Set(ctx, p+key, val, 0)
			}
		}
	}
	pending := func(rdb *redis.Client) {
		rdb.HSet(ctx, task, "msg", "m", "state", "pending", "pending_since", 1)
		rdb.LPush(ctx, p+"pending", "a", "b")
		rdb.LPush(ctx, p+"pending", "c")
	}
	due := func(rdb *redis.Client) {
		for _, key := range []string{"scheduled", "lease", "completed", "sets"} {
			rdb.ZAdd(ctx, p+key, redis.Z{Score: 100, Member: "a"}, redis.Z{Score: 7, Member: "b"}, redis.Z{Score: 1e9, Member: "c"})
		}
		rdb.HSet(ctx, task, "msg", "m", "state", "scheduled")
	}
	states := map[string]func(*redis.Client){
		"nothing": func(*redis.Client) {}, "pending": pending, "the state is pending": hash("msg", "m", "state", "pending"),
		"the state is active": hash("msg", "m", "state", "active", "result", ""), "aggregating": hash("msg", "m", "state", "aggregating", "group", "g"),
		"scheduled": score("scheduled"), "retry": score("retry"), "archived": score("archived"), "completed": score("completed"),
		"scheduled, but in no set": hash("msg", "m", "state", "scheduled"), "no message": hash("state", "retry"), "no state": hash("msg", "m"),
		"active": active, "active, with counters": and(active, set(5, "processed", "failed", "total processed", "total failed")),
		"active, with full counters":       and(active, set(maxInt, "total processed"), set(7, "total failed")),
		"active, with no counters":         and(active, set("x", "total failed", "total processed")),
		"active, no lease":                 and(active, func(rdb *redis.Client) { rdb.ZRem(ctx, p+"lease", "a") }),
		"active, not listed":               and(active, func(rdb *redis.Client) { rdb.LRem(ctx, p+"active", 0, "a") }),
		"active, no task":                  and(active, func(rdb *redis.Client) { rdb.Del(ctx, task) }),
		"active, other types":              and(active, set(1, "retry", "processed")),
		"active, a task of another type":   and(active, set(1, "t:a")),
		"paused":                           and(pending, set(1, "paused")),
		"pending, no task":                 and(pending, func(rdb *redis.Client) { rdb.RPush(ctx, p+"pending", "gone") }),
		"pending, a task of another type":  and(pending, set(1, "t:a")),
		"pending, others of another type":  and(pending, set(1, "active")),
		"pending, a lease of another type": and(pending, set(1, "lease")),
		"due":                              due,
		"due, a pending of another type":   and(due, set(1, "pending")),
		"due, a task of another type":      and(due, set(1, "t:a")),
		"due, in a group":                  and(due, hash("group", "g")),
		"due, in an empty group":           and(due, hash("group", "")),
		"due later": func(rdb *redis.Client) {
			for _, key := range []string{"scheduled", "lease", "completed", "sets"} {
				rdb.ZAdd(ctx, p+key, redis.Z{Score: 101, Member: "a"})
			}
		},
		"other types":         set(1, "scheduled", "pending", "t:a", "retry", "active", "lease", "sets"),
		"sets of other types": and(hash("msg", "m", "state", "active"), set(1, "scheduled")),
		"others wait": func(rdb *redis.Client) {
			rdb.LPush(ctx, p+"pending", "b")
			rdb.ZAdd(ctx, p+"scheduled", redis.Z{Score: 500, Member: "b"})
		},
		"a page of tasks": func(rdb *redis.Client) {
			for i, id := range []string{"a", "no result", "no message", "gone", "$7\r\n*2\r\n"} {
				rdb.ZAdd(ctx, p+"scheduled", redis.Z{Score: float64(i) + 1764244800.5, Member: id})
				if id != "gone" {
					rdb.HSet(ctx, p+"t:"+id, "state", "scheduled")
				}
				if id != "gone" && id != "no message" {
					rdb.HSet(ctx, p+"t:"+id, "msg", "m\r\n$-1\r\n "+id)
				}
			}
			rdb.HSet(ctx, p+"t:a", "result", "")
		},
		"a task of another type": func(rdb *redis.Client) {
			rdb.ZAdd(ctx, p+"scheduled", redis.Z{Member: "a", Score: 200}, redis.Z{Member: "b", Score: 201})
			rdb.Set(ctx, p+"t:b", 1, 0)
		},
		"a server's state": func(rdb *redis.Client) { rdb.HSet(ctx, "workers", "old", "1"); rdb.Set(ctx, "servers", "old", 0) },
	}
	keys := func(names ...string) (keys []string) {
		for _, name := range names {
			keys = append(keys, p+name)
		}
		return keys
	}
	retryKeys := keys("t:a", "active", "lease", "retry", "processed", "failed", "total processed", "total failed")
	doneKeys := keys("active", "lease", "t:a", "processed", "total processed")
	calls := []struct {
		sha  string
		keys []string
		args []any
	}{
		{dequeue, keys("pending", "paused", "active", "lease"), []any{100, p + "t:"}},
		{dequeue, keys("pending", "paused", "active", "lease"), []any{"x", p + "t:"}},
		{forward, keys("scheduled", "pending"), []any{100, p + "t:", 5, p + "g:"}},
		{forward, keys("scheduled", "pending"), []any{"x", p + "t:", 5, p + "g:"}},
		{expired, keys("completed"), []any{100, p + "t:", 100}},
		{stale, keys("lease"), []any{100, p + "t:"}},
		{reclaim, keys("sets"), []any{6}},
		{enqueue, keys("t:a", "pending"), []any{"msg", "a", 123}},
		{schedule, keys("t:a", "scheduled"), []any{"msg", 1764244800, "a"}},
		{schedule, keys("t:a", "scheduled"), []any{"msg", "x", "a"}},
		{retry, retryKeys, []any{"a", "new", 300, 4e9, 1, maxInt}},
		{retry, retryKeys, []any{"a", "new", 300, 4e9, 0, maxInt}},
		{retry, retryKeys, []any{"a", "new", "x", 4e9, 1, maxInt}},
		{done, doneKeys, []any{"a", 4e9, maxInt}},
		{done, doneKeys, []any{"a", "x", maxInt}},
		{write, []string{"servers", "workers"}, []any{10, "info"}},
		{write, []string{"servers", "workers"}, []any{10, "info", "w1", "one", "w2", "two"}},
		{write, []string{"servers", "workers"}, []any{10, "info", "w1"}},
		{write, []string{"servers", "workers"}, []any{"x", "info"}},
		{info, keys("t:a"), []any{"a", 77, p}},
		{run, keys("t:a", "pending", "groups"), []any{"a", p, p + "g:"}},
		{list, keys("scheduled"), []any{0, 29, p + "t:"}},
		{list, keys("scheduled"), []any{1, 1, p + "t:"}},
		{list, keys("scheduled"), []any{"x", 1, p + "t:"}},
	}
	answered := make(map[string]int)
	for _, protocol := range []int{2, 3} {
		for state, prepare := range states {
			// In virtual time because of the TTLs. Each call is on a miniredis that is empty but for the state.
			synctest.Test(t, func(t *testing.T) {
				m := Mini(t)
				lua, mini := luaClient(t, m, protocol), nativeClient(t, m, protocol)
				var inLua string
				m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
					if cmd == "EVALSHA" {
						inLua = args[0]
					}
					return false
				})
				for _, call := range calls {
					lua.ScriptLoad(ctx, sources[call.sha])
					var said, left [2]string
					for i, rdb := range []*redis.Client{lua, mini} {
						m.FlushAll()
						prepare(lua)
						inLua = ""
						val, err := rdb.EvalSha(ctx, call.sha, call.keys, call.args...).Result()
						said[i], left[i] = fmt.Sprintf("%#v %v", val, err), m.Dump()
						for _, key := range []string{"servers", "workers", p + "processed", p + "failed", p + "total processed"} {
							left[i] += fmt.Sprint(m.TTL(key))
						}
					}
					if said[0] != said[1] || left[0] != left[1] {
						t.Errorf("%s, %s%v, RESP%d: Lua says %s, and leaves\n%s\nwithout Lua it is %s, and\n%s",
							state, call.sha, call.args, protocol, said[0], left[0], said[1], left[1])
					}
					if inLua == "" {
						answered[call.sha]++
					}
				}
			})
		}
	}
	for sha := range native {
		if answered[sha] < 6 {
			t.Errorf("%s was answered only %d times without Lua", sha, answered[sha])
		}
	}
}

// Other scripts and calls that make no sense are left to miniredis. So are those in another database and in transactions.
func TestWhatIsNotNativeIsLeftToMiniredis(t *testing.T) {
	const dequeue = "a8153319360adc71cdc370107f8ab9786f204765"
	ctx := context.Background()
	m := MiniServer(t)
	rdb := MiniClient(t, m)
	for _, args := range [][]any{{"evalsha", dequeue}, {"evalsha", dequeue, "x"}, {"evalsha", dequeue, "4", "a"}, {"evalsha", "unknown", "1", "a"}} {
		if err := rdb.Do(ctx, args...).Err(); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	rdb.LPush(ctx, "pending", "a")
	other := rdb.Conn()
	defer other.Close()
	if err := other.Select(ctx, 3).Err(); err != nil {
		t.Fatal(err)
	}
	keys := []string{"pending", "paused", "active", "lease"}
	if err := other.EvalSha(ctx, dequeue, keys, 1, "t:").Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Errorf("in database 3: error %v, want NOSCRIPT", err)
	}
	_, err := rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.EvalSha(ctx, dequeue, keys, 1, "t:")
		return nil
	})
	if !redis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Errorf("in a transaction: error %v, want NOSCRIPT", err)
	}
	if n := rdb.LLen(ctx, "pending").Val(); n != 1 {
		t.Errorf("%d tasks are pending, want 1", n)
	}
}
