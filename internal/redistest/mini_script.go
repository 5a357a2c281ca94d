package redistest

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// native are scripts of asynq v0.26 by their SHA-1 that tests call very often. miniredis builds a Lua state for each call
// of a script, which takes a hundred times as long as most commands. Here the same commands run without Lua.
//
// A script returns how to answer the client. If it returns nil, it has changed nothing, and the call is left to Lua: what
// is unusual, such as a key of another type, and errors. A script that is not listed runs in Lua, which includes those of
// other versions of asynq.
var native = map[string]func(r *scriptRun, keys, args []string) scriptAnswer{
	"a8153319360adc71cdc370107f8ab9786f204765": dequeue,
	"522b1a6ae66fe79ea2f24a9af58798ab71879035": forward,
	"49c4326d80c1db9c476da2aa7f4438d03688f82b": noneDue(func(c *server.Peer) { c.WriteInt(0) }), // deleteExpiredCompletedTasks
	"16988a462595f6ee317be300951533b004f27f5c": noneDue(func(c *server.Peer) { c.WriteLen(0) }), // listLeaseExpired
	"7c08714194a1ed81153180b36590c51f1ccd7d42": noneDue(func(c *server.Peer) { c.WriteOK() }),   // reclaimStateAggregationSets
	"98d28b42650870a743450ffda9791e9e19c6991b": enqueue,
	"8ce6b38a99b73194585c251eb3c2a89559f37a87": schedule,
	"65fa409c88198a681c53e0892d8276eca0145694": retry,
	"1241eaa1c73409baaf1fea0c08d203a4911bda15": done,
	"3c8548ad44d0dfcfde50f07ea9271d77f656042c": writeServerState,
	"1463a65d3fd6698099862e1314658984affe6ed7": getTaskInfo,
	"2fb646810e3433bbe85fba1a6b407eb3eced7b63": runTask,
	"8ce4326dbba042f10ec098fa779168e0a9e8c6c8": listZSetEntries,
}

type scriptAnswer func(c *server.Peer)

const (
	nativeCommand  = "JOBLOCK.EVALSHA" // EVALSHA of a script in native
	captureCommand = "JOBLOCK.CAPTURE"
)

// serveNative adds nativeCommand to m.
func serveNative(m *miniredis.Miniredis) error {
	srv := m.Server()
	r := &scriptRun{srv: srv}
	r.as = server.NewPeer(bufio.NewWriterSize(&r.buf, 512))
	// The context of a script's commands, with which they run although m is locked.
	capture := func(c *server.Peer, _ string, _ []string) { r.as.Ctx = c.Ctx; c.WriteOK() }
	if err := srv.Register(captureCommand, capture); err != nil {
		return err
	}
	srv.Dispatch(server.NewPeer(bufio.NewWriter(io.Discard)), []string{"EVAL", "redis.call('" + captureCommand + "')", "0"})
	return srv.Register(nativeCommand, func(c *server.Peer, _ string, args []string) {
		if answer := r.run(m, args); answer != nil {
			answer(c)
			return
		}
		srv.Dispatch(c, append([]string{"EVALSHA"}, args...))
	})
}

// scriptRun runs commands as a script does: in database 0, while m is locked.
type scriptRun struct {
	srv *server.Server
	as  *server.Peer
	buf bytes.Buffer
}

// run runs the script args[0].
func (r *scriptRun) run(m *miniredis.Miniredis, args []string) scriptAnswer {
	if len(args) < 2 || len(args[1]) != 1 || args[1][0] < '1' || args[1][0] > '9' {
		return nil
	}
	script, n, args := native[args[0]], int(args[1][0]-'0'), args[2:]
	if script == nil || n > len(args) {
		return nil
	}
	m.Lock()
	defer m.Unlock()
	return script(r, args[:n], args[n:])
}

// whole runs a command, and returns the whole answer as the server sends it.
func (r *scriptRun) whole(cmd ...string) string {
	r.buf.Reset()
	r.srv.Dispatch(r.as, cmd)
	r.as.Flush()
	return r.buf.String()
}

// ask returns the first line of the answer.
func (r *scriptRun) ask(cmd ...string) string {
	line, _, _ := strings.Cut(r.whole(cmd...), "\r\n")
	return line
}

// strings returns the strings in the answer, whatever the arrays that they are in; nil is a string that is not there.
func (r *scriptRun) strings(cmd ...string) (vals []*string, ok bool) {
	said := r.whole(cmd...)
	for said != "" {
		line, rest, _ := strings.Cut(said, "\r\n")
		switch said = rest; line[0] {
		case '*':
		case '$':
			size, err := strconv.Atoi(line[1:])
			if err != nil {
				return nil, false
			}
			if size < 0 {
				vals = append(vals, nil)
				continue
			}
			val := said[:size]
			vals, said = append(vals, &val), said[size+2:]
		default:
			return nil, false
		}
	}
	return vals, true
}

// types reports whether the keys do not exist, or are of the types before them: "list", "a", "zset", "b".
func (r *scriptRun) types(want ...string) bool {
	for i := 0; i < len(want); i += 2 {
		if is := r.ask("TYPE", want[i+1]); is != "+none" && is != "+"+want[i] {
			return false
		}
	}
	return true
}

// counters reports whether INCR works for the keys.
func (r *scriptRun) counters(keys ...string) bool {
	for _, key := range keys {
		n, ok := r.strings("GET", key)
		if !ok || n[0] != nil && !isInt(*n[0]) {
			return false
		}
	}
	return true
}

// count adds one to a day's counter, and to totals, which begin again after the number limit.
func (r *scriptRun) count(days []string, expireAt string, totals []string, limit string) {
	for _, key := range days {
		if r.ask("INCR", key) == ":1" {
			r.ask("EXPIREAT", key, expireAt)
		}
	}
	n, _ := r.strings("GET", totals[0])
	for _, key := range totals {
		if n[0] != nil && *n[0] == limit {
			r.ask("SET", key, "1")
		} else {
			r.ask("INCR", key)
		}
	}
}

func isInt(texts ...string) bool {
	for _, text := range texts {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || strconv.FormatInt(n, 10) != text {
			return false
		}
	}
	return true
}

// dequeue takes the first pending task, unless the queue is paused.
func dequeue(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 4 || len(args) != 2 {
		return nil
	}
	if r.ask("EXISTS", keys[1]) == ":1" {
		return (*server.Peer).WriteNull
	}
	if r.ask("EXISTS", keys[0]) == ":0" {
		return (*server.Peer).WriteNull
	}
	id, ok := r.strings("LINDEX", keys[0], "-1")
	if !ok || !isInt(args[0]) || !r.types("list", keys[2], "zset", keys[3], "hash", args[1]+*id[0]) {
		return nil
	}
	task := args[1] + *id[0]
	r.ask("RPOPLPUSH", keys[0], keys[2])
	r.ask("HSET", task, "state", "active")
	r.ask("HDEL", task, "pending_since")
	r.ask("ZADD", keys[3], args[0], *id[0])
	msg, _ := r.strings("HGET", task, "msg")
	return func(c *server.Peer) { writeBulk(c, msg[0]) }
}

// forward makes scheduled tasks pending when they are due. What is in groups is left to Lua.
func forward(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 2 || len(args) != 4 || !isInt(args[0]) {
		return nil
	}
	if r.ask("EXISTS", keys[0]) == ":0" {
		return func(c *server.Peer) { c.WriteInt(0) }
	}
	ids, ok := r.strings("ZRANGEBYSCORE", keys[0], "-inf", args[0], "LIMIT", "0", "100")
	if !ok || len(ids) > 0 && !r.types("list", keys[1]) {
		return nil
	}
	for _, id := range ids {
		if group, ok := r.strings("HGET", args[1]+*id, "group"); !ok || group[0] != nil && *group[0] != "" {
			return nil
		}
	}
	for _, id := range ids {
		r.ask("LPUSH", keys[1], *id)
		r.ask("ZREM", keys[0], *id)
		r.ask("HSET", args[1]+*id, "state", "pending", "pending_since", args[2])
	}
	return func(c *server.Peer) { c.WriteInt(len(ids)) }
}

// noneDue is for scripts that do something with the members of a sorted set up to a score.
func noneDue(answer scriptAnswer) func(r *scriptRun, keys, args []string) scriptAnswer {
	return func(r *scriptRun, keys, args []string) scriptAnswer {
		if len(args) == 0 || r.ask("ZCOUNT", keys[0], "-inf", args[0]) != ":0" {
			return nil
		}
		return answer
	}
}

// enqueue makes a new task pending.
func enqueue(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 2 || len(args) != 3 || r.ask("EXISTS", keys[0]) != ":0" || !r.types("list", keys[1]) {
		return nil
	}
	r.ask("HSET", keys[0], "msg", args[0], "state", "pending", "pending_since", args[2])
	r.ask("LPUSH", keys[1], args[1])
	return func(c *server.Peer) { c.WriteInt(1) }
}

// schedule makes a new task for later.
func schedule(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 2 || len(args) != 3 || !isInt(args[1]) || r.ask("EXISTS", keys[0]) != ":0" || !r.types("zset", keys[1]) {
		return nil
	}
	r.ask("HSET", keys[0], "msg", args[0], "state", "scheduled")
	r.ask("ZADD", keys[1], args[1], args[2])
	return func(c *server.Peer) { c.WriteInt(1) }
}

// retry has an active task wait for its next attempt.
func retry(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 8 || len(args) != 6 || !isInt(args[2:]...) ||
		!r.types("hash", keys[0], "list", keys[1], "zset", keys[3]) || !r.counters(keys[4:]...) ||
		!r.has(keys[2], args[0]) || r.ask("LREM", keys[1], "0", args[0]) == ":0" {
		return nil
	}
	r.ask("ZREM", keys[2], args[0])
	r.ask("ZADD", keys[3], args[2], args[0])
	r.ask("HSET", keys[0], "msg", args[1], "state", "retry")
	if args[4] == "1" {
		r.count(keys[4:6], args[3], keys[6:], args[5])
	}
	return (*server.Peer).WriteOK
}

// done forgets an active task that has succeeded.
func done(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 5 || len(args) != 3 || !isInt(args[1:]...) || !r.types("list", keys[0]) || !r.counters(keys[3:]...) ||
		!r.has(keys[1], args[0]) || r.ask("EXISTS", keys[2]) != ":1" || r.ask("LREM", keys[0], "0", args[0]) == ":0" {
		return nil
	}
	r.ask("ZREM", keys[1], args[0])
	r.ask("DEL", keys[2])
	r.count(keys[3:4], args[1], keys[4:], args[2])
	return (*server.Peer).WriteOK
}

// has reports whether a sorted set has a member.
func (r *scriptRun) has(zset, member string) bool {
	score, ok := r.strings("ZSCORE", zset, member)
	return ok && score[0] != nil
}

// writeServerState says that a server is alive, and what it does.
func writeServerState(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 2 || len(args) < 2 || len(args)%2 != 0 {
		return nil
	}
	if n, err := strconv.Atoi(args[0]); err != nil || n <= 0 {
		return nil
	}
	r.ask("SETEX", keys[0], args[0], args[1])
	r.ask("DEL", keys[1])
	for i := 2; i < len(args); i += 2 {
		r.ask("HSET", keys[1], args[i], args[i+1])
	}
	r.ask("EXPIRE", keys[1], args[0])
	return (*server.Peer).WriteOK
}

// getTaskInfo reads a task.
func getTaskInfo(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 1 || len(args) != 3 {
		return nil
	}
	if r.ask("EXISTS", keys[0]) == ":0" {
		return func(c *server.Peer) { c.WriteError("NOT FOUND") }
	}
	task, ok := r.strings("HMGET", keys[0], "msg", "state", "result")
	if !ok || task[0] == nil || task[1] == nil {
		return nil
	}
	next := func(c *server.Peer) { c.WriteInt(0) }
	switch state := *task[1]; state {
	case "scheduled", "retry":
		score, ok := r.strings("ZSCORE", args[2]+state, args[0])
		if !ok {
			return nil
		}
		next = func(c *server.Peer) { writeBulk(c, score[0]) }
	case "pending":
		next = func(c *server.Peer) { c.WriteBulk(args[1]) }
	}
	return func(c *server.Peer) {
		c.WriteLen(4)
		writeBulk(c, task[0])
		writeBulk(c, task[1])
		next(c)
		writeBulk(c, task[2])
	}
}

// runTask makes a task pending that waits or has ended.
func runTask(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 3 || len(args) != 3 {
		return nil
	}
	if r.ask("EXISTS", keys[0]) == ":0" {
		return func(c *server.Peer) { c.WriteInt(0) }
	}
	state, ok := r.strings("HGET", keys[0], "state")
	if !ok || state[0] == nil {
		return nil
	}
	switch *state[0] {
	case "active", "pending", "aggregating":
		return nil
	}
	if !r.types("list", keys[1]) || r.ask("ZREM", args[1]+*state[0], args[0]) != ":1" {
		return nil
	}
	r.ask("LPUSH", keys[1], args[0])
	r.ask("HSET", keys[0], "state", "pending")
	return func(c *server.Peer) { c.WriteInt(1) }
}

// listZSetEntries reads a page of the tasks in a sorted set. In Lua a large page takes most of a second.
func listZSetEntries(r *scriptRun, keys, args []string) scriptAnswer {
	if len(keys) != 1 || len(args) != 3 {
		return nil
	}
	entries, ok := r.strings("ZRANGE", keys[0], args[0], args[1], "WITHSCORES")
	if !ok {
		return nil
	}
	vals := make([]*string, 0, len(entries)/2*3)
	for i := 0; i < len(entries); i += 2 {
		task, ok := r.strings("HMGET", args[2]+*entries[i], "msg", "result")
		if !ok {
			return nil
		}
		vals = append(vals, task[0], entries[i+1], task[1])
	}
	return func(c *server.Peer) {
		c.WriteLen(len(vals))
		for _, val := range vals {
			writeBulk(c, val)
		}
	}
}

func writeBulk(c *server.Peer, s *string) {
	if s == nil {
		c.WriteNull()
		return
	}
	c.WriteBulk(*s)
}
