package redistest

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// SetIFEQ gives m the command SET key value IFEQ old [GET] [PX ms], which Redis has from 8.4 on and Valkey from 8.1 on,
// and miniredis has not. m is a result of [MiniServer], and its clients use database 0.
func SetIFEQ(t testing.TB, m *miniredis.Miniredis) {
	t.Helper()
	const capture = "JOBLOCK.CAPTUREIFEQ"
	srv := m.Server()
	r := &scriptRun{srv: srv}
	r.as = server.NewPeer(bufio.NewWriterSize(&r.buf, 512))
	if err := srv.Register(capture, func(c *server.Peer, _ string, _ []string) { r.as.Ctx = c.Ctx; c.WriteOK() }); err != nil {
		t.Fatal(err)
	}
	srv.Dispatch(server.NewPeer(bufio.NewWriter(io.Discard)), []string{"EVAL", "redis.call('" + capture + "')", "0"})
	srv.SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		upper := make([]string, len(args))
		for i, arg := range args {
			upper[i] = strings.ToUpper(arg)
		}
		at := slices.Index(upper, "IFEQ")
		if !strings.EqualFold(cmd, "set") || at < 2 || at+1 >= len(args) {
			return false
		}
		get := slices.Index(upper[2:], "GET")
		m.Lock()
		defer m.Unlock()
		if kind := r.ask("TYPE", args[0]); kind != "+string" && kind != "+none" {
			c.WriteError("WRONGTYPE Operation against a key holding the wrong kind of value")
			return true
		}
		found := r.whole("GET", args[0])
		old := strings.HasPrefix(found, "$") && !strings.HasPrefix(found, "$-1")
		_, val, _ := strings.Cut(found, "\r\n")
		val = strings.TrimSuffix(val, "\r\n")
		equal := old && val == args[at+1]
		if equal {
			set := []string{"SET", args[0], args[1]}
			for i := 2; i < len(args); i++ {
				if i != at && i != at+1 && upper[i] != "GET" {
					set = append(set, args[i])
				}
			}
			r.whole(set...)
		}
		switch {
		case get >= 0 && old:
			c.WriteBulk(val)
		case get < 0 && equal:
			c.WriteOK()
		default:
			c.WriteNull()
		}
		return true
	})
}
