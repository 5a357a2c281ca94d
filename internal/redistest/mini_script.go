package redistest

import (
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// simple are scripts of asynq v0.26 by their SHA-1 that tests call very often and that are but a few commands. Each is
// done here in one transaction, so that no client sees half of it, as with the script itself. What is not usual, such as a
// task that is there already or a key of another type, is left to Lua.
var simple = map[string]func(m miniReader, keys, args []string, c *server.Peer) (answered bool){
	// enqueue makes a new task pending.
	"98d28b42650870a743450ffda9791e9e19c6991b": func(m miniReader, keys, args []string, c *server.Peer) bool {
		return len(keys) == 2 && len(args) == 3 && m.create(c, keys[0], keys[1], "list",
			[]string{"HSET", keys[0], "msg", args[0], "state", "pending", "pending_since", args[2]},
			[]string{"LPUSH", keys[1], args[1]})
	},
	// schedule makes a new task for later.
	"8ce6b38a99b73194585c251eb3c2a89559f37a87": func(m miniReader, keys, args []string, c *server.Peer) bool {
		if len(keys) != 2 || len(args) != 3 {
			return false
		}
		if _, err := strconv.ParseInt(args[1], 10, 64); err != nil {
			return false
		}
		return m.create(c, keys[0], keys[1], "zset",
			[]string{"HSET", keys[0], "msg", args[0], "state", "scheduled"},
			[]string{"ZADD", keys[1], args[1], args[2]})
	},
	// writeServerState says that a server is alive, and what it does.
	"3c8548ad44d0dfcfde50f07ea9271d77f656042c": func(m miniReader, keys, args []string, c *server.Peer) bool {
		if len(keys) != 2 || len(args) < 2 || len(args)%2 != 0 {
			return false
		}
		if n, err := strconv.Atoi(args[0]); err != nil || n <= 0 {
			return false
		}
		cmds := [][]string{{"SETEX", keys[0], args[0], args[1]}, {"DEL", keys[1]}}
		for i := 2; i < len(args); i += 2 {
			cmds = append(cmds, []string{"HSET", keys[1], args[i], args[i+1]})
		}
		if _, ok := m.exec(append(cmds, []string{"EXPIRE", keys[1], args[0]})...); !ok {
			return false
		}
		c.WriteInline("OK")
		return true
	},
	// getTaskInfo reads a task.
	"1463a65d3fd6698099862e1314658984affe6ed7": func(m miniReader, keys, args []string, c *server.Peer) bool {
		if len(keys) != 1 || len(args) != 3 {
			return false
		}
		said, ok := m.exec([]string{"HMGET", keys[0], "msg", "state", "result"},
			[]string{"ZSCORE", args[2] + "scheduled", args[0]}, []string{"ZSCORE", args[2] + "retry", args[0]})
		if !ok {
			return false
		}
		vals, ok := bulks(said, 5)
		if !ok || vals[0] == nil || vals[1] == nil {
			return false
		}
		next := func() { c.WriteInt(0) }
		switch *vals[1] {
		case "scheduled":
			next = func() { writeBulk(c, vals[3]) }
		case "retry":
			next = func() { writeBulk(c, vals[4]) }
		case "pending":
			next = func() { c.WriteBulk(args[1]) }
		}
		c.WriteLen(4)
		writeBulk(c, vals[0])
		writeBulk(c, vals[1])
		next()
		writeBulk(c, vals[2])
		return true
	},
	// listZSetEntries reads a page of the tasks in a sorted set. In Lua a large page takes most of a second.
	"8ce4326dbba042f10ec098fa779168e0a9e8c6c8": func(m miniReader, keys, args []string, c *server.Peer) bool {
		if len(keys) != 1 || len(args) != 3 || m.ask("WATCH", keys[0]) != "+OK" {
			return false
		}
		page := m.whole("ZRANGE", keys[0], args[0], args[1], "WITHSCORES")
		entries, ok := bulks(page, strings.Count(page, "\r\n$")) // fewer than counted are refused
		if !ok || len(entries) == 0 {
			m.ask("UNWATCH")
			return false
		}
		var cmds [][]string
		for i := 0; i < len(entries); i += 2 {
			cmds = append(cmds, []string{"HMGET", args[2] + *entries[i], "msg", "result"})
		}
		said, ok := m.exec(cmds...)
		if !ok {
			return false
		}
		tasks, ok := bulks(said, len(entries))
		if !ok {
			return false
		}
		c.WriteLen(len(entries) / 2 * 3)
		for i := 0; i < len(entries); i += 2 {
			writeBulk(c, tasks[i])
			writeBulk(c, entries[i+1])
			writeBulk(c, tasks[i+1])
		}
		return true
	},
}

func writeBulk(c *server.Peer, s *string) {
	if s == nil {
		c.WriteNull()
		return
	}
	c.WriteBulk(*s)
}

// bulks reads the n strings of an answer, whatever the arrays that they are in; nil is a string that is not there.
func bulks(said string, n int) ([]*string, bool) {
	var vals []*string
	ok := true
	for ok && len(vals) < n {
		var line string
		if line, said, ok = strings.Cut(said, "\r\n"); ok && strings.HasPrefix(line, "*") {
			continue
		}
		if !ok || line == "" || line[0] != '$' {
			return nil, false
		}
		size, err := strconv.Atoi(line[1:])
		if size < 0 {
			vals = append(vals, nil)
			continue
		}
		if err != nil || size > len(said)-2 {
			return nil, false
		}
		val := said[:size]
		vals, said = append(vals, &val), said[size+2:]
	}
	return vals, ok && said == ""
}

// create runs cmds if there is no task yet, and the answer is 1.
func (m miniReader) create(c *server.Peer, task, set, kind string, cmds ...[]string) bool {
	if m.ask("WATCH", task, set) != "+OK" {
		return false
	}
	typ := m.ask("TYPE", set)
	if m.ask("EXISTS", task) != ":0" || typ != "+none" && typ != "+"+kind {
		m.ask("UNWATCH")
		return false
	}
	if _, ok := m.exec(cmds...); !ok {
		return false
	}
	c.WriteInt(1)
	return true
}

// exec runs cmds in a transaction, and returns the whole answer. If ok is false, nothing has been done, or the commands
// read only.
func (m miniReader) exec(cmds ...[]string) (said string, ok bool) {
	if m.ask("MULTI") != "+OK" {
		return "", false
	}
	for _, cmd := range cmds {
		if m.ask(cmd...) != "+QUEUED" {
			m.ask("DISCARD")
			return "", false
		}
	}
	said = m.whole("EXEC")
	return said, strings.HasPrefix(said, "*"+strconv.Itoa(len(cmds))+"\r\n")
}
