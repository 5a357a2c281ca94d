package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// sourcesOfSimple has asynq call each script in simple, and returns the scripts' sources.
func sourcesOfSimple(t *testing.T) map[string]string {
	t.Helper()
	skipIfRealOnly(t)
	m := MiniServer(t)
	sources := make(chan string, 1000)
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
		if cmd == "EVAL" {
			sources <- args[0]
		}
		return false
	})
	rdb := MiniClient(t, m)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{LogLevel: asynq.FatalLevel})
	if err := srv.Start(asynq.NewServeMux()); err != nil { // writes its state
		t.Fatal(err)
	}
	for id, opt := range map[string]asynq.Option{"a": asynq.ProcessIn(0), "b": asynq.ProcessIn(1e12)} {
		if _, err := client.Enqueue(asynq.NewTask("type", nil), opt, asynq.TaskID(id), asynq.Queue("other")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := inspector.GetTaskInfo("other", "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := inspector.ListScheduledTasks("other"); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for len(found) < len(simple) {
		source := <-sources
		if sha := redis.NewScript(source).Hash(); simple[sha] != nil {
			found[sha] = source
		}
	}
	srv.Shutdown()
	return found
}

// What is done without Lua has the same answer and leaves the same behind as the script, to clients of both protocols.
// Also what is left to Lua has.
func TestSimpleScriptsDoAsLuaDoes(t *testing.T) {
	const (
		enqueue, schedule = "98d28b42650870a743450ffda9791e9e19c6991b", "8ce6b38a99b73194585c251eb3c2a89559f37a87"
		write, info       = "3c8548ad44d0dfcfde50f07ea9271d77f656042c", "1463a65d3fd6698099862e1314658984affe6ed7"
		list              = "8ce4326dbba042f10ec098fa779168e0a9e8c6c8"
		task, prefix      = "asynq:{q}:t:a", "asynq:{q}:"
	)
	sources := sourcesOfSimple(t)
	ctx := context.Background()
	hash := func(fields ...any) func(*redis.Client) {
		return func(rdb *redis.Client) { rdb.HSet(ctx, task, fields...) }
	}
	score := func(state string) func(*redis.Client) {
		return func(rdb *redis.Client) {
			rdb.HSet(ctx, task, "msg", "m\r\n", "state", state, "result", "r")
			rdb.ZAdd(ctx, prefix+state, redis.Z{Score: 1764244800, Member: "a"})
		}
	}
	states := map[string]func(*redis.Client){
		"nothing": func(*redis.Client) {}, "pending": hash("msg", "m", "state", "pending"), "active": hash("msg", "m", "state", "active", "result", ""),
		"scheduled": score("scheduled"), "retry": score("retry"), "archived": score("archived"),
		"scheduled, but in no set": hash("msg", "m", "state", "scheduled"), "no message": hash("state", "retry"), "no state": hash("msg", "m"),
		"other types": func(rdb *redis.Client) {
			for _, key := range []string{"scheduled", "pending", "t:a", "retry"} {
				rdb.Set(ctx, prefix+key, 1, 0)
			}
		},
		"sets of other types": func(rdb *redis.Client) {
			rdb.HSet(ctx, task, "msg", "m", "state", "active")
			rdb.Set(ctx, prefix+"scheduled", 1, 0)
		},
		"only the sets are of other types": func(rdb *redis.Client) {
			rdb.Set(ctx, prefix+"scheduled", 1, 0)
			rdb.Set(ctx, prefix+"pending", 1, 0)
		},
		"others wait": func(rdb *redis.Client) {
			rdb.LPush(ctx, prefix+"pending", "b")
			rdb.ZAdd(ctx, prefix+"scheduled", redis.Z{Score: 5, Member: "b"})
		},
		"a page of tasks": func(rdb *redis.Client) {
			for i, id := range []string{"a", "no result", "no message", "gone", "$7\r\n*2\r\n"} {
				rdb.ZAdd(ctx, prefix+"scheduled", redis.Z{Score: float64(i) + 1764244800.5, Member: id})
				if id != "gone" {
					rdb.HSet(ctx, prefix+"t:"+id, "state", "scheduled")
				}
				if id != "gone" && id != "no message" {
					rdb.HSet(ctx, prefix+"t:"+id, "msg", "m\r\n$-1\r\n "+id)
				}
			}
			rdb.HSet(ctx, prefix+"t:a", "result", "")
		},
		"a task of another type": func(rdb *redis.Client) {
			rdb.ZAdd(ctx, prefix+"scheduled", redis.Z{Member: "a"}, redis.Z{Member: "b", Score: 1})
			rdb.Set(ctx, prefix+"t:b", 1, 0)
		},
		"a server's state": func(rdb *redis.Client) { rdb.HSet(ctx, "workers", "old", "1"); rdb.Set(ctx, "servers", "old", 0) },
	}
	calls := []struct {
		sha  string
		keys []string
		args []any
	}{
		{enqueue, []string{task, prefix + "pending"}, []any{"msg", "a", 123}},
		{schedule, []string{task, prefix + "scheduled"}, []any{"msg", 1764244800, "a"}},
		{schedule, []string{task, prefix + "scheduled"}, []any{"msg", "x", "a"}},
		{write, []string{"servers", "workers"}, []any{10, "info"}},
		{write, []string{"servers", "workers"}, []any{10, "info", "w1", "one", "w2", "two"}},
		{write, []string{"servers", "workers"}, []any{10, "info", "w1"}},
		{write, []string{"servers", "workers"}, []any{"x", "info"}},
		{info, []string{task}, []any{"a", 77, prefix}},
		{list, []string{prefix + "scheduled"}, []any{0, 29, prefix + "t:"}},
		{list, []string{prefix + "scheduled"}, []any{1, 1, prefix + "t:"}},
		{list, []string{prefix + "scheduled"}, []any{"x", 1, prefix + "t:"}},
	}
	answered := make(map[string]int)
	// run returns the answer to a call and what is left behind. It is in virtual time because of the TTLs.
	run := func(t *testing.T, protocol int, prepare func(*redis.Client), lua bool, sha string, keys []string, args []any) (said, left string) {
		synctest.Test(t, func(t *testing.T) {
			m := Mini(t)
			rdb := redis.NewClient(&redis.Options{
				Addr: "127.0.0.1:1", Protocol: protocol, Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
			})
			defer rdb.Close()
			m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
				if lua || !answerIdle(m.Server())(c, cmd, args...) {
					return false
				}
				answered[sha]++
				return true
			})
			rdb.ScriptLoad(ctx, sources[sha])
			prepare(rdb)
			val, err := rdb.EvalSha(ctx, sha, keys, args...).Result()
			said = fmt.Sprintf("%#v %v", val, err)
			left = m.Dump() + fmt.Sprint(m.TTL("servers"), m.TTL("workers"))
		})
		return said, left
	}
	for _, protocol := range []int{2, 3} {
		for state, prepare := range states {
			for _, call := range calls {
				said, left := run(t, protocol, prepare, true, call.sha, call.keys, call.args)
				got, gotLeft := run(t, protocol, prepare, false, call.sha, call.keys, call.args)
				if said != got || left != gotLeft {
					t.Errorf("%s, %s%v, RESP%d: Lua says %s, and leaves\n%s\nwithout Lua it is %s, and\n%s",
						state, call.sha, call.args, protocol, said, left, got, gotLeft)
				}
			}
		}
	}
	for _, sha := range []string{enqueue, schedule, write, info} {
		if answered[sha] < 6 {
			t.Errorf("%s was answered only %d times without Lua", sha, answered[sha])
		}
	}
	if len(answered) != len(simple) {
		t.Errorf("of %d scripts %d were answered without Lua", len(simple), len(answered))
	}
}
