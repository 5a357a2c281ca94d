//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// short are the flags for tests in which a lease ends.
var short = []string{"--ttl", "4s", "--grace", "1s"}

// long are the flags for tests in which the lock must be free before the lease ends.
var long = []string{"--ttl", "120s"}

// begins starts the process a, with a command, and the rival b.
func (s *stage) begins(mode string, flags ...string) (a, b *process) {
	s.Helper()
	a = s.start("a", mode, flags...)
	s.res.sees("a", "hello")
	return a, s.rival()
}

// Every row of RUN.md about one process and its rival.
func TestRun(t *testing.T) {
	redis := redistest.Start(t)
	rows := map[string]func(s *stage){
		"exit 0": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"exit 3": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "exit 3")
			a.exits(3)
			s.free(b)
		},
		"dies of SIGSEGV": func(s *stage) {
			a := s.launch("a", s.joblock("run", "--prefix", s.prefix(), "--ttl", "120s", key, "/bin/sh", "-c", "kill -SEGV $$"))
			a.exits(128 + int(syscall.SIGSEGV))
			s.free(s.start("b", "obeys"))
		},
		"dies of SIGKILL": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "raise 9")
			a.exits(137)
			s.free(b)
		},

		"TERM, which the command obeys":   signalRow(syscall.SIGTERM, "obeys", 7, "SIGTERM bye"),
		"INT, which the command obeys":    signalRow(syscall.SIGINT, "obeys", 7, "SIGINT bye"),
		"HUP, which the command obeys":    signalRow(syscall.SIGHUP, "obeys", 7, "SIGHUP bye"),
		"QUIT, which the command obeys":   signalRow(syscall.SIGQUIT, "obeys", 7, "SIGQUIT bye"),
		"TERM ends the command":           signalRow(syscall.SIGTERM, "defaults", 128+15, ""),
		"INT ends the command":            signalRow(syscall.SIGINT, "defaults", 128+2, ""),
		"HUP ends the command":            signalRow(syscall.SIGHUP, "defaults", 128+1, ""),
		"USR1 is passed on":               passedOnRow(syscall.SIGUSR1),
		"USR2 is passed on":               passedOnRow(syscall.SIGUSR2),
		"WINCH is passed on":              passedOnRow(syscall.SIGWINCH),
		"TERM, which the command ignores": passedOnRow(syscall.SIGTERM),
		"TERM twice":                      twiceRow(syscall.SIGTERM, syscall.SIGTERM),
		"INT twice":                       twiceRow(syscall.SIGINT, syscall.SIGINT),
		"INT, then TERM":                  twiceRow(syscall.SIGINT, syscall.SIGTERM),

		"TSTP, then CONT": func(s *stage) {
			a, b := s.begins("tells", "--ttl", "8s", "--grace", "1s")
			a.signal(syscall.SIGTSTP)
			s.until("joblock is stopped", func() bool { return stateOf(a.cmd.Process.Pid) == "T" })
			s.res.works("a", 9*time.Second)
			a.signal(syscall.SIGCONT)
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"the command is stopped for longer than a lease": func(s *stage) {
			a, b := s.begins("tells", "--ttl", "8s", "--grace", "1s")
			pid := s.res.pid("a")
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			time.Sleep(9 * time.Second)
			_ = syscall.Kill(pid, syscall.SIGCONT)
			s.res.works("a", 0)
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"joblock is stopped for longer than a lease": func(s *stage) {
			a, b := s.begins("tells", "--ttl", "8s", "--grace", "1s")
			a.signal(syscall.SIGSTOP)
			s.res.works("a", 9*time.Second)
			a.signal(syscall.SIGCONT)
			s.res.works("a", 500*time.Millisecond)
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"the process with the lock is stopped": func(s *stage) {
			a, b := s.begins("tells", short...)
			_ = syscall.Kill(a.holder(), syscall.SIGSTOP)
			a.exits(79)
			s.wantSaw("a", "")
			s.free(b)
		},
		"kill -9 of joblock": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "fork child")
			s.res.sees("child", "hello")
			a.signal(syscall.SIGKILL)
			a.exits(-9)
			s.res.ends("child")
			s.free(b)
			s.wantSaw("a", "")
		},
		"kill -9 of the process with the lock": func(s *stage) {
			a, b := s.begins("tells", short...)
			s.res.say("a", "setsid child")
			s.res.sees("child", "hello")
			_ = syscall.Kill(a.holder(), syscall.SIGKILL)
			a.exits(79)
			s.res.ends("child")
			s.free(b)
			s.wantSaw("a", "")
		},
		"kill -9 of both": func(s *stage) {
			a, b := s.begins("tells", short...)
			holder := a.holder()
			a.signal(syscall.SIGSTOP) // so that joblock sees nothing
			_ = syscall.Kill(holder, syscall.SIGKILL)
			a.signal(syscall.SIGKILL)
			a.exits(-9)
			s.res.ends("a")
			s.free(b)
		},

		"a process is left behind": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "fork child")
			s.res.sees("child", "hello")
			s.res.say("a", "exit 4")
			s.until("joblock waits", func() bool { return strings.Contains(a.stderr.String(), "left behind") })
			s.res.works("child", 200*time.Millisecond)
			s.res.say("child", "exit 0")
			a.exits(4)
			s.free(b)
		},
		"a daemon is left behind": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "setsid child")
			s.res.sees("child", "hello")
			s.res.say("a", "exit 0")
			s.until("joblock waits", func() bool { return strings.Contains(a.stderr.String(), "left behind") })
			s.res.say("child", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"a daemon is left behind, --leave": func(s *stage) {
			a := s.start("a", "tells", append([]string{"--leave"}, long...)...)
			s.res.sees("a", "hello")
			s.res.say("a", "setsid child")
			s.res.sees("child", "hello")
			s.res.say("a", "exit 4")
			a.exits(4)
			if st := s.status(); st.State != joblock.StateFree || st.Ended != driver.EndedReleased {
				s.Errorf("the lock is %s, ended %q", st.State, st.Ended)
			}
			s.res.works("child", 200*time.Millisecond) // it was not killed
			s.res.say("child", "exit 0")
			s.res.ends("child")
		},
		"the lock is lost before the command has ended, --leave": func(s *stage) {
			a, b := s.begins("tells", append([]string{"--leave"}, long...)...)
			s.res.say("a", "setsid child")
			s.res.sees("child", "hello")
			if err := s.locks.ForceRelease(context.Background(), key, joblock.Reason("by hand")); err != nil {
				s.Fatal(err)
			}
			a.exits(79)
			s.res.ends("child")
			s.free(b)
		},
		"TERM while a process is left behind": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.res.say("a", "setsid child")
			s.res.sees("child", "hello")
			s.res.say("a", "exit 4")
			s.until("joblock waits", func() bool { return strings.Contains(a.stderr.String(), "left behind") })
			a.signal(syscall.SIGTERM)
			a.exits(4)
			s.res.ends("child")
			s.free(b)
		},

		"no such command": func(s *stage) {
			a := s.launch("a", s.joblock("run", "--prefix", s.prefix(), key, "no-such-command"))
			a.exits(127)
			s.untouched()
		},
		"the command is not executable": func(s *stage) {
			file := filepath.Join(s.TempDir(), "x")
			if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o644); err != nil {
				s.Fatal(err)
			}
			a := s.launch("a", s.joblock("run", "--prefix", s.prefix(), key, file))
			a.exits(126)
			s.untouched()
		},
		"the command is no program": func(s *stage) {
			file := filepath.Join(s.TempDir(), "x")
			if err := os.WriteFile(file, []byte("hello\n"), 0o755); err != nil {
				s.Fatal(err)
			}
			a := s.launch("a", s.joblock("run", "--prefix", s.prefix(), key, file))
			a.exits(126)
			if st := s.status(); st.Ended != driver.EndedReleased {
				s.Errorf("the lock is %+v, want it to be released", st)
			}
		},
		"bad usage": func(s *stage) {
			for _, flags := range [][]string{
				{"--ttl", "10s", "--grace", "4s"}, {"--ttl", "1ms", "--grace", "0"}, {"-n", "-w", "1"}, {"-w", "x"}, {"-w", "-1"}, {"--repeat", "-n"},
				{"-E", "256"}, {"--limit", "-1"}, {"--limit", "300"}, {"--max-hold", "1s"}, {"--nosuch"}, {"--timeout", "0"},
				{"-r", "redis://u:secret@localhost"}, {"-r", "http://x"}, {"--prefix", "\n"}, {"--holder", "\n"}, {"-c", "x", "y"},
			} {
				p := s.launch("a", s.joblock(append(append([]string{"run", "--prefix", s.prefix()}, flags...), key, "true")...))
				p.exits(64)
				if strings.Contains(p.stderr.String(), "secret") {
					s.Errorf("%q: the password is in %q", flags, p.stderr)
				}
			}
			s.launch("a", s.joblock("run")).exits(64)
			s.launch("a", s.joblock("run", key)).exits(64)
			s.launch("a", s.joblock("run", "bad\nkey", "true")).exits(64)
			s.untouched()
		},
		"the key is no lock": func(s *stage) {
			if err := s.redis.Client(s.T).Set(context.Background(), s.prefix()+key, "x", 0).Err(); err != nil {
				s.Fatal(err)
			}
			a := s.start("a", "tells")
			a.exits(64)
			a.says("not a lock")
		},

		"held, --no-wait": func(s *stage) {
			a, b := s.begins("tells", long...)
			c := s.start("c", "tells", "--no-wait")
			c.exits(75)
			c.says("a") // who has the lock
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
			s.wantSaw("c", "")
		},
		"held, --no-wait -E 9": func(s *stage) {
			s.begins("tells", long...)
			s.start("c", "tells", "-n", "-E", "9").exits(9)
		},
		"held for all of --wait": func(s *stage) {
			a, b := s.begins("tells", long...)
			c := s.start("c", "tells", "--wait", "0.3")
			c.exits(75)
			s.inLine(1)
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"held for a part of --wait": func(s *stage) {
			a := s.start("a", "tells", long...)
			s.res.sees("a", "hello")
			b := s.rival("--wait", "10m")
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"TERM while waiting": waitingRow(syscall.SIGTERM),
		"INT while waiting":  waitingRow(syscall.SIGINT),
		"HUP while waiting":  waitingRow(syscall.SIGHUP),
		"QUIT while waiting": waitingRow(syscall.SIGQUIT),
		"USR1 while waiting": func(s *stage) {
			a, b := s.begins("tells", long...)
			b.signal(syscall.SIGUSR1)
			s.res.works("a", 200*time.Millisecond)
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"kill -9 of joblock while waiting": func(s *stage) {
			a, b := s.begins("tells", long...)
			c := s.start("c", "obeys", long...)
			s.inLine(2)
			b.signal(syscall.SIGKILL)
			b.exits(-9)
			s.inLine(1) // the place is given up at once
			s.res.say("a", "exit 0")
			a.exits(0)
			s.res.sees("c", "hello")
			s.res.say("c", "exit 0")
			c.exits(0)
		},
		"kill -9 of the process that waits": func(s *stage) {
			s.begins("tells", long...)
			c := s.start("c", "obeys", long...)
			s.inLine(2)
			_ = syscall.Kill(c.holder(), syscall.SIGKILL)
			c.exits(70)
			s.wantSaw("c", "")
		},

		"Redis is away": func(s *stage) {
			s.proxy.Refuse()
			s.start("a", "tells").exits(69)
			s.untouched()
		},
		"Redis does not answer": func(s *stage) {
			s.proxy.BlackHole()
			a := s.start("a", "tells", "--timeout", "300ms")
			a.exits(69)
			a.says("no answer from Redis at " + s.proxy.Addr() + " within 300ms (--timeout), so the command did not run")
			s.wantSaw("a", "")
		},
		"Redis goes away while waiting, for a short time": func(s *stage) {
			a, b := s.begins("tells", long...)
			s.proxy.Cut()
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
		},
		"Redis goes away while waiting, for a long time": func(s *stage) {
			a := s.start("a", "tells", long...)
			s.res.sees("a", "hello")
			c := s.start("c", "tells", "--ttl", "2s", "--grace", "500ms", "--timeout", "300ms")
			s.inLine(1)
			s.proxy.Refuse()
			c.exits(69)
			s.wantSaw("c", "")
			s.proxy.Heal()
			s.res.say("a", "exit 0")
			a.exits(0)
		},
		"Redis goes away and is back within the lease": func(s *stage) {
			a, b := s.begins("tells", "--ttl", "9s", "--grace", "1s")
			s.proxy.Refuse()
			time.Sleep(500 * time.Millisecond)
			s.proxy.Heal()
			s.res.works("a", 4*time.Second) // the renewal after a third of the lease included
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
			s.wantSaw("a", "bye")
		},
		"Redis is away for longer than the lease": func(s *stage) {
			a := s.start("a", "tells", short...)
			s.res.sees("a", "hello")
			s.proxy.Refuse()
			a.exits(79)
			s.wantSaw("a", "SIGTERM")
			s.proxy.Heal()
			s.free(s.start("b", "obeys"))
		},
		"Redis is away, and the command obeys TERM": func(s *stage) {
			a := s.start("a", "obeys", short...)
			s.res.sees("a", "hello")
			s.proxy.Refuse()
			a.exits(79)
			s.wantSaw("a", "SIGTERM bye")
			s.proxy.Heal()
			s.free(s.start("b", "obeys"))
		},
		"Redis hangs for longer than the lease": func(s *stage) {
			a := s.start("a", "tells", short...)
			s.res.sees("a", "hello")
			s.proxy.BlackHole()
			a.exits(79)
			s.wantSaw("a", "SIGTERM")
			s.proxy.Heal()
			s.free(s.start("b", "obeys"))
		},
		"Redis hangs, and the command is stopped": func(s *stage) {
			a := s.start("a", "obeys", short...)
			s.res.sees("a", "hello")
			_ = syscall.Kill(s.res.pid("a"), syscall.SIGSTOP)
			s.proxy.BlackHole()
			a.exits(79)
			s.wantSaw("a", "SIGTERM bye")
			s.proxy.Heal()
			s.free(s.start("b", "obeys"))
		},
		"Redis is away when the command ends": func(s *stage) {
			a := s.start("a", "tells", "--ttl", "3s", "--grace", "500ms", "--timeout", "300ms")
			s.res.sees("a", "hello")
			s.proxy.Refuse()
			s.res.say("a", "exit 5")
			a.exits(5)
			a.says("got no answer")
			s.proxy.Heal()
			s.free(s.start("b", "obeys"))
		},
		"the release is forced": func(s *stage) {
			a, b := s.begins("tells", long...)
			if err := s.locks.ForceRelease(context.Background(), key, joblock.Reason("by hand")); err != nil {
				s.Fatal(err)
			}
			a.exits(79)
			a.says("lock lost")
			s.wantSaw("a", "")
			s.res.any = true // for as long as the push takes, both may have worked: the fences tell
			s.free(b)
		},
		"the release was forced, and the command ends before joblock knows": func(s *stage) {
			proxy := s.proxy
			a := s.start("a", "tells", long...)
			s.res.sees("a", "hello")
			s.until("a subscription", func() bool { return hears(s.T, s.redis.Addr(), s.prefix()) })
			proxy.Always(redistest.Any, redistest.DelayReply(100*time.Millisecond))
			s.locksForced()
			s.res.say("a", "exit 0")
			a.exits(79)
		},
		"--max-hold": func(s *stage) {
			a, b := s.begins("tells", "--ttl", "4s", "--grace", "1s", "--max-hold", "5s")
			a.exits(79)
			s.wantSaw("a", "SIGTERM")
			s.free(b)
		},

		"--limit 2": func(s *stage) {
			s.res.any = true
			a := s.start("a", "tells", "--limit", "2")
			c := s.start("c", "tells", "--limit", "2")
			s.res.sees("a", "hello")
			s.res.sees("c", "hello")
			s.start("d", "tells", "--limit", "2", "--no-wait").exits(75)
			b := s.start("b", "obeys", "--limit", "2")
			s.res.say("a", "exit 0")
			a.exits(0)
			s.free(b)
			s.res.say("c", "exit 0")
			c.exits(0)
		},
		"--repeat, and the command ends": func(s *stage) {
			a := s.start("a", "obeys", "--repeat")
			s.res.sees("a", "hello")
			s.res.say("a", "exit 1")
			s.res.await("a again", func() bool { return s.res.count("a", "hello") == 2 })
			a.signal(syscall.SIGTERM)
			a.exits(7)
		},
		"--repeat, and the lock is lost": func(s *stage) {
			a := s.start("a", "obeys", "--repeat", "--ttl", "60s")
			s.res.sees("a", "hello")
			s.locksForced()
			s.res.await("a again", func() bool { return s.res.count("a", "hello") == 2 })
			a.signal(syscall.SIGTERM)
			a.exits(7)
		},
		"--repeat, and TERM in the pause": func(s *stage) {
			a := s.start("a", "obeys", "--repeat")
			s.res.sees("a", "hello")
			s.res.say("a", "exit 1")
			s.until("the pause", func() bool { return strings.Contains(a.stderr.String(), "again in") })
			a.signal(syscall.SIGTERM)
			a.exits(128 + 15)
		},

		"standard input": func(s *stage) {
			cmd := s.joblock(append([]string{"run", "--prefix", s.prefix(), key}, s.own("a", "tells")...)...)
			cmd.Stdin = strings.NewReader("one\ntwo\n")
			a := s.launch("a", cmd)
			s.res.sees("a", "hello")
			s.res.say("a", "read")
			s.res.sees("a", `read "one\n" <nil>`)
			s.res.say("a", "exit 0")
			a.exits(0)
		},
		"other files stay open": func(s *stage) {
			file, err := os.Create(filepath.Join(s.TempDir(), "x"))
			if err != nil {
				s.Fatal(err)
			}
			defer file.Close()
			cmd := s.joblock("run", "--prefix", s.prefix(), "-c", key, "echo three >&3; echo out; echo err >&2")
			cmd.ExtraFiles = []*os.File{file}
			a := s.launch("a", cmd)
			a.exits(0)
			text, err := os.ReadFile(file.Name())
			if string(text) != "three\n" || a.stdout.String() != "out\n" || a.stderr.String() != "err\n" {
				s.Errorf("file 3 has %q, %v; stdout %q, stderr %q", text, err, a.stdout, a.stderr)
			}
		},
		"HUP under nohup": func(s *stage) {
			cmd := s.joblock()
			file, err := os.Executable()
			if err != nil {
				s.Fatal(err)
			}
			args := append([]string{file, "run", "--prefix", s.prefix(), key}, s.own("a", "defaults")...)
			cmd.Path, cmd.Args = "/usr/bin/nohup", append([]string{"nohup"}, args...)
			a := s.launch("a", cmd)
			s.res.sees("a", "hello")
			a.signal(syscall.SIGHUP)
			s.res.works("a", 200*time.Millisecond)
			s.res.say("a", "exit 0")
			a.exits(0)
		},
		"the environment has no secret": func(s *stage) {
			cmd := s.joblock("run", "--prefix", s.prefix(), "-c", key, "env; cat /proc/$PPID/cmdline | tr '\\000' ' '")
			for i, pair := range cmd.Env {
				if strings.HasPrefix(pair, envRedis+"=") {
					cmd.Env[i] = envRedis + "=redis://named:geheim@" + s.proxy.Addr()
				}
			}
			if err := s.redis.Client(s.T).Do(context.Background(), "ACL", "SETUSER", "named", "on", ">geheim", "~*", "&*", "+@all").Err(); err != nil {
				s.Fatal(err)
			}
			a := s.launch("a", cmd)
			a.exits(0)
			out := a.stdout.String()
			if strings.Contains(out, "geheim") || !strings.Contains(out, envRedis+"=redis://named@"+s.proxy.Addr()) ||
				!strings.Contains(out, "JOBLOCK_KEY="+key+"\n") || !strings.Contains(out, "JOBLOCK_FENCE=") || strings.Contains(out, envHolder) {
				s.Errorf("the command has the environment\n%s", out)
			}
		},
		"--report": func(s *stage) {
			file := filepath.Join(s.TempDir(), "report")
			a := s.start("a", "tells", "--report", file)
			s.res.sees("a", "hello")
			s.res.say("a", "exit 75")
			a.exits(75)
			s.wantReport(file, report{V: 1, Key: key, Acquired: true, Fence: s.res.fence("a"), Ran: true, Exit: 75})
			held := s.start("b", "tells")
			s.res.sees("b", "hello")
			s.start("c", "tells", "--report", file, "--no-wait").exits(75)
			s.wantReport(file, report{V: 1, Key: key, Exit: 75, Reason: "*"})
			s.res.say("b", "exit 0")
			held.exits(0)
		},

		"wrong password": func(s *stage) {
			file := filepath.Join(s.TempDir(), "password")
			if err := os.WriteFile(file, []byte("wrong\n"), 0o600); err != nil {
				s.Fatal(err)
			}
			s.start("a", "tells", "-r", "redis://limited@"+s.redis.Addr(), "--redis-password-file", file).exits(77)
			s.untouched()
		},
		"the user has no rights": func(s *stage) {
			file := filepath.Join(s.TempDir(), "password")
			if err := os.WriteFile(file, []byte("pw\n"), 0o600); err != nil {
				s.Fatal(err)
			}
			if err := s.redis.Client(s.T).Do(context.Background(), "ACL", "SETUSER", "poor", "on", ">pw", "~*", "+ping").Err(); err != nil {
				s.Fatal(err)
			}
			s.start("a", "tells", "-r", "redis://poor@"+s.redis.Addr(), "--redis-password-file", file).exits(77)
			s.untouched()
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis))
		})
		if !remoteRows[name] {
			continue
		}
		t.Run("remote/"+name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis).remotely())
		})
	}
}

// signalRow is a row about a signal to joblock, by which the command ends.
func signalRow(n syscall.Signal, mode string, code int, saw string) func(s *stage) {
	return func(s *stage) {
		a, b := s.begins(mode, long...)
		a.signal(n)
		a.exits(code)
		s.wantSaw("a", saw)
		s.free(b)
	}
}

// passedOnRow is a row about a signal to joblock, after which the command goes on.
func passedOnRow(n syscall.Signal) func(s *stage) {
	return func(s *stage) {
		a, b := s.begins("tells", long...)
		a.signal(n)
		s.until("the command to see the signal", func() bool { return strings.HasPrefix(s.res.saw("a"), "SIG") })
		s.res.works("a", 200*time.Millisecond) // it goes on
		s.res.say("a", "exit 0")
		a.exits(0)
		if got := s.res.saw("a"); !strings.HasPrefix(got, "SIG") || !strings.HasSuffix(got, " bye") {
			s.Errorf("the command saw %q, want the signal and its own end", got)
		}
		s.free(b)
	}
}

// twiceRow is a row about two signals to joblock. The second one kills a command that ignores the first one.
func twiceRow(first, second syscall.Signal) func(s *stage) {
	return func(s *stage) {
		a, b := s.begins("tells", long...)
		s.res.say("a", "setsid child")
		s.res.sees("child", "hello")
		a.signal(first)
		s.res.await("the first signal", func() bool {
			for _, n := range s.res.notes {
				if n.Name == "a" && strings.HasPrefix(n.What, "SIG") {
					return true
				}
			}
			return false
		})
		a.signal(second)
		a.exits(137)
		s.res.ends("child")
		s.free(b)
	}
}

// waitingRow is a row about a signal that ends a wait.
func waitingRow(n syscall.Signal) func(s *stage) {
	return func(s *stage) {
		a, b := s.begins("tells", long...)
		c := s.start("c", "obeys", long...)
		s.inLine(2)
		b.signal(n)
		b.exits(128 + int(n))
		s.inLine(1)
		s.wantSaw("b", "")
		s.res.say("a", "exit 0")
		a.exits(0)
		s.res.sees("c", "hello")
		s.res.say("c", "exit 0")
		c.exits(0)
	}
}

// untouched checks that the lock was never taken, and that no command has come.
func (s *stage) untouched() {
	s.Helper()
	if st := s.status(); st.Fence != 0 {
		s.Errorf("the lock is %+v, want it untouched", st)
	}
	if got := s.res.reports(); got != "" {
		s.Errorf("a command has come: %s", got)
	}
}

func (s *stage) locksForced() {
	s.Helper()
	if err := s.locks.ForceRelease(context.Background(), key, joblock.Reason("by hand")); err != nil {
		s.Fatal(err)
	}
}

// wantReport checks a report, without the time of the wait. A Reason of "*" is any reason.
func (s *stage) wantReport(file string, want report) {
	s.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(text, &got); err != nil {
		s.Fatalf("%s: %v", text, err)
	}
	got.WaitedMS = 0
	if want.Reason == "*" && got.Reason != "" {
		want.Reason = got.Reason
	}
	if !reflect.DeepEqual(got, want) {
		s.Errorf("the report is %+v, want %+v", got, want)
	}
}

// stateOf returns the letter that the kernel has for the state of a process: "T" is stopped.
func stateOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return fields[0]
}

// A Redis that has lost its data gives the lock to the next who asks.
func TestRunWhenRedisForgets(t *testing.T) {
	redis := redistest.Start(t)
	s := newStage(t, redis)
	a := s.start("a", "tells", "--ttl", "6s", "--grace", "1s")
	s.res.sees("a", "hello")
	redis.Restart()
	a.exits(79)
	s.wantSaw("a", "")
	s.free(s.start("b", "obeys"))
}
