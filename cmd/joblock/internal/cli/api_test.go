//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// remoteRows are the rows of TestRun and TestTokens that also run with a lock server in place of Redis: those in which
// the way to the locks matters.
var remoteRows = map[string]bool{
	"exit 3": true, "TERM twice": true, "kill -9 of joblock": true, "kill -9 of the process with the lock": true,
	"the process with the lock is stopped": true, "joblock is stopped for longer than a lease": true, "held, --no-wait": true,
	"held for all of --wait": true, "held for a part of --wait": true, "TERM while waiting": true, "Redis is away": true,
	"Redis goes away and is back within the lease": true, "Redis is away for longer than the lease": true,
	"Redis hangs, and the command is stopped": true, "the release is forced": true, "--max-hold": true, "--limit 2": true,
	"--repeat, and the lock is lost": true,

	"by standard input and output": true, "by a file": true, "busy": true, "waits": true, "a signal ends the wait": true,
	"the answers to park, resume and release are lost": true, "permits": true, "the lease ends": true,
	"an operator has freed the key": true, "JSON": true,
}

// front puts a proxy between the commands and the server, and returns what makes the proxy drop answers.
func (s *stage) front() (drop *atomic.Bool) {
	s.Helper()
	at, err := url.Parse(s.api)
	if err != nil {
		s.Fatal(err)
	}
	drop = new(atomic.Bool)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(at) },
		FlushInterval: -1,
		ModifyResponse: func(*http.Response) error {
			if drop.Load() {
				panic(http.ErrAbortHandler)
			}
			return nil
		},
	}
	front := httptest.NewServer(proxy)
	s.Cleanup(front.Close)
	s.api = front.URL
	return drop
}

// Each row is what can happen between a command and a lock server, and not between a command and Redis.
func TestRemote(t *testing.T) {
	redis := redistest.Start(t)
	for name, row := range map[string]func(s *stage){
		"the answer to acquire is lost": func(s *stage) {
			drop, file := s.remotely().front(), s.file()
			drop.Store(true)
			s.wants(69, "", "acquire", key, "--ttl", "1m", "-n", "--token-file", file)
			held := s.state(joblock.StateHeld)
			drop.Store(false)
			s.wants(0, "", "acquire", key, "--ttl", "1m", "-n", "--token-file", file)
			if st := s.state(joblock.StateHeld); st.Fence != held.Fence {
				s.Errorf("fence %d, want %d: the same lock", st.Fence, held.Fence)
			}
			s.wants(0, "", "release", "--token-file", file)
			s.state(joblock.StateFree)
		},
		"the answer to acquire is lost, and the script gives up": func(s *stage) {
			drop, file := s.remotely().front(), s.file()
			drop.Store(true)
			s.wants(69, "", "acquire", key, "--ttl", "1m", "-n", "--token-file", file)
			s.state(joblock.StateHeld)
			drop.Store(false)
			s.wants(0, "", "release", "--token-file", file)
			s.state(joblock.StateFree)
		},
		"run outlives a deploy of the servers": func(s *stage) {
			a, b := s.serve("--pages=false"), s.serve("--pages=false")
			s.api = a.url + "," + b.url
			subject, rival := s.begins("tells", "--ttl", "6s", "--grace", "1s")
			a.signal(syscall.SIGTERM)
			a.exits(0)
			s.res.works("a", 8*time.Second) // for longer than a lease
			s.res.say("a", "exit 0")
			subject.exits(0)
			s.free(rival)
		},
		"run is without any server": func(s *stage) {
			p := s.serve("--pages=false")
			s.api = p.url
			subject := s.start("a", "obeys", "--ttl", "3s", "--grace", "500ms")
			s.res.sees("a", "hello")
			p.signal(syscall.SIGKILL)
			p.exits(-9)
			subject.exits(79)
			s.wantSaw("a", "SIGTERM bye")
			s.api = ""
			s.free(s.start("b", "obeys"))
		},
		"no server": func(s *stage) {
			s.api = "http://127.0.0.1:1"
			for _, args := range [][]string{{"run", key, "true"}, {"acquire", key, "--ttl", "1m"}, {"get", key}, {"ls"}, {"ping"}, {"doctor"}, {"cron", "ls"}} {
				_, said := s.wants(69, "", args...)
				if !strings.Contains(said, "127.0.0.1:1") {
					s.Errorf("%q said %q", args, said)
				}
			}
		},
		"rights": func(s *stage) {
			file := filepath.Join(s.TempDir(), "accounts.json")
			token := filepath.Join(s.TempDir(), "token")
			account(s.T, file, "ci", "lock", "--prefixes", "export:", "--out", token)
			s.api = s.serve("--accounts", file).url
			s.wants(77, "", "acquire", key, "--ttl", "1m")
			text, err := os.ReadFile(token)
			if err != nil {
				s.Fatal(err)
			}
			lock, _ := s.wants(0, "", "acquire", key, "--ttl", "1m", "--server-token-file", token)
			s.wants(77, "", "acquire", "other", "--ttl", "1m", "--server-token-file", token)
			s.wants(77, "", "ls", "--server-token-file", token)
			s.wants(77, "", "force-release", key, "--fence", "1", "--reason", "x", "--yes", "--server-token-file", token)
			_, said := s.wants(0, lock, "release", "--server-token-file", token)
			if strings.Contains(said, strings.TrimSpace(string(text))) {
				s.Errorf("a command has said the token: %s", said)
			}
		},
		"wrong usage": func(s *stage) {
			for _, args := range [][]string{
				{"get", key, "--server", "http://localhost:1", "--redis", "redis://localhost"}, {"get", key, "--server", "localhost:1"},
				{"get", key, "--server", "https://u:secret@h"}, {"get", key, "--server", "http://h", "--server-token-file", os.Args[0] + "x"},
				{"ls", "--share", "0.5"}, {"jobs", "sequences", "--share", "0.5"},
			} {
				s.api = "http://127.0.0.1:1"
				c := s.launch("joblock", s.joblock(args...))
				if <-c.done; c.cmd.ProcessState.ExitCode() != 64 || strings.Contains(c.stderr.String(), "secret") {
					s.Errorf("%q: %d %s", args, c.cmd.ProcessState.ExitCode(), c.stderr)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis))
		})
	}
}

// What commands for people print is the same, whether they ask Redis or a server. The texts that tell times differ.
func TestRemoteDesk(t *testing.T) {
	s := newStage(t, redistest.Start(t))
	p := s.serve("--scope", "shop")
	lock, err := s.locks.TryAcquire(context.Background(), key, joblock.Holder("web-1"), joblock.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.locks.TryAcquire(context.Background(), "other", joblock.TTL(time.Hour)); err != nil {
		t.Fatal(err)
	}
	both := func(code int, args ...string) (fields []map[string]any) {
		t.Helper()
		for _, at := range [][]string{{"--redis", "redis://" + s.redis.Addr(), "--prefix", s.prefix()}, {"--server", p.url}} {
			a := ask(t, append(args, at...)...).wants(code)
			var o map[string]any
			if a.out != "" {
				if err := json.Unmarshal([]byte(a.out), &o); err != nil {
					t.Fatalf("%q: %v in %s", args, err, a.out)
				}
			}
			fields = append(fields, o)
		}
		return fields
	}
	for schema, args := range map[string][]string{
		"get.json": {"get", key}, "explain.json": {"explain", key}, "ls.json": {"ls", "--sort", "key"}, "waiters.json": {"waiters", key},
		"top.json": {"top"}, "jobs.json": {"jobs", "ls"}, "sequences.json": {"jobs", "sequences"}, "audit.json": {"audit"}, "cron-jobs.json": {"cron", "ls", "-s", "shop"},
		"cron-nodes.json": {"cron", "nodes", "-s", "shop"}, "cron-scopes.json": {"cron", "scopes"},
	} {
		out := both(0, append(args, "-o", "json")...)
		if len(out[0]) != len(out[1]) || args[0] == "ls" && len(out[1]["items"].([]any)) != 2 {
			t.Errorf("%q: %v, %v", args, out[0], out[1])
		}
		text, err := json.Marshal(out[1])
		if err != nil {
			t.Fatal(err)
		}
		var v any
		wantJSON(t, schema, string(text), &v)
	}
	both(1, "permits", "unused", "-o", "json")
	fence := func(n int64) string { text, _ := json.Marshal(n); return string(text) }
	ask(t, "force-release", key, "--fence", fence(lock.Fence()+1), "--reason", "test", "--yes", "--server", p.url).wants(1)
	ask(t, "force-release", key, "--fence", fence(lock.Fence()), "--reason", "test", "--yes", "--server", p.url).wants(0)
	if s.status().State != joblock.StateFree {
		t.Errorf("%+v", s.status())
	}
	for _, at := range [][]string{{"--redis", "redis://" + s.redis.Addr(), "--prefix", s.prefix()}, {"--server", p.url}} {
		ask(t, append([]string{"audit"}, at...)...).wants(0, "force release", "anyone", "done")
	}
	ask(t, "cron", "get", "none", "-s", "shop", "--server", p.url).wants(1)
	safe := both(0, "doctor", "-o", "json")
	a, _ := safe[0]["safe"].(map[string]any)
	b, _ := safe[1]["safe"].(map[string]any)
	if a["word"] != b["word"] || a["subject"] != b["subject"] || a["subject"] == nil {
		t.Errorf("whether locks are safe: %v, by the server, which has another address of Redis, %v", a, b)
	}
	ask(t, "watch", key, "--for", "300ms", "--server", p.url).wants(0, "now")
	s.api = p.url
	s.launch("ping", s.joblock("ping", "-c", "2")).exits(0)
}

// Whether locks are safe is what the lock server says, which has looked.
func TestTheDoctorOfALockServer(t *testing.T) {
	t.Parallel()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text := `{"places": [], "stand_by": 0, "now": "2026-01-02T03:04:05.000Z"}`
		if r.URL.Path == "/v1/doctor" {
			text = `{"safe": {"word": "unknown", "because": "a reason of its own"}, "items": [], "checks": [{"status": "well", "subject": "appendonly", "found": "yes"}]}`
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(front.Close)
	ask(t, "doctor", "--server", front.URL).wants(0, "Safe for locks: unknown, because a reason of its own.")
	var c ops.Report
	wantJSON(t, "doctor.json", ask(t, "doctor", "--server", front.URL, "-o", "json").wants(0).out, &c)
	if c.Safe != (ops.Safety{Word: "unknown", Because: "a reason of its own"}) {
		t.Errorf("%+v", c.Safe)
	}
}
