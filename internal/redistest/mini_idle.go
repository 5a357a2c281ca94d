package redistest

import (
	"bufio"
	"bytes"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// idle are scripts of asynq v0.26 by their SHA-1. An asynq server runs these scripts all the time, and mostly there is
// nothing to do. Then the script only reads one key, and the answer is always the same. miniredis builds a Lua state for
// each call of a script, which takes a hundred times as long as that read.
//
// A script that is not listed here runs as always. That includes the scripts of other versions of asynq.
var idle = map[string]func(m miniReader, keys, args []string, c *server.Peer) (answered bool){
	// dequeue takes the first pending task, unless the queue is paused.
	"a8153319360adc71cdc370107f8ab9786f204765": func(m miniReader, keys, _ []string, c *server.Peer) bool {
		if m.ask("EXISTS", keys[0]) != ":0" && m.ask("EXISTS", keys[1]) != ":1" {
			return false
		}
		c.WriteNull()
		return true
	},
	// forward makes scheduled tasks pending when it is their time.
	"522b1a6ae66fe79ea2f24a9af58798ab71879035": noneDue(func(c *server.Peer) { c.WriteInt(0) }),
	// deleteExpiredCompletedTasks forgets the completed tasks that have been kept for long enough.
	"49c4326d80c1db9c476da2aa7f4438d03688f82b": noneDue(func(c *server.Peer) { c.WriteInt(0) }),
	// listLeaseExpired finds the tasks of servers that have died.
	"16988a462595f6ee317be300951533b004f27f5c": noneDue(func(c *server.Peer) { c.WriteLen(0) }),
}

// noneDue is for scripts that do something with the members of a sorted set up to a score.
func noneDue(answer func(*server.Peer)) func(miniReader, []string, []string, *server.Peer) bool {
	return func(m miniReader, keys, args []string, c *server.Peer) bool {
		if m.ask("ZCOUNT", keys[0], "-inf", args[0]) != ":0" {
			return false
		}
		answer(c)
		return true
	}
}

// answerIdle is a hook of miniredis that answers calls of the scripts in idle that have nothing to do, and calls of the
// scripts in simple.
func answerIdle(srv *server.Server) server.Hook {
	return func(c *server.Peer, cmd string, args ...string) bool {
		if cmd != "EVALSHA" || len(args) < 2 {
			return false
		}
		script := idle[args[0]]
		if script == nil {
			script = simple[args[0]]
		}
		n := len(args[1]) == 1 && args[1][0] >= '1' && args[1][0] <= '9'
		if script == nil || !n || len(args) <= 2+int(args[1][0]-'0') {
			return false
		}
		keys := int(args[1][0] - '0')
		return script(miniReader{srv, c}, args[2:2+keys], args[2+keys:], c)
	}
}

// miniReader asks a miniredis as one of its clients: in the client's database, and with the client's rights.
type miniReader struct {
	srv *server.Server
	as  *server.Peer
}

// ask returns the first line of the answer.
func (m miniReader) ask(args ...string) string {
	line, _, _ := strings.Cut(m.whole(args...), "\r\n")
	return line
}

// whole returns the answer as it is sent.
func (m miniReader) whole(args ...string) string {
	var buf bytes.Buffer
	w := bufio.NewWriterSize(&buf, 128) // most answers are short
	peer := server.NewPeer(w)
	peer.Ctx = m.as.Ctx
	m.srv.Dispatch(peer, args)
	peer.Flush()
	return buf.String()
}
